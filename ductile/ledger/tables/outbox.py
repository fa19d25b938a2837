"""The outbox: relay jobs that wait because nobody answers, and how they are woken. All in the caller's transaction.

A relay job is a row of the queue like any other; this room only knows how one goes back without having used up an
attempt. Who decides that is the engine.
"""

from datetime import datetime

from attrs import frozen

from ductile.core.clock import to_text
from ductile.ledger.completion.finish import ROW, FinishedRow
from ductile.ledger.queue import dedupe
from ductile.ledger.queue.rows import moment
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal

HOLD = f"""
    UPDATE job_queue
       SET status = 'queued', started_at = NULL, failed_at = :now, next_retry_at = :until, blocked_reason = :reason,
           claimed_by = NULL, lease_until = NULL, pid = NULL, pid_started = NULL, boot_id = NULL
     WHERE id = :id AND status = 'running' AND attempt = :attempt AND claimed_by = :run_id
       AND cancel_requested_at IS NULL
    RETURNING {ROW}
"""


def hold(db: Db, job_id: str, attempt: int, reason: str, *, run_id: str, until: datetime, now: datetime) -> bool:
    """Put a job that `run_id` has claimed back into the queue, with the same attempt; False if it must not wait."""
    values = {"id": job_id, "attempt": attempt, "run_id": run_id, "reason": reason}
    values |= {"until": to_text(until), "now": to_text(now)}
    rows = db.execute(HOLD, values).fetchall()
    if not rows:
        return False
    row = FinishedRow(*rows[0])
    data = {"from": "running", "to": "queued", "attempt": attempt, "reason": reason, "next_retry_at": to_text(until)}
    journal.append(db, "job.held", now=now, plugin=row.plugin, job_id=row.id, root_job_id=row.root_job_id, data=data)
    if row.scope:
        dedupe.release_next(db, row.scope)
    return True


WAKE = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin, blocked_reason = NULL
     WHERE next_retry_at IS NOT NULL AND blocked_reason = ?
"""


def wake(db: Db, instance: str) -> int:
    """What was held because of the instance may start now; how many. What was tried and failed keeps its delay."""
    return db.execute(WAKE, (reason_of(instance),)).rowcount


WAKE_TRIED = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin
     WHERE next_retry_at IS NOT NULL AND blocked_reason IS NULL AND plugin = ?
"""


def wake_all(db: Db, plugin: str, instance: str) -> int:
    """What is held because of the instance, and what was tried and failed, may start now: the operator says so."""
    return wake(db, instance) + db.execute(WAKE_TRIED, (plugin,)).rowcount


def reason_of(instance: str) -> str:
    """Why a job for that instance is held; it also says which those are."""
    return f"instance {instance} does not answer"


ASKS_BY = "SELECT 1 FROM job_queue WHERE next_retry_at <= ? AND blocked_reason = ? LIMIT 1"


def somebody_asks_by(db: Db, instance: str, moment: datetime) -> bool:
    """Whether a held job for the instance will be looked at until then."""
    return db.execute(ASKS_BY, (to_text(moment), reason_of(instance))).fetchone() is not None


WAITING = "SELECT COUNT(*), MIN(created_at) FROM job_queue WHERE status IN ('queued', 'running') AND plugin = ?"


@frozen
class UnsentEvents:
    """What has not been sent yet."""

    count: int
    since: datetime | None


def waiting(db: Db, plugin: str) -> UnsentEvents:
    """How many jobs of the plugin are not over, and when the oldest of them was made."""
    count, since = db.execute(WAITING, (plugin,)).fetchone()
    return UnsentEvents(count, moment(since))


RECEIVED = "SELECT COUNT(*), MAX(created_at) FROM receipts WHERE scope = ?"


@frozen
class Received:
    """What has come through one door, as far as receipts are kept."""

    count: int
    last_at: datetime | None


def received(db: Db, scope: str) -> Received:
    count, last_at = db.execute(RECEIVED, (scope,)).fetchone()
    return Received(count, moment(last_at))
