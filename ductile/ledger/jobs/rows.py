"""Conversion of a `job_queue` row to a `Job`. Rows stay inside the ledger; other packages get values."""

from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none
from ductile.core.errors import NotFound
from ductile.core.model import Job, JobStatus
from ductile.ledger.storage.db import Db

_COLUMNS = """id, plugin, command, status, attempt, max_attempts, submitted_by, created_at, payload, dedupe_key,
    parent_job_id, root_job_id, seq, interruptions, recoveries, started_at, completed_at, next_retry_at, last_error,
    dedupe_ttl_seconds, child_key, source_event_id, event_context_id, pipeline, step_id, schedule_id, slot_at, hops,
    enqueued_config_snapshot_id, started_config_snapshot_id, notify, replay_of, cancel_requested_at, cancel_reason,
    join_id, is_join, tolerated, outcome_code, actor"""
JOB_COLUMNS = f"""{_COLUMNS},
    (SELECT accumulated_json FROM event_context WHERE event_context.id = job_queue.event_context_id)"""
ID, ATTEMPT, DEDUPE_KEY, SEQ = 0, 4, 9, 12
"""Positions in JOB_COLUMNS."""
LIST_COLUMNS = f"{_COLUMNS}, NULL"
"""JOB_COLUMNS without the baggage, for lists: baggage may take 1 MiB per job."""


@frozen
class Start:
    """The start time of a job and the configuration it starts under."""

    at: datetime
    snapshot_id: str | None


def job_from_row(row: tuple[Any, ...], start: Start | None = None) -> Job:
    """Build the job from a row that begins with JOB_COLUMNS or LIST_COLUMNS. With `start`, as a running job."""
    return Job(
        id=row[0],
        plugin=row[1],
        command=row[2],
        status=JobStatus(row[3]) if start is None else JobStatus.RUNNING,
        attempt=row[4],
        max_attempts=row[5],
        submitted_by=row[6],
        created_at=from_text(row[7]),
        payload=row[8],
        dedupe_key=row[9],
        parent_job_id=row[10],
        root_job_id=row[11],
        seq=row[12],
        interruptions=row[13],
        recoveries=row[14],
        started_at=from_text_or_none(row[15]) if start is None else start.at,
        completed_at=from_text_or_none(row[16]),
        next_retry_at=from_text_or_none(row[17]),
        last_error=row[18],
        dedupe_ttl=None if row[19] is None else timedelta(seconds=row[19]),
        child_key=row[20],
        source_event_id=row[21],
        event_context_id=row[22],
        pipeline=row[23],
        step_id=row[24],
        schedule_id=row[25],
        slot_at=from_text_or_none(row[26]),
        hops=row[27],
        enqueued_snapshot_id=row[28],
        started_snapshot_id=row[29] if start is None else start.snapshot_id,
        notify=bool(row[30]),
        replay_of=row[31],
        cancel_requested_at=from_text_or_none(row[32]),
        cancel_reason=row[33],
        join_id=row[34],
        is_join=bool(row[35]),
        tolerated=bool(row[36]),
        outcome_code=row[37],
        actor=row[38],
        context=row[39],
    )


GET_JOB = f"SELECT {JOB_COLUMNS} FROM job_queue WHERE id = ?"


def get_job(db: Db, job_id: str) -> Job | None:
    """Return the job from the queue; None if it is unknown or was pruned."""
    row = db.execute(GET_JOB, (job_id,)).fetchone()
    return job_from_row(row) if row else None


def job_not_found(job_id: str) -> NotFound:
    hint = "Run `ductile job list` for recent jobs. Jobs are deleted after service.job_log_retention."
    return NotFound(f"job {job_id} does not exist", hint=hint)
