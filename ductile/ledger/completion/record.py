"""Record the completion of an attempt in one transaction: result, log, facts, contexts, children, breaker, journal.

Every change is guarded by id, status and attempt and touches exactly one row. A late writer finds no row, changes
nothing, and is journalled as stale. The outcome was decided before; this module turns it into rows.
"""

from datetime import datetime, timedelta
from typing import Any

from attrs import evolve, frozen

from ductile.core.clock import to_text
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import (
    Budget,
    Completion,
    Dead,
    Failed,
    FollowRule,
    FollowUps,
    Interrupted,
    JobStatus,
    Outcome,
    OutcomeCode,
    Retried,
    Skipped,
    Succeeded,
    attempts_used_up,
    cancelled,
    with_problem,
)
from ductile.ledger.completion import finish
from ductile.ledger.completion.finish import ROW, FinishedRow
from ductile.ledger.completion.follow_ups import (
    NO_FOLLOW_UPS,
    append_notes,
    ask_follow_rule,
    replace_outcome,
    write_follow_ups,
)
from ductile.ledger.completion.outcomes import attempt_status, code_of, data_of, error_of, job_status
from ductile.ledger.jobs import dedupe, joins
from ductile.ledger.jobs.dedupe import DEFAULT_TTL, Duplicate
from ductile.ledger.jobs.enqueue import Enqueued
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.jobs.tree_counters import DEFAULT_BUDGET
from ductile.ledger.storage.db import Db, RowFault, try_in_savepoint
from ductile.ledger.tables import attempts, contexts, facts, journal
from ductile.ledger.tables.breakers import apply_rule
from ductile.ledger.tables.schedules import set_last_success


@frozen(kw_only=True)
class Recorded:
    """A recorded completion, to be announced. `status` is `queued` if the job will run again."""

    job_id: str
    root_job_id: str
    plugin: str
    command: str
    attempt: int
    status: JobStatus
    outcome_code: OutcomeCode | None = None
    """Why the job ended; None if it will run again."""
    tree_is_done: bool = False
    children: tuple[Enqueued, ...] = ()
    skipped_as: Duplicate | None = None
    """Set on a job that was skipped as a duplicate when it was claimed."""
    next_retry_at: datetime | None = None
    was_probe: bool = False
    """True if the job was the probe of a half-open breaker."""

    @property
    def duplicates(self) -> list[Duplicate]:
        """The jobs that were not run because of their dedupe key: follow-up jobs, or the job itself."""
        found = (*(child.duplicate for child in self.children), self.skipped_as)
        return [duplicate for duplicate in found if duplicate is not None]


@frozen
class Stale:
    """A completion of an attempt that is no longer the current one. Nothing was changed."""

    job_id: str
    attempt: int
    found: str


def record(
    db: Db,
    completion: Completion,
    *,
    now: datetime,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
    run_id: str | None = None,
) -> Recorded | Stale:
    """Record the completion and enqueue its follow-up jobs, unless the attempt is stale.

    `run_id` is the run that claimed the attempt. An attempt that another run owns is stale.
    """
    job = get_job(db, completion.job_id) if completion.breaker else None
    if isinstance(completion.outcome, Retried | Interrupted):
        requeued = _requeue(db, completion, completion.outcome, run_id, now=now)
        if isinstance(requeued, Recorded | Stale):
            return requeued
        completion = replace_outcome(db, completion, requeued, now=now, notes=completion.notes)
    elif problem := _state_too_large(db, completion):
        completion = replace_outcome(db, completion, problem, now=now)
    if completion.tolerated is not None:
        joins.set_tolerated(db, completion.job_id, completion.attempt, is_tolerated=completion.tolerated)
    row = finish.finish_job(
        db,
        completion.job_id,
        completion.attempt,
        "running",
        completion.outcome,
        now=now,
        journal_data=completion.journal_data,
        run_id=run_id,
    )
    if row is None:
        return _stale(db, completion, now=now)
    failpoint("record.after_status")
    if isinstance(completion.outcome, Succeeded):
        _store_success(db, row, completion, now=now, default_ttl=default_ttl)
        failpoint("record.after_facts")
    children = write_follow_ups(
        db, completion, row.id, row.plugin, row.root_job_id, now=now, default_ttl=default_ttl, budget=budget
    )
    failpoint("record.after_children")
    if completion.breaker and job:
        was_probe = apply_rule(db, completion.breaker, job, job_status(completion.outcome), now=now)
        recorded = _recorded(db, row, completion.attempt, completion.outcome, children, now=now)
        return evolve(recorded, was_probe=True) if was_probe else recorded
    return _recorded(db, row, completion.attempt, completion.outcome, children, now=now)


def _state_too_large(db: Db, completion: Completion) -> Failed | None:
    """Return the failure that replaces a success whose state is too large to store."""
    if not isinstance(completion.outcome, Succeeded) or not (completion.facts or completion.state_updates):
        return None
    job = get_job(db, completion.job_id)
    problem = job and facts.size_error(
        db, job.plugin, completion.facts, completion.state_updates, max_bytes=completion.state_limit
    )
    data = {"limit_key": "service.limits.state"}
    return Failed(problem, completion.outcome.evidence, OutcomeCode.STATE_TOO_LARGE, data) if problem else None


def end_queued(
    db: Db,
    job_id: str,
    attempt: int,
    outcome: Skipped | Dead,
    *,
    now: datetime,
    rule: FollowRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
) -> Recorded | None:
    """End a queued job that has not run, and enqueue the follow-up jobs of `rule`. Return None if it is not queued.

    If the follow-up jobs cannot be recorded, the job ends without them and its error names the problem.
    """

    def ended(outcome: Skipped | Dead, rule: FollowRule | None) -> Recorded | None:
        follow_ups = ask_follow_rule(db, rule, job_id, outcome, now=now)
        if follow_ups.tolerated is not None:
            joins.set_tolerated(db, job_id, attempt, is_tolerated=follow_ups.tolerated)
        return end_waiting(db, job_id, attempt, outcome, follow_ups, now=now, default_ttl=default_ttl, budget=budget)

    if rule is None or isinstance(outcome, Skipped):
        return ended(outcome, None)
    recorded = try_in_savepoint(db, lambda: ended(outcome, rule))
    if not isinstance(recorded, RowFault):
        return recorded
    joins.set_tolerated(db, job_id, attempt, is_tolerated=False)
    return ended(with_problem(outcome, f"its follow-up jobs cannot be recorded: {recorded.reason}"), None)


def end_waiting(
    db: Db,
    job_id: str,
    attempt: int,
    outcome: Outcome,
    follow_ups: FollowUps,
    *,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
) -> Recorded | None:
    """End a queued job with this outcome and these follow-ups. Return None if it is not queued."""
    row = finish.finish_job(db, job_id, attempt, "queued", outcome, now=now)
    if row is None:
        return None
    children: tuple[Enqueued, ...] = ()
    if follow_ups is not NO_FOLLOW_UPS:
        children = write_follow_ups(
            db, follow_ups, row.id, row.plugin, row.root_job_id, now=now, default_ttl=default_ttl, budget=budget
        )
    return _recorded(db, row, attempt, outcome, children, now=now)


def _recorded(
    db: Db, row: FinishedRow, attempt: int, outcome: Outcome, children: tuple[Enqueued, ...], *, now: datetime
) -> Recorded:
    """Release what the job held and return the recorded completion."""
    return Recorded(
        job_id=row.id,
        root_job_id=row.root_job_id,
        plugin=row.plugin,
        command=row.command,
        attempt=attempt,
        status=job_status(outcome),
        outcome_code=code_of(outcome),
        tree_is_done=finish.release_resources(db, row, children, now=now),
        children=children,
    )


# Another attempt only while some are left, and never for a job that is to be cancelled.
REQUEUE = f"""
    UPDATE job_queue
       SET status = 'queued', attempt = attempt + 1, started_at = NULL, last_error = :error,
           failed_at = :now, next_retry_at = :next_retry_at, interruptions = interruptions + :interrupted,
           lane = CASE WHEN :next_retry_at IS NULL THEN plugin END,
           claimed_by = NULL, lease_until = NULL, pid = NULL, pid_started = NULL, boot_id = NULL
     WHERE id = :id AND status = 'running' AND attempt = :attempt AND (:run_id IS NULL OR claimed_by = :run_id)
       AND cancel_requested_at IS NULL
       AND (:interrupted = 1 OR attempt - interruptions < max_attempts)
    RETURNING max_attempts, interruptions, {ROW}
"""


def _requeue(
    db: Db, completion: Completion, outcome: Retried | Interrupted, run_id: str | None, *, now: datetime
) -> Recorded | Stale | Dead:
    """Queue the job for its next attempt. Return the outcome that ends it instead if it may have none."""
    interrupted, error = isinstance(outcome, Interrupted), error_of(outcome)
    delay = timedelta() if isinstance(outcome, Interrupted) else outcome.delay
    next_retry_at = now + delay if delay > timedelta() else None
    # Read before the update, which clears it: the log row of this attempt has its start.
    token = {"id": completion.job_id, "attempt": completion.attempt, "run_id": run_id}
    started = db.execute(STARTED_AT, token).fetchone()
    if started is None:
        return _stale(db, completion, now=now)
    values = {
        **token,
        "now": to_text(now),
        "error": error,
        "interrupted": int(interrupted),
        "next_retry_at": to_text(next_retry_at) if next_retry_at else None,
    }
    rows = db.execute(REQUEUE, values).fetchall()
    if not rows:
        return _final_outcome(db, completion, outcome)
    failpoint("record.after_status")
    max_attempts, interruptions, *columns = rows[0]
    row = FinishedRow(*columns)
    status = attempt_status(outcome, ran=True)
    attempts.log_attempt(
        db,
        row.id,
        completion.attempt,
        status,
        now=now,
        error=error,
        evidence=outcome.evidence,
        started_at=started[0],
        data=data_of(outcome),
    )
    failpoint("record.after_retry")
    contexts.put_all(db, completion.contexts, now=now)
    kind = "job.interrupted" if interrupted else "job.retry_scheduled"
    data: dict[str, Any] = {"from": "running", "to": "queued", "attempt": completion.attempt, "command": row.command}
    data |= {"outcome": status, "reason": error, "max_attempts": max_attempts, **completion.journal_data}
    if not interrupted:
        data["tries"] = completion.attempt - interruptions
    if next_retry_at:
        data |= {"next_retry_at": to_text(next_retry_at), "backoff_ms": delay // timedelta(milliseconds=1)}
    journal.append(db, kind, now=now, plugin=row.plugin, job_id=row.id, root_job_id=row.root_job_id, data=data)
    append_notes(db, completion.notes, row.id, row.plugin, row.root_job_id, now=now)
    if row.scope:
        dedupe.release_next(db, row.scope)
    return Recorded(
        job_id=row.id,
        root_job_id=row.root_job_id,
        plugin=row.plugin,
        command=row.command,
        attempt=completion.attempt,
        status=JobStatus.QUEUED,
        next_retry_at=next_retry_at,
    )


STARTED_AT = """
    SELECT started_at FROM job_queue
     WHERE id = :id AND status = 'running' AND attempt = :attempt AND (:run_id IS NULL OR claimed_by = :run_id)
"""


def _final_outcome(db: Db, completion: Completion, outcome: Retried | Interrupted) -> Dead:
    """Return the outcome of an attempt that may not be followed by another."""
    job = get_job(db, completion.job_id)
    assert job is not None, "the row was there a moment ago in this transaction"
    if job.cancel_requested_at:
        return cancelled(job.cancel_reason, outcome.evidence)
    return attempts_used_up(job, error_of(outcome), outcome.evidence)


def _store_success(db: Db, row: FinishedRow, completion: Completion, *, now: datetime, default_ttl: timedelta) -> None:
    """Store what a success adds: facts, state, the dedupe receipt, the last success of the schedule."""
    if completion.facts or completion.state_updates is not None:
        facts.store(db, row.plugin, row.command, row.id, completion.facts, completion.state_updates, now=now)
    if row.scope:
        own = row.dedupe_ttl_seconds
        ttl = default_ttl if own is None else max(timedelta(seconds=own), default_ttl)
        dedupe.put_receipt(db, row.scope, row.id, now=now, ttl=ttl)
    if row.schedule_id:
        set_last_success(db, row.plugin, row.schedule_id, row.id, now=now)


FOUND = "SELECT status, attempt, plugin, root_job_id FROM job_queue WHERE id = ?"


def _stale(db: Db, completion: Completion, *, now: datetime) -> Stale:
    """Drop a late result and note it in the journal."""
    found = db.execute(FOUND, (completion.job_id,)).fetchone()
    where = f"{found[0]}, attempt {found[1]}" if found else "unknown"
    journal.append(
        db,
        "job.stale",
        now=now,
        plugin=found[2] if found else None,
        job_id=completion.job_id,
        root_job_id=found[3] if found else None,
        data={"attempt": completion.attempt, "outcome": type(completion.outcome).__name__.lower(), "found": where},
    )
    return Stale(completion.job_id, completion.attempt, where)
