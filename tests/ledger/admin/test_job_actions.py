"""Cancel, retry, removed plugins, and recovery after a crash."""

import sqlite3
from datetime import datetime, timedelta
from typing import Any

import pytest

from ductile.core.errors import LedgerError, NotFound, WrongState
from ductile.core.model import Dead, Failed, FollowUps, Interrupted, Job, JobStatus, Outcome, Retried
from ductile.ledger.admin.job_actions import (
    CancelRequested,
    cancel,
    end_queued_jobs,
    queued_plugins,
    retry,
)
from ductile.ledger.completion.record import Recorded
from ductile.ledger.queue.recover import Quarantined, recover_orphans
from ductile.ledger.reports import job_details
from ductile.ledger.storage.connections import transaction


def cancelled(ledger: Any, job_id: str) -> Any:
    with transaction(ledger.db):
        return cancel(ledger.db, job_id, "not needed", now=ledger.now)


def recovered(ledger: Any, run_id: str = "run-2", **more: Any) -> list[Recorded | Quarantined]:
    with transaction(ledger.db):
        return recover_orphans(ledger.db, run_id=run_id, now=ledger.now, **more)


def test_a_cancelled_queued_job_is_dead(ledger: Any) -> None:
    """It has an attempt in the log, so that it can be inspected."""
    job = ledger.enqueue()
    ended = cancelled(ledger, job.job_id)
    assert (ended.status, ended.tree_is_done) == (JobStatus.DEAD, True)
    assert ledger.claim().jobs == ()
    statement = "SELECT status, last_error, started_at FROM job_log"
    assert ledger.db.execute(statement).fetchall() == [("dead", "cancelled: not needed", None)]


def test_a_cancelled_running_job_ends_dead_with_its_attempt(ledger: Any) -> None:
    """The cancel does not change the status of a running job. Its completion does."""
    ledger.enqueue()
    job = ledger.claim_one()
    assert cancelled(ledger, job.id) == CancelRequested(job.id, 1)
    assert ledger.row(job.id)["status"] == "running"
    ended = ledger.end(job, Interrupted("killed"))
    assert (ended.status, ledger.row(job.id)["last_error"]) == (JobStatus.DEAD, "cancelled: not needed")


def test_a_result_that_arrives_after_a_cancel_request_is_kept(ledger: Any) -> None:
    """The cancel request alone changes no outcome."""
    ledger.enqueue()
    job = ledger.claim_one()
    cancelled(ledger, job.id)
    assert ledger.end(job).status is JobStatus.SUCCEEDED


def test_finished_and_unknown_jobs_cannot_be_cancelled(ledger: Any) -> None:
    """WrongState (409) and NotFound (404)."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job)
    with pytest.raises(WrongState, match="already succeeded"):
        cancelled(ledger, job.id)
    with pytest.raises(NotFound):
        cancelled(ledger, "unknown")


def test_a_dead_job_can_be_retried(ledger: Any) -> None:
    """It gets one more attempt, its tree is open again, and an old success with its key does not skip it."""
    ledger.enqueue(max_attempts=1, dedupe_key="k")
    ledger.enqueue(dedupe_key="k")
    job = ledger.claim_one()
    ledger.end(job, Dead("used up"))
    ledger.end(ledger.claim_one())
    ledger.advance(minutes=1)
    with transaction(ledger.db):
        again = retry(ledger.db, job.id, now=ledger.now)
    assert (again.status, again.attempt, again.max_attempts) == (JobStatus.QUEUED, 2, 2)
    assert ledger.row(job.id)["open_jobs"] == 1
    assert ledger.claim_one().id == job.id


def test_only_failed_and_dead_jobs_can_be_retried(ledger: Any) -> None:
    """A success is replayed instead."""
    job = ledger.enqueue()
    with pytest.raises(WrongState, match="queued"), transaction(ledger.db):
        retry(ledger.db, job.job_id, now=ledger.now)


def test_jobs_of_a_removed_plugin_end_with_that_reason(ledger: Any) -> None:
    """Only queued ones, in batches. Running jobs continue."""
    for _ in range(4):
        ledger.enqueue()
    ledger.claim_one()
    with transaction(ledger.db):
        assert len(end_queued_jobs(ledger.db, "echo", "plugin removed", now=ledger.now, limit=2)) == 2
        assert len(end_queued_jobs(ledger.db, "echo", "plugin removed", now=ledger.now, limit=2)) == 1
    assert ledger.statuses() == ["running", "dead", "dead", "dead"]


def test_orphans_of_another_run_are_queued_again(ledger: Any) -> None:
    """The lost attempt counts and is logged. The journal has the reason."""
    ledger.enqueue()
    job = ledger.claim_one()
    (back,) = recovered(ledger)
    assert isinstance(back, Recorded)
    assert (back.status, ledger.row(job.id)["attempt"]) == (JobStatus.QUEUED, 2)
    assert ledger.db.execute("SELECT status, last_error FROM job_log").fetchall() == [("failed", "core restart")]
    assert "job.recovered" in ledger.journal_kinds()
    assert ledger.claim_one().attempt == 2


def test_the_jobs_of_this_run_are_not_orphans(ledger: Any) -> None:
    """Recovery changes only jobs of other runs."""
    ledger.enqueue()
    ledger.claim_one()
    assert recovered(ledger, "run-1") == []


def test_a_job_that_crashes_the_core_is_delayed_longer_each_time_and_then_dead(ledger: Any) -> None:
    """No delay, 30 s, 60 s, then dead. Its hook is enqueued in the same transaction."""

    def hook(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        assert isinstance(outcome, Dead)
        new = ledger.new(plugin="notify", child_key="hook", own_tree=True, payload=outcome.error)
        return FollowUps(children=(new,))

    job_id = ledger.enqueue().job_id
    waits = []
    for number in range(4):
        ledger.advance(hours=1)
        ledger.claim_one()
        ledger.run_id = f"next-{number}"
        recovered(ledger, f"after-{number}", rule=hook)
        due = ledger.row(job_id)["next_retry_at"]
        waits.append(due and due[14:19])
    assert [bool(wait) for wait in waits] == [False, True, True, False]
    assert ledger.row(job_id)["status"] == "dead"
    assert ledger.row(job_id)["last_error"] == "core restart: the core died 4 times while it ran; attempts used up"
    assert ledger.claim_one("notify").parent_job_id == job_id


def test_a_crash_does_not_undo_a_cancel(ledger: Any) -> None:
    """After a crash between the request and the kill, the job is dead."""
    ledger.enqueue()
    job = ledger.claim_one()
    cancelled(ledger, job.id)
    recovered(ledger)
    assert ledger.row(job.id)["status"] == "dead"


def test_one_unreadable_row_does_not_stop_recovery(ledger: Any, db: sqlite3.Connection) -> None:
    """Each row has a savepoint: 1 of 50 is quarantined with the reason, 49 are recovered."""
    for _ in range(50):
        ledger.enqueue()
    bad = ledger.claim(50, echo=50).jobs[20].id
    db.execute("UPDATE job_queue SET started_at = 'yesterday' WHERE id = ?", (bad,))
    ended = recovered(ledger)
    assert sum(isinstance(job, Recorded) for job in ended) == 49
    (quarantined,) = (job for job in ended if isinstance(job, Quarantined))
    assert quarantined.job_id == bad
    assert ledger.row(bad)["status"] == "dead"
    assert ledger.row(bad)["open_jobs"] == 0
    assert db.execute("SELECT COUNT(*) FROM job_queue WHERE status = 'running'").fetchone() == (0,)


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "member"])
def test_a_wrong_tree_counter_does_not_stop_recovery(ledger: Any, is_root: bool) -> None:
    """The job is quarantined, and its last attempt is logged."""
    root = ledger.enqueue(max_attempts=1).job_id
    lost = ledger.claim_one()
    if not is_root:
        ledger.end(lost, children=(ledger.new(plugin="next", child_key="1", max_attempts=1),))
        lost = ledger.claim_one("next")
    ledger.db.execute("UPDATE job_queue SET open_jobs = 0 WHERE id = ?", (root,))
    (quarantined,) = recovered(ledger)
    assert isinstance(quarantined, Quarantined)
    assert ledger.row(root)["tree_completed_at"] is not None
    report = job_details.job(ledger.db, lost.id)
    assert (report.job.status, report.open_jobs) == (JobStatus.DEAD, 0)
    (attempt,) = report.attempts
    assert (attempt.status, attempt.job_status, attempt.last_error) == ("failed", "dead", quarantined.reason)


def test_a_quarantined_job_keeps_the_evidence_of_a_logged_attempt(ledger: Any) -> None:
    """The logged attempt gets the final status of the job."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job, Failed("no", ledger.evidence(stderr="output")))
    ledger.db.execute(
        "UPDATE job_queue SET status = 'running', claimed_by = 'run-1', completed_at = NULL, open_jobs = 1"
    )
    (quarantined,) = recovered(ledger)
    assert isinstance(quarantined, Quarantined)
    (attempt,) = job_details.attempts(ledger.db, job.id)
    assert (attempt.job_status, attempt.stderr) == ("dead", "output")


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_CORRUPT]
)
def test_a_disk_error_ends_no_job(ledger: Any, code: int) -> None:
    """Recovery raises the error. The rows are unchanged for the next start."""
    error = sqlite3.OperationalError("the disk")
    error.sqlite_errorcode = code

    def fail(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        raise error

    ledger.enqueue(max_attempts=1)
    ledger.claim_one()
    with pytest.raises(LedgerError):
        recovered(ledger, rule=fail)
    assert ledger.statuses() == ["running"]


def test_recovery_releases_jobs_that_wait_for_a_key(ledger: Any) -> None:
    """The job with the key was lost in the crash."""
    ledger.enqueue(dedupe_key="k")
    waiter = ledger.enqueue(dedupe_key="k").job_id
    ledger.claim()
    assert ledger.row(waiter)["waits_for_key"] == 1
    recovered(ledger)
    assert ledger.row(waiter)["waits_for_key"] == 0


def test_a_delayed_job_can_be_cancelled(ledger: Any) -> None:
    """It is dead and no longer delayed."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.end(job, Retried("no", timedelta(hours=1)))
    cancelled(ledger, job.id)
    assert ledger.row(job.id)["next_retry_at"] is None
    with pytest.raises(WrongState):
        cancelled(ledger, job.id)


def test_a_failed_job_can_be_retried_more_than_once(ledger: Any) -> None:
    """Every attempt has its own number."""
    ledger.enqueue(max_attempts=1)
    for number in (1, 2, 3):
        job = ledger.claim_one()
        assert job.attempt == number
        ledger.end(job, Failed("no"))
        with transaction(ledger.db):
            retry(ledger.db, job.id, now=ledger.now)


def test_queued_plugins_are_listed_whatever_their_jobs_wait_for(ledger: Any) -> None:
    """Ready, delayed or waiting for a key; not running or finished jobs, and not `core.*`."""
    for plugin in ("ready", "running", "over", "core.relay"):
        ledger.enqueue(plugin=plugin)
    ledger.claim(9, running=1)
    ledger.end(ledger.claim_one("over"))
    ledger.enqueue(plugin="delayed")
    ledger.end(ledger.claim_one("delayed"), Retried("again", timedelta(minutes=1)))
    for _ in range(2):
        ledger.enqueue(plugin="keyed", dedupe_key="k")
    ledger.claim(9, keyed=2)
    assert queued_plugins(ledger.db) == ["delayed", "keyed", "ready"]
