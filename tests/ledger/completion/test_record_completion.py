"""Completions that cannot be recorded: only their own job ends, with the reason."""

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


def ended(ledger: Any, *endings: Completion, **free: int) -> tuple[list[Recorded | Stale], Claimed]:
    with transaction(ledger.db):
        return record_and_claim(ledger.db, endings, now=ledger.now, run_id=ledger.run_id, free=free, limit=9)


def success(ledger: Any, job: Job, **more: Any) -> Completion:
    evidence = ledger.evidence(**{"result": '{"n":1}', "stderr": "noise"} | more.pop("evidence", {}))
    return Completion(job_id=job.id, attempt=job.attempt, outcome=Succeeded(evidence), **more)


def running(ledger: Any, count: int, **new: Any) -> tuple[Job, ...]:
    for _ in range(count):
        ledger.enqueue(**new)
    jobs: tuple[Job, ...] = ledger.claim().jobs
    return jobs


def test_a_completion_that_cannot_be_recorded_ends_only_its_job(ledger: Any) -> None:
    """Its evidence is stored, but no fact, state, child or context. The claim in the same transaction succeeds."""
    first, bad, last = running(ledger, 3)
    waiting = ledger.enqueue(plugin="next").job_id
    impossible = success(
        ledger,
        bad,
        facts=(NewFact(fact_type="t", fact_json="{}"),),
        state_updates='{"a":1}',
        contexts=(NewContext(id="c"),),
        children=(ledger.new(child_key="1"), ledger.new(child_key="2", max_attempts=0)),
    )
    recorded, claimed = ended(ledger, success(ledger, first), impossible, success(ledger, last), next=1)
    assert [one.status for one in recorded if isinstance(one, Recorded)] == ["succeeded", "dead", "succeeded"]
    assert [job.id for job in claimed.jobs] == [waiting]
    report = job_details.job(ledger.db, bad.id)
    assert (report.job.last_error or "").startswith("cannot be recorded: IntegrityError: CHECK constraint failed")
    assert [(attempt.status, attempt.stderr, attempt.result) for attempt in report.attempts] == [
        ("failed", "noise", '{"n":1}')
    ]
    assert (report.children, report.open_jobs, facts.state(ledger.db, "echo")) == ([], 0, "{}")
    assert ledger.db.execute("SELECT COUNT(*) FROM event_context").fetchone() == (0,)
    assert ledger.journal_kinds().count("job.completed") == 2


def test_an_unreadable_breaker_does_not_change_the_outcome(ledger: Any) -> None:
    """A success is recorded as a success."""
    one, other = running(ledger, 2)
    ledger.db.execute(
        "INSERT INTO circuit_breakers (plugin, command, opened_at, updated_at) VALUES ('echo', 'poll', 'soon', 'now')"
    )
    ended(ledger, success(ledger, one, breaker=lambda *_: None), success(ledger, other))
    report = job_details.job(ledger.db, one.id)
    assert (report.job.status, report.attempts[0].stderr) == (JobStatus.SUCCEEDED, "noise")
    assert ledger.row(other.id)["status"] == "succeeded"


def test_a_breaker_rule_that_fails_keeps_the_evidence(ledger: Any) -> None:
    """The job ends dead, with the output of its attempt."""

    def undecided(*_: Any) -> None:
        raise ValueError("no such state")

    bad, other = running(ledger, 2)
    ended(ledger, success(ledger, bad, breaker=undecided), success(ledger, other))
    report = job_details.job(ledger.db, bad.id)
    assert (report.job.status, report.attempts[0].stderr) == (JobStatus.DEAD, "noise")
    assert ledger.row(other.id)["status"] == "succeeded"


def test_evidence_that_cannot_be_stored_is_left_out(ledger: Any) -> None:
    """The job is quarantined: dead, with a logged attempt and a reason. Its key is free again."""
    (bad,) = running(ledger, 1, dedupe_key="k")
    waiter = ledger.enqueue(dedupe_key="k").job_id
    assert ledger.claim().jobs == ()
    (recorded,), claimed = ended(ledger, success(ledger, bad, evidence={"stderr": "\udc80"}), echo=1)
    assert isinstance(recorded, Recorded)
    assert (recorded.status, recorded.tree_is_done) == (JobStatus.DEAD, True)
    assert [job.id for job in claimed.jobs] == [waiter]
    report = job_details.job(ledger.db, bad.id)
    assert "surrogates not allowed" in (report.job.last_error or "")
    assert [(attempt.attempt, attempt.job_status) for attempt in report.attempts] == [(1, "dead")]
    assert report.journal[-1].kind == "job.quarantined"


def test_a_row_that_cannot_be_quarantined_is_journalled(ledger: Any) -> None:
    """It stays running for the next start to recover. The other completions are recorded."""
    bad, other = running(ledger, 2)
    ledger.db.execute(
        f"CREATE TRIGGER stuck BEFORE UPDATE ON job_queue WHEN OLD.id = '{bad.id}' "
        "BEGIN SELECT RAISE(ABORT, 'stuck'); END"
    )
    recorded, _ = ended(ledger, success(ledger, bad), success(ledger, other))
    assert recorded[0] == Stale(bad.id, 1, "running; cannot be recorded: IntegrityError: stuck")
    assert [ledger.row(job.id)["status"] for job in (bad, other)] == ["running", "succeeded"]
    (entry,) = (entry for entry in job_details.job(ledger.db, bad.id).journal if entry.kind == "job.quarantined")
    assert "stuck" in entry.data["reason"]


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_CORRUPT]
)
def test_a_disk_error_ends_no_job(ledger: Any, code: int) -> None:
    """Full, busy and broken disks are raised to the caller. Every job is still running."""
    error = sqlite3.OperationalError("the disk")
    error.sqlite_errorcode = code

    def fail(*_: object) -> None:
        raise error

    first, second = running(ledger, 2)
    with pytest.raises(LedgerError):
        ended(ledger, success(ledger, first, breaker=fail), success(ledger, second))
    assert ledger.statuses() == ["running", "running"]


def test_an_error_text_with_invalid_characters_is_escaped(ledger: Any) -> None:
    """And shortened, so that it can always be stored."""

    def fail(*_: object) -> None:
        raise ValueError("\udc80" + "x" * 10_000)

    (bad,) = running(ledger, 1)
    ended(ledger, success(ledger, bad, breaker=fail))
    error = ledger.row(bad.id)["last_error"]
    assert error.startswith("cannot be recorded: ValueError: \\udc80xxx")
    assert len(error) < 1000
