"""Operators and crashes: cancel, try again, recover."""

import sqlite3
from datetime import datetime, timedelta
from typing import Any

import pytest

from ductile.core.errors import LedgerError, NotFound, WrongState
from ductile.core.model import Dead, Failed, FollowUps, Interrupted, Job, JobStatus, Outcome, Retried
from ductile.ledger.admin.operate import CancelRequested, cancel, end_queued_jobs_of, queued_plugins, retry
from ductile.ledger.completion.record import Recorded
from ductile.ledger.queue.recover import Quarantined, recover_orphans
from ductile.ledger.reports import job_details
from ductile.ledger.storage.connections import transaction


def cancelled(drive: Any, job_id: str) -> Any:
    with transaction(drive.db):
        return cancel(drive.db, job_id, "not needed", now=drive.now)


def recovered(drive: Any, run_id: str = "run-2", **more: Any) -> list[Recorded | Quarantined]:
    with transaction(drive.db):
        return recover_orphans(drive.db, run_id=run_id, now=drive.now, **more)


def test_a_waiting_job_is_dead_when_cancelled(drive: Any) -> None:
    """With a row in the log, so that it can be inspected like any other."""
    job = drive.enqueue()
    ended = cancelled(drive, job.job_id)
    assert (ended.status, ended.tree_is_done) == (JobStatus.DEAD, True)
    assert drive.claim().jobs == ()
    statement = "SELECT status, last_error, started_at FROM job_log"
    assert drive.db.execute(statement).fetchall() == [("dead", "cancelled: not needed", None)]


def test_a_running_job_is_asked_to_end_and_cannot_be_retried(drive: Any) -> None:
    """Cancel never writes over a process that lives; the record that follows makes it dead."""
    drive.enqueue()
    job = drive.claim_one()
    assert cancelled(drive, job.id) == CancelRequested(job.id, 1)
    assert drive.row(job.id)["status"] == "running"
    ended = drive.end(job, Interrupted("killed"))
    assert (ended.status, drive.row(job.id)["last_error"]) == (JobStatus.DEAD, "cancelled: not needed")


def test_a_result_that_was_faster_than_the_cancel_stands(drive: Any) -> None:
    """One owner decides; the cancel request alone changes no outcome."""
    drive.enqueue()
    job = drive.claim_one()
    cancelled(drive, job.id)
    assert drive.end(job).status is JobStatus.SUCCEEDED


def test_finished_and_unknown_jobs_cannot_be_cancelled(drive: Any) -> None:
    """409 and 404, not a traceback."""
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job)
    with pytest.raises(WrongState, match="already succeeded"):
        cancelled(drive, job.id)
    with pytest.raises(NotFound):
        cancelled(drive, "nobody")


def test_a_dead_job_can_be_tried_again(drive: Any) -> None:
    """It gets one attempt more than it used, its tree is open again, and a twin's old success does not skip it."""
    drive.enqueue(max_attempts=1, dedupe_key="k")
    drive.enqueue(dedupe_key="k")
    job = drive.claim_one()
    drive.end(job, Dead("used up"))
    drive.end(drive.claim_one())
    drive.later(minutes=1)
    with transaction(drive.db):
        again = retry(drive.db, job.id, now=drive.now)
    assert (again.status, again.attempt, again.max_attempts) == (JobStatus.QUEUED, 2, 2)
    assert drive.row(job.id)["open_jobs"] == 1
    assert drive.claim_one().id == job.id


def test_only_failed_and_dead_jobs_can_be_tried_again(drive: Any) -> None:
    """A success is replayed, not retried."""
    job = drive.enqueue()
    with pytest.raises(WrongState, match="queued"), transaction(drive.db):
        retry(drive.db, job.job_id, now=drive.now)


def test_jobs_of_a_removed_plugin_end_with_that_reason(drive: Any) -> None:
    """Waiting ones only, in portions; what runs goes on."""
    for _ in range(4):
        drive.enqueue()
    drive.claim_one()
    with transaction(drive.db):
        assert len(end_queued_jobs_of(drive.db, "echo", "plugin removed", now=drive.now, limit=2)) == 2
        assert len(end_queued_jobs_of(drive.db, "echo", "plugin removed", now=drive.now, limit=2)) == 1
    assert drive.statuses() == ["running", "dead", "dead", "dead"]


def test_orphans_of_another_run_are_queued_again(drive: Any) -> None:
    """The lost attempt counts, has its row, and the journal says why."""
    drive.enqueue()
    job = drive.claim_one()
    (back,) = recovered(drive)
    assert isinstance(back, Recorded)
    assert (back.status, drive.row(job.id)["attempt"]) == (JobStatus.QUEUED, 2)
    assert drive.db.execute("SELECT status, last_error FROM job_log").fetchall() == [("failed", "core restart")]
    assert "job.recovered" in drive.kinds()
    assert drive.claim_one().attempt == 2


def test_the_jobs_of_this_run_are_not_orphans(drive: Any) -> None:
    """Recovery at any time, reload included, touches only rows of other runs."""
    drive.enqueue()
    drive.claim_one()
    assert recovered(drive, "run-1") == []


def test_a_job_that_takes_the_core_down_waits_longer_each_time_and_is_given_up(drive: Any) -> None:
    """Poison pill: at once, 30 s, 60 s, then dead with a hook in the same transaction."""

    def hook(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        assert isinstance(outcome, Dead)
        new = drive.new(plugin="notify", child_key="hook", own_tree=True, payload=outcome.error)
        return FollowUps(children=(new,))

    job_id = drive.enqueue().job_id
    waits = []
    for number in range(4):
        drive.later(hours=1)
        drive.claim_one()
        drive.run_id = f"next-{number}"
        recovered(drive, f"after-{number}", rule=hook)
        due = drive.row(job_id)["next_retry_at"]
        waits.append(due and due[14:19])
    assert [bool(wait) for wait in waits] == [False, True, True, False]
    assert drive.row(job_id)["status"] == "dead"
    assert drive.row(job_id)["last_error"] == "core restart: the core died 4 times while it ran; attempts used up"
    assert drive.claim_one("notify").parent_job_id == job_id


def test_a_cancelled_job_stays_cancelled_over_a_crash(drive: Any) -> None:
    """A crash between the request and the kill does not bring the job back."""
    drive.enqueue()
    job = drive.claim_one()
    cancelled(drive, job.id)
    recovered(drive)
    assert drive.row(job.id)["status"] == "dead"


def test_one_bad_row_does_not_stop_the_others(drive: Any, db: sqlite3.Connection) -> None:
    """Per-row savepoints: 1 of 50 is quarantined with its reason, 49 are recovered."""
    for _ in range(50):
        drive.enqueue()
    bad = drive.claim(50, echo=50).jobs[20].id
    db.execute("UPDATE job_queue SET started_at = 'yesterday' WHERE id = ?", (bad,))
    ended = recovered(drive)
    assert sum(isinstance(one, Recorded) for one in ended) == 49
    (quarantined,) = (one for one in ended if isinstance(one, Quarantined))
    assert quarantined.job_id == bad
    assert drive.row(bad)["status"] == "dead"
    assert drive.row(bad)["open_jobs"] == 0
    assert db.execute("SELECT COUNT(*) FROM job_queue WHERE status = 'running'").fetchone() == (0,)


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "member"])
def test_a_tree_that_counts_too_few_jobs_does_not_stop_recovery(drive: Any, is_root: bool) -> None:
    """The fault that sets a row apart does not trip the setting apart; the row has a last attempt in the log."""
    root = drive.enqueue(max_attempts=1).job_id
    lost = drive.claim_one()
    if not is_root:
        drive.end(lost, children=(drive.new(plugin="next", child_key="1", max_attempts=1),))
        lost = drive.claim_one("next")
    drive.db.execute("UPDATE job_queue SET open_jobs = 0 WHERE id = ?", (root,))
    (quarantined,) = recovered(drive)
    assert isinstance(quarantined, Quarantined)
    assert drive.row(root)["tree_completed_at"] is not None
    report = job_details.job(drive.db, lost.id)
    assert (report.job.status, report.open_jobs) == (JobStatus.DEAD, 0)
    (attempt,) = report.attempts
    assert (attempt.status, attempt.job_status, attempt.last_error) == ("failed", "dead", quarantined.reason)


def test_an_attempt_that_is_in_the_log_already_is_the_last_one(drive: Any) -> None:
    """Its evidence stays; the log says that the job died with it."""
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job, Failed("no", drive.evidence(stderr="kept")))
    drive.db.execute(
        "UPDATE job_queue SET status = 'running', claimed_by = 'run-1', completed_at = NULL, open_jobs = 1"
    )
    (quarantined,) = recovered(drive)
    assert isinstance(quarantined, Quarantined)
    (attempt,) = job_details.attempts(drive.db, job.id)
    assert (attempt.job_status, attempt.stderr) == ("dead", "kept")


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_CORRUPT]
)
def test_a_disk_that_fails_makes_no_job_dead(drive: Any, code: int) -> None:
    """Recovery stops and says so; the rows are as they were for the next start."""
    error = sqlite3.OperationalError("the disk")
    error.sqlite_errorcode = code

    def fail(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        raise error

    drive.enqueue(max_attempts=1)
    drive.claim_one()
    with pytest.raises(LedgerError):
        recovered(drive, rule=fail)
    assert drive.statuses() == ["running"]


def test_waiting_jobs_are_let_go_by_recovery(drive: Any) -> None:
    """Nobody waits for a key whose holder died with the core."""
    drive.enqueue(dedupe_key="k")
    waiter = drive.enqueue(dedupe_key="k").job_id
    drive.claim()
    assert drive.row(waiter)["waits_for_key"] == 1
    recovered(drive)
    assert drive.row(waiter)["waits_for_key"] == 0


def test_a_delay_survives_the_wait(drive: Any) -> None:
    """Retried with a delay, then cancelled while delayed: dead, and out of the delayed index."""
    drive.enqueue()
    job = drive.claim_one()
    drive.end(job, Retried("no", timedelta(hours=1)))
    cancelled(drive, job.id)
    assert drive.row(job.id)["next_retry_at"] is None
    with pytest.raises(WrongState):
        cancelled(drive, job.id)


def test_a_failed_job_can_be_tried_again_more_than_once(drive: Any) -> None:
    """Every attempt has its own number."""
    drive.enqueue(max_attempts=1)
    for number in (1, 2, 3):
        job = drive.claim_one()
        assert job.attempt == number
        drive.end(job, Failed("no"))
        with transaction(drive.db):
            retry(drive.db, job.id, now=drive.now)


def test_whoever_waits_for_whatever_is_among_those_that_wait(drive: Any) -> None:
    """In its lane, for its next attempt, or for its key; what runs or is over is not, nor is the core itself."""
    for plugin in ("ready", "running", "over", "core.relay"):
        drive.enqueue(plugin=plugin)
    drive.claim(9, running=1)
    drive.end(drive.claim_one("over"))
    drive.enqueue(plugin="delayed")
    drive.end(drive.claim_one("delayed"), Retried("again", timedelta(minutes=1)))
    for _ in range(2):
        drive.enqueue(plugin="keyed", dedupe_key="k")
    drive.claim(9, keyed=2)
    assert queued_plugins(drive.db) == ["delayed", "keyed", "ready"]
