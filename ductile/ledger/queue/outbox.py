"""Queue a claimed job again without using up an attempt, and the outbox: relay jobs whose instance does not respond.

A relay job is an ordinary row of the queue. The relay package decides when it is postponed, the engine decides for jobs
of plugins.
"""

from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text_or_none, to_text
from ductile.ledger.completion.finish import ROW, FinishedRow
from ductile.ledger.jobs import dedupe
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal

POSTPONE = f"""
    UPDATE job_queue
       SET status = 'queued', started_at = NULL, next_retry_at = :until,
           failed_at = CASE WHEN :until IS NULL THEN failed_at ELSE :now END,
           lane = CASE WHEN :until IS NULL THEN plugin END, blocked_reason = :blocked_reason,
           claimed_by = NULL, lease_until = NULL, pid = NULL, pid_started = NULL, boot_id = NULL
     WHERE id = :id AND status = 'running' AND attempt = :attempt AND claimed_by = :run_id
       AND cancel_requested_at IS NULL
    RETURNING {ROW}
"""


def postpone(
    db: Db, job_id: str, attempt: int, reason: str, *, run_id: str, until: datetime | None, now: datetime
) -> bool:
    """Requeue a job that `run_id` has claimed, with the same attempt; False if it was cancelled or is not running.

    Without `until` it is ready, and its plugin must be left out of the next claim.
    """
    until_text = to_text(until) if until else None
    values = {"id": job_id, "attempt": attempt, "run_id": run_id, "until": until_text, "now": to_text(now)}
    values["blocked_reason"] = reason if until else None
    rows = db.execute(POSTPONE, values).fetchall()
    if not rows:
        return False
    row = FinishedRow(*rows[0])
    data = {"from": "running", "to": "queued", "attempt": attempt, "reason": reason}
    data |= {"next_retry_at": until_text} if until_text else {}
    journal.append(db, "job.held", now=now, plugin=row.plugin, job_id=row.id, root_job_id=row.root_job_id, data=data)
    if row.scope:
        dedupe.release_next(db, row.scope)
    return True


WAKE = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin, blocked_reason = NULL
     WHERE next_retry_at IS NOT NULL AND blocked_reason = ?
"""


def wake(db: Db, instance: str) -> int:
    """Make the jobs that wait for the instance ready. Return their number. Failed attempts keep their retry delay."""
    return db.execute(WAKE, (block_reason(instance),)).rowcount


WAKE_TRIED = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin
     WHERE next_retry_at IS NOT NULL AND blocked_reason IS NULL AND plugin = ?
"""


def wake_all(db: Db, plugin: str, instance: str) -> int:
    """Make the jobs that wait for the instance ready, and every failed job of the plugin. Return their number.

    A failed job can be for another instance: the row of a pipeline step does not have its instance.
    """
    return wake(db, instance) + db.execute(WAKE_TRIED, (plugin,)).rowcount


def block_reason(instance: str) -> str:
    """Return the `blocked_reason` of jobs for that instance. It is also the key by which `wake` finds them.

    Stored rows have this text: another wording would not find them.
    """
    return f"instance {instance} does not answer"


JOB_DUE_BY = "SELECT 1 FROM job_queue WHERE next_retry_at <= ? AND blocked_reason = ? LIMIT 1"


def has_job_due_by(db: Db, instance: str, by: datetime) -> bool:
    """True if a job that waits for the instance is due by then."""
    return db.execute(JOB_DUE_BY, (to_text(by), block_reason(instance))).fetchone() is not None


UNSENT = "SELECT COUNT(*), MIN(created_at) FROM job_queue WHERE status IN ('queued', 'running') AND plugin = ?"


@frozen
class UnsentEvents:
    """Relay jobs that have not ended, and when the oldest was created."""

    count: int
    since: datetime | None


def unsent(db: Db, plugin: str) -> UnsentEvents:
    """Count the queued and running jobs of the plugin."""
    count, since = db.execute(UNSENT, (plugin,)).fetchone()
    return UnsentEvents(count, from_text_or_none(since))


RECEIVED = "SELECT COUNT(*), MAX(created_at) FROM receipts WHERE scope = ?"


@frozen
class ReceivedEvents:
    """Events received in one scope that still have a receipt."""

    count: int
    last_at: datetime | None


def received(db: Db, scope: str) -> ReceivedEvents:
    count, last_at = db.execute(RECEIVED, (scope,)).fetchone()
    return ReceivedEvents(count, from_text_or_none(last_at))
