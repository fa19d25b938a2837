"""Details of one job and its attempts. Read-only.

Every query uses an index. A job that has left the queue is read from its attempts. For its tree see `trees`.
"""

from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none
from ductile.core.model import AttemptStatus, Job, JobStatus
from ductile.ledger.jobs import tree_counters
from ductile.ledger.jobs.rows import LIST_COLUMNS, get_job, job_from_row, job_not_found
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import contexts, journal


@frozen(kw_only=True)
class LoggedAttempt:
    """An attempt in the log."""

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
    outcome_code: str | None = None
    """Why the job ended with this attempt; None if it was queued again."""
    outcome_data: str | None = None
    """The JSON object that belongs to the code."""
    plugin_fingerprint: str | None = None
    plugin_changes: str | None = None
    """The files that differed from the loaded ones, as a JSON object of name → hash or null."""


@frozen(kw_only=True)
class JobBrief:
    """A job with the result of its last finished attempt."""

    job: Job
    result: str | None


@frozen(kw_only=True)
class JobReport:
    """All details of one job. `in_queue` is false if only its attempts are left.

    `blocked_reason` is why a queued job does not start, if it is blocked. `waits_for` is the number of open members
    of a join.
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
        """The result of the last finished attempt; None if it has none."""
        return self.attempts[-1].result if self.attempts else None


def job(db: Db, job_id: str) -> JobReport:
    """Return all details of the job. Raises NotFound if neither the queue nor the log has it."""
    found = require_job(db, job_id)
    queue_state = db.execute(QUEUE_STATE, (job_id,)).fetchone()
    return JobReport(
        job=found,
        in_queue=queue_state is not None,
        blocked_reason=queue_state[0] if queue_state else None,
        waits_for=queue_state[1] if queue_state else 0,
        attempts=attempts(db, job_id),
        children=children(db, job_id),
        journal=journal.of_job(db, job_id),
        contexts=contexts.lineage(db, found.event_context_id) if found.event_context_id else [],
        open_jobs=tree_counters.open_jobs(db, found.root_job_id) or 0,
    )


QUEUE_STATE = "SELECT blocked_reason, waits_for FROM job_queue WHERE id = ?"
LAST_RESULT = "SELECT result FROM job_log WHERE job_id = ? ORDER BY attempt DESC LIMIT 1"


def brief(db: Db, job_id: str) -> JobBrief:
    """Return the job and its result, for a caller that waits for it. Raises NotFound as `job` does."""
    found = require_job(db, job_id)
    last = db.execute(LAST_RESULT, (job_id,)).fetchone()
    return JobBrief(job=found, result=last[0] if last else None)


def require_job(db: Db, job_id: str) -> Job:
    found = get_job(db, job_id) or logged_job(db, job_id)
    if found is None:
        raise job_not_found(job_id)
    return found


NEWEST_ROOT = "SELECT id FROM job_queue WHERE root_job_id = id ORDER BY seq DESC LIMIT 1"
NEWEST_ROOT_IN_LOG = "SELECT job_id FROM job_log WHERE root_job_id = job_id ORDER BY seq DESC LIMIT 1"


def newest_root_ids(db: Db) -> list[str]:
    """Return the id of the root job that was enqueued last; an empty list if there are no jobs."""
    row = db.execute(NEWEST_ROOT).fetchone() or db.execute(NEWEST_ROOT_IN_LOG).fetchone()
    return [row[0]] if row else []


IDS_IN_QUEUE = "SELECT id FROM job_queue WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
IDS_IN_LOG = "SELECT DISTINCT job_id FROM job_log WHERE job_id >= ? AND job_id < ? ORDER BY job_id LIMIT ?"
AFTER_HEX = "g"
"""Sorts after every character of an id."""


def ids_with_prefix(db: Db, prefix: str, *, limit: int = 3) -> list[str]:
    """Return up to `limit` ids of jobs in the queue or in the log that begin with `prefix`, in order."""
    values = (prefix, prefix + AFTER_HEX, limit)
    found = {row[0] for statement in (IDS_IN_QUEUE, IDS_IN_LOG) for row in db.execute(statement, values)}
    return sorted(found)[:limit]


ATTEMPT_COLUMNS = """seq, id, job_id, plugin, command, attempt, status, job_status, submitted_by, created_at,
    started_at, completed_at, duration_ms, exit_code, signal, last_error, stderr, result, outcome_code, outcome_data,
    plugin_fingerprint, plugin_changes"""
ATTEMPTS = f"SELECT {ATTEMPT_COLUMNS} FROM job_log WHERE job_id = ? ORDER BY attempt"


def attempts(db: Db, job_id: str) -> list[LoggedAttempt]:
    """Return the finished attempts, oldest first."""
    return [attempt_from_row(row) for row in db.execute(ATTEMPTS, (job_id,))]


# The columns of LIST_COLUMNS, for a job that only the log still has.
FROM_LOG = """
    SELECT job_id, plugin, command, job_status, attempt, max_attempts, submitted_by, created_at, NULL, NULL,
           parent_job_id, root_job_id, 0, 0, 0, started_at, completed_at, NULL, last_error,
           NULL, NULL, source_event_id, event_context_id, pipeline, step_id, schedule_id, slot_at, 0,
           enqueued_config_snapshot_id, started_config_snapshot_id, 0, NULL, NULL, NULL, NULL, 0, tolerated,
           outcome_code, actor, NULL
      FROM job_log WHERE job_id = ? ORDER BY attempt DESC LIMIT 1
"""


def logged_job(db: Db, job_id: str) -> Job | None:
    """Build the job from its last attempt in the log; None if there is none."""
    row = db.execute(FROM_LOG, (job_id,)).fetchone()
    return job_from_row(row) if row else None


CHILDREN = f"SELECT {LIST_COLUMNS} FROM job_queue WHERE parent_job_id = ? ORDER BY seq LIMIT ?"


def children(db: Db, job_id: str, *, limit: int = 1000) -> list[Job]:
    """Return the direct follow-up jobs, in order of arrival."""
    return [job_from_row(row) for row in db.execute(CHILDREN, (job_id, limit))]


OPEN = "SELECT 1 FROM job_queue WHERE id = ? AND status IN ('queued', 'running')"


def is_finished(db: Db, job_id: str) -> bool:
    """True unless the job is queued or running. True for an unknown job."""
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
        started_at=from_text_or_none(row[10]),
        completed_at=from_text(row[11]),
        duration=None if row[12] is None else timedelta(milliseconds=row[12]),
        exit_code=row[13],
        signal=row[14],
        last_error=row[15],
        stderr=row[16],
        result=row[17],
        outcome_code=row[18],
        outcome_data=row[19],
        plugin_fingerprint=row[20],
        plugin_changes=row[21],
    )
