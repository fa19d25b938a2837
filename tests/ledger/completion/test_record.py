"""The end of an attempt: one transaction for all of it, and nothing for a late writer."""

import json
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from ductile.core.model import (
    Breaker,
    BreakerChange,
    BreakerState,
    Completion,
    Dead,
    Failed,
    Interrupted,
    Job,
    JobStatus,
    NewContext,
    NewFact,
    Note,
    Outcome,
    Retried,
    Skipped,
)
from ductile.ledger.completion.record import Recorded, Stale, record
from ductile.ledger.queue.rows import get_job
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import breakers, contexts, facts, journal, schedules

MINUTE = timedelta(minutes=1)


def log_of(drive: Any, job_id: str) -> list[tuple[Any, ...]]:
    statement = "SELECT id, attempt, status, job_status, last_error FROM job_log WHERE job_id = ? ORDER BY attempt"
    return list(drive.db.execute(statement, (job_id,)).fetchall())


def test_a_success_keeps_its_evidence(drive: Any) -> None:
    """Result, stderr, exit code, start and duration are in the attempt's row."""
    drive.enqueue()
    job = drive.claim_one()
    drive.later(seconds=2)
    recorded = drive.end(job)
    assert isinstance(recorded, Recorded)
    assert (recorded.status, recorded.tree_is_done) == (JobStatus.SUCCEEDED, True)
    statement = "SELECT id, status, result, exit_code, duration_ms, started_at, completed_at FROM job_log"
    assert drive.db.execute(statement).fetchall() == [
        (f"{job.id}-1", "succeeded", "{}", 0, 1000, "2026-02-08T09:30:02.000000Z", "2026-02-08T09:30:02.000000Z")
    ]
    assert drive.kinds() == ["job.enqueued", "job.started", "job.completed"]


@pytest.mark.parametrize(
    ("outcome", "status", "attempt_status", "kind"),
    [
        (Failed("exit 78"), "failed", "failed", "job.failed"),
        (Dead("attempts used up"), "dead", "failed", "job.failed"),
        (Skipped("preflight"), "skipped", "skipped", "job.skipped"),
    ],
)
def test_a_final_outcome_is_final(drive: Any, outcome: Outcome, status: str, attempt_status: str, kind: str) -> None:
    """Each outcome has one status for the job, one for its attempt, and one name in the stream."""
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job, outcome)
    assert drive.row(job.id)["status"] == status
    assert [row[2] for row in log_of(drive, job.id)] == [attempt_status]
    assert drive.kinds()[-1] == kind


def test_a_timeout_is_told_apart_in_log_and_stream(drive: Any) -> None:
    """`timed_out` is how an attempt ended; the job itself ends dead."""
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job, Dead("no answer in 60s", drive.evidence(timed_out=True, exit_code=None, signal=9)))
    assert [row[2:4] for row in log_of(drive, job.id)] == [("timed_out", "dead")]
    assert drive.kinds()[-1] == "job.timed_out"


def test_a_retried_attempt_keeps_its_row(drive: Any) -> None:
    """stderr and result of an attempt that is tried again are not lost."""
    drive.enqueue()
    first = drive.claim_one()
    recorded = drive.end(first, Retried("exit 1", MINUTE, drive.evidence(stderr="boom", exit_code=1)))
    assert (recorded.status, recorded.next_retry_at) == (JobStatus.QUEUED, drive.now + MINUTE)
    drive.later(minutes=1)
    second = drive.claim_one()
    assert (second.id, second.attempt) == (first.id, 2)
    drive.end(second)
    assert [row[:4] for row in log_of(drive, first.id)] == [
        (f"{first.id}-1", 1, "failed", "queued"),
        (f"{first.id}-2", 2, "succeeded", "succeeded"),
    ]
    assert drive.row(first.id)["started_at"] is not None


def test_a_queued_retry_does_not_claim_to_have_started(drive: Any) -> None:
    """The row of a waiting job carries nothing of its last attempt but the error."""
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job, Retried("exit 1", MINUTE))
    row = drive.row(job.id)
    assert (row["started_at"], row["claimed_by"], row["last_error"]) == (None, None, "exit 1")
    assert row["next_retry_at"] == "2026-02-08T09:31:00.000000Z"


def test_an_interruption_does_not_count(drive: Any) -> None:
    """A drain costs no attempt, but has its own number: no (job, attempt) is ever started twice."""
    drive.enqueue(max_attempts=1)
    for number in (1, 2, 3):
        job = drive.claim_one()
        assert (job.attempt, job.tries) == (number, 1)
        drive.end(job, Interrupted("drain", drive.evidence(signal=15)))
    assert [row[2] for row in log_of(drive, job.id)] == ["interrupted"] * 3


def test_a_retry_beyond_the_last_attempt_is_dead(drive: Any) -> None:
    """Whoever judged wrongly, the ledger never starts more attempts than asked for."""
    drive.enqueue(max_attempts=1)
    job = drive.claim_one()
    recorded = drive.end(job, Retried("exit 1", MINUTE))
    assert (recorded.status, recorded.tree_is_done) == (JobStatus.DEAD, True)
    assert drive.row(job.id)["last_error"] == "attempts used up (1 of 1): exit 1"


@pytest.mark.parametrize("late", [0, 2, 3])
def test_a_late_writer_changes_nothing_and_is_journalled(drive: Any, late: int) -> None:
    """Every write is guarded by id, status and attempt."""
    drive.enqueue()
    job = drive.claim_one()
    if late:
        drive.end(job)
        before = list(drive.db.iterdump())
    else:
        before = list(drive.db.iterdump())
        job = evolve(job, attempt=9)
    assert isinstance(drive.end(job, Failed("late")), Stale)
    changed = set(drive.db.iterdump()) - set(before)
    assert all('"journal"' in line or "sqlite_sequence" in line for line in changed)
    assert drive.kinds()[-1] == "job.stale"


def test_an_unknown_job_is_stale_too(drive: Any) -> None:
    """A result for a job that was pruned is dropped, not an error."""
    drive.enqueue()
    job = evolve(drive.claim_one(), id="gone")
    assert drive.end(job) == Stale("gone", 1, "unknown")


def test_children_are_born_with_the_end_of_their_parent(drive: Any) -> None:
    """Nobody sees a finished tree that is about to grow."""
    root = drive.enqueue()
    job = drive.claim_one()
    context = NewContext(id="ctx-1", pipeline_name="p", step_id="s", accumulated_json='{"x":1}')
    child = drive.new(plugin="next", child_key="e/s", event_context_id="ctx-1")
    recorded = drive.end(job, children=(child,), contexts=(context,))
    assert not recorded.tree_is_done
    assert drive.row(root.job_id)["tree_completed_at"] is None
    kid = drive.claim_one("next")
    assert (kid.parent_job_id, kid.root_job_id) == (job.id, job.id)
    found = contexts.get(drive.db, "ctx-1")
    assert found is not None
    assert found.accumulated_json == '{"x":1}'
    assert drive.end(kid).tree_is_done
    assert drive.row(root.job_id)["tree_completed_at"] is not None


def test_an_ending_that_fails_half_way_leaves_nothing(drive: Any) -> None:
    """Either all of it is there or none: the job still runs and can be recorded again."""
    drive.enqueue()
    job = drive.claim_one()
    before = list(drive.db.iterdump())
    bad = drive.new(child_key="2", max_attempts=0)
    with pytest.raises(Exception, match="CHECK"):
        drive.end(job, children=(drive.new(child_key="1"), bad), facts=(NewFact(fact_type="t", fact_json="{}"),))
    assert list(drive.db.iterdump()) == before
    assert drive.end(job).status is JobStatus.SUCCEEDED


def test_a_mirrored_fact_replaces_the_state(drive: Any) -> None:
    """Facts are appended with a global sequence; the state is a view of the last mirrored one."""
    for count in (1, 2):
        drive.enqueue()
        fact = NewFact(fact_type="echo.snapshot", fact_json=json.dumps({"n": count}), mirrored=True)
        drive.end(drive.claim_one(), facts=(fact,))
    assert facts.state(drive.db, "echo") == '{"n": 2}'
    assert [(fact.id, fact.seq) for fact in facts.newest(drive.db, "echo")] == [(2, 2), (1, 1)]
    assert len(facts.newest(drive.db, "echo", fact_type="other")) == 0


def test_state_updates_without_a_fact_are_merged_one_level_deep(drive: Any) -> None:
    """Keys that are named change, the others stay."""
    for updates in ('{"a":1,"deep":{"x":1}}', '{"b":2,"deep":{"y":2}}'):
        drive.enqueue()
        drive.end(drive.claim_one(), state_updates=updates)
    assert json.loads(facts.state(drive.db, "echo")) == {"a": 1, "b": 2, "deep": {"y": 2}}


@pytest.mark.parametrize("stored", ["null", "[1]", '"text"', "{not json"])
def test_a_stored_state_that_is_no_object_counts_as_empty(drive: Any, stored: str) -> None:
    """The update is kept, and the journal says what it took the place of."""
    drive.db.execute("INSERT INTO plugin_state (plugin_name, state, updated_at) VALUES ('echo', ?, '')", (stored,))
    drive.enqueue()
    assert drive.end(drive.claim_one(), state_updates='{"a":1}').status is JobStatus.SUCCEEDED
    assert facts.state(drive.db, "echo") == '{"a":1}'
    (entry,) = (entry for entry in journal.read_since(drive.db, 0) if entry.kind == "state.discarded")
    assert (entry.plugin, entry.data["state"]) == ("echo", stored)


@pytest.mark.parametrize("first", [None, "y" * (1 << 19)], ids=["at once", "by merging"])
def test_a_success_whose_state_is_too_large_is_a_final_failure_with_nothing_kept(drive: Any, first: str | None) -> None:
    """Over 1 MiB, alone or merged with what is there: no state, no child, and the job says why."""
    if first:
        drive.enqueue()
        drive.end(drive.claim_one(), state_updates=json.dumps({"first": first}))
    before = facts.state(drive.db, "echo")
    drive.enqueue()
    child = drive.new(plugin="other", child_key="c")
    ended = drive.end(
        drive.claim_one(), state_updates=json.dumps({"a": "x" * (1 << 20 if not first else 1 << 19)}), children=(child,)
    )
    assert ended.status is JobStatus.FAILED
    assert ended.children == ()
    assert facts.state(drive.db, "echo") == before
    failed = get_job(drive.db, ended.job_id)
    assert failed is not None
    assert "more than the 1048576 allowed" in (failed.last_error or "")


def test_failures_leave_no_facts(drive: Any) -> None:
    """Exactly one set of facts per succeeded attempt."""
    drive.enqueue()
    drive.end(drive.claim_one(), Failed("no"), facts=(NewFact(fact_type="t", fact_json="{}"),), state_updates="{}")
    assert facts.newest(drive.db, "echo") == []


def test_a_schedule_learns_of_its_success(drive: Any) -> None:
    """Success of a slot is part of the transaction that ends its job."""
    with transaction(drive.db):
        schedules.define(drive.db, "echo", "hourly", "poll", "h1", now=drive.now)
        fired = schedules.fire(
            drive.db,
            drive.new(schedule_id="hourly", slot_at=drive.now),
            now=drive.now,
            next_run_at=drive.now + timedelta(hours=1),
        )
    drive.end(drive.claim_one())
    entry = schedules.get(drive.db, "echo", "hourly")
    assert entry is not None
    assert (entry.last_success_job_id, entry.last_success_at) == (fired.job_id, drive.now)


def test_the_breaker_is_changed_inside_the_transaction(drive: Any) -> None:
    """Two failures between two looks count twice; the change of state is in its history and the journal."""

    def two_failures_open(breaker: Breaker, job: Job, status: JobStatus, now: Any) -> BreakerChange | None:
        if status is JobStatus.SUCCEEDED:
            return None
        count = breaker.failure_count + 1
        state = BreakerState.OPEN if count >= 2 else breaker.state
        return BreakerChange(evolve(breaker, failure_count=count, state=state, last_job_id=job.id), "failure_threshold")

    for _ in range(2):
        drive.enqueue()
        drive.end(drive.claim_one(), Failed("no"), breaker=two_failures_open)
    drive.enqueue()
    drive.end(drive.claim_one(), Retried("no", MINUTE), breaker=two_failures_open)
    breaker = breakers.get(drive.db, "echo", "poll")
    assert (breaker.state, breaker.failure_count) == (BreakerState.OPEN, 2), "attempts do not count, jobs do"
    rows = drive.db.execute("SELECT from_state, to_state, reason FROM circuit_breaker_transitions").fetchall()
    assert rows == [("closed", "open", "failure_threshold")]
    assert drive.kinds().count("scheduler.circuit_state_changed") == 1


def test_notes_are_journalled_with_the_ending(drive: Any) -> None:
    """What was decided not to happen is a row beside what did."""
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job, notes=(Note(kind="route.unmatched", data={"event": "x.y"}),))
    assert "route.unmatched" in drive.kinds()


def test_the_originals_views_tell_transitions_and_attempts(drive: Any) -> None:
    """SQL written for the original's tables works on the views."""
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job, Retried("exit 1", timedelta(0)))
    drive.claim_one()
    transitions = drive.db.execute(
        "SELECT from_status, to_status, reason FROM job_transitions WHERE job_id = ? ORDER BY id", (job.id,)
    ).fetchall()
    assert transitions == [
        (None, "queued", None),
        ("queued", "running", None),
        ("running", "queued", "exit 1"),
        ("queued", "running", None),
    ]
    statement = "SELECT attempt FROM job_attempts WHERE job_id = ? ORDER BY attempt"
    assert drive.db.execute(statement, (job.id,)).fetchall() == [(1,), (2,)]


@pytest.mark.parametrize("outcome", [Failed("no"), Retried("no", MINUTE), Interrupted("stopping")])
def test_only_the_run_that_claimed_an_attempt_can_end_it(drive: Any, outcome: Outcome) -> None:
    """An ending of another run is stale, whatever the attempt's number is."""
    drive.enqueue()
    job = drive.claim_one()
    ending = Completion(job_id=job.id, attempt=job.attempt, outcome=outcome)
    with transaction(drive.db):
        assert isinstance(record(drive.db, ending, now=drive.now, run_id="another"), Stale)
        assert drive.statuses() == ["running"]
        assert isinstance(record(drive.db, ending, now=drive.now, run_id=drive.run_id), Recorded)
    assert drive.statuses() != ["running"]
