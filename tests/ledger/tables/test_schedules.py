"""Schedule entries and breakers as rows."""

from datetime import timedelta
from typing import Any

from ductile.core.model import Breaker, BreakerChange, BreakerState
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import breakers, schedules
from ductile.ledger.tables.schedules import EntryStatus

HOUR = timedelta(hours=1)


def define(drive: Any, definition: str = "h1") -> schedules.ScheduleEntry:
    with transaction(drive.db):
        return schedules.define(drive.db, "echo", "hourly", "poll", definition, now=drive.now)


def fire(drive: Any, **more: Any) -> Any:
    with transaction(drive.db):
        new = drive.new(schedule_id="hourly", slot_at=drive.now)
        return schedules.fire(drive.db, new, now=drive.now, next_run_at=drive.now + HOUR, **more)


def hold(drive: Any, reason: str) -> None:
    with transaction(drive.db):
        schedules.hold(
            drive.db, "echo", "hourly", reason, now=drive.now, slot_at=drive.now, next_run_at=drive.now + HOUR
        )


def entry(drive: Any) -> schedules.ScheduleEntry:
    found = schedules.get(drive.db, "echo", "hourly")
    assert found is not None
    return found


def test_firing_is_job_slot_and_next_run_in_one(drive: Any) -> None:
    """A second firing of the same slot finds the same job."""
    define(drive)
    first = fire(drive)
    assert fire(drive).job_id == first.job_id
    found = entry(drive)
    assert (found.last_slot_at, found.next_run_at, found.last_job_id) == (drive.now, drive.now + HOUR, first.job_id)
    assert schedules.outstanding(drive.db, "echo", "hourly") == [first.job_id]
    drive.end(drive.claim_one())
    assert schedules.outstanding(drive.db, "echo", "hourly") == []


def test_the_same_definition_keeps_its_history_and_another_resets_it(drive: Any) -> None:
    """Editing a schedule starts it anew; restarting the service does not."""
    define(drive)
    fire(drive, exhausted=True)
    assert entry(drive).status is EntryStatus.EXHAUSTED
    drive.later(days=1)
    assert define(drive).last_fired_at is not None
    fresh = define(drive, "h2")
    assert (fresh.status, fresh.last_fired_at, fresh.next_run_at) == (EntryStatus.ACTIVE, None, None)
    assert fresh.anchored_at == drive.now


def test_a_pause_survives_an_edit(drive: Any) -> None:
    """What the operator paused stays paused until resumed."""
    define(drive)
    with transaction(drive.db):
        assert schedules.set_status(drive.db, "echo", "hourly", EntryStatus.PAUSED_MANUAL, now=drive.now)
        assert not schedules.set_status(drive.db, "echo", "nightly", EntryStatus.ACTIVE, now=drive.now)
    assert define(drive, "h2").status is EntryStatus.PAUSED_MANUAL


def test_a_held_slot_is_journalled_once(drive: Any) -> None:
    """Not with every look, but again when the reason changes."""
    define(drive)
    for reason in ("window", "window", "breaker open"):
        hold(drive, reason)
    assert drive.kinds() == ["scheduler.skipped", "scheduler.skipped"]
    assert entry(drive).held_reason == "breaker open"
    fire(drive)
    assert entry(drive).held_reason is None


def test_entries_come_and_go(drive: Any) -> None:
    """A schedule that is no longer configured is forgotten."""
    define(drive)
    with transaction(drive.db):
        schedules.set_next(drive.db, "echo", "hourly", drive.now, now=drive.now)
    assert [found.next_run_at for found in schedules.all_entries(drive.db)] == [drive.now]
    with transaction(drive.db):
        schedules.forget(drive.db, "echo", "hourly")
    assert schedules.all_entries(drive.db) == []


def test_a_breaker_is_closed_until_somebody_opens_it(drive: Any) -> None:
    """State, probe and history are kept; a change that is none leaves no row of history."""
    assert breakers.get(drive.db, "echo", "poll").state is BreakerState.CLOSED
    opened = Breaker(plugin="echo", command="poll", state=BreakerState.OPEN, failure_count=3, opened_at=drive.now)
    with transaction(drive.db):
        breakers.put(drive.db, BreakerChange(opened, "failure_threshold"), now=drive.now, job_id="j")
        breakers.put(drive.db, BreakerChange(opened, "failure_threshold"), now=drive.now, job_id="j")
    assert breakers.all_breakers(drive.db) == [opened]
    assert drive.db.execute("SELECT COUNT(*) FROM circuit_breaker_transitions").fetchone() == (1,)
