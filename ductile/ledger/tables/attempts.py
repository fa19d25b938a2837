"""The attempt log: one `job_log` row for every attempt, with its outcome and the evidence it left.

A job that ended without running (skipped, cancelled in the queue, prefinished) has one row too, so that it can be
inspected for as long as the log is kept.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from ductile.core.clock import to_text
from ductile.core.formats import strict_json
from ductile.core.model import NO_DATA, AttemptStatus, Evidence, JobStatus, OutcomeCode, Prefinished
from ductile.ledger.storage.db import Db

MILLISECOND = timedelta(milliseconds=1)

LOG_ATTEMPT = """
    INSERT INTO job_log (
        id, job_id, plugin, command, status, result, attempt, submitted_by, created_at, completed_at,
        last_error, stderr, parent_job_id, source_event_id, event_context_id, enqueued_config_snapshot_id,
        started_config_snapshot_id, root_job_id, job_status, started_at, duration_ms, exit_code, signal,
        plugin_fingerprint, plugin_changes, outcome_code, outcome_data,
        max_attempts, pipeline, step_id, schedule_id, slot_at, tolerated, actor)
    SELECT id || '-' || ?, id, plugin, command, ?, ?, ?, submitted_by, created_at, ?,
           ?, ?, parent_job_id, source_event_id, event_context_id, enqueued_config_snapshot_id,
           started_config_snapshot_id, root_job_id, status, ?, ?, ?, ?, ?, ?, ?, ?,
           max_attempts, pipeline, step_id, schedule_id, slot_at, tolerated, actor
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
    code: OutcomeCode | None = None,
    data: Mapping[str, Any] = NO_DATA,
) -> None:
    """Write the row of an attempt. `started_at` is used where there is no evidence of a run that did start.

    `code` and `data` are the outcome of the job; an attempt after which it is queued again has no code.
    """
    ended_at = now if isinstance(now, str) else to_text(now)
    outcome = (code, _data_text(data))
    if evidence is None:
        values = _values(job_id, attempt, status, ended_at, error, outcome, result=result, started_at=started_at)
    else:
        values = _values(
            job_id,
            attempt,
            status,
            ended_at,
            error,
            outcome,
            result=evidence.result,
            stderr=evidence.stderr,
            started_at=to_text(evidence.started_at),
            duration_ms=evidence.duration // MILLISECOND,
            exit_code=evidence.exit_code,
            signal=evidence.signal,
            files=(evidence.plugin_fingerprint, _data_text(evidence.plugin_changes)),
        )
    db.execute(LOG_ATTEMPT, values)


def _data_text(data: Mapping[str, Any]) -> str | None:
    return strict_json.dumps(dict(data)) if data else None


def _values(
    job_id: str,
    attempt: int,
    status: AttemptStatus,
    ended_at: str,
    error: str | None,
    outcome: tuple[OutcomeCode | None, str | None],
    *,
    result: str | None = None,
    stderr: str | None = None,
    started_at: str | None = None,
    duration_ms: int | None = None,
    exit_code: int | None = None,
    signal: int | None = None,
    files: tuple[str | None, str | None] = (None, None),
) -> tuple[Any, ...]:
    """Return the parameters of LOG_ATTEMPT. Positional: named parameters cost a seventh of the insert."""
    ended = (attempt, status, result, attempt, ended_at, error, stderr)
    return (*ended, started_at, duration_ms, exit_code, signal, *files, *outcome, job_id)


# An attempt that has its row already keeps its evidence.
LOG_LAST = f"""{LOG_ATTEMPT} ON CONFLICT (id) DO UPDATE
       SET job_status = excluded.job_status, outcome_code = excluded.outcome_code, outcome_data = excluded.outcome_data
"""


def log_quarantined(db: Db, job_id: str, attempt: int, *, now: datetime, error: str) -> None:
    """Write the row of the attempt in which a job was quarantined, or add the outcome to the row it has."""
    outcome = (OutcomeCode.QUARANTINED, _data_text({"error": error}))
    db.execute(LOG_LAST, _values(job_id, attempt, AttemptStatus.FAILED, to_text(now), error, outcome))


def log_prefinished(db: Db, job_id: str, prefinished: Prefinished, *, now: datetime) -> None:
    """Write the one row of a job that was over when it was created."""
    status = AttemptStatus(prefinished.status.value)
    log_attempt(
        db,
        job_id,
        1,
        status,
        now=now,
        error=prefinished.error,
        result=prefinished.result,
        code=prefinished.code,
        data=prefinished.data,
    )


def journal_kind(status: JobStatus, *, timed_out: bool = False) -> str:
    """Return the journal kind of an outcome."""
    match status:
        case JobStatus.SUCCEEDED:
            return "job.completed"
        case JobStatus.SKIPPED:
            return "job.skipped"
        case _:
            return "job.timed_out" if timed_out else "job.failed"
