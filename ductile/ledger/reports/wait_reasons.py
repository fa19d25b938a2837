"""Facts about why a job waits, and about similar jobs of a finished one. Read-only.

Every query reads a bounded number of rows. The sentences are made in `explain`.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none, to_text
from ductile.core.model import Job
from ductile.ledger.jobs.rows import LIST_COLUMNS, job_from_row
from ductile.ledger.reports.job_details import ATTEMPT_COLUMNS, LoggedAttempt, attempt_from_row
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

MAX_COUNTED = 10_000
"""Jobs ahead of another that one query counts."""
MAX_SCANNED = 5_000
"""Attempts of a plugin that one query reads."""


@frozen(kw_only=True)
class WaitingJob:
    """A queued job and the stored reasons why it is not running."""

    job: Job
    is_ready: bool
    """True if it can be claimed: only slots and pauses can delay it."""
    waits_for_key: bool
    waits_for: int
    blocked_reason: str | None


_WAITING = f"{LIST_COLUMNS}, lane IS NOT NULL, waits_for_key, waits_for, blocked_reason"
WAITING_JOB = f"SELECT {_WAITING} FROM job_queue WHERE id = ? AND status = 'queued'"
WAITING_JOBS = (
    f"SELECT {_WAITING} FROM job_queue {using('job_queue_by_status')} WHERE status = 'queued' ORDER BY seq LIMIT ?"
)
WAITING_JOBS_OF_PLUGIN = f"""
    SELECT {_WAITING} FROM job_queue {using("job_queue_by_status")}
     WHERE status = 'queued' AND plugin = ? ORDER BY seq LIMIT ?
"""


def waiting(db: Db, job_id: str) -> WaitingJob | None:
    """Return the job, if it is queued."""
    row = db.execute(WAITING_JOB, (job_id,)).fetchone()
    return _waiting(row) if row else None


def all_waiting(db: Db, plugin: str | None = None, *, limit: int) -> list[WaitingJob]:
    """Return the oldest queued jobs, in order of arrival."""
    rows = db.execute(WAITING_JOBS_OF_PLUGIN, (plugin, limit)) if plugin else db.execute(WAITING_JOBS, (limit,))
    return [_waiting(row) for row in rows]


def _waiting(row: tuple[Any, ...]) -> WaitingJob:
    *columns, is_ready, waits_for_key, waits_for, blocked_reason = row
    return WaitingJob(
        job=job_from_row(tuple(columns)),
        is_ready=bool(is_ready),
        waits_for_key=bool(waits_for_key),
        waits_for=waits_for,
        blocked_reason=blocked_reason,
    )


COUNT_AHEAD = "SELECT COUNT(*) FROM (SELECT 1 FROM job_queue WHERE lane = ? AND seq < ? LIMIT ?)"


def count_ahead(db: Db, plugin: str, seq: int) -> int:
    """Count the ready jobs of the plugin that were queued before position `seq`, up to `MAX_COUNTED`."""
    count: int = db.execute(COUNT_AHEAD, (plugin, seq, MAX_COUNTED)).fetchone()[0]
    return count


RUNNING_NOW = f"""
    SELECT {LIST_COLUMNS} FROM job_queue {using("job_queue_running")}
     WHERE claimed_by > '' AND (:plugin IS NULL OR plugin = :plugin) ORDER BY started_at LIMIT :limit
"""


def running_now(db: Db, plugin: str | None, *, limit: int = 5) -> list[Job]:
    """Return the running jobs of a plugin, or of all (None), the longest first."""
    return [job_from_row(row) for row in db.execute(RUNNING_NOW, {"plugin": plugin, "limit": limit})]


RECENT_DURATION = """
    SELECT AVG(duration_ms) FROM (
        SELECT duration_ms FROM job_log WHERE duration_ms IS NOT NULL ORDER BY seq DESC LIMIT ?)
"""
RECENT_DURATION_OF_PLUGIN = f"""
    SELECT AVG(duration_ms) FROM (
        SELECT duration_ms FROM job_log {using("job_log_by_plugin")}
         WHERE plugin = ? AND duration_ms IS NOT NULL ORDER BY seq DESC LIMIT ?)
"""
MAX_AVERAGED = 50


def average_seconds(db: Db, plugin: str | None) -> float | None:
    """Return the average duration of the latest attempts of a plugin, or of all (None); None without any."""
    if plugin is None:
        found = db.execute(RECENT_DURATION, (MAX_AVERAGED,)).fetchone()
    else:
        found = db.execute(RECENT_DURATION_OF_PLUGIN, (plugin, MAX_AVERAGED)).fetchone()
    return None if found[0] is None else found[0] / 1000


OPEN_MEMBERS = f"""
    SELECT {LIST_COLUMNS} FROM job_queue {using("job_queue_by_join")}
     WHERE join_id = ? AND status IN ('queued', 'running') ORDER BY seq LIMIT ?
"""


def open_members(db: Db, join_id: str, *, limit: int = 5) -> list[Job]:
    """Return some of the open members of a join."""
    return [job_from_row(row) for row in db.execute(OPEN_MEMBERS, (join_id, limit))]


OLDEST_READY = "SELECT seq, id, plugin, created_at FROM job_queue WHERE lane = ? ORDER BY seq LIMIT 1"


def oldest_ready(db: Db, plugins: Iterable[str]) -> tuple[str, str, datetime] | None:
    """Return id, plugin and creation time of the oldest ready job of these plugins."""
    heads = [row for name in plugins if (row := db.execute(OLDEST_READY, (name,)).fetchone())]
    if not heads:
        return None
    _, job_id, plugin, created_at = min(heads)
    return job_id, plugin, from_text(created_at)


COUNT_BLOCKED = f"""
    SELECT COUNT(*) FROM job_queue {using("job_queue_by_status")} WHERE status = 'queued' AND blocked_reason IS NOT NULL
"""


def count_blocked(db: Db) -> int:
    """Count the queued jobs that are blocked by a breaker or by a plugin that cannot run."""
    count: int = db.execute(COUNT_BLOCKED).fetchone()[0]
    return count


STATE_CHANGED = "SELECT updated_at FROM plugin_state WHERE plugin_name = ?"


def state_changed_at(db: Db, plugin: str) -> datetime | None:
    """Return when the plugin's state last changed."""
    row = db.execute(STATE_CHANGED, (plugin,)).fetchone()
    return from_text_or_none(row[0]) if row else None


@frozen(kw_only=True)
class Success:
    """The newest successful attempt of a command, and the configuration it started under."""

    job_id: str
    completed_at: datetime
    snapshot_id: str | None
    plugin_changes: str | None


LAST_SUCCESS = f"""
    SELECT job_id, completed_at, started_config_snapshot_id, plugin_changes
      FROM (SELECT * FROM job_log {using("job_log_by_plugin")} WHERE plugin = ? ORDER BY seq DESC LIMIT ?)
     WHERE command = ? AND job_id <> ? AND status = 'succeeded' AND completed_at <= ? LIMIT 1
"""


def last_success(db: Db, job: Job, *, until: datetime) -> Success | None:
    """Return the last success of another job of the same command, among the newest MAX_SCANNED attempts."""
    row = db.execute(LAST_SUCCESS, (job.plugin, MAX_SCANNED, job.command, job.id, to_text(until))).fetchone()
    if row is None:
        return None
    return Success(job_id=row[0], completed_at=from_text(row[1]), snapshot_id=row[2], plugin_changes=row[3])


FAILURES = f"""
    SELECT {ATTEMPT_COLUMNS.replace(" stderr, result", " NULL, NULL")} FROM (
        SELECT * FROM job_log {using("job_log_by_plugin")} WHERE plugin = ? ORDER BY seq DESC LIMIT ?)
     WHERE command = ? AND status NOT IN ('succeeded', 'skipped') AND job_id <> ?
       AND COALESCE(outcome_code, '') NOT IN ('cancelled', 'purged')
"""


def failures_like(db: Db, job: Job) -> list[LoggedAttempt]:
    """Return failed attempts of the same command by other jobs, newest first, without their output.

    Jobs that an operator ended are not failures.
    """
    rows = db.execute(FAILURES, (job.plugin, MAX_SCANNED, job.command, job.id))
    return [attempt_from_row(row) for row in rows]
