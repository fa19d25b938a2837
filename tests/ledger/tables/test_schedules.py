"""Schedule entries and breakers."""

from datetime import timedelta
from typing import Any

from ductile.core.model import Breaker, BreakerChange, BreakerState
from ductile.ledger.jobs import schedule_jobs
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import breakers, schedules
from ductile.ledger.tables.schedules import EntryStatus

HOUR = timedelta(hours=1)


def define(ledger: Any, definition: str = "h1") -> schedules.ScheduleEntry:
    with transaction(ledger.db):
        return schedules.define(ledger.db, "echo", "hourly", "poll", definition, now=ledger.now)


def fire(ledger: Any, **more: Any) -> Any:
    with transaction(ledger.db):
        new = ledger.new(schedule_id="hourly", slot_at=ledger.now)
        return schedule_jobs.fire(ledger.db, new, now=ledger.now, next_run_at=ledger.now + HOUR, **more)


def hold(ledger: Any, reason: str) -> None:
    with transaction(ledger.db):
        schedules.hold_slot(
            ledger.db, "echo", "hourly", reason, now=ledger.now, slot_at=ledger.now, next_run_at=ledger.now + HOUR
        )


def entry(ledger: Any) -> schedules.ScheduleEntry:
    found = schedules.get(ledger.db, "echo", "hourly")
    assert found is not None
    return found


def test_firing_stores_job_slot_and_next_run_together(ledger: Any) -> None:
    """Firing the same slot again finds the same job."""
    define(ledger)
    first = fire(ledger)
    assert fire(ledger).job_id == first.job_id
    found = entry(ledger)
    assert (found.last_slot_at, found.next_run_at, found.last_job_id) == (ledger.now, ledger.now + HOUR, first.job_id)
    assert schedule_jobs.open_job_ids(ledger.db, "echo", "hourly") == [first.job_id]
    ledger.end(ledger.claim_one())
    assert schedule_jobs.open_job_ids(ledger.db, "echo", "hourly") == []


def test_a_changed_definition_resets_the_entry(ledger: Any) -> None:
    """A restart of the service with the same definition does not."""
    define(ledger)
    fire(ledger, exhausted=True)
    assert entry(ledger).status is EntryStatus.EXHAUSTED
    ledger.advance(days=1)
    assert define(ledger).last_fired_at is not None
    fresh = define(ledger, "h2")
    assert (fresh.status, fresh.last_fired_at, fresh.next_run_at) == (EntryStatus.ACTIVE, None, None)
    assert fresh.anchored_at == ledger.now


def test_a_manual_pause_survives_a_changed_definition(ledger: Any) -> None:
    """Until the operator resumes the schedule."""
    define(ledger)
    with transaction(ledger.db):
        assert schedules.set_status(ledger.db, "echo", "hourly", EntryStatus.PAUSED_MANUAL, now=ledger.now)
        assert not schedules.set_status(ledger.db, "echo", "nightly", EntryStatus.ACTIVE, now=ledger.now)
    assert define(ledger, "h2").status is EntryStatus.PAUSED_MANUAL


def test_a_held_slot_is_journalled_once(ledger: Any) -> None:
    """And again when the reason changes."""
    define(ledger)
    for reason in ("window", "window", "breaker open"):
        hold(ledger, reason)
    assert ledger.journal_kinds() == ["scheduler.skipped", "scheduler.skipped"]
    assert entry(ledger).held_reason == "breaker open"
    fire(ledger)
    assert entry(ledger).held_reason is None


def test_an_entry_can_be_deleted(ledger: Any) -> None:
    """When its schedule is no longer configured."""
    define(ledger)
    with transaction(ledger.db):
        schedules.set_next_run(ledger.db, "echo", "hourly", ledger.now, now=ledger.now)
    assert [found.next_run_at for found in schedules.all_entries(ledger.db)] == [ledger.now]
    with transaction(ledger.db):
        schedules.delete(ledger.db, "echo", "hourly")
    assert schedules.all_entries(ledger.db) == []


def test_a_breaker_is_closed_until_it_is_opened(ledger: Any) -> None:
    """Only a change of state is added to its history."""
    assert breakers.get(ledger.db, "echo", "poll").state is BreakerState.CLOSED
    opened = Breaker(plugin="echo", command="poll", state=BreakerState.OPEN, failure_count=3, opened_at=ledger.now)
    with transaction(ledger.db):
        breakers.put(ledger.db, BreakerChange(opened, "failure_threshold"), now=ledger.now, job_id="j")
        breakers.put(ledger.db, BreakerChange(opened, "failure_threshold"), now=ledger.now, job_id="j")
    assert breakers.all_breakers(ledger.db) == [opened]
    assert ledger.db.execute("SELECT COUNT(*) FROM circuit_breaker_transitions").fetchone() == (1,)
