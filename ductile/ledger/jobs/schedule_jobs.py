"""The jobs of a schedule: fire a slot, and find the jobs of a slot.

Firing writes the job, the slot and the next run in one transaction, so a crash neither repeats nor loses a slot.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from ductile.core.clock import from_text, to_text
from ductile.core.model import NewJob
from ductile.ledger.jobs.dedupe import DEFAULT_TTL
from ductile.ledger.jobs.enqueue import Enqueued, enqueue
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

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
    """Enqueue the slot's job, unless it exists, and set the next run."""
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


OPEN_JOB_IDS = """
    SELECT id FROM job_queue
     WHERE status IN ('queued', 'running') AND plugin = ? AND schedule_id = ? ORDER BY +seq
"""


def open_job_ids(db: Db, plugin: str, schedule_id: str) -> list[str]:
    """Return the ids of the schedule's queued and running jobs, oldest first."""
    return [job_id for (job_id,) in db.execute(OPEN_JOB_IDS, (plugin, schedule_id))]


SLOT_JOB = """
    SELECT id FROM job_queue WHERE plugin = ? AND schedule_id = ? AND slot_at >= ? AND slot_at < ?
     ORDER BY slot_at DESC LIMIT 1
"""
LOGGED_SLOT_JOB = """
    SELECT job_id FROM job_log WHERE plugin = ? AND schedule_id = ? AND slot_at >= ? AND slot_at < ?
     ORDER BY seq DESC LIMIT 1
"""


def find_slot_job(db: Db, plugin: str, schedule_id: str, slot_at: datetime) -> str | None:
    """Return the latest job of the slot, from the queue or the log.

    After the clock was set back, a slot fires again; its jobs then have slots some microseconds later.
    """
    values = (plugin, schedule_id, to_text(slot_at), to_text(slot_at + _SAME_SLOT))
    row = db.execute(SLOT_JOB, values).fetchone() or db.execute(LOGGED_SLOT_JOB, values).fetchone()
    return row[0] if row else None


SLOT_JOBS = f"""
    SELECT slot_at, id FROM job_queue {using("job_queue_slot")}
     WHERE plugin = :plugin AND schedule_id = :schedule_id AND slot_at >= :start AND slot_at < :end
       AND slot_at IS NOT NULL
    UNION
    SELECT slot_at, job_id FROM (
        SELECT slot_at, job_id, schedule_id FROM job_log {using("job_log_by_plugin")}
         WHERE plugin = :plugin ORDER BY seq DESC LIMIT :scanned)
     WHERE schedule_id = :schedule_id AND slot_at >= :start AND slot_at < :end
     ORDER BY 1
"""


def slot_jobs(db: Db, plugin: str, schedule_id: str, start: datetime, end: datetime) -> list[tuple[datetime, str]]:
    """Return slot and id of the jobs of all slots in [start, end), from the queue and the newest MAX_SCANNED attempts.

    Use `job_of_slot` to find the job of one of them.
    """
    values = {"plugin": plugin, "schedule_id": schedule_id, "start": to_text(start), "end": to_text(end)}
    rows = db.execute(SLOT_JOBS, {**values, "scanned": MAX_SCANNED})
    return [(from_text(slot_at), job_id) for slot_at, job_id in rows]


def job_of_slot(jobs: Iterable[tuple[datetime, str]], slot_at: datetime) -> str | None:
    """Return the latest job of the slot among those of `slot_jobs`."""
    found = [job_id for at, job_id in jobs if slot_at <= at < slot_at + _SAME_SLOT]
    return found[-1] if found else None


MAX_SCANNED = 5_000
"""Attempts of a plugin that one query reads."""
_SAME_SLOT = timedelta(milliseconds=1)
