"""Move one job into its final state, with its log and journal rows, and release what it held.

The caller writes the follow-up jobs between the two steps, so that the tree counts them before it loses this job.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.model import NO_JOURNAL_DATA, Outcome, Skipped
from ductile.ledger.completion.outcomes import attempt_status, code_of, data_of, error_of, evidence_of, job_status
from ductile.ledger.jobs import dedupe, joins, tree_counters
from ductile.ledger.jobs.enqueue import Enqueued
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import attempts, journal

ROW = "id, plugin, command, root_job_id, dedupe_key, dedupe_ttl_seconds, schedule_id, join_id, submitted_by"


@frozen
class FinishedRow:
    """The columns of ROW, for a job that has ended or is queued again."""

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
    """For a root that has just ended: how many jobs of its tree are still open."""

    @property
    def scope(self) -> tuple[str, str, str] | None:
        """The scope of its dedupe key; None without one, and for a join, which holds no key."""
        if self.dedupe_key is None or self.plugin == joins.JOIN_PLUGIN:
            return None
        return (self.plugin, self.command, self.dedupe_key)


# Read first: an UPDATE with RETURNING builds a temporary table, which costs more than this SELECT.
FIND = f"SELECT {ROW}, open_jobs - 1, seq, started_at FROM job_queue WHERE id = ? AND status = ? AND attempt = ?"
FIND_CLAIMED = f"{FIND} AND claimed_by = ?"
# A root closes itself in its tree in the same statement: most trees have one job.
END = """
    UPDATE job_queue
       SET status = ?, completed_at = ?, last_error = ?, outcome_code = ?, next_retry_at = NULL, lane = NULL,
           waits_for_key = 0, waits_for = 0, claimed_by = NULL, lease_until = NULL, pid = NULL, pid_started = NULL,
           boot_id = NULL, blocked_reason = NULL, open_jobs = open_jobs - 1,
           tree_completed_at = CASE WHEN open_jobs = 1 THEN ? END
     WHERE seq = ? AND status = ? AND attempt = ?
"""


def finish_job(
    db: Db,
    job_id: str,
    attempt: int,
    was: str,
    outcome: Outcome,
    *,
    now: datetime,
    journal_data: Mapping[str, Any] = NO_JOURNAL_DATA,
    run_id: str | None = None,
) -> FinishedRow | None:
    """End the job, in the log and in the journal. Return None if it is not `was` in this attempt any more.

    With a `run_id`, also return None if that run does not own the attempt.
    """
    status, error, evidence = job_status(outcome), error_of(outcome), evidence_of(outcome)
    code, outcome_data = code_of(outcome), data_of(outcome)
    token = (job_id, was, attempt)
    found = db.execute(FIND_CLAIMED, (*token, run_id)) if run_id else db.execute(FIND, token)
    found = found.fetchone()
    if found is None:
        return None
    *columns, seq, started_at = found
    row, moment = FinishedRow(*columns), to_text(now)
    changed = db.execute(END, (status, moment, error, code, moment, seq, was, attempt)).rowcount
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
        code=code,
        data=outcome_data,
    )
    data: dict[str, Any] = {"from": was, "to": status, "status": status, "attempt": attempt, "command": row.command}
    data.update(journal_data)
    if row.schedule_id is not None:
        data["schedule_id"], data["submitted_by"] = row.schedule_id, row.submitted_by
    if error is not None:
        data["reason"] = data["error"] = error
        data["outcome_code"], data["outcome_data"] = code, dict(outcome_data)
    if evidence:
        data["duration_ms"] = evidence.duration // attempts.MILLISECOND
    kind = attempts.journal_kind(status, timed_out=evidence is not None and evidence.timed_out)
    journal.append(db, kind, now=moment, plugin=row.plugin, job_id=job_id, root_job_id=row.root_job_id, data=data)
    return row


def release_resources(db: Db, row: FinishedRow, children: tuple[Enqueued, ...], *, now: datetime) -> bool:
    """Release the key of the ended job and its place in join and tree. Return True if the tree is done."""
    if row.scope:
        dedupe.release_next(db, row.scope)
    if row.join_id:
        joins.remove_member(db, row.join_id)
    if row.open_jobs is None:
        return tree_counters.close_job(db, row.root_job_id, now=to_text(now))
    return row.open_jobs == 0 and not any(child.is_open_in(row.root_job_id) for child in children)
