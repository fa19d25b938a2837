"""Recording completions: all changes in one transaction, and none for a stale attempt."""

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
from ductile.ledger.jobs import schedule_jobs
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import breakers, contexts, facts, journal, schedules

MINUTE = timedelta(minutes=1)


def log_of(ledger: Any, job_id: str) -> list[tuple[Any, ...]]:
    statement = "SELECT id, attempt, status, job_status, last_error FROM job_log WHERE job_id = ? ORDER BY attempt"
    return list(ledger.db.execute(statement, (job_id,)).fetchall())


def test_a_success_stores_its_evidence(ledger: Any) -> None:
    """Result, stderr, exit code, start and duration are in the row of the attempt."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.advance(seconds=2)
    recorded = ledger.end(job)
    assert isinstance(recorded, Recorded)
    assert (recorded.status, recorded.tree_is_done) == (JobStatus.SUCCEEDED, True)
    statement = "SELECT id, status, result, exit_code, duration_ms, started_at, completed_at FROM job_log"
    assert ledger.db.execute(statement).fetchall() == [
        (f"{job.id}-1", "succeeded", "{}", 0, 1000, "2026-02-08T09:30:02.000000Z", "2026-02-08T09:30:02.000000Z")
    ]
    assert ledger.journal_kinds() == ["job.enqueued", "job.started", "job.completed"]


@pytest.mark.parametrize(
    ("outcome", "status", "attempt_status", "kind"),
    [
        (Failed("exit 78"), "failed", "failed", "job.failed"),
        (Dead("attempts used up"), "dead", "failed", "job.failed"),
        (Skipped("preflight"), "skipped", "skipped", "job.skipped"),
    ],
)
def test_each_outcome_has_its_statuses_and_its_journal_kind(
    ledger: Any, outcome: Outcome, status: str, attempt_status: str, kind: str
) -> None:
    """One status for the job, one for the attempt, and one kind of journal entry."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job, outcome)
    assert ledger.row(job.id)["status"] == status
    assert [row[2] for row in log_of(ledger, job.id)] == [attempt_status]
    assert ledger.journal_kinds()[-1] == kind


def test_a_timeout_has_its_own_attempt_status_and_journal_kind(ledger: Any) -> None:
    """The attempt timed out; the job is dead."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job, Dead("no answer in 60s", ledger.evidence(timed_out=True, exit_code=None, signal=9)))
    assert [row[2:4] for row in log_of(ledger, job.id)] == [("timed_out", "dead")]
    assert ledger.journal_kinds()[-1] == "job.timed_out"


def test_a_retried_attempt_is_logged(ledger: Any) -> None:
    """Its stderr and result are not lost."""
    ledger.enqueue()
    first = ledger.claim_one()
    recorded = ledger.end(first, Retried("exit 1", MINUTE, ledger.evidence(stderr="boom", exit_code=1)))
    assert (recorded.status, recorded.next_retry_at) == (JobStatus.QUEUED, ledger.now + MINUTE)
    ledger.advance(minutes=1)
    second = ledger.claim_one()
    assert (second.id, second.attempt) == (first.id, 2)
    ledger.end(second)
    assert [row[:4] for row in log_of(ledger, first.id)] == [
        (f"{first.id}-1", 1, "failed", "queued"),
        (f"{first.id}-2", 2, "succeeded", "succeeded"),
    ]
    assert ledger.row(first.id)["started_at"] is not None


def test_a_queued_retry_has_no_start_time(ledger: Any) -> None:
    """A queued job keeps only the error of its last attempt."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job, Retried("exit 1", MINUTE))
    row = ledger.row(job.id)
    assert (row["started_at"], row["claimed_by"], row["last_error"]) == (None, None, "exit 1")
    assert row["next_retry_at"] == "2026-02-08T09:31:00.000000Z"


def test_an_interruption_does_not_count_as_an_attempt(ledger: Any) -> None:
    """It still gets a number of its own: no (job, attempt) starts twice."""
    ledger.enqueue(max_attempts=1)
    for number in (1, 2, 3):
        job = ledger.claim_one()
        assert (job.attempt, job.tries) == (number, 1)
        ledger.end(job, Interrupted("drain", ledger.evidence(signal=15)))
    assert [row[2] for row in log_of(ledger, job.id)] == ["interrupted"] * 3


def test_a_retry_beyond_the_last_attempt_is_dead(ledger: Any) -> None:
    """The ledger never starts more than `max_attempts`, whatever the outcome says."""
    ledger.enqueue(max_attempts=1)
    job = ledger.claim_one()
    recorded = ledger.end(job, Retried("exit 1", MINUTE))
    assert (recorded.status, recorded.tree_is_done) == (JobStatus.DEAD, True)
    assert ledger.row(job.id)["last_error"] == "attempts used up (1 of 1): exit 1"


@pytest.mark.parametrize("late", [0, 2, 3])
def test_a_stale_completion_changes_nothing_and_is_journalled(ledger: Any, late: int) -> None:
    """Every update is guarded by id, status and attempt."""
    ledger.enqueue()
    job = ledger.claim_one()
    if late:
        ledger.end(job)
        before = list(ledger.db.iterdump())
    else:
        before = list(ledger.db.iterdump())
        job = evolve(job, attempt=9)
    assert isinstance(ledger.end(job, Failed("late")), Stale)
    changed = set(ledger.db.iterdump()) - set(before)
    assert all('"journal"' in line or "sqlite_sequence" in line for line in changed)
    assert ledger.journal_kinds()[-1] == "job.stale"


def test_a_completion_of_an_unknown_job_is_stale(ledger: Any) -> None:
    """A result of a pruned job is dropped without an error."""
    ledger.enqueue()
    job = evolve(ledger.claim_one(), id="gone")
    assert ledger.end(job) == Stale("gone", 1, "unknown")


def test_children_are_enqueued_with_the_completion_of_their_parent(ledger: Any) -> None:
    """The tree is never done in between."""
    root = ledger.enqueue()
    job = ledger.claim_one()
    context = NewContext(id="ctx-1", pipeline_name="p", step_id="s", accumulated_json='{"x":1}')
    child = ledger.new(plugin="next", child_key="e/s", event_context_id="ctx-1")
    recorded = ledger.end(job, children=(child,), contexts=(context,))
    assert not recorded.tree_is_done
    assert ledger.row(root.job_id)["tree_completed_at"] is None
    kid = ledger.claim_one("next")
    assert (kid.parent_job_id, kid.root_job_id) == (job.id, job.id)
    found = contexts.get(ledger.db, "ctx-1")
    assert found is not None
    assert found.accumulated_json == '{"x":1}'
    assert ledger.end(kid).tree_is_done
    assert ledger.row(root.job_id)["tree_completed_at"] is not None


def test_a_completion_that_fails_writes_nothing(ledger: Any) -> None:
    """The job is still running and can be recorded again."""
    ledger.enqueue()
    job = ledger.claim_one()
    before = list(ledger.db.iterdump())
    bad = ledger.new(child_key="2", max_attempts=0)
    with pytest.raises(Exception, match="CHECK"):
        ledger.end(job, children=(ledger.new(child_key="1"), bad), facts=(NewFact(fact_type="t", fact_json="{}"),))
    assert list(ledger.db.iterdump()) == before
    assert ledger.end(job).status is JobStatus.SUCCEEDED


def test_a_mirrored_fact_replaces_the_state(ledger: Any) -> None:
    """Facts have a global sequence. The state is the last mirrored fact."""
    for count in (1, 2):
        ledger.enqueue()
        fact = NewFact(fact_type="echo.snapshot", fact_json=json.dumps({"n": count}), mirrored=True)
        ledger.end(ledger.claim_one(), facts=(fact,))
    assert facts.state(ledger.db, "echo") == '{"n": 2}'
    assert [(fact.id, fact.seq) for fact in facts.newest(ledger.db, "echo")] == [(2, 2), (1, 1)]
    assert len(facts.newest(ledger.db, "echo", fact_type="other")) == 0


def test_state_updates_without_a_fact_are_merged_one_level_deep(ledger: Any) -> None:
    """Other keys do not change."""
    for updates in ('{"a":1,"deep":{"x":1}}', '{"b":2,"deep":{"y":2}}'):
        ledger.enqueue()
        ledger.end(ledger.claim_one(), state_updates=updates)
    assert json.loads(facts.state(ledger.db, "echo")) == {"a": 1, "b": 2, "deep": {"y": 2}}


@pytest.mark.parametrize("stored", ["null", "[1]", '"text"', "{not json"])
def test_a_stored_state_that_is_not_an_object_counts_as_empty(ledger: Any, stored: str) -> None:
    """The update is stored, and the journal has the discarded state."""
    ledger.db.execute("INSERT INTO plugin_state (plugin_name, state, updated_at) VALUES ('echo', ?, '')", (stored,))
    ledger.enqueue()
    assert ledger.end(ledger.claim_one(), state_updates='{"a":1}').status is JobStatus.SUCCEEDED
    assert facts.state(ledger.db, "echo") == '{"a":1}'
    (entry,) = (entry for entry in journal.read_since(ledger.db, 0) if entry.kind == "state.discarded")
    assert (entry.plugin, entry.data["state"]) == ("echo", stored)


@pytest.mark.parametrize("first", [None, "y" * (1 << 19)], ids=["at once", "by merging"])
def test_a_success_with_a_too_large_state_is_a_failure(ledger: Any, first: str | None) -> None:
    """Over 1 MiB, alone or merged with the stored state: no state and no child is stored. The job has the reason."""
    if first:
        ledger.enqueue()
        ledger.end(ledger.claim_one(), state_updates=json.dumps({"first": first}))
    before = facts.state(ledger.db, "echo")
    ledger.enqueue()
    child = ledger.new(plugin="other", child_key="c")
    ended = ledger.end(
        ledger.claim_one(),
        state_updates=json.dumps({"a": "x" * (1 << 20 if not first else 1 << 19)}),
        children=(child,),
    )
    assert ended.status is JobStatus.FAILED
    assert ended.children == ()
    assert facts.state(ledger.db, "echo") == before
    failed = get_job(ledger.db, ended.job_id)
    assert failed is not None
    assert "more than the 1048576 allowed" in (failed.last_error or "")


def test_a_failure_stores_no_facts(ledger: Any) -> None:
    """Only a succeeded attempt does."""
    ledger.enqueue()
    ledger.end(ledger.claim_one(), Failed("no"), facts=(NewFact(fact_type="t", fact_json="{}"),), state_updates="{}")
    assert facts.newest(ledger.db, "echo") == []


def test_a_success_updates_its_schedule(ledger: Any) -> None:
    """In the transaction that ends the job."""
    with transaction(ledger.db):
        schedules.define(ledger.db, "echo", "hourly", "poll", "h1", now=ledger.now)
        fired = schedule_jobs.fire(
            ledger.db,
            ledger.new(schedule_id="hourly", slot_at=ledger.now),
            now=ledger.now,
            next_run_at=ledger.now + timedelta(hours=1),
        )
    ledger.end(ledger.claim_one())
    entry = schedules.get(ledger.db, "echo", "hourly")
    assert entry is not None
    assert (entry.last_success_job_id, entry.last_success_at) == (fired.job_id, ledger.now)


def test_the_breaker_changes_in_the_transaction_of_the_completion(ledger: Any) -> None:
    """Every failure counts. The change of state is in the history and in the journal."""

    def two_failures_open(breaker: Breaker, job: Job, status: JobStatus, now: Any) -> BreakerChange | None:
        if status is JobStatus.SUCCEEDED:
            return None
        count = breaker.failure_count + 1
        state = BreakerState.OPEN if count >= 2 else breaker.state
        return BreakerChange(evolve(breaker, failure_count=count, state=state, last_job_id=job.id), "failure_threshold")

    for _ in range(2):
        ledger.enqueue()
        ledger.end(ledger.claim_one(), Failed("no"), breaker=two_failures_open)
    ledger.enqueue()
    ledger.end(ledger.claim_one(), Retried("no", MINUTE), breaker=two_failures_open)
    breaker = breakers.get(ledger.db, "echo", "poll")
    assert (breaker.state, breaker.failure_count) == (BreakerState.OPEN, 2), "attempts do not count, jobs do"
    rows = ledger.db.execute("SELECT from_state, to_state, reason FROM circuit_breaker_transitions").fetchall()
    assert rows == [("closed", "open", "failure_threshold")]
    assert ledger.journal_kinds().count("scheduler.circuit_state_changed") == 1


def test_notes_are_journalled_with_the_completion(ledger: Any) -> None:
    """Decisions not to act are in the journal, too."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job, notes=(Note(kind="route.unmatched", data={"event": "x.y"}),))
    assert "route.unmatched" in ledger.journal_kinds()


def test_the_views_of_the_original_show_transitions_and_attempts(ledger: Any) -> None:
    """SQL written for the tables of the original works on the views."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job, Retried("exit 1", timedelta(0)))
    ledger.claim_one()
    transitions = ledger.db.execute(
        "SELECT from_status, to_status, reason FROM job_transitions WHERE job_id = ? ORDER BY id", (job.id,)
    ).fetchall()
    assert transitions == [
        (None, "queued", None),
        ("queued", "running", None),
        ("running", "queued", "exit 1"),
        ("queued", "running", None),
    ]
    statement = "SELECT attempt FROM job_attempts WHERE job_id = ? ORDER BY attempt"
    assert ledger.db.execute(statement, (job.id,)).fetchall() == [(1,), (2,)]


@pytest.mark.parametrize("outcome", [Failed("no"), Retried("no", MINUTE), Interrupted("stopping")])
def test_only_the_run_that_claimed_an_attempt_can_complete_it(ledger: Any, outcome: Outcome) -> None:
    """A completion of another run is stale, whatever its attempt is."""
    ledger.enqueue()
    job = ledger.claim_one()
    ending = Completion(job_id=job.id, attempt=job.attempt, outcome=outcome)
    with transaction(ledger.db):
        assert isinstance(record(ledger.db, ending, now=ledger.now, run_id="another"), Stale)
        assert ledger.statuses() == ["running"]
        assert isinstance(record(ledger.db, ending, now=ledger.now, run_id=ledger.run_id), Recorded)
    assert ledger.statuses() != ["running"]
