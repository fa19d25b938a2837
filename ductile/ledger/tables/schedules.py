"""Schedule entries and their slots: what fired last, what is next, what holds it.

When a schedule is due is decided elsewhere; here a firing is one transaction of job, slot and next run, so a crash can
neither repeat a slot nor lose it.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.model import NewJob
from ductile.ledger.queue.dedupe import DEFAULT_TTL
from ductile.ledger.queue.enqueue import Enqueued, enqueue
from ductile.ledger.queue.rows import moment
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal


class EntryStatus(StrEnum):
    ACTIVE = "active"
    PAUSED_MANUAL = "paused_manual"
    PAUSED_INVALID = "paused_invalid"
    EXHAUSTED = "exhausted"


@frozen(kw_only=True)
class ScheduleEntry:
    """One schedule of one plugin as the ledger remembers it."""

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
    """Every entry that can be read; one that cannot does not hide the others."""
    return [entry for row in db.execute(ALL) if (entry := _entry_or_none(row)) is not None]


KEYS = "SELECT plugin, schedule_id FROM schedule_entries ORDER BY plugin, schedule_id"


def all_keys(db: Db) -> list[tuple[str, str]]:
    return db.execute(KEYS).fetchall()


FORGET_HISTORY = """
    UPDATE schedule_entries
       SET status = CASE WHEN status = 'paused_manual' THEN status ELSE 'active' END,
           reason = CASE WHEN status = 'paused_manual' THEN reason END,
           last_fired_at = NULL, last_success_job_id = NULL, last_success_at = NULL, next_run_at = NULL,
           last_slot_at = NULL, held_reason = NULL, anchored_at = ?, updated_at = ?
     WHERE plugin = ? AND schedule_id = ?
    RETURNING status
"""
UNREADABLE = "its entry cannot be read and starts anew"


def start_anew(db: Db, keys: Iterable[tuple[str, str]], *, now: datetime) -> None:
    """These entries are as if their schedules were new, unless paused by the operator; the journal says why."""
    at = to_text(now)
    for plugin, schedule_id in keys:
        for (status,) in db.execute(FORGET_HISTORY, (at, at, plugin, schedule_id)).fetchall():
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
    """Every entry exists as `define` would have it: plugin, schedule, command and hash of the definition."""
    at = to_text(now)
    db.executemany(DEFINE, ((*definition, at, at) for definition in definitions))


def define(
    db: Db, plugin: str, schedule_id: str, command: str, definition_hash: str, *, now: datetime
) -> ScheduleEntry:
    """The entry exists with this definition; one that had another starts anew, unless paused by the operator."""
    define_all(db, [(plugin, schedule_id, command, definition_hash)], now=now)
    entry = get(db, plugin, schedule_id)
    assert entry is not None
    return entry


FIRED = """
    UPDATE schedule_entries
       SET last_fired_at = :now, last_slot_at = COALESCE(:slot, last_slot_at), last_job_id = :job,
           next_run_at = :next, held_reason = NULL, updated_at = :now,
           status = CASE WHEN :exhausted THEN 'exhausted' ELSE status END
     WHERE plugin = :plugin AND schedule_id = :schedule_id
"""


def fire(
    db: Db,
    new: NewJob,
    *,
    now: datetime,
    next_run_at: datetime | None,
    exhausted: bool = False,
    default_ttl: timedelta = DEFAULT_TTL,
) -> Enqueued:
    """The slot's job is queued (or was already) and the entry points at the next run."""
    enqueued = enqueue(db, new, now=now, default_ttl=default_ttl)
    db.execute(
        FIRED,
        {
            "plugin": new.plugin,
            "schedule_id": new.schedule_id,
            "now": to_text(now),
            "slot": to_text(new.slot_at) if new.slot_at else None,
            "job": enqueued.job_id,
            "next": to_text(next_run_at) if next_run_at else None,
            "exhausted": exhausted,
        },
    )
    return enqueued


HOLD = """
    UPDATE schedule_entries SET held_reason = :reason, next_run_at = :next, updated_at = :now
     WHERE plugin = :plugin AND schedule_id = :schedule_id
    RETURNING command
"""


def hold(
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
    """The slot did not run and the entry says why; the journal gets one row when the reason changes, not every look."""
    before = get(db, plugin, schedule_id)
    values = {
        "plugin": plugin,
        "schedule_id": schedule_id,
        "reason": reason,
        "now": to_text(now),
        "next": to_text(next_run_at) if next_run_at else None,
    }
    commands = [command for (command,) in db.execute(HOLD, values)]
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


SET_NEXT = "UPDATE schedule_entries SET next_run_at = ?, updated_at = ? WHERE plugin = ? AND schedule_id = ?"


def set_next(db: Db, plugin: str, schedule_id: str, next_run_at: datetime | None, *, now: datetime) -> None:
    """The entry, if it exists, will next be looked at then."""
    set_all_next(db, [(plugin, schedule_id, next_run_at)], now=now)


def set_all_next(db: Db, next_runs: Iterable[tuple[str, str, datetime | None]], *, now: datetime) -> int:
    """`set_next` for many: plugin, schedule and when. How many of them have an entry."""
    at = to_text(now)
    values = ((to_text(next_at) if next_at else None, at, *key) for *key, next_at in next_runs)
    return db.executemany(SET_NEXT, values).rowcount


RELEASE = """
    UPDATE schedule_entries SET next_run_at = ?, held_reason = NULL, updated_at = ? WHERE plugin = ? AND schedule_id = ?
"""


def release(db: Db, plugin: str, schedule_id: str, next_run_at: datetime | None, *, now: datetime) -> None:
    """Nothing of the entry waits, and it will next be looked at then."""
    db.execute(RELEASE, (to_text(next_run_at) if next_run_at else None, to_text(now), plugin, schedule_id))


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
) -> bool:
    """The entry has this status; False if there is no such entry."""
    changed = db.execute(SET_STATUS, (status, reason, to_text(now), plugin, schedule_id)).rowcount == 1
    if changed:
        data = {"schedule_id": schedule_id, "status": status, "reason": reason}
        journal.append(db, "scheduler.status_changed", now=now, plugin=plugin, data=data)
    return changed


FORGET = "DELETE FROM schedule_entries WHERE plugin = ? AND schedule_id = ?"


def forget(db: Db, plugin: str, schedule_id: str) -> None:
    """A schedule that is no longer configured has no entry."""
    db.execute(FORGET, (plugin, schedule_id))


NOTE_SUCCESS = """
    UPDATE schedule_entries SET last_success_job_id = ?, last_success_at = ?, updated_at = ?
     WHERE plugin = ? AND schedule_id = ?
"""


def note_success(db: Db, plugin: str, schedule_id: str, job_id: str, *, now: datetime) -> None:
    """The entry, if it still exists, knows its last success."""
    db.execute(NOTE_SUCCESS, (job_id, to_text(now), to_text(now), plugin, schedule_id))


OUTSTANDING = """
    SELECT id FROM job_queue
     WHERE status IN ('queued', 'running') AND plugin = ? AND schedule_id = ? ORDER BY +seq
"""


def outstanding(db: Db, plugin: str, schedule_id: str) -> list[str]:
    """The schedule's jobs that are not over, oldest first."""
    return [job_id for (job_id,) in db.execute(OUTSTANDING, (plugin, schedule_id))]


JOB_OF_SLOT = """
    SELECT id FROM job_queue WHERE plugin = ? AND schedule_id = ? AND slot_at >= ? AND slot_at < ?
     ORDER BY slot_at DESC LIMIT 1
"""
LOGGED_JOB_OF_SLOT = """
    SELECT job_id FROM job_log WHERE plugin = ? AND schedule_id = ? AND slot_at >= ? AND slot_at < ?
     ORDER BY seq DESC LIMIT 1
"""


def job_of_slot(db: Db, plugin: str, schedule_id: str, slot_at: datetime) -> str | None:
    """The latest job that was made for the slot, for as long as the queue or the log has it.

    A clock that was set back comes to a slot again; such jobs have slots some microseconds later.
    """
    values = (plugin, schedule_id, to_text(slot_at), to_text(slot_at + _SAME_SLOT))
    row = db.execute(JOB_OF_SLOT, values).fetchone() or db.execute(LOGGED_JOB_OF_SLOT, values).fetchone()
    return row[0] if row else None


_SAME_SLOT = timedelta(milliseconds=1)


def _entry(row: tuple[Any, ...]) -> ScheduleEntry:
    return ScheduleEntry(
        plugin=row[0],
        schedule_id=row[1],
        command=row[2],
        status=EntryStatus(row[3]),
        reason=row[4],
        last_fired_at=moment(row[5]),
        last_success_job_id=row[6],
        last_success_at=moment(row[7]),
        next_run_at=moment(row[8]),
        definition_hash=row[9],
        last_slot_at=moment(row[10]),
        last_job_id=row[11],
        anchored_at=moment(row[12]),
        held_reason=row[13],
    )


def _entry_or_none(row: tuple[Any, ...]) -> ScheduleEntry | None:
    """None for a row with values that no entry can have."""
    try:
        return _entry(row)
    except ValueError:
        return None


PASS_OVER = """
    UPDATE schedule_entries
       SET last_slot_at = :slot, next_run_at = :next, held_reason = NULL, updated_at = :now
     WHERE plugin = :plugin AND schedule_id = :schedule_id
    RETURNING command
"""


def pass_over(
    db: Db,
    plugin: str,
    schedule_id: str,
    slot_at: datetime,
    reason: str,
    *,
    now: datetime,
    next_run_at: datetime | None,
    count: int = 1,
) -> None:
    """The slots up to `slot_at` will never run, and the journal says why; `count` of them are told as one."""
    next_text = to_text(next_run_at) if next_run_at else None
    values = {
        "plugin": plugin,
        "schedule_id": schedule_id,
        "slot": to_text(slot_at),
        "next": next_text,
        "now": to_text(now),
    }
    commands = [command for (command,) in db.execute(PASS_OVER, values)]
    if count:
        data = {
            "schedule_id": schedule_id,
            "command": commands[0] if commands else None,
            "reason": reason,
            "slot_at": to_text(slot_at),
            "count": count,
            "next_run_at": next_text,
        }
        journal.append(db, "scheduler.skipped", now=now, plugin=plugin, data=data)
