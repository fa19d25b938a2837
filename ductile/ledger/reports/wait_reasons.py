"""Why a job is where it is: what keeps a waiting one, and what is known of others like one that ended.

Reads only, offline too. Every answer looks at a bounded number of rows. Words are made by whoever asks: the CLI.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.model import Job
from ductile.ledger.queue.rows import LISTED_COLUMNS, job_from_row, moment
from ductile.ledger.reports.job_details import ATTEMPT_COLUMNS, LoggedAttempt, attempt_from_row
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

MOST_COUNTED = 10_000
"""Jobs ahead of another that one answer counts."""
MOST_LOOKED_AT = 5_000
"""Attempts of a plugin that one answer looks at."""


@frozen(kw_only=True)
class WaitingJob:
    """A queued job and all that the queue knows about why it is not running."""

    job: Job
    is_ready: bool
    """It stands in its lane; only slots and pauses can keep it."""
    waits_for_key: bool
    waits_for: int
    blocked_reason: str | None


_WAITING = f"{LISTED_COLUMNS}, lane IS NOT NULL, waits_for_key, waits_for, blocked_reason"
ONE = f"SELECT {_WAITING} FROM job_queue WHERE id = ? AND status = 'queued'"
ALL = f"SELECT {_WAITING} FROM job_queue {using('job_queue_by_status')} WHERE status = 'queued' ORDER BY seq LIMIT ?"
OF_PLUGIN = f"""
    SELECT {_WAITING} FROM job_queue {using("job_queue_by_status")}
     WHERE status = 'queued' AND plugin = ? ORDER BY seq LIMIT ?
"""


def waiting(db: Db, job_id: str) -> WaitingJob | None:
    """The job, if it waits."""
    row = db.execute(ONE, (job_id,)).fetchone()
    return _waiting(row) if row else None


def all_waiting(db: Db, plugin: str | None = None, *, limit: int) -> list[WaitingJob]:
    """The oldest jobs that wait, in the order in which they were asked for."""
    rows = db.execute(OF_PLUGIN, (plugin, limit)) if plugin else db.execute(ALL, (limit,))
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


AHEAD = "SELECT COUNT(*) FROM (SELECT 1 FROM job_queue WHERE lane = ? AND seq < ? LIMIT ?)"


def ahead_of(db: Db, job: Job) -> int:
    """How many ready jobs of its plugin start before it, counted up to `MOST_COUNTED`."""
    count: int = db.execute(AHEAD, (job.plugin, job.seq, MOST_COUNTED)).fetchone()[0]
    return count


HOLDER = """
    SELECT id FROM job_queue
     WHERE status IN ('queued', 'running') AND plugin = ? AND command = ? AND dedupe_key = ? AND status = 'running'
     LIMIT 1
"""


def holder_of_key(db: Db, job: Job) -> str | None:
    """The running job that has the dedupe key of this one."""
    row = db.execute(HOLDER, (job.plugin, job.command, job.dedupe_key)).fetchone()
    return row[0] if row else None


OPEN_MEMBERS = f"""
    SELECT {LISTED_COLUMNS} FROM job_queue {using("job_queue_by_join")}
     WHERE join_id = ? AND status IN ('queued', 'running') ORDER BY seq LIMIT ?
"""


def open_members(db: Db, join_id: str, *, limit: int = 5) -> list[Job]:
    """Some of the jobs that a join waits for."""
    return [job_from_row(row) for row in db.execute(OPEN_MEMBERS, (join_id, limit))]


LANE_HEAD = "SELECT seq, id, plugin, created_at FROM job_queue WHERE lane = ? ORDER BY seq LIMIT 1"


def oldest_ready(db: Db, plugins: Iterable[str]) -> tuple[str, str, datetime] | None:
    """Id, plugin and moment of the ready job of these plugins that has waited longest."""
    heads = [row for name in plugins if (row := db.execute(LANE_HEAD, (name,)).fetchone())]
    if not heads:
        return None
    _, job_id, plugin, created_at = min(heads)
    return job_id, plugin, from_text(created_at)


COUNT_BLOCKED = f"""
    SELECT COUNT(*) FROM job_queue {using("job_queue_by_status")} WHERE status = 'queued' AND blocked_reason IS NOT NULL
"""


def count_blocked(db: Db) -> int:
    """How many waiting jobs something holds: a breaker, or a plugin that cannot run."""
    count: int = db.execute(COUNT_BLOCKED).fetchone()[0]
    return count


STATE_CHANGED = "SELECT updated_at FROM plugin_state WHERE plugin_name = ?"


def state_changed_at(db: Db, plugin: str) -> datetime | None:
    """When the plugin's state last became another one."""
    row = db.execute(STATE_CHANGED, (plugin,)).fetchone()
    return moment(row[0]) if row else None


@frozen(kw_only=True)
class Success:
    """The newest attempt of a command that succeeded, and the configuration it started under."""

    job_id: str
    completed_at: datetime
    snapshot_id: str | None


LAST_SUCCESS = f"""
    SELECT job_id, completed_at, started_config_snapshot_id
      FROM (SELECT * FROM job_log {using("job_log_by_plugin")} WHERE plugin = ? ORDER BY seq DESC LIMIT ?)
     WHERE command = ? AND job_id <> ? AND status = 'succeeded' AND completed_at <= ? LIMIT 1
"""


def last_success(db: Db, job: Job, *, until: datetime) -> Success | None:
    """Of another job of the same command; None also if it lies further back than one answer looks."""
    row = db.execute(LAST_SUCCESS, (job.plugin, MOST_LOOKED_AT, job.command, job.id, to_text(until))).fetchone()
    return Success(job_id=row[0], completed_at=from_text(row[1]), snapshot_id=row[2]) if row else None


FAILURES = f"""
    SELECT {ATTEMPT_COLUMNS.replace(" stderr, result", " NULL, NULL")} FROM (
        SELECT * FROM job_log {using("job_log_by_plugin")} WHERE plugin = ? ORDER BY seq DESC LIMIT ?)
     WHERE command = ? AND status NOT IN ('succeeded', 'skipped') AND job_id <> ?
"""


def failures_like(db: Db, job: Job) -> list[LoggedAttempt]:
    """Attempts of the same command by other jobs that did not succeed, newest first, without their output."""
    rows = db.execute(FAILURES, (job.plugin, MOST_LOOKED_AT, job.command, job.id))
    return [attempt_from_row(row) for row in rows]
