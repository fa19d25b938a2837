"""The attempt log: one `job_log` row for every attempt, whatever became of it, with the evidence it left.

A job that ended without running (skipped, cancelled in the queue, settled) has one row too, so that it can be
inspected for as long as the log is kept. Called by `jobs`, `record` and `quarantine`.
"""

from datetime import datetime, timedelta
from typing import Any

from ductile.core.clock import to_text
from ductile.core.model import AttemptStatus, Evidence, JobStatus, Prefinished
from ductile.ledger.storage.db import Db

MILLISECOND = timedelta(milliseconds=1)

LOG_ATTEMPT = """
    INSERT INTO job_log (
        id, job_id, plugin, command, status, result, attempt, submitted_by, created_at, completed_at,
        last_error, stderr, parent_job_id, source_event_id, event_context_id, enqueued_config_snapshot_id,
        started_config_snapshot_id, root_job_id, job_status, started_at, duration_ms, exit_code, signal,
        max_attempts, pipeline, step_id, schedule_id, slot_at, tolerated)
    SELECT id || '-' || ?, id, plugin, command, ?, ?, ?, submitted_by, created_at, ?,
           ?, ?, parent_job_id, source_event_id, event_context_id, enqueued_config_snapshot_id,
           started_config_snapshot_id, root_job_id, status, ?, ?, ?, ?,
           max_attempts, pipeline, step_id, schedule_id, slot_at, tolerated
      FROM job_queue
     WHERE id = ?
"""


def log_attempt(
    db: Db,
    job_id: str,
    attempt: int,
    status: AttemptStatus,
    *,
    now: datetime | str,
    error: str | None = None,
    evidence: Evidence | None = None,
    started_at: str | None = None,
    result: str | None = None,
) -> None:
    """The attempt has its row. `started_at` stands in where there is no evidence of a run that did start."""
    ended_at = now if isinstance(now, str) else to_text(now)
    if evidence is None:
        values = _values(job_id, attempt, status, ended_at, error, result=result, started_at=started_at)
    else:
        values = _values(
            job_id,
            attempt,
            status,
            ended_at,
            error,
            result=evidence.result,
            stderr=evidence.stderr,
            started_at=to_text(evidence.started_at),
            duration_ms=evidence.duration // MILLISECOND,
            exit_code=evidence.exit_code,
            signal=evidence.signal,
        )
    db.execute(LOG_ATTEMPT, values)


def _values(
    job_id: str,
    attempt: int,
    status: AttemptStatus,
    ended_at: str,
    error: str | None,
    *,
    result: str | None = None,
    stderr: str | None = None,
    started_at: str | None = None,
    duration_ms: int | None = None,
    exit_code: int | None = None,
    signal: int | None = None,
) -> tuple[Any, ...]:
    """What LOG_ATTEMPT asks for, in its order; by place, because names cost a seventh of the insert."""
    ended = (attempt, status, result, attempt, ended_at, error, stderr)
    return (*ended, started_at, duration_ms, exit_code, signal, job_id)


# An attempt that has its row already keeps its evidence.
LOG_LAST = f"{LOG_ATTEMPT} ON CONFLICT (id) DO UPDATE SET job_status = excluded.job_status"


def log_last(db: Db, job_id: str, attempt: int, *, now: datetime, error: str) -> None:
    """The attempt a job was set apart in has a row, whatever the log had before."""
    db.execute(LOG_LAST, _values(job_id, attempt, AttemptStatus.FAILED, to_text(now), error))


def log_settled(db: Db, job_id: str, settled: Prefinished, *, now: datetime) -> None:
    """A job that was over when it was written has its one row."""
    status = AttemptStatus(settled.status.value)
    log_attempt(db, job_id, 1, status, now=now, error=settled.error, result=settled.result)


def kind_of(status: JobStatus, *, timed_out: bool = False) -> str:
    """The journal's name for this ending, as the event stream has always called it."""
    match status:
        case JobStatus.SUCCEEDED:
            return "job.completed"
        case JobStatus.SKIPPED:
            return "job.skipped"
        case _:
            return "job.timed_out" if timed_out else "job.failed"
