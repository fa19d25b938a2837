"""Many endings at once: one that cannot be recorded ends only its own job, and says why."""

import sqlite3
from typing import Any

import pytest

from ductile.core.errors import LedgerError
from ductile.core.model import Completion, Job, JobStatus, NewContext, NewFact, Succeeded
from ductile.ledger.completion.record import Recorded, Stale
from ductile.ledger.queue.claim import Claimed
from ductile.ledger.reports import job_details
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import facts
from tests.ledger.recording import record_and_claim


def ended(drive: Any, *endings: Completion, **free: int) -> tuple[list[Recorded | Stale], Claimed]:
    with transaction(drive.db):
        return record_and_claim(drive.db, endings, now=drive.now, run_id=drive.run_id, free=free, limit=9)


def success(drive: Any, job: Job, **more: Any) -> Completion:
    evidence = drive.evidence(**{"result": '{"n":1}', "stderr": "noise"} | more.pop("evidence", {}))
    return Completion(job_id=job.id, attempt=job.attempt, outcome=Succeeded(evidence), **more)


def running(drive: Any, count: int, **new: Any) -> tuple[Job, ...]:
    for _ in range(count):
        drive.enqueue(**new)
    jobs: tuple[Job, ...] = drive.claim().jobs
    return jobs


def test_an_ending_that_cannot_be_recorded_is_dead_and_the_others_go_on(drive: Any) -> None:
    """Its evidence is kept; no fact, state, child or context of it is. The claim of the same step happens."""
    first, bad, last = running(drive, 3)
    waiting = drive.enqueue(plugin="next").job_id
    impossible = success(
        drive,
        bad,
        facts=(NewFact(fact_type="t", fact_json="{}"),),
        state_updates='{"a":1}',
        contexts=(NewContext(id="c"),),
        children=(drive.new(child_key="1"), drive.new(child_key="2", max_attempts=0)),
    )
    recorded, claimed = ended(drive, success(drive, first), impossible, success(drive, last), next=1)
    assert [one.status for one in recorded if isinstance(one, Recorded)] == ["succeeded", "dead", "succeeded"]
    assert [job.id for job in claimed.jobs] == [waiting]
    report = job_details.job(drive.db, bad.id)
    assert (report.job.last_error or "").startswith("cannot be recorded: IntegrityError: CHECK constraint failed")
    assert [(attempt.status, attempt.stderr, attempt.result) for attempt in report.attempts] == [
        ("failed", "noise", '{"n":1}')
    ]
    assert (report.children, report.open_jobs, facts.state(drive.db, "echo")) == ([], 0, "{}")
    assert drive.db.execute("SELECT COUNT(*) FROM event_context").fetchone() == (0,)
    assert drive.kinds().count("job.completed") == 2


def test_a_breaker_that_cannot_be_read_costs_nothing(drive: Any) -> None:
    """What went well went well, whatever is in the breaker's own row."""
    one, other = running(drive, 2)
    drive.db.execute(
        "INSERT INTO circuit_breakers (plugin, command, opened_at, updated_at) VALUES ('echo', 'poll', 'soon', 'now')"
    )
    ended(drive, success(drive, one, breaker=lambda *_: None), success(drive, other))
    report = job_details.job(drive.db, one.id)
    assert (report.job.status, report.attempts[0].stderr) == (JobStatus.SUCCEEDED, "noise")
    assert drive.row(other.id)["status"] == "succeeded"


def test_a_breaker_that_cannot_be_decided_does_not_cost_the_evidence(drive: Any) -> None:
    """What the attempt left is kept even where the breaker is the bad part."""

    def undecided(*_: Any) -> None:
        raise ValueError("no such state")

    bad, other = running(drive, 2)
    ended(drive, success(drive, bad, breaker=undecided), success(drive, other))
    report = job_details.job(drive.db, bad.id)
    assert (report.job.status, report.attempts[0].stderr) == (JobStatus.DEAD, "noise")
    assert drive.row(other.id)["status"] == "succeeded"


def test_evidence_that_cannot_be_written_is_left_out(drive: Any) -> None:
    """The job is set apart as a bad row would be: dead, with a last attempt and a reason, its key free again."""
    (bad,) = running(drive, 1, dedupe_key="k")
    waiter = drive.enqueue(dedupe_key="k").job_id
    assert drive.claim().jobs == ()
    (recorded,), claimed = ended(drive, success(drive, bad, evidence={"stderr": "\udc80"}), echo=1)
    assert isinstance(recorded, Recorded)
    assert (recorded.status, recorded.tree_is_done) == (JobStatus.DEAD, True)
    assert [job.id for job in claimed.jobs] == [waiter]
    report = job_details.job(drive.db, bad.id)
    assert "surrogates not allowed" in (report.job.last_error or "")
    assert [(attempt.attempt, attempt.job_status) for attempt in report.attempts] == [(1, "dead")]
    assert report.journal[-1].kind == "job.quarantined"


def test_a_row_that_cannot_even_be_set_apart_is_journalled(drive: Any) -> None:
    """It stays as it is for the next start to recover; the journal has the reason, and the others go on."""
    bad, other = running(drive, 2)
    drive.db.execute(
        f"CREATE TRIGGER stuck BEFORE UPDATE ON job_queue WHEN OLD.id = '{bad.id}' "
        "BEGIN SELECT RAISE(ABORT, 'stuck'); END"
    )
    recorded, _ = ended(drive, success(drive, bad), success(drive, other))
    assert recorded[0] == Stale(bad.id, 1, "running; cannot be recorded: IntegrityError: stuck")
    assert [drive.row(job.id)["status"] for job in (bad, other)] == ["running", "succeeded"]
    (entry,) = (entry for entry in job_details.job(drive.db, bad.id).journal if entry.kind == "job.quarantined")
    assert "stuck" in entry.data["reason"]


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_CORRUPT]
)
def test_a_disk_that_fails_is_nobodys_bad_ending(drive: Any, code: int) -> None:
    """Full, busy and broken are told to the caller, and every job still runs."""
    error = sqlite3.OperationalError("the disk")
    error.sqlite_errorcode = code

    def fail(*_: object) -> None:
        raise error

    first, second = running(drive, 2)
    with pytest.raises(LedgerError):
        ended(drive, success(drive, first, breaker=fail), success(drive, second))
    assert drive.statuses() == ["running", "running"]


def test_a_reason_that_cannot_be_written_is_spelled_out(drive: Any) -> None:
    """Whatever an error says, the row that tells of it can be written."""

    def fail(*_: object) -> None:
        raise ValueError("\udc80" + "x" * 10_000)

    (bad,) = running(drive, 1)
    ended(drive, success(drive, bad, breaker=fail))
    error = drive.row(bad.id)["last_error"]
    assert error.startswith("cannot be recorded: ValueError: \\udc80xxx")
    assert len(error) < 1000
