"""Job statistics: counts by status, running and recent jobs, durations by step. Read-only.

Every query uses an index. Where rows are needed, their number is bounded.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.model import JobStatus
from ductile.core.statuses import ENDED_BY_OPERATOR
from ductile.ledger.reports import attempt_list, job_list, queue_status
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

TREND_SLOTS = 60
MAX_SAMPLES = 20_000
MAX_ACTIVE = 200
MAX_FAILURES = 200
"""Attempts of a plugin that are read to find its last success."""

COUNT_SINCE = f"SELECT COUNT(*) FROM job_queue {using('job_queue_by_status')} WHERE status = ? AND seq >= ?"


def count_since(db: Db, since: datetime) -> dict[str, int]:
    """Count the jobs in the queue that were enqueued since then, by status. Statuses without jobs are left out."""
    first = job_list.first_seq_since(db, since)
    counts = {str(status): db.execute(COUNT_SINCE, (status, first)).fetchone()[0] for status in JobStatus}
    return {status: count for status, count in counts.items() if count}


def count_cancelled_since(db: Db, since: datetime) -> int:
    """Count the jobs in the queue that were enqueued since then and that an operator cancelled or purged."""
    return queue_status.count_ended_by_operator(db, first_seq=job_list.first_seq_since(db, since))


@frozen(kw_only=True)
class ActiveJob:
    """A running job."""

    job_id: str
    plugin: str
    command: str
    started_at: datetime


ACTIVE = "SELECT id, plugin, command, started_at FROM job_queue WHERE claimed_by > '' LIMIT ?"


def active_jobs(db: Db, *, limit: int = MAX_ACTIVE) -> list[ActiveJob]:
    """Return the running jobs, longest first."""
    rows = db.execute(ACTIVE, (limit,)).fetchall()
    active = [ActiveJob(job_id=row[0], plugin=row[1], command=row[2], started_at=from_text(row[3])) for row in rows]
    return sorted(active, key=lambda job: job.started_at)


@frozen(kw_only=True)
class Sample:
    """The duration of one attempt."""

    command: str
    step: str | None
    """`pipeline/step` for a job of a pipeline."""
    completed_at: datetime
    milliseconds: int


SAMPLES = f"""
    SELECT command, pipeline, step_id, completed_at, duration_ms FROM job_log {using("job_log_by_plugin")}
     WHERE plugin = ? AND seq >= ? AND completed_at >= ? AND duration_ms IS NOT NULL
     ORDER BY seq DESC LIMIT ?
"""


def samples(db: Db, plugin: str, since: datetime, *, limit: int = MAX_SAMPLES) -> list[Sample]:
    """Return the plugin's attempts since then, newest first."""
    first = attempt_list.first_seq_since(db, since)
    return [
        Sample(
            command=command,
            step=f"{pipeline}/{step_id}" if pipeline and step_id else None,
            completed_at=from_text(completed_at),
            milliseconds=milliseconds,
        )
        for command, pipeline, step_id, completed_at, milliseconds in db.execute(
            SAMPLES, (plugin, first, to_text(since), limit)
        )
    ]


@frozen(kw_only=True)
class Timing:
    """Duration percentiles of one step, in milliseconds. `trend_p95` has one value per part of the window, or None."""

    step: str
    count: int
    p50: int
    p95: int
    p99: int
    trend_p95: tuple[int | None, ...]


def timing(step: str, measured: Sequence[Sample], *, since: datetime, window: timedelta) -> Timing:
    """Compute the percentiles of the samples of one step. There must be at least one sample."""
    durations = sorted(sample.milliseconds for sample in measured)
    slots: list[list[int]] = [[] for _ in range(TREND_SLOTS)]
    for sample in measured:
        slots[min(int((sample.completed_at - since) / window * TREND_SLOTS), TREND_SLOTS - 1)].append(
            sample.milliseconds
        )
    return Timing(
        step=step,
        count=len(durations),
        p50=nearest_rank(durations, 50),
        p95=nearest_rank(durations, 95),
        p99=nearest_rank(durations, 99),
        trend_p95=tuple(nearest_rank(sorted(slot), 95) if slot else None for slot in slots),
    )


def nearest_rank(ordered: Sequence[int], percent: int) -> int:
    """Return the percentile by the nearest-rank method, without interpolation."""
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def group_by_step(measured: Iterable[Sample]) -> dict[str, dict[str | None, list[Sample]]]:
    """Group the samples by command, then by pipeline step."""
    groups: dict[str, dict[str | None, list[Sample]]] = {}
    for sample in measured:
        groups.setdefault(sample.command, {}).setdefault(sample.step, []).append(sample)
    return groups


LAST_FINISHED = """
    SELECT job_id, plugin, command, job_status, outcome_code, completed_at, duration_ms, last_error FROM job_log
     WHERE job_status <> 'queued' ORDER BY seq DESC LIMIT ?
"""


def last_finished(db: Db, limit: int) -> list[dict[str, Any]]:
    """Return the jobs that finished last, newest first. Times are stored text."""
    names = ("job_id", "plugin", "command", "status", "outcome_code", "completed_at", "duration_ms", "last_error")
    return [dict(zip(names, row, strict=True)) for row in db.execute(LAST_FINISHED, (limit,))]


@frozen(kw_only=True)
class FailureRun:
    """The jobs of a plugin that failed since its last success."""

    plugin: str
    count: int
    is_capped: bool
    """True if there may be more."""
    last_job_id: str
    last_error: str | None
    last_at: datetime


NEWEST_ENDS = f"""
    SELECT job_id, job_status, outcome_code, last_error, completed_at FROM job_log {using("job_log_by_plugin")}
     WHERE plugin = ? ORDER BY seq DESC LIMIT ?
"""


def failures_since_success(db: Db, plugin: str, *, limit: int = MAX_FAILURES) -> FailureRun | None:
    """Return the failed and dead jobs since the last success, without those that an operator ended.

    None if there are none among the newest `limit` attempts. Reads one row of a plugin that works.
    """
    count, is_capped, last = 0, True, None
    for read, row in enumerate(db.execute(NEWEST_ENDS, (plugin, limit)), start=1):
        is_capped = read == limit
        if row[1] == JobStatus.SUCCEEDED:
            is_capped = False
            break
        if row[1] in (JobStatus.FAILED, JobStatus.DEAD) and row[2] not in ENDED_BY_OPERATOR:
            count, last = count + 1, last or row
    if last is None:
        return None
    job_id, _, _, error, ended_at = last
    return FailureRun(
        plugin=plugin,
        count=count,
        is_capped=is_capped,
        last_job_id=job_id,
        last_error=error,
        last_at=from_text(ended_at),
    )


ACTIVE_POLLS = """
    SELECT id, plugin, command, schedule_id, dedupe_key, status, attempt, created_at, started_at FROM job_queue
     WHERE status = ? AND schedule_id IS NOT NULL ORDER BY seq LIMIT ?
"""


def active_polls(db: Db, limit: int) -> list[dict[str, Any]]:
    """Return the open jobs of schedules, running ones first. Times are stored text."""
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
