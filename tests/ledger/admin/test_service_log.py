"""The journal of starts and stops, and the downtimes that follow from it."""

import sqlite3
from datetime import UTC, datetime, timedelta

from ductile.ledger.admin import service_log
from ductile.ledger.admin.service_log import Downtime
from ductile.ledger.tables import journal

START = datetime(2026, 2, 8, 9, 0, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return START + timedelta(minutes=minutes)


def start(db: sqlite3.Connection, minutes: int) -> None:
    service_log.journal_start(
        db, run_id=f"run-{minutes}", version="1", pid=1, config_hash="0", actor="uid:0", now=at(minutes)
    )


def test_downtimes_lie_between_a_stop_and_the_next_start(db: sqlite3.Connection) -> None:
    """A killed service was down from its last entry on. The last downtime has no end while no service runs."""
    start(db, 0)
    service_log.journal_stop(db, run_id="run-0", reason="signal", actor="signal:SIGTERM", now=at(10))
    start(db, 20)
    unclean = service_log.find_unclean_stop(db)
    assert unclean is not None
    service_log.journal_recovery(db, unclean, job_ids=(), now=at(30))
    start(db, 30)
    service_log.journal_stop(db, run_id="run-30", reason="signal", actor="signal:SIGTERM", now=at(40))

    assert service_log.list_downtimes(db) == [
        Downtime(started_at=at(10), ended_at=at(20), reason="signal"),
        Downtime(started_at=at(20), ended_at=at(30), reason=None),
        Downtime(started_at=at(40), ended_at=None, reason="signal"),
    ]


def test_a_recovered_run_is_reported_once(db: sqlite3.Connection) -> None:
    """A start that fails after the recovery does not count as another unclean stop."""
    start(db, 0)
    unclean = service_log.find_unclean_stop(db)
    assert unclean is not None
    service_log.journal_recovery(db, unclean, job_ids=(), now=at(1))

    assert service_log.find_unclean_stop(db) is None


def test_a_recovery_names_the_first_of_the_jobs_that_ran(db: sqlite3.Connection) -> None:
    """Their number is complete."""
    start(db, 0)
    service_log.journal_recovery(db, {}, job_ids=[f"job-{n}" for n in range(100)], now=at(1))

    *_, recovered = journal.read_since(db, 0)
    assert (recovered.data["jobs"], recovered.data["job_ids"]) == (100, [f"job-{n}" for n in range(20)])
