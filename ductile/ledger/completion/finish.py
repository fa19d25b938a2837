"""The guarded step of one job into a final state, with its log and journal rows; and what it then gives back.

Between the two steps others write what follows from the ending: jobs that come are counted before the one that goes.
Called by `record` only.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ductile.core.clock import to_text
from ductile.core.model import NOTHING_TOLD, Outcome, Skipped
from ductile.ledger.completion import attempts
from ductile.ledger.completion.outcomes import attempt_status, error_of, evidence_of, job_status
from ductile.ledger.queue import dedupe, joins, tree_counters
from ductile.ledger.queue.enqueue import Enqueued
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal

ROW = "id, plugin, command, root_job_id, dedupe_key, dedupe_ttl_seconds, schedule_id, join_id, submitted_by"


class FinishedRow(NamedTuple):
    """What is to be known of a job that has ended or is queued again: the columns of ROW."""

    id: str
    plugin: str
    command: str
    root_job_id: str
    dedupe_key: str | None
    dedupe_ttl_seconds: float | None
    schedule_id: str | None
    join_id: str | None
    submitted_by: str
    open_jobs: int | None = None
    """Of a root that has just ended: the jobs of its tree that are still open."""

    @property
    def scope(self) -> tuple[str, str, str] | None:
        return None if self.dedupe_key is None else (self.plugin, self.command, self.dedupe_key)


# Read first: an update that returns what it changed makes a table for that, which costs more than the look.
FIND = f"SELECT {ROW}, open_jobs - 1, seq, started_at FROM job_queue WHERE id = ? AND status = ? AND attempt = ?"
FIND_CLAIMED = f"{FIND} AND claimed_by = ?"
# A root counts itself out in the same step: it is the only job of most trees.
END = """
    UPDATE job_queue
       SET status = ?, completed_at = ?, last_error = ?, next_retry_at = NULL, lane = NULL,
           waits_for_key = 0, waits_for = 0, claimed_by = NULL, lease_until = NULL, pid = NULL, pid_started = NULL,
           boot_id = NULL, blocked_reason = NULL, open_jobs = open_jobs - 1,
           tree_completed_at = CASE WHEN open_jobs = 1 THEN ? END
     WHERE seq = ? AND status = ? AND attempt = ?
"""


def end(
    db: Db,
    job_id: str,
    attempt: int,
    was: str,
    outcome: Outcome,
    *,
    now: datetime,
    told: Mapping[str, Any] = NOTHING_TOLD,
    run_id: str | None = None,
) -> FinishedRow | None:
    """The job is final, in the log and in the journal; None if it is not `was` in this attempt any more.

    With a `run_id` also None if that run does not own the attempt.
    """
    status, error, evidence = job_status(outcome), error_of(outcome), evidence_of(outcome)
    token = (job_id, was, attempt)
    found = db.execute(FIND_CLAIMED, (*token, run_id)) if run_id else db.execute(FIND, token)
    found = found.fetchone()
    if found is None:
        return None
    *columns, seq, started_at = found
    row, moment = FinishedRow(*columns), to_text(now)
    changed = db.execute(END, (status, moment, error, moment, seq, was, attempt)).rowcount
    assert changed == 1, "this transaction, which has just found the row, is the only writer"
    attempts.log_attempt(
        db,
        job_id,
        attempt,
        attempt_status(outcome, ran=was == "running"),
        now=moment,
        error=error,
        evidence=evidence,
        started_at=started_at if was == "running" and not isinstance(outcome, Skipped) else None,
    )
    data: dict[str, Any] = {"from": was, "to": status, "status": status, "attempt": attempt, "command": row.command}
    data.update(told)
    if row.schedule_id is not None:
        data["schedule_id"], data["submitted_by"] = row.schedule_id, row.submitted_by
    if error is not None:
        data["reason"] = data["error"] = error
    if evidence:
        data["duration_ms"] = evidence.duration // attempts.MILLISECOND
    kind = attempts.kind_of(status, timed_out=evidence is not None and evidence.timed_out)
    journal.append(db, kind, now=moment, plugin=row.plugin, job_id=job_id, root_job_id=row.root_job_id, data=data)
    return row


def give_back(db: Db, row: FinishedRow, children: tuple[Enqueued, ...], *, now: datetime) -> bool:
    """The ended job holds no key and no place in its join and its tree any more; True if the tree is done."""
    if row.scope:
        dedupe.release_next(db, row.scope)
    if row.join_id:
        joins.count_out(db, row.join_id)
    if row.open_jobs is None:
        return tree_counters.close_one(db, row.root_job_id, now=to_text(now))
    return row.open_jobs == 0 and not any(child.is_open_in(row.root_job_id) for child in children)
