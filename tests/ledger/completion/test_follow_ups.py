"""Follow-ups of outcomes that the ledger decided itself, and the start of a run."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from ductile.core.model import (
    BranchResult,
    Completion,
    Dead,
    Failed,
    FollowUps,
    Interrupted,
    Job,
    JobStatus,
    NewContext,
    Note,
    Outcome,
    Prefinished,
    Retried,
    Skipped,
    Succeeded,
)
from ductile.ledger.admin.job_actions import cancel, end_queued_jobs
from ductile.ledger.completion.record import Recorded, end_queued
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.jobs.enqueue import Enqueued
from ductile.ledger.queue.recover import Quarantined, recover_orphans
from ductile.ledger.reports import job_details, trees
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import contexts
from tests.ledger.conftest import LedgerDriver, result_of


class RecordingRule:
    """A rule that adds one job to every outcome, and records its calls."""

    def __init__(self, ledger: LedgerDriver, **values: Any) -> None:
        self.ledger, self.values, self.calls = ledger, values, list[tuple[Job, Outcome]]()

    def __call__(self, job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        assert now == self.ledger.now
        self.calls.append((job, outcome))
        child = self.ledger.new(plugin="rescue", child_key="rescue", event_context_id="hop", **self.values)
        return FollowUps(
            contexts=(NewContext(id="hop", accumulated_json='{"a":1}'),),
            children=(child,),
            notes=(Note(kind="event.unmatched", data={}),),
        )


def fail_rule(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
    raise KeyError("no such place")


def planned_follow_ups(ledger: LedgerDriver) -> dict[str, Any]:
    """Return the follow-ups of the expected outcome."""
    return {
        "children": (ledger.new(plugin="planned", child_key="planned"),),
        "notes": (Note(kind="event.withheld", data={}),),
    }


def test_an_unchanged_outcome_keeps_its_planned_follow_ups(ledger: LedgerDriver) -> None:
    """The rule is only for outcomes that were unknown before the transaction."""
    rule = RecordingRule(ledger)
    ledger.enqueue()
    ended = ledger.end(ledger.claim_one(), Failed("no"), rule=rule, **planned_follow_ups(ledger))
    assert isinstance(ended, Recorded)
    assert (rule.calls, len(ended.children)) == ([], 1)
    assert ledger.claim_one("planned").parent_job_id == ended.job_id


def attempts_used_up(ledger: LedgerDriver) -> Outcome:
    return Retried("exit 1", timedelta(0), ledger.evidence(exit_code=1))


def cancelled(ledger: LedgerDriver) -> Outcome:
    (job_id,) = ledger.db.execute("SELECT id FROM job_queue").fetchone()
    with transaction(ledger.db):
        cancel(ledger.db, job_id, "no", now=ledger.now)
    return Interrupted("killed", ledger.evidence(signal=15))


@pytest.mark.parametrize(
    ("make", "error"), [(attempts_used_up, "attempts used up (1 of 1): exit 1"), (cancelled, "cancelled: no")]
)
def test_another_final_outcome_gets_its_follow_ups_from_the_rule(ledger: LedgerDriver, make: Any, error: str) -> None:
    """The notes of the attempt stay; its planned children do not."""
    rule = RecordingRule(ledger)
    ledger.enqueue(max_attempts=1)
    job = ledger.claim_one()
    ended = ledger.end(job, make(ledger), rule=rule, **planned_follow_ups(ledger))
    assert isinstance(ended, Recorded)
    assert (ended.status, ended.tree_is_done) == (JobStatus.DEAD, False)
    ((job_at_call, outcome),) = rule.calls
    assert (job_at_call.id, job_at_call.status) == (job.id, JobStatus.RUNNING)
    assert isinstance(outcome, Dead)
    assert (outcome.error, outcome.evidence is not None) == (error, True)
    child = ledger.claim_one("rescue")
    assert (child.parent_job_id, child.context) == (job.id, '{"a":1}')
    assert ledger.claim(9, planned=9).jobs == ()
    assert ledger.journal_kinds()[-3:] == ["event.withheld", "event.unmatched", "job.started"]


def test_a_too_large_state_gets_the_follow_ups_of_a_failure(ledger: LedgerDriver) -> None:
    """None of the planned follow-ups of the success are written."""
    rule = RecordingRule(ledger)
    ledger.enqueue()
    updates = json.dumps({"a": "x" * 100})
    ended = ledger.end(
        ledger.claim_one(), state_updates=updates, state_limit=50, rule=rule, **planned_follow_ups(ledger)
    )
    assert isinstance(ended, Recorded)
    assert ended.status is JobStatus.FAILED
    assert isinstance(rule.calls[0][1], Failed)
    assert ledger.claim_one("rescue").parent_job_id == ended.job_id
    assert ledger.claim(9, planned=9).jobs == ()
    assert "event.withheld" not in ledger.journal_kinds()


def test_a_retry_does_not_call_the_rule(ledger: LedgerDriver) -> None:
    """The job has not ended."""
    rule = RecordingRule(ledger)
    ledger.enqueue()
    ledger.end(ledger.claim_one(), Retried("no", timedelta(0)), rule=rule)
    assert rule.calls == []


def invalid_completion(ledger: LedgerDriver, job: Job, **more: Any) -> Completion:
    outcome = Succeeded(ledger.evidence(stderr="noise"))
    return Completion(job_id=job.id, attempt=1, outcome=outcome, children=(ledger.new(max_attempts=0),), **more)


def test_a_completion_that_cannot_be_recorded_gets_the_follow_ups_of_a_dead_job(ledger: LedgerDriver) -> None:
    """As any other dead job."""
    rule = RecordingRule(ledger)
    ledger.enqueue(tolerated=True)
    job = ledger.claim_one()
    (ended,), claimed = ledger.record_and_claim(invalid_completion(ledger, job, rule=rule), rescue=1)
    assert isinstance(ended, Recorded)
    assert (ended.status, len(ended.children), [claimed_job.plugin for claimed_job in claimed.jobs]) == (
        "dead",
        1,
        ["rescue"],
    )
    assert ledger.row(job.id)["tolerated"] == 1
    ((_, outcome),) = rule.calls
    assert isinstance(outcome, Dead)
    assert outcome.error.startswith("cannot be recorded: IntegrityError")


@pytest.mark.parametrize("values", [{"max_attempts": 0}, None], ids=["cannot be written", "raises"])
def test_a_dead_job_whose_follow_ups_fail_has_none_and_is_not_tolerated(ledger: LedgerDriver, values: Any) -> None:
    """Evidence and breaker are still recorded. Without follow-ups the failure counts, so the tree fails."""
    rule = RecordingRule(ledger, **values) if values else fail_rule
    seen_statuses: list[JobStatus] = []

    def breaker(_: Any, job: Job, status: JobStatus, now: datetime) -> None:
        seen_statuses.append(status)

    root = ledger.enqueue(tolerated=True)
    ledger.record_and_claim(invalid_completion(ledger, ledger.claim_one(), rule=rule, breaker=breaker))
    report = job_details.job(ledger.db, root.job_id)
    assert (report.job.status, report.job.tolerated, report.children) == (JobStatus.DEAD, False, [])
    assert (report.attempts[0].stderr, seen_statuses[-1]) == ("noise", JobStatus.DEAD)
    assert contexts.get(ledger.db, "hop") is None
    assert trees.tree_outcome(ledger.db, root.job_id).status == "failed"


def cancel_one(ledger: LedgerDriver, job_id: str, rule: Any) -> Any:
    return cancel(ledger.db, job_id, "no", now=ledger.now, rule=rule)


def remove_plugin(ledger: LedgerDriver, job_id: str, rule: Any) -> Any:
    (ended,) = end_queued_jobs(ledger.db, "echo", "plugin echo is gone", now=ledger.now, rule=rule)
    return ended


@pytest.mark.parametrize(
    ("end", "error"), [(cancel_one, "cancelled: no"), (remove_plugin, "plugin echo is gone")], ids=["cancel", "removed"]
)
def test_a_job_that_ends_in_the_queue_has_follow_ups(ledger: LedgerDriver, end: Any, error: str) -> None:
    """In the same transaction. The tree is not done in between."""
    rule = RecordingRule(ledger)
    job = ledger.enqueue()
    with transaction(ledger.db):
        ended = end(ledger, job.job_id, rule)
    assert (ended.status, ended.tree_is_done, len(ended.children)) == (JobStatus.DEAD, False, 1)
    ((job_at_call, outcome),) = rule.calls
    assert isinstance(outcome, Dead)
    assert (job_at_call.status, outcome.error) == (JobStatus.QUEUED, error)
    assert ledger.row(job.job_id)["open_jobs"] == 1
    assert ledger.claim_one("rescue").parent_job_id == job.job_id


@pytest.mark.parametrize("end", [cancel_one, remove_plugin], ids=["cancel", "removed"])
def test_a_failing_rule_does_not_keep_a_job_in_the_queue(ledger: LedgerDriver, end: Any) -> None:
    """The job ends without follow-ups and with the reason. Its failure counts."""
    job = ledger.enqueue(tolerated=True)
    with transaction(ledger.db):
        ended = end(ledger, job.job_id, fail_rule)
    assert (ended.status, ended.tree_is_done) == (JobStatus.DEAD, True)
    row = ledger.row(job.job_id)
    assert row["last_error"].endswith("; its follow-up jobs cannot be recorded: KeyError: 'no such place'")
    assert row["tolerated"] == 0


def test_a_skipped_job_does_not_call_the_rule(ledger: LedgerDriver) -> None:
    """A duplicate was decided not to run."""
    job = ledger.enqueue()
    with transaction(ledger.db):
        ended = end_queued(ledger.db, job.job_id, 1, Skipped("twin"), now=ledger.now, rule=fail_rule)
    assert ended is not None
    assert ended.status is JobStatus.SKIPPED


def test_recovery_adds_follow_ups_to_jobs_it_ends(ledger: LedgerDriver) -> None:
    """In the savepoint of the row. A rule that fails quarantines only that row."""
    rule = RecordingRule(ledger)
    for _ in range(3):
        ledger.enqueue(max_attempts=1)
    ledger.enqueue()
    lost = ledger.claim().jobs

    def selective_rule(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        return fail_rule(job, outcome, now) if job.id == lost[1].id else rule(job, outcome, now)

    with transaction(ledger.db):
        ended = recover_orphans(ledger.db, run_id="run-2", now=ledger.now, rule=selective_rule)
    assert [isinstance(job, Quarantined) for job in ended] == [False, True, False, False]
    assert [job.id for job, _ in rule.calls] == [lost[0].id, lost[2].id]
    assert ledger.statuses()[:4] == ["dead", "dead", "dead", "queued"]
    assert len(ledger.claim(9, rescue=9).jobs) == 2


def test_recovery_quarantines_a_row_that_sqlite_cannot_decode(ledger: LedgerDriver) -> None:
    """All others are recovered."""
    for _ in range(2):
        ledger.enqueue()
    lost = ledger.claim().jobs
    ledger.db.execute("UPDATE job_queue SET payload = CAST(x'ff' AS TEXT) WHERE id = ?", (lost[0].id,))
    with transaction(ledger.db):
        ended = recover_orphans(ledger.db, run_id="run-2", now=ledger.now)
    assert [isinstance(job, Quarantined) for job in ended] == [True, False]
    assert ledger.statuses() == ["dead", "queued"]


def started(ledger: LedgerDriver, following: FollowUps) -> list[Enqueued]:
    with transaction(ledger.db):
        return start_run(ledger.db, following, now=ledger.now)


def test_the_first_job_of_a_run_is_its_root(ledger: LedgerDriver) -> None:
    """The others are its children. Contexts, arrivals and notes are written with them."""
    context = NewContext(id="c", accumulated_json='{"a":1}')
    work = ledger.new(plugin="work", id="w", join_id="J", event_context_id="c")
    following = FollowUps(
        contexts=(context,),
        children=(
            ledger.new(plugin="core.switch", prefinished=Prefinished(status=JobStatus.SUCCEEDED)),
            work,
            ledger.join(),
        ),
        arrivals=(BranchResult(join_id="J", branch=1, payload='"bypassed"'),),
        notes=(Note(kind="event.unmatched", data={}),),
    )
    root, job, join = started(ledger, following)
    assert {root.job_id} == {root.root_job_id, job.root_job_id, join.root_job_id}
    assert (ledger.row(root.job_id)["open_jobs"], ledger.row("J")["waits_for"]) == (2, 1)
    claimed = ledger.claim_one("work")
    assert (claimed.parent_job_id, claimed.context) == (root.job_id, '{"a":1}')
    assert [entry.kind for entry in job_details.job(ledger.db, root.job_id).journal] == [
        "job.completed",
        "event.unmatched",
    ]
    ledger.end(claimed, arrivals=(BranchResult(join_id="J", payload='"done"'),))
    assert ledger.resolve_joins()[0].tree_is_done
    assert result_of(ledger, "J") == ["done", "bypassed"]


def test_a_run_that_cannot_be_enqueued_leaves_nothing(ledger: LedgerDriver) -> None:
    """It is one transaction."""
    with pytest.raises(Exception, match="CHECK"):
        started(ledger, FollowUps(children=(ledger.new(), ledger.new(max_attempts=0))))
    assert ledger.statuses() == []


@pytest.mark.parametrize("case", ["duplicate", "exists"])
def test_a_run_whose_first_job_exists_is_not_started(ledger: LedgerDriver, case: str) -> None:
    """The existing job is returned, and its tree does not change."""
    first = ledger.new(dedupe_key="k") if case == "duplicate" else ledger.new(id="root")
    (before,) = started(ledger, FollowUps(children=(first,)))
    ledger.end(ledger.claim_one())
    second = FollowUps(contexts=(NewContext(id="c"),), children=(first, ledger.new(plugin="other")))
    (again,) = started(ledger, second)
    assert (again.job_id, again.is_new) == (before.job_id, False)
    assert (len(ledger.statuses()), contexts.get(ledger.db, "c")) == (1, None)


def test_a_run_without_jobs_writes_its_notes(ledger: LedgerDriver) -> None:
    """They have the reason that no job was created."""
    assert started(ledger, FollowUps(notes=(Note(kind="event.unmatched", data={"why": "empty"}),))) == []
    assert ledger.journal_kinds() == ["event.unmatched"]
