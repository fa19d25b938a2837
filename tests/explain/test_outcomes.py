"""Every way a job can end is stored as a code with data, by the place that decides, and explained from that."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ductile.core.model import (
    BranchResult,
    Completion,
    Evidence,
    FollowUps,
    Job,
    JoinInput,
    NewFact,
    NewJob,
    Outcome,
    OutcomeCode,
    Succeeded,
)
from ductile.engine.judge import RetryPolicy, judge
from ductile.explain.finished import outcome_reason
from ductile.explain.reason import Reason
from ductile.ledger.admin.job_actions import cancel, end_queued_jobs, purge
from ductile.ledger.completion.record import end_waiting
from ductile.ledger.completion.record_completion import record_or_give_up
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.jobs.dedupe import DEFAULT_TTL
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.jobs.tree_counters import DEFAULT_BUDGET
from ductile.ledger.queue.recover import recover_orphans
from ductile.ledger.reports import job_details
from ductile.ledger.storage.connections import transaction
from ductile.pipeline.run.route import RoutingConfig, resolve_join, trigger_run
from ductile.relay.client import HttpResponse
from ductile.relay.message import RelayMessage, build_message
from ductile.relay.response import SendResult, judge_response
from tests.engine.builders import a_run
from tests.engine.dispatcher_service import open_dispatcher, wait_until
from tests.ledger.conftest import LedgerDriver, db, ledger, path
from tests.pipeline.factories import make_routing
from tests.relay.test_send import configured, relay_job

__all__ = ["db", "ledger", "path"]

JOIN = "[{name: p, on: e, steps: [{id: s, split: [{id: a, uses: x}, {id: b, uses: y}], join: true}, {id: c, uses: z}]}]"
POLICY = RetryPolicy(timeout=timedelta(seconds=2))
OLD_CODES = {OutcomeCode.SKIPPED, OutcomeCode.NEVER_STARTED, OutcomeCode.GIVEN_UP}
"""General codes, which only the migration of an older ledger stores."""


def reason_of(ledger: LedgerDriver, job_id: str) -> Reason:
    return outcome_reason(job_details.job(ledger.db, job_id))


# ── plugins ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def judged(ledger: LedgerDriver, response: dict[str, Any], *, exit_code: int = 0, **values: Any) -> str:
    """Return a job whose process exited with this response, as the engine judges it."""
    ledger.enqueue(**values)
    job = ledger.claim_one()
    run = a_run({"status": "ok", "result": "done", **response}, exit_code=exit_code)
    ledger.end(job, judge(job, run, POLICY, started_at=ledger.now, jitter=0.5).outcome)
    return job.id


def answers_ok(ledger: LedgerDriver) -> str:
    return judged(ledger, {})


def exits_with_78(ledger: LedgerDriver) -> str:
    return judged(ledger, {}, exit_code=78)


def answers_retry_false(ledger: LedgerDriver) -> str:
    return judged(ledger, {"status": "error", "error": "no luck", "retry": False})


def emits_too_many_events(ledger: LedgerDriver) -> str:
    return judged(ledger, {"events": [{"type": "x"}] * 1001})


def uses_up_its_attempts(ledger: LedgerDriver) -> str:
    return judged(ledger, {"status": "error", "error": "no luck"}, max_attempts=1)


def stores_too_much(ledger: LedgerDriver) -> str:
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job, facts=(NewFact(fact_type="t", fact_json='"too long"', mirrored=True),), state_limit=2)
    return job.id


# ── ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_cancelled(ledger: LedgerDriver) -> str:
    job_id = ledger.enqueue().job_id
    with transaction(ledger.db):
        cancel(ledger.db, job_id, "not needed", now=ledger.now)
    return job_id


def is_purged(ledger: LedgerDriver) -> str:
    job_id = ledger.enqueue().job_id
    with transaction(ledger.db):
        purge(ledger.db, "echo", 1 << 62, "not needed", now=ledger.now)
    return job_id


def has_no_plugin(ledger: LedgerDriver) -> str:
    job_id = ledger.enqueue().job_id
    with transaction(ledger.db):
        end_queued_jobs(ledger.db, "echo", "plugin echo is disabled (enabled: false)", now=ledger.now)
    return job_id


def has_a_twin(ledger: LedgerDriver) -> str:
    ledger.enqueue(dedupe_key="k")
    twin = ledger.claim_one()
    job_id = ledger.enqueue(dedupe_key="k").job_id
    ledger.end(twin)
    ledger.claim()
    return job_id


def recovered(ledger: LedgerDriver) -> None:
    with transaction(ledger.db):
        recover_orphans(ledger.db, run_id="run-2", now=ledger.now)


def kills_the_service(ledger: LedgerDriver) -> str:
    ledger.enqueue(max_attempts=1)
    job = ledger.claim_one()
    recovered(ledger)
    return job.id


def has_an_unreadable_row(ledger: LedgerDriver) -> str:
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.db.execute("UPDATE job_queue SET started_at = 'yesterday'")
    recovered(ledger)
    return job.id


def has_an_impossible_child(ledger: LedgerDriver) -> str:
    ledger.enqueue()
    job = ledger.claim_one()
    child = NewJob(plugin="a", command="b", submitted_by="c", max_attempts=0)
    outcome = Succeeded(ledger.evidence())
    completion = Completion(job_id=job.id, attempt=1, outcome=outcome, children=(child,))
    with transaction(ledger.db):
        record_or_give_up(ledger.db, completion, now=ledger.now, default_ttl=DEFAULT_TTL, budget=DEFAULT_BUDGET)
    return job.id


def crosses_too_often(ledger: LedgerDriver) -> str:
    return ledger.enqueue(hops=21).job_id


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def started(ledger: LedgerDriver, pipeline: str, plugin: str, payload: dict[str, Any] | None = None) -> str:
    """Start a run and return its first job of this plugin."""
    routing = make_routing(pipeline)
    run = trigger_run(routing.plans.require("p"), payload or {}, routing, submitted_by="api", now=ledger.now)
    with transaction(ledger.db):
        start_run(ledger.db, run.follow_ups, now=ledger.now)
    found: str = ledger.db.execute("SELECT id FROM job_queue WHERE plugin = ? ORDER BY seq", (plugin,)).fetchone()[0]
    return found


def begins_with_two_jobs(ledger: LedgerDriver) -> str:
    return started(ledger, "[{name: p, on: e, steps: [{split: [{uses: x}, {uses: y}]}]}]", "core.start")


def has_a_condition(ledger: LedgerDriver, number: int) -> str:
    step = "{id: a, uses: x, if: {path: payload.n, op: eq, value: 2}}"
    return started(ledger, f"[{{name: p, on: e, steps: [{step}]}}]", "core.switch", {"n": number})


def has_a_true_condition(ledger: LedgerDriver) -> str:
    return has_a_condition(ledger, 2)


def has_a_false_condition(ledger: LedgerDriver) -> str:
    return has_a_condition(ledger, 1)


def repeats_over_nothing(ledger: LedgerDriver) -> str:
    return started(ledger, "[{name: p, on: e, steps: [{uses: x, foreach: payload.absent}]}]", "core.foreach")


def resolved(ledger: LedgerDriver, routing: RoutingConfig | None = None, **values: Any) -> str:
    """Start a run with a join and end the join as its pipeline decides for these members."""
    job_id = started(ledger, JOIN, "core.join")
    job = get_job(ledger.db, job_id)
    assert job is not None
    outcome, follow_ups = resolve_join(JoinInput(job=job, **values), routing or make_routing(JOIN), now=ledger.now)
    wait(ledger, job, outcome, follow_ups)
    return job_id


def wait(ledger: LedgerDriver, job: Job, outcome: Outcome, follow_ups: FollowUps) -> None:
    options: Any = {"now": ledger.now, "default_ttl": DEFAULT_TTL, "budget": DEFAULT_BUDGET}
    with transaction(ledger.db):
        end_waiting(ledger.db, job.id, job.attempt, outcome, follow_ups, **options)


def has_arrivals(ledger: LedgerDriver) -> str:
    return resolved(ledger, arrivals=(BranchResult(join_id="j", payload='{"n": 1}'),))


def has_failed_members(ledger: LedgerDriver) -> str:
    return resolved(ledger, failures=("a: no luck",), failed=3)


def has_too_many_characters(ledger: LedgerDriver) -> str:
    return resolved(ledger, arrivals=(BranchResult(join_id="j", payload=json.dumps("x" * (64 << 20))),))


def has_too_many_successors(ledger: LedgerDriver) -> str:
    return resolved(ledger, make_routing(JOIN, max_jobs=0), arrivals=(BranchResult(join_id="j", payload="{}"),))


def has_no_step_any_more(ledger: LedgerDriver) -> str:
    return resolved(ledger, make_routing("[]"))


def joins_duplicates(ledger: LedgerDriver) -> str:
    routing = make_routing(JOIN)
    job_id = started(ledger, JOIN, "core.join")
    ledger.db.execute("UPDATE job_queue SET dedupe_key = 'k' WHERE id = ?", (job_id,))
    job = get_job(ledger.db, job_id)
    assert job is not None
    wait(ledger, job, *resolve_join(JoinInput(job=job), routing, now=ledger.now))
    return job_id


def has_a_rule_that_fails(ledger: LedgerDriver) -> str:
    def fail(*_: object) -> Any:
        raise KeyError("no such step")

    ledger.fan_out(ledger.join())
    ledger.resolve_joins(fail)
    return "J"


# ── relays ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def relayed(ledger: LedgerDriver, home: Path, response: HttpResponse) -> str:
    """Return a relay job that got this response, as the relay judges it."""
    snapshot, job_id = configured(home), ledger.enqueue(plugin="core.relay").job_id
    job = relay_job(id=job_id)
    message = build_message(snapshot, job)
    assert isinstance(message, RelayMessage)
    sent, evidence = SendResult(response=response), Evidence(started_at=ledger.now, duration=timedelta())
    done = judge_response(job, message, sent, evidence, snapshot, now=ledger.now, chance=0.5)
    ledger.end(ledger.claim_one("core.relay"), done.outcome)
    return job_id


def is_accepted(ledger: LedgerDriver, home: Path) -> str:
    taken = {"status": "accepted", "accepted": True, "peer": "home", "receiver_event_id": "r-1"}
    return relayed(ledger, home, HttpResponse(202, {}, json.dumps(taken).encode()))


def is_refused(ledger: LedgerDriver, home: Path) -> str:
    return relayed(ledger, home, HttpResponse(422, {}, b"{}"))


def has_no_instance(ledger: LedgerDriver, home: Path) -> str:
    job_id = ledger.enqueue(plugin="core.relay").job_id
    outcome = build_message(configured(home), relay_job("closed", id=job_id))
    assert not isinstance(outcome, RelayMessage)
    ledger.end(ledger.claim_one("core.relay"), outcome)
    return job_id


# ── the codes ───────────────────────────────────────────────────────────────────────────────────────────────────────

SITUATIONS: dict[OutcomeCode, Callable[[LedgerDriver], str]] = {
    OutcomeCode.ANSWERED_OK: answers_ok,
    OutcomeCode.EXIT_78: exits_with_78,
    OutcomeCode.RETRY_FALSE: answers_retry_false,
    OutcomeCode.FINAL: emits_too_many_events,
    OutcomeCode.ATTEMPTS_USED_UP: uses_up_its_attempts,
    OutcomeCode.STATE_TOO_LARGE: stores_too_much,
    OutcomeCode.CANCELLED: is_cancelled,
    OutcomeCode.PURGED: is_purged,
    OutcomeCode.PLUGIN_UNAVAILABLE: has_no_plugin,
    OutcomeCode.DEDUPLICATED: has_a_twin,
    OutcomeCode.CORE_DIED: kills_the_service,
    OutcomeCode.QUARANTINED: has_an_unreadable_row,
    OutcomeCode.NOT_RECORDED: has_an_impossible_child,
    OutcomeCode.OVER_BUDGET: crosses_too_often,
    OutcomeCode.DECIDED: begins_with_two_jobs,
    OutcomeCode.CONDITION_TRUE: has_a_true_condition,
    OutcomeCode.CONDITION_FALSE: has_a_false_condition,
    OutcomeCode.REFUSED: repeats_over_nothing,
    OutcomeCode.JOINED: has_arrivals,
    OutcomeCode.NOT_JOINED: has_failed_members,
    OutcomeCode.JOIN_TOO_LARGE: has_too_many_characters,
    OutcomeCode.TOO_MANY_FOLLOW_UPS: has_too_many_successors,
    OutcomeCode.STEP_REMOVED: has_no_step_any_more,
    OutcomeCode.NOTHING_TO_JOIN: joins_duplicates,
    OutcomeCode.NOT_DECIDED: has_a_rule_that_fails,
}
STEPS = {OutcomeCode.PUBLISHED, OutcomeCode.REPLIED, OutcomeCode.REPLY_FAILED, OutcomeCode.NO_REPLY}
"""The ends of publish steps: tests/e2e/test_exchange_runs.py has them."""
RELAYS: dict[OutcomeCode, Callable[[LedgerDriver, Path], str]] = {
    OutcomeCode.RELAYED: is_accepted,
    OutcomeCode.RELAY_REFUSED: is_refused,
    OutcomeCode.INSTANCE_UNAVAILABLE: has_no_instance,
}


def check(ledger: LedgerDriver, job_id: str, code: OutcomeCode) -> None:
    """The code is stored and has a complete sentence, also after the job has left the queue."""
    reason = reason_of(ledger, job_id)
    assert (reason.code, "(unknown)" in reason.words) == (code, False), reason.words
    with transaction(ledger.db):
        ledger.db.execute("DELETE FROM job_queue")
    assert reason_of(ledger, job_id).words == reason.words


@pytest.mark.parametrize("code", SITUATIONS)
def test_a_job_ends_with_the_code_of_its_situation(ledger: LedgerDriver, code: OutcomeCode) -> None:
    check(ledger, SITUATIONS[code](ledger), code)


@pytest.mark.parametrize("code", RELAYS)
def test_a_relay_ends_with_the_code_of_its_situation(ledger: LedgerDriver, tmp_path: Path, code: OutcomeCode) -> None:
    check(ledger, RELAYS[code](ledger, tmp_path), code)


@pytest.mark.process
async def test_a_bug_after_the_run_ends_a_job_with_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ductile.engine import run_job

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(run_job, "complete", fail)
    async with open_dispatcher(tmp_path, """echo '{"status": "ok", "result": "done"}'""") as dispatcher:
        await dispatcher.start()
        job_id = await dispatcher.queue()
        await wait_until(lambda: dispatcher.status(job_id) == "failed")
        codes = dispatcher.rows("SELECT outcome_code FROM job_log WHERE job_id = ?", job_id)
    assert codes == [(OutcomeCode.INTERNAL_ERROR,)]


def test_every_code_has_a_situation() -> None:
    """The three general codes come from older ledgers; the migration test has them."""
    assert {*SITUATIONS, *RELAYS, *STEPS, OutcomeCode.INTERNAL_ERROR} == set(OutcomeCode) - OLD_CODES


def test_an_attempt_that_is_retried_has_no_outcome(ledger: LedgerDriver) -> None:
    job_id = judged(ledger, {"status": "error", "error": "no luck"})

    (attempt,) = job_details.attempts(ledger.db, job_id)
    assert (attempt.outcome_code, attempt.outcome_data) == (None, None)


def test_a_second_problem_is_kept_in_addition_to_the_first(ledger: LedgerDriver) -> None:
    """A cancelled job whose follow-up jobs cannot be recorded is still cancelled."""

    def fail(*_: object) -> FollowUps:
        raise KeyError("no such step")

    job_id = ledger.enqueue().job_id
    with transaction(ledger.db):
        cancel(ledger.db, job_id, "not needed", now=ledger.now, rule=fail)

    reason = reason_of(ledger, job_id)
    assert (reason.code, reason.data["reason"]) == ("cancelled", "not needed")
    assert reason.words.endswith("not needed; its follow-up jobs cannot be recorded: KeyError: 'no such step'")


def test_a_row_without_a_code_is_unexplained(ledger: LedgerDriver) -> None:
    """As in a database adopted from the original."""
    job_id = uses_up_its_attempts(ledger)
    ledger.db.execute("UPDATE job_log SET outcome_code = NULL")

    reason = reason_of(ledger, job_id)
    assert (reason.code, "ended dead" in reason.words) == ("unexplained", True)


def test_an_unknown_code_is_shown_unchanged(ledger: LedgerDriver) -> None:
    job_id = uses_up_its_attempts(ledger)
    ledger.db.execute("UPDATE job_log SET outcome_code = 'eaten'")

    assert reason_of(ledger, job_id).words.startswith("eaten: ")
