"""Dry runs: the prediction of every construct, and its agreement with a real run."""

import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings

from ductile.core.model import Completion, Evidence, Failed, Job, JobStatus, JoinInput, Outcome, Succeeded
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from ductile.pipeline.compile.plan import Plans
from ductile.pipeline.dry_run.answers import AnswerEvent, PluginAnswer, parse_answers
from ductile.pipeline.dry_run.dry_run import DryRunLine, DryRunResult, dry_run_pipeline
from ductile.pipeline.run.events import JobResult
from ductile.pipeline.run.route import (
    Routes,
    RoutingConfig,
    Target,
    TooManyFollowUps,
    compute_follow_ups,
    resolve_join,
    trigger_run,
)
from tests.ledger.recording import record_and_claim
from tests.pipeline.compiling import compile_text
from tests.pipeline.random_pipelines import PAYLOAD, Data, pipelines_strategy

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def dry_run(steps: str, payload: dict[str, Any] | None = None, answers: Any = None, **more: Any) -> DryRunResult:
    """Dry-run a pipeline `p` with these steps (YAML flow)."""
    routing: RoutingConfig = more.pop("routing", RoutingConfig())
    routing = evolve(routing, plans=compile_text(f"- {{name: p, on: e, steps: [{steps}]}}" + more.pop("others", "")))
    plan = routing.plans.require("p")
    return dry_run_pipeline(plan, payload or {}, routing, parse_answers(answers or {}, plan.nodes), now=NOW, **more)


def summary(found: DryRunResult) -> list[str]:
    return [f"{line.step}{list(line.indexes) or ''} {line.outcome}: {line.why}" for line in found.lines]


def line(found: DryRunResult, step: str, kind: str = "uses") -> DryRunLine:
    (matching,) = [each for each in found.lines if (each.step, each.kind) == (step, kind)]
    return matching


SILENT = "no response given: succeeds without events"


def test_every_step_is_listed_in_execution_order() -> None:
    """A step without an answer succeeds without events and passes its payload on."""
    found = dry_run("{id: a, uses: x}, {id: b, uses: y.poll}", {"n": 1})

    assert (found.status, summary(found)) == (JobStatus.SUCCEEDED, [f"a simulated: {SILENT}", f"b simulated: {SILENT}"])
    assert (line(found, "a").led_to, line(found, "b").led_to) == (("b",), ())
    assert (line(found, "b").plugin, line(found, "b").command, line(found, "b").pipeline) == ("y", "poll", "p")
    assert line(found, "b").payload["n"] == 1
    assert line(found, "b").payload["result"] == "simulated"


def test_given_answers_replace_the_plugins() -> None:
    """Two events run the next step twice, each with its own payload."""
    events = [{"type": "line_of_a", "payload": {"n": 1}}, {"type": "two", "payload": {"n": 2, "result": "own"}}]

    found = dry_run("{id: a, uses: x}, {id: b, uses: y}", answers={"a": {"result": "said", "events": events}})

    assert line(found, "a").why == "simulated response given"
    got = [(each.payload["n"], each.payload["result"]) for each in found.lines if each.step == "b"]
    assert got == [(1, "said"), (2, "own")]


def test_a_given_failure_runs_the_on_error_steps() -> None:
    """The next step is not reached, and the run fails."""
    found = dry_run(
        "{id: a, uses: x, on_error: [{id: help, uses: y}]}, {id: b, uses: z}", answers={"a": {"fail": "offline"}}
    )

    assert found.status is JobStatus.FAILED
    assert summary(found) == ["a failed: offline", f"help simulated: {SILENT}", "b not reached: no event reached it"]
    assert line(found, "help").payload["message"] == "Job failed [x]: offline"


def test_a_tolerated_failure_does_not_fail_the_run() -> None:
    """With `continue`, the run continues and the line is marked as tolerated."""
    found = dry_run("{id: a, uses: x, continue: true}, {id: b, uses: y}", answers={"a": {"fail": "no"}})

    assert (found.status, line(found, "a").tolerated) == (JobStatus.SUCCEEDED, True)
    assert line(found, "b").outcome == "simulated"


@pytest.mark.parametrize(
    ("payload", "outcome", "why"),
    [
        ({"n": 5}, "entered", "payload.n gt 3 is true: found 5"),
        ({"n": 2}, "bypassed", "payload.n gt 3 is false: found 2"),
        ({}, "bypassed", "payload.n gt 3 is false: it is absent"),
    ],
)
def test_a_decision_lists_its_predicates_with_their_values(payload: dict[str, Any], outcome: str, why: str) -> None:
    """For both results."""
    found = dry_run("{id: a, uses: x, if: {path: payload.n, op: gt, value: 3}}, {id: b, uses: y}", payload)

    decision = line(found, "a", "if")
    assert (decision.outcome, decision.why) == (outcome, why)
    assert decision.predicates[0]["path"] == "payload.n"
    assert ("a" in [each.step for each in found.lines if each.kind == "uses"]) == (outcome == "entered")
    assert line(found, "b").outcome == "simulated"


def test_a_configuration_value_is_masked_in_a_decision() -> None:
    """It may be a secret."""
    routing = RoutingConfig(config_of=lambda _: {"mode": "hunter2"})

    found = dry_run("{id: a, uses: x, if: {path: config.mode, op: eq, value: z}}", routing=routing)

    assert line(found, "a", "if").why == 'config.mode eq "z" is false: found "***"'


def test_a_line_shows_the_rendered_with() -> None:
    """Only its members, each with its type; a step without `with` shows nothing."""
    found = dry_run("{id: a, uses: x, with: {m: 'n is {payload.n}', n: '{payload.n}'}}, {id: b, uses: x}", {"n": 1})

    assert line(found, "a").rendered == {"m": "n is 1", "n": 1}
    assert line(found, "b").rendered == {}


def test_a_line_shows_the_payload_after_with() -> None:
    """And the baggage."""
    found = dry_run(
        "{id: a, uses: x, baggage: {who: payload.name}}, {id: b, uses: y, with: {text: 'for {context.who}'}}",
        {"name": "Ada"},
    )

    assert line(found, "b").payload["text"] == "for Ada"
    assert line(found, "b").baggage == {"who": "Ada"}


@pytest.mark.parametrize(
    ("step", "outcome", "why"),
    [
        ("{id: a, uses: x, with: {t: '{payload.gone}'}}", "failed", "with 't': payload.gone is absent"),
        ("{id: a, uses: x, baggage: {t: payload.gone}}", "failed", "baggage t: payload.gone is absent"),
        ("{id: a, uses: x, foreach: payload.gone}", "failed", "foreach: payload.gone is absent"),
        ("{id: a, uses: off}", "dead", "plugin off is disabled"),
    ],
)
def test_a_step_that_cannot_run_has_the_reason(step: str, outcome: str, why: str) -> None:
    """With the same message as in the service."""
    routing = RoutingConfig(target=lambda plugin: Target(refused="is disabled" if plugin == "off" else None))

    found = dry_run(step, {"n": 1}, routing=routing)

    (line_of_a,) = [each for each in found.lines if each.step == "a" and each.outcome != "not reached"]
    assert line_of_a.outcome == outcome
    assert line_of_a.why.startswith(why)
    assert found.status is JobStatus.FAILED


def test_every_item_of_a_list_has_its_own_line() -> None:
    """With its indexes, outermost first."""
    found = dry_run(
        "{id: each, foreach: payload.rows, steps: [{id: a, uses: x, foreach: item.cells}]}",
        {"rows": [{"cells": [1]}, {"cells": [2, 3]}]},
    )

    assert [each.indexes for each in found.lines] == [(0, 0), (1, 0), (1, 1)]


def test_a_join_waits_for_its_branches() -> None:
    """It has the number of results, and the next step runs once."""
    found = dry_run("{id: fan, split: [{id: a, uses: x}, {id: b, uses: y}], join: true}, {id: c, uses: z}")

    join = line(found, "fan__join", "join")
    assert (join.outcome, join.why, join.led_to) == ("joined", "2 results", ("c",))
    assert len(line(found, "c").payload["results"]) == 2


def test_a_join_fails_with_its_branches() -> None:
    """The line names the failed branch, and the next step is not reached."""
    found = dry_run(
        "{id: fan, split: [{id: a, uses: x}, {id: b, uses: y}], join: true}, {id: c, uses: z}",
        answers={"b": {"fail": "no"}},
    )

    assert summary(found)[-2:] == ["fan__join failed: not joined: b: no", "c not reached: no event reached it"]


def test_routes_and_triggered_pipelines_are_listed() -> None:
    """They are part of the prediction."""
    routing = RoutingConfig(routes=Routes.of([("x", "made", "other")]))
    others = "\n- {name: q, on: made, steps: [{id: first, uses: z}]}"

    found = dry_run("{id: a, uses: x}", answers={"a": [{"type": "made"}]}, routing=routing, others=others)

    assert line(found, "a").led_to == ("other", "q: first")
    assert (line(found, "other", "route").plugin, line(found, "first").pipeline) == ("other", "q")


def test_the_pipeline_condition_is_reported_but_not_applied() -> None:
    """A run by name starts anyway."""
    text = "- {name: p, on: e, if: {path: payload.go, op: exists}, steps: [{id: a, uses: x}]}"
    routing = RoutingConfig(plans=compile_text(text))

    found = dry_run_pipeline(routing.plans.require("p"), {}, routing, now=NOW)

    assert (found.would_start, found.predicates[0]["holds"], len(found.lines)) == (False, False, 1)


def test_a_failed_hook_run_does_not_fail_the_run() -> None:
    """A hook run is a separate tree."""
    routing = RoutingConfig(
        target=lambda plugin: Target(notify=plugin == "x", refused="is off" if plugin == "z" else None)
    )
    others = "\n- {name: q, on-hook: job.completed, steps: [{id: tell, uses: z}]}"

    found = dry_run("{id: a, uses: x}", routing=routing, others=others)

    assert (found.status, line(found, "tell").outcome) == (JobStatus.SUCCEEDED, "dead")


def test_a_cycle_of_events_ends_at_the_hop_limit() -> None:
    """A run that triggers itself is listed up to the limit."""
    found = dry_run("{id: a, uses: x}", answers={"a": [{"type": "e"}]}, max_hops=5)

    assert summary(found)[-1] == "a dead: chain of more than 5 hops"
    assert len(found.lines) == 7


def test_a_very_large_dry_run_is_truncated() -> None:
    """The result is incomplete, and the lines have the reason."""
    found = dry_run("{id: a, uses: x, foreach: payload.n}, {id: b, uses: y}", {"n": list(range(30))}, max_jobs=40)

    assert (found.is_complete, found.status) == (False, JobStatus.FAILED)
    assert "b not reached: the dry run stopped before this step" in summary(found)


def test_decisions_do_not_count_against_the_job_limit() -> None:
    """As in the service, where the limit only applies to jobs that run."""
    steps = "{id: a, uses: x, foreach: payload.n}, {id: b, uses: y, if: {path: payload.q, op: eq, value: 2}}"
    found = dry_run(steps, {"n": list(range(30))}, max_jobs=40)

    assert (found.is_complete, found.status) == (True, JobStatus.SUCCEEDED)


def test_exceeding_the_follow_up_limit_is_not_tolerated() -> None:
    """As in the service, the failure fails the run despite `continue`."""
    routing, steps = RoutingConfig(max_jobs=2), "{id: a, uses: x, continue: true}, {id: b, uses: y}"
    emitted = dry_run(steps, answers={"a": [{"type": "e"}] * 3}, routing=routing)
    each = "{id: a, uses: x, continue: true}, {id: b, uses: y, foreach: payload.input.n}"
    failed = dry_run(each, {"n": [1, 2, 3]}, answers={"a": {"fail": "no"}}, routing=routing)

    assert [found.status for found in (emitted, failed)] == [JobStatus.FAILED] * 2
    assert line(failed, "a").why == "no; it creates more than 2 jobs at once"


def test_exceeding_the_hop_limit_is_not_tolerated_and_decisions_do_not_count() -> None:
    """As in the service, where the limit only applies to jobs that run."""
    steps = "{id: a, uses: x, continue: true, if: {path: payload.on, op: neq, value: 0}}"
    far = dry_run(steps, answers={"a": [{"type": "e"}]}, max_hops=3)
    near = dry_run(steps, answers={"a": [{"type": "e", "payload": {"on": 0}}]}, max_hops=0)

    assert (far.status, summary(far)[-1]) == (JobStatus.FAILED, "a dead: chain of more than 3 hops")
    assert (near.status, summary(near)[-1].split(":")[0]) == (JobStatus.SUCCEEDED, "a bypassed")


def test_a_run_that_exceeds_the_limit_at_its_start_is_rejected() -> None:
    """As in the service, nothing starts."""
    routing = RoutingConfig(max_jobs=10)
    with pytest.raises(TooManyFollowUps):
        dry_run("{id: a, uses: x, foreach: payload.n}", {"n": list(range(30))}, routing=routing)


def test_executed_answers_have_priority() -> None:
    """The line shows that the plugin was executed."""
    executed: list[str] = []

    def execute(job: Job) -> PluginAnswer | None:
        executed.append(job.step_id or "")
        if job.step_id == "b":
            return PluginAnswer(result="real", events=(AnswerEvent("seen", {"n": 7}),))
        return PluginAnswer(error="exit code 3") if job.step_id == "d" else None

    found = dry_run(
        "{id: a, uses: x}, {id: b, uses: x}, {id: c, uses: x}, {id: d, uses: x}",
        answers={"b": {"fail": "x"}},
        execute=execute,
    )

    assert executed == ["a", "b", "c", "d"]
    assert summary(found) == [
        f"a simulated: {SILENT}",
        "b executed: plugin executed: real",
        f"c simulated: {SILENT}",
        "d failed: plugin executed: exit code 3",
    ]
    assert line(found, "c").payload["n"] == 7


def test_a_relay_line_shows_the_payload_to_send() -> None:
    """Only its own `with`. An absent value fails the step, as in the service."""
    send = "{id: send, relay: {to: lab, event: t, with: {n: payload.n}, baggage: {who: payload.who}}}"

    sent = dry_run(send, {"n": 1, "who": "ada", "secret": "s"})
    without_n, without_who = dry_run(send, {"who": "ada"}), dry_run(send, {"n": 1})

    assert (sent.status, line(sent, "send", "relay").payload) == (JobStatus.SUCCEEDED, {"n": 1})
    assert [found.status for found in (without_n, without_who)] == [JobStatus.FAILED] * 2
    assert "payload.n" in line(without_n, "send", "relay").why
    assert "payload.who" in line(without_who, "send", "relay").why


# ── comparison with a real run ──────────────────────────────────────────────────────────────────────────────────────

FREE = dict.fromkeys(("alpha", "beta", "gamma", "broken", "core.relay"), 1000)


def real_outcomes(db: sqlite3.Connection, plans: Plans, name: str) -> Counter[tuple[str, str]]:
    """Run a pipeline through the ledger and return the outcome of every step. The plugin `broken` fails."""
    routing = RoutingConfig(plans=plans)

    def complete(job: Job) -> Completion:
        outcome: Outcome = Succeeded(Evidence(started_at=NOW, duration=timedelta()))
        job_result = JobResult(status=JobStatus.SUCCEEDED, result="simulated")
        if job.plugin == "broken":
            outcome, job_result = Failed("no"), JobResult(status=JobStatus.FAILED, error="no")
        follow_ups = compute_follow_ups(job, job_result, (), routing, now=NOW)
        return Completion(
            job_id=job.id,
            attempt=job.attempt,
            outcome=outcome,
            contexts=follow_ups.contexts,
            children=follow_ups.children,
            arrivals=follow_ups.arrivals,
            notes=follow_ups.notes,
        )

    def decide(joined: JoinInput, now: datetime) -> Any:
        return resolve_join(joined, routing, now=now)

    with transaction(db):
        start_run(
            db, trigger_run(plans.require(name), PAYLOAD, routing, submitted_by="test", now=NOW).follow_ups, now=NOW
        )
    completions: list[Completion] = []
    while True:
        with transaction(db):
            _, claimed = record_and_claim(
                db, completions, now=NOW, run_id="r", free=FREE, limit=1_000, join_rule=decide
            )
        completions = [complete(job) for job in claimed.jobs]
        if not completions and not claimed.more:
            break
    rows = db.execute("SELECT step_id, plugin, status FROM job_queue WHERE plugin <> 'core.start'").fetchall()
    db.execute("DELETE FROM job_queue")
    return Counter(
        (step.removesuffix("__switch").removesuffix("/"), "decided") if plugin == "core.switch" else (step, status)
        for step, plugin, status in rows
    )


def predicted_outcomes(plans: Plans, name: str) -> Counter[tuple[str, str]] | None:
    """Return the outcome of every step in a dry run; None if the dry run is truncated."""
    plan = plans.require(name)
    broken = {path: PluginAnswer(error="no") for path, node in plan.nodes.items() if node.plugin == "broken"}
    found = dry_run_pipeline(plan, PAYLOAD, RoutingConfig(plans=plans), broken, now=NOW, max_jobs=300)
    outcomes = {"simulated": "succeeded", "joined": "succeeded", "entered": "decided", "bypassed": "decided"}
    counted = Counter((each.step, outcomes.get(each.outcome, each.outcome)) for each in found.lines)
    return Counter({key: n for key, n in counted.items() if key[1] != "not reached"}) if found.is_complete else None


@pytest.mark.slow
@given(listed=pipelines_strategy(max_leaves=5))
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_a_dry_run_predicts_the_real_run(listed: list[Data], tmp_path: Path) -> None:
    """For random pipelines: the same steps, as often, with the same results."""
    plans = compile_text(listed)
    with closing(open_writer(tmp_path / "ledger.db", synchronous="off")) as db:
        for name in plans.by_name:
            if (expected := predicted_outcomes(plans, name)) is not None:
                assert expected == real_outcomes(db, plans, name)
