"""Quarantine a job that cannot be recorded, recovered or resolved: end it dead with the reason.

The statements accept any values in the row, so that the fault that led here does not stop them too.
"""

from datetime import datetime

from ductile.core.clock import to_text
from ductile.core.model import JobStatus, OutcomeCode
from ductile.ledger.completion.record import Recorded
from ductile.ledger.jobs import dedupe
from ductile.ledger.storage.db import Db, RowFault, try_in_savepoint
from ductile.ledger.storage.dialect import greatest
from ductile.ledger.tables import attempts, journal

QUARANTINE = """
    UPDATE job_queue
       SET status = 'dead', completed_at = :now, last_error = :reason, outcome_code = :code,
           claimed_by = NULL, lease_until = NULL, lane = NULL, waits_for_key = 0, waits_for = 0, next_retry_at = NULL,
           started_at = NULL, blocked_reason = NULL, pid = NULL, pid_started = NULL, boot_id = NULL, tolerated = 0
     WHERE id = :id AND status = :was AND attempt = :attempt AND (:run_id IS NULL OR claimed_by = :run_id)
    RETURNING plugin, command, root_job_id, dedupe_key, join_id
"""
# A counter that was too low stops at zero: the tree is done.
CLOSE_JOB = f"""
    UPDATE job_queue
       SET open_jobs = {greatest("open_jobs - 1", "0")}, tree_completed_at = CASE WHEN open_jobs <= 1 THEN :now END
     WHERE id = :root
    RETURNING open_jobs
"""
# The same for the counter of a join.
REMOVE_MEMBER = f"""
    UPDATE job_queue
       SET waits_for = {greatest("waits_for - 1", "0")}, lane = CASE WHEN waits_for <= 1 THEN plugin END
     WHERE id = ? AND status = 'queued' AND is_join = 1
"""


def quarantine(
    db: Db,
    job_id: str,
    attempt: int,
    reason: str,
    *,
    now: datetime,
    was: JobStatus = JobStatus.RUNNING,
    run_id: str | None = None,
) -> Recorded | None:
    """End the job dead and update its tree, join, dedupe key and log; None if its row cannot be changed.

    The reason is journalled in both cases. With a `run_id`, only a job that this run owns is changed.
    """
    ended = try_in_savepoint(db, lambda: _end_dead(db, job_id, attempt, reason, was, run_id, now=now))
    if isinstance(ended, Recorded):
        return ended
    left = f"as it is: {ended.reason}" if isinstance(ended, RowFault) else "as it is: the attempt is over"
    journal.append(
        db, "job.quarantined", now=now, job_id=job_id, data={"attempt": attempt, "reason": reason, "left": left}
    )
    return None


def _end_dead(
    db: Db, job_id: str, attempt: int, reason: str, was: JobStatus, run_id: str | None, *, now: datetime
) -> Recorded | None:
    values = {"id": job_id, "attempt": attempt, "now": to_text(now), "reason": reason, "was": was, "run_id": run_id}
    values["code"] = OutcomeCode.QUARANTINED
    rows = db.execute(QUARANTINE, values).fetchall()
    if not rows:
        return None
    plugin, command, root_id, key, join_id = rows[0]
    attempts.log_quarantined(db, job_id, attempt, now=now, error=reason)
    data = {"from": was, "to": JobStatus.DEAD, "attempt": attempt, "command": command, "reason": reason}
    journal.append(db, "job.quarantined", now=now, plugin=plugin, job_id=job_id, root_job_id=root_id, data=data)
    if key is not None:
        dedupe.release_next(db, (plugin, command, key))
    if join_id is not None:
        db.execute(REMOVE_MEMBER, (join_id,))
    roots = db.execute(CLOSE_JOB, {"root": root_id, "now": to_text(now)}).fetchall()
    return Recorded(
        job_id=job_id,
        root_job_id=root_id,
        plugin=plugin,
        command=command,
        attempt=attempt,
        status=JobStatus.DEAD,
        outcome_code=OutcomeCode.QUARANTINED,
        tree_is_done=roots == [(0,)],
    )
