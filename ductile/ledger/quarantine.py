"""A running job that can neither be recorded nor recovered is set apart: dead, with the reason, waited for by nobody.

Its statements bend to whatever the row holds, so that the fault that led here does not stop them too. Called by
`endings` and `recover`.
"""

import sqlite3
from datetime import datetime

from ductile.clock import to_text
from ductile.ledger import attempts, dedupe, journal
from ductile.ledger.connections import RowFault, written_or_fault
from ductile.ledger.record import Recorded
from ductile.model import JobStatus

SET_APART = """
    UPDATE job_queue
       SET status = 'dead', completed_at = :now, last_error = :reason, claimed_by = NULL, lease_until = NULL,
           lane = NULL, waits_for_key = 0, next_retry_at = NULL, started_at = NULL, blocked_reason = NULL,
           pid = NULL, pid_started = NULL, boot_id = NULL
     WHERE id = :id AND status = 'running' AND attempt = :attempt
    RETURNING plugin, command, root_job_id, dedupe_key
"""
# A tree that counted too few open jobs is done, not in debt.
CLOSE_AT_LEAST = """
    UPDATE job_queue
       SET open_jobs = MAX(open_jobs - 1, 0), tree_completed_at = CASE WHEN open_jobs <= 1 THEN :now END
     WHERE id = :root
    RETURNING open_jobs
"""


def quarantine(db: sqlite3.Connection, job_id: str, attempt: int, reason: str, *, now: datetime) -> Recorded | None:
    """The job is dead and its tree, its key and the log know it; None if its row cannot be changed.

    Either way the journal has the reason.
    """
    ended = written_or_fault(db, lambda: _set_apart(db, job_id, attempt, reason, now=now))
    if isinstance(ended, Recorded):
        return ended
    left = f"as it is: {ended.reason}" if isinstance(ended, RowFault) else "as it is: the attempt is over"
    journal.append(
        db, "job.quarantined", now=now, job_id=job_id, data={"attempt": attempt, "reason": reason, "left": left}
    )
    return None


def _set_apart(db: sqlite3.Connection, job_id: str, attempt: int, reason: str, *, now: datetime) -> Recorded | None:
    values = {"id": job_id, "attempt": attempt, "now": to_text(now), "reason": reason}
    rows = db.execute(SET_APART, values).fetchall()
    if not rows:
        return None
    plugin, command, root_id, key = rows[0]
    attempts.log_last(db, job_id, attempt, now=now, error=reason)
    data = {"from": JobStatus.RUNNING, "to": JobStatus.DEAD, "attempt": attempt, "reason": reason}
    journal.append(db, "job.quarantined", now=now, plugin=plugin, job_id=job_id, root_job_id=root_id, data=data)
    if key is not None:
        dedupe.release_next(db, (plugin, command, key))
    roots = db.execute(CLOSE_AT_LEAST, {"root": root_id, "now": to_text(now)}).fetchall()
    return Recorded(
        job_id=job_id,
        root_job_id=root_id,
        plugin=plugin,
        command=command,
        attempt=attempt,
        status=JobStatus.DEAD,
        tree_is_done=roots == [(0,)],
    )
