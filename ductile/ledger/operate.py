"""What an operator does to a job by hand: cancel it, or have a finished one tried again.

Also ends the queued jobs of a plugin that was removed. Called by the web and by offline commands.
"""

import sqlite3
from datetime import datetime

from attrs import frozen

from ductile.clock import to_text
from ductile.errors import NotFound, WrongState
from ductile.ledger import journal, trees
from ductile.ledger.record import Recorded, end_queued
from ductile.ledger.rows import get_job
from ductile.model import Dead, Job, JobStatus


@frozen
class CancelRequested:
    """The job runs; whoever runs it ends its process and records it as dead."""

    job_id: str
    attempt: int


def cancel(db: sqlite3.Connection, job_id: str, reason: str, *, now: datetime) -> Recorded | CancelRequested:
    """A waiting job is dead; a running one will be."""
    job = _known(db, job_id)
    if job.status is JobStatus.QUEUED:
        ended = end_queued(db, job.id, job.attempt, Dead(f"cancelled: {reason}"), now=now)
        assert ended is not None, "the job was queued a moment ago in this transaction"
        return ended
    if job.status is JobStatus.RUNNING:
        return _request_cancel(db, job, reason, now=now)
    raise WrongState(f"{job_id}: already {job.status}", hint="only queued and running jobs can be cancelled")


REQUEST_CANCEL = """
    UPDATE job_queue SET cancel_requested_at = ?, cancel_reason = ?
     WHERE id = ? AND status = 'running' AND attempt = ? AND cancel_requested_at IS NULL
"""


def _request_cancel(db: sqlite3.Connection, job: Job, reason: str, *, now: datetime) -> CancelRequested:
    if db.execute(REQUEST_CANCEL, (to_text(now), reason, job.id, job.attempt)).rowcount == 1:
        journal.append(
            db,
            "job.cancel_requested",
            now=now,
            plugin=job.plugin,
            job_id=job.id,
            root_job_id=job.root_job_id,
            data={"attempt": job.attempt, "reason": reason},
        )
    return CancelRequested(job.id, job.attempt)


RETRY = """
    UPDATE job_queue
       SET status = 'queued', lane = plugin, attempt = attempt + 1,
           max_attempts = MAX(max_attempts, attempt + 1 - interruptions),
           asked_at = :now, started_at = NULL, completed_at = NULL, cancel_requested_at = NULL, cancel_reason = NULL
     WHERE id = :id AND status IN ('failed', 'dead') AND attempt = :attempt
"""


def retry(db: sqlite3.Connection, job_id: str, *, now: datetime) -> Job:
    """A job that ended failed or dead is queued again, with one attempt more than it has used if need be."""
    job = _known(db, job_id)
    if job.status not in (JobStatus.FAILED, JobStatus.DEAD):
        raise WrongState(f"{job_id}: {job.status}", hint="only jobs that ended failed or dead can be tried again")
    changed = db.execute(RETRY, {"id": job.id, "attempt": job.attempt, "now": to_text(now)}).rowcount
    assert changed == 1, "the job was final a moment ago in this transaction"
    trees.reopen_one(db, job.root_job_id)
    data = {"from": job.status, "to": "queued", "attempt": job.attempt + 1, "reason": "operator"}
    journal.append(
        db, "job.requeued", now=now, plugin=job.plugin, job_id=job.id, root_job_id=job.root_job_id, data=data
    )
    return _known(db, job_id)


# By status: the index by plugin would lead through the plugin's whole history.
QUEUED_OF_PLUGIN = """
    SELECT id, attempt FROM job_queue INDEXED BY job_queue_by_status
     WHERE status = 'queued' AND plugin = ? ORDER BY seq LIMIT ?
"""


def end_queued_jobs_of(
    db: sqlite3.Connection, plugin: str, reason: str, *, now: datetime, limit: int = 500
) -> list[Recorded]:
    """Up to `limit` waiting jobs of a plugin that is gone are dead; call again while it returns that many."""
    rows = db.execute(QUEUED_OF_PLUGIN, (plugin, limit)).fetchall()
    ended = [end_queued(db, job_id, attempt, Dead(reason), now=now) for job_id, attempt in rows]
    return [one for one in ended if one is not None]


QUEUED_PLUGINS = "SELECT DISTINCT plugin FROM job_queue INDEXED BY job_queue_by_status WHERE status = 'queued'"


def queued_plugins(db: sqlite3.Connection) -> list[str]:
    """The plugins that have a waiting job, in alphabetical order; proportional to what waits."""
    return sorted(plugin for (plugin,) in db.execute(QUEUED_PLUGINS))


IN_LOG = "SELECT 1 FROM job_log WHERE job_id = ? LIMIT 1"


def _known(db: sqlite3.Connection, job_id: str) -> Job:
    job = get_job(db, job_id)
    if job is not None:
        return job
    if db.execute(IN_LOG, (job_id,)).fetchone():
        raise WrongState(f"{job_id}: over, and no longer in the queue", hint="start it anew from its log")
    raise NotFound(f"{job_id}: there is no such job")
