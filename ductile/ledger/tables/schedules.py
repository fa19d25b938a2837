"""schedule_entries: the last and the next run of each schedule, and why a slot is held.

Does not know when a schedule is due. `jobs.schedule_jobs` has the jobs of a schedule.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text_or_none, to_text
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal


class EntryStatus(StrEnum):
    """Whether a schedule runs, and if not, why."""

    ACTIVE = "active"
    PAUSED_MANUAL = "paused_manual"
    PAUSED_INVALID = "paused_invalid"
    EXHAUSTED = "exhausted"


@frozen(kw_only=True)
class ScheduleEntry:
    """The stored state of one schedule of a plugin."""

    plugin: str
    schedule_id: str
    command: str
    status: EntryStatus = EntryStatus.ACTIVE
    reason: str | None = None
    last_fired_at: datetime | None = None
    last_success_job_id: str | None = None
    last_success_at: datetime | None = None
    next_run_at: datetime | None = None
    definition_hash: str | None = None
    last_slot_at: datetime | None = None
    last_job_id: str | None = None
    anchored_at: datetime | None = None
    held_reason: str | None = None


_COLUMNS = """plugin, schedule_id, command, status, reason, last_fired_at, last_success_job_id, last_success_at,
    next_run_at, definition_hash, last_slot_at, last_job_id, anchored_at, held_reason"""
GET = f"SELECT {_COLUMNS} FROM schedule_entries WHERE plugin = ? AND schedule_id = ?"


def get(db: Db, plugin: str, schedule_id: str) -> ScheduleEntry | None:
    row = db.execute(GET, (plugin, schedule_id)).fetchone()
    return _entry(row) if row else None


ALL = f"SELECT {_COLUMNS} FROM schedule_entries ORDER BY plugin, schedule_id"


def all_entries(db: Db) -> list[ScheduleEntry]:
    """Return all entries. Unreadable ones are left out."""
    return [entry for row in db.execute(ALL) if (entry := _entry_or_none(row)) is not None]


KEYS = "SELECT plugin, schedule_id FROM schedule_entries ORDER BY plugin, schedule_id"


def all_keys(db: Db) -> list[tuple[str, str]]:
    return db.execute(KEYS).fetchall()


RESET = """
    UPDATE schedule_entries
       SET status = CASE WHEN status = 'paused_manual' THEN status ELSE 'active' END,
           reason = CASE WHEN status = 'paused_manual' THEN reason END,
           last_fired_at = NULL, last_success_job_id = NULL, last_success_at = NULL, next_run_at = NULL,
           last_slot_at = NULL, held_reason = NULL, anchored_at = ?, updated_at = ?
     WHERE plugin = ? AND schedule_id = ?
    RETURNING status
"""
UNREADABLE = "entry was unreadable and has been reset"


def reset(db: Db, keys: Iterable[tuple[str, str]], *, now: datetime) -> None:
    """Reset unreadable entries to those of a new schedule, except for a manual pause. Journal the reason."""
    at = to_text(now)
    for plugin, schedule_id in keys:
        for (status,) in db.execute(RESET, (at, at, plugin, schedule_id)).fetchall():
            data = {"schedule_id": schedule_id, "status": status, "reason": UNREADABLE}
            journal.append(db, "scheduler.status_changed", now=now, plugin=plugin, data=data)


DEFINE = """
    INSERT INTO schedule_entries (plugin, schedule_id, command, definition_hash, anchored_at, updated_at)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (plugin, schedule_id) DO UPDATE
       SET command = excluded.command, definition_hash = excluded.definition_hash, anchored_at = excluded.anchored_at,
           status = CASE WHEN status = 'paused_manual' THEN status ELSE 'active' END,
           reason = CASE WHEN status = 'paused_manual' THEN reason END,
           last_fired_at = NULL, last_success_job_id = NULL, last_success_at = NULL, next_run_at = NULL,
           last_slot_at = NULL, held_reason = NULL, updated_at = excluded.updated_at
     WHERE schedule_entries.definition_hash IS NOT excluded.definition_hash
"""


def define_all(db: Db, definitions: Iterable[tuple[str, str, str, str]], *, now: datetime) -> None:
    """Define entries as `define` does: plugin, schedule id, command and definition hash of each."""
    at = to_text(now)
    db.executemany(DEFINE, ((*definition, at, at) for definition in definitions))


def define(
    db: Db, plugin: str, schedule_id: str, command: str, definition_hash: str, *, now: datetime
) -> ScheduleEntry:
    """Create the entry, or reset it if its definition has changed. A manual pause stays."""
    define_all(db, [(plugin, schedule_id, command, definition_hash)], now=now)
    entry = get(db, plugin, schedule_id)
    assert entry is not None
    return entry


HOLD_SLOT = """
    UPDATE schedule_entries SET held_reason = :reason, next_run_at = :next, updated_at = :now
     WHERE plugin = :plugin AND schedule_id = :schedule_id
    RETURNING command
"""


def hold_slot(
    db: Db,
    plugin: str,
    schedule_id: str,
    reason: str,
    error: str | None = None,
    *,
    now: datetime,
    slot_at: datetime | None,
    next_run_at: datetime | None,
) -> None:
    """Store why the slot did not run. Journal it only if the reason or the next run has changed."""
    before = get(db, plugin, schedule_id)
    values = {
        "plugin": plugin,
        "schedule_id": schedule_id,
        "reason": reason,
        "now": to_text(now),
        "next": to_text(next_run_at) if next_run_at else None,
    }
    commands = [command for (command,) in db.execute(HOLD_SLOT, values)]
    if before is None or before.held_reason != reason or before.next_run_at != next_run_at:
        data = {
            "schedule_id": schedule_id,
            "command": commands[0] if commands else None,
            "reason": reason,
            "slot_at": to_text(slot_at) if slot_at else None,
            "next_run_at": values["next"],
            **({"error": error} if error else {}),
        }
        journal.append(db, "scheduler.skipped", now=now, plugin=plugin, data=data)


SET_NEXT_RUN = "UPDATE schedule_entries SET next_run_at = ?, updated_at = ? WHERE plugin = ? AND schedule_id = ?"


def set_next_run(db: Db, plugin: str, schedule_id: str, next_run_at: datetime | None, *, now: datetime) -> None:
    """Set when the schedule is due next, if the entry exists."""
    set_next_runs(db, [(plugin, schedule_id, next_run_at)], now=now)


def set_next_runs(db: Db, next_runs: Iterable[tuple[str, str, datetime | None]], *, now: datetime) -> int:
    """Set the next run of many entries: plugin, schedule id, time. Return how many exist."""
    at = to_text(now)
    values = ((to_text(next_at) if next_at else None, at, *key) for *key, next_at in next_runs)
    return db.executemany(SET_NEXT_RUN, values).rowcount


RELEASE_SLOT = """
    UPDATE schedule_entries SET next_run_at = ?, held_reason = NULL, updated_at = ? WHERE plugin = ? AND schedule_id = ?
"""


def release_slot(db: Db, plugin: str, schedule_id: str, next_run_at: datetime | None, *, now: datetime) -> None:
    """Clear the held reason and set when the schedule is due next."""
    db.execute(RELEASE_SLOT, (to_text(next_run_at) if next_run_at else None, to_text(now), plugin, schedule_id))


SET_STATUS = """
    UPDATE schedule_entries SET status = ?, reason = ?, updated_at = ? WHERE plugin = ? AND schedule_id = ?
"""


def set_status(
    db: Db,
    plugin: str,
    schedule_id: str,
    status: EntryStatus,
    *,
    now: datetime,
    reason: str | None = None,
    actor: str | None = None,
) -> bool:
    """Set and journal the status; False if the entry does not exist."""
    changed = db.execute(SET_STATUS, (status, reason, to_text(now), plugin, schedule_id)).rowcount == 1
    if changed:
        data = {"schedule_id": schedule_id, "status": status, "reason": reason}
        journal.append(db, "scheduler.status_changed", now=now, plugin=plugin, data=data, actor=actor)
    return changed


DELETE = "DELETE FROM schedule_entries WHERE plugin = ? AND schedule_id = ?"


def delete(db: Db, plugin: str, schedule_id: str) -> None:
    """Delete the entry of a schedule that is no longer configured."""
    db.execute(DELETE, (plugin, schedule_id))


SET_LAST_SUCCESS = """
    UPDATE schedule_entries SET last_success_job_id = ?, last_success_at = ?, updated_at = ?
     WHERE plugin = ? AND schedule_id = ?
"""


def set_last_success(db: Db, plugin: str, schedule_id: str, job_id: str, *, now: datetime) -> None:
    """Store the last success, if the entry still exists."""
    db.execute(SET_LAST_SUCCESS, (job_id, to_text(now), to_text(now), plugin, schedule_id))


def _entry(row: tuple[Any, ...]) -> ScheduleEntry:
    return ScheduleEntry(
        plugin=row[0],
        schedule_id=row[1],
        command=row[2],
        status=EntryStatus(row[3]),
        reason=row[4],
        last_fired_at=from_text_or_none(row[5]),
        last_success_job_id=row[6],
        last_success_at=from_text_or_none(row[7]),
        next_run_at=from_text_or_none(row[8]),
        definition_hash=row[9],
        last_slot_at=from_text_or_none(row[10]),
        last_job_id=row[11],
        anchored_at=from_text_or_none(row[12]),
        held_reason=row[13],
    )


def _entry_or_none(row: tuple[Any, ...]) -> ScheduleEntry | None:
    """Return None for a row with invalid values."""
    try:
        return _entry(row)
    except ValueError:
        return None


SKIP_SLOTS = """
    UPDATE schedule_entries
       SET last_slot_at = :slot, next_run_at = :next, held_reason = NULL, updated_at = :now
     WHERE plugin = :plugin AND schedule_id = :schedule_id
    RETURNING command
"""


def skip_slots(
    db: Db,
    plugin: str,
    schedule_id: str,
    slot_at: datetime,
    reason: str,
    *,
    now: datetime,
    next_run_at: datetime | None,
    count: int = 1,
    open_job_id: str | None = None,
) -> None:
    """Skip the slots up to `slot_at`. Journal the reason as one entry for `count` slots, unless that is 0.

    `open_job_id` is the job that kept them from running.
    """
    next_text = to_text(next_run_at) if next_run_at else None
    values = {
        "plugin": plugin,
        "schedule_id": schedule_id,
        "slot": to_text(slot_at),
        "next": next_text,
        "now": to_text(now),
    }
    commands = [command for (command,) in db.execute(SKIP_SLOTS, values)]
    if count:
        data = {
            "schedule_id": schedule_id,
            "command": commands[0] if commands else None,
            "reason": reason,
            "slot_at": to_text(slot_at),
            "count": count,
            "next_run_at": next_text,
            **({"open_job_id": open_job_id} if open_job_id else {}),
        }
        journal.append(db, "scheduler.skipped", now=now, plugin=plugin, data=data)
