"""What happened last, at a glance: the jobs that ended most recently, and those that a schedule keeps busy.

Reads only, from the newest row on; `history` has the lists with filters and pages.
"""

from typing import Any

from ductile.ledger.storage.db import Db

LAST_ENDED = """
    SELECT job_id, plugin, command, job_status, completed_at, duration_ms, last_error FROM job_log
     WHERE job_status <> 'queued' ORDER BY seq DESC LIMIT ?
"""


def last_ended(db: Db, limit: int) -> list[dict[str, Any]]:
    """The jobs that ended last, newest first; moments as they are stored."""
    names = ("job_id", "plugin", "command", "status", "completed_at", "duration_ms", "last_error")
    return [dict(zip(names, row, strict=True)) for row in db.execute(LAST_ENDED, (limit,))]


ACTIVE_POLLS = """
    SELECT id, plugin, command, schedule_id, dedupe_key, status, attempt, created_at, started_at FROM job_queue
     WHERE status = ? AND schedule_id IS NOT NULL ORDER BY seq LIMIT ?
"""


def active_polls(db: Db, limit: int) -> list[dict[str, Any]]:
    """Jobs that a schedule asked for and that are not over, running ones first; moments as they are stored."""
    names = (
        "job_id",
        "plugin",
        "command",
        "schedule_id",
        "dedupe_key",
        "status",
        "attempt",
        "created_at",
        "started_at",
    )
    rows = [row for status in ("running", "queued") for row in db.execute(ACTIVE_POLLS, (status, limit))]
    return [dict(zip(names, row, strict=True)) for row in rows[:limit]]
