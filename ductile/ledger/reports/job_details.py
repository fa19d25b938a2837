"""Read-only answers for people and for the API about one job and its attempts.

Every answer goes through an index; nothing here counts or sorts all of history. A job stays inspectable after it left
the queue, from its attempts. Its tree is in `tree_reports`, the queue in `queue_reports`, lists are in `history`.
"""

from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text
from ductile.core.model import AttemptStatus, Job, JobStatus
from ductile.ledger.queue import tree_counters
from ductile.ledger.queue.rows import LISTED_COLUMNS, get_job, job_from_row, moment, no_such_job
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import contexts, journal


@frozen(kw_only=True)
class LoggedAttempt:
    """One attempt as the log keeps it."""

    seq: int
    id: str
    job_id: str
    plugin: str
    command: str
    attempt: int
    status: AttemptStatus
    job_status: JobStatus
    submitted_by: str
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime
    duration: timedelta | None
    exit_code: int | None
    signal: int | None
    last_error: str | None
    stderr: str | None
    result: str | None


@frozen(kw_only=True)
class JobBrief:
    """One job with the result of its last attempt that is over."""

    job: Job
    result: str | None


@frozen(kw_only=True)
class JobReport:
    """Everything about one job. `in_queue` is false once only its attempts are left.

    `blocked_reason` is why its plugin's queued jobs do not start, if something holds them; `waits_for` is how many jobs
    a join still waits for.
    """

    job: Job
    in_queue: bool
    blocked_reason: str | None
    waits_for: int
    attempts: list[LoggedAttempt]
    children: list[Job]
    journal: list[journal.JournalEntry]
    contexts: list[contexts.Context]
    open_jobs: int

    @property
    def result(self) -> str | None:
        """Of the last attempt that is over; None if that one left none."""
        return self.attempts[-1].result if self.attempts else None


def job(db: Db, job_id: str) -> JobReport:
    """Raises NotFound for an id that neither the queue nor the log knows."""
    found = get_or_fail(db, job_id)
    held = db.execute(HELD, (job_id,)).fetchone()
    return JobReport(
        job=found,
        in_queue=held is not None,
        blocked_reason=held[0] if held else None,
        waits_for=held[1] if held else 0,
        attempts=attempts(db, job_id),
        children=children(db, job_id),
        journal=journal.of_job(db, job_id),
        contexts=contexts.lineage(db, found.event_context_id) if found.event_context_id else [],
        open_jobs=tree_counters.open_jobs(db, found.root_job_id) or 0,
    )


HELD = "SELECT blocked_reason, waits_for FROM job_queue WHERE id = ?"
LAST_RESULT = "SELECT result FROM job_log WHERE job_id = ? ORDER BY attempt DESC LIMIT 1"


def brief(db: Db, job_id: str) -> JobBrief:
    """What a caller who waits for a job wants to know. Raises NotFound like `job`."""
    found = get_or_fail(db, job_id)
    last = db.execute(LAST_RESULT, (job_id,)).fetchone()
    return JobBrief(job=found, result=last[0] if last else None)


def get_or_fail(db: Db, job_id: str) -> Job:
    found = get_job(db, job_id) or logged_job(db, job_id)
    if found is None:
        raise no_such_job(job_id)
    return found


ATTEMPT_COLUMNS = """seq, id, job_id, plugin, command, attempt, status, job_status, submitted_by, created_at,
    started_at, completed_at, duration_ms, exit_code, signal, last_error, stderr, result"""
ATTEMPTS = f"SELECT {ATTEMPT_COLUMNS} FROM job_log WHERE job_id = ? ORDER BY attempt"


def attempts(db: Db, job_id: str) -> list[LoggedAttempt]:
    """The attempts that are over, first to last."""
    return [attempt_from_row(row) for row in db.execute(ATTEMPTS, (job_id,))]


# The names of LISTED_COLUMNS, for a job of which only the log is left.
FROM_LOG = """
    SELECT job_id, plugin, command, job_status, attempt, max_attempts, submitted_by, created_at, NULL, NULL,
           parent_job_id, root_job_id, 0, 0, 0, started_at, completed_at, NULL, last_error,
           NULL, NULL, source_event_id, event_context_id, pipeline, step_id, schedule_id, slot_at, 0,
           enqueued_config_snapshot_id, started_config_snapshot_id, 0, NULL, NULL, NULL, NULL, 0, tolerated, NULL
      FROM job_log WHERE job_id = ? ORDER BY attempt DESC LIMIT 1
"""


def logged_job(db: Db, job_id: str) -> Job | None:
    """The job as its last attempt in the log tells it."""
    row = db.execute(FROM_LOG, (job_id,)).fetchone()
    return job_from_row(row) if row else None


CHILDREN = f"SELECT {LISTED_COLUMNS} FROM job_queue WHERE parent_job_id = ? ORDER BY seq LIMIT ?"


def children(db: Db, job_id: str, *, limit: int = 1000) -> list[Job]:
    """The jobs this one led to directly, in order of arrival."""
    return [job_from_row(row) for row in db.execute(CHILDREN, (job_id, limit))]


OPEN = "SELECT 1 FROM job_queue WHERE id = ? AND status IN ('queued', 'running')"


def is_over(db: Db, job_id: str) -> bool:
    """True unless the job still waits or runs; an unknown job has nothing to wait for."""
    return db.execute(OPEN, (job_id,)).fetchone() is None


def attempt_from_row(row: tuple[Any, ...]) -> LoggedAttempt:
    return LoggedAttempt(
        seq=row[0],
        id=row[1],
        job_id=row[2],
        plugin=row[3],
        command=row[4],
        attempt=row[5],
        status=AttemptStatus(row[6]),
        job_status=JobStatus(row[7]),
        submitted_by=row[8],
        created_at=from_text(row[9]),
        started_at=moment(row[10]),
        completed_at=from_text(row[11]),
        duration=None if row[12] is None else timedelta(milliseconds=row[12]),
        exit_code=row[13],
        signal=row[14],
        last_error=row[15],
        stderr=row[16],
        result=row[17],
    )
