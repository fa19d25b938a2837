"""The end of an attempt, in one transaction: result, log, facts, contexts, children, breaker, tree, journal.

Every change is guarded by id, status and attempt and touches exactly one row; a late writer finds no row, changes
nothing, and is journalled as stale. What the ending is was decided before; only this room knows how it becomes rows.
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
    Retried,
    Skipped,
    Succeeded,
)
from ductile.ledger.completion import attempts, finish
from ductile.ledger.completion.finish import ROW, FinishedRow
from ductile.ledger.completion.follow_ups import NOTHING, ask, ending_instead, note_all, write_following
from ductile.ledger.completion.outcomes import attempt_status, error_of, job_status
from ductile.ledger.queue import dedupe, joins
from ductile.ledger.queue.dedupe import DEFAULT_TTL
from ductile.ledger.queue.enqueue import Enqueued
from ductile.ledger.queue.rows import get_job
from ductile.ledger.queue.tree_counters import ORDINARY
from ductile.ledger.storage.db import Db, RowFault, written_or_fault
from ductile.ledger.tables import contexts, facts, journal
from ductile.ledger.tables.breakers import apply_rule
from ductile.ledger.tables.schedules import note_success


@frozen(kw_only=True)
class Recorded:
    """What became of a job, for whoever announces it. `status` is `queued` when it will run again."""

    job_id: str
    root_job_id: str
    plugin: str
    command: str
    attempt: int
    status: JobStatus
    tree_is_done: bool = False
    children: tuple[Enqueued, ...] = ()
    next_retry_at: datetime | None = None
    was_probe: bool = False
    """The breaker of its command waited for it."""


@frozen
class Stale:
    """The attempt was no longer the current one; nothing was changed."""

    job_id: str
    attempt: int
    found: str


def record(
    db: Db,
    ending: Completion,
    *,
    now: datetime,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
    run_id: str | None = None,
) -> Recorded | Stale:
    """The attempt is over and everything that follows from it is in the ledger; or it was stale and nothing is.

    `run_id` is the run that claimed the attempt. An attempt that another run owns is stale.
    """
    job = get_job(db, ending.job_id) if ending.breaker else None
    if isinstance(ending.outcome, Retried | Interrupted):
        requeued = _requeue(db, ending, ending.outcome, run_id, now=now)
        if isinstance(requeued, Recorded | Stale):
            return requeued
        ending = ending_instead(db, ending, requeued, now=now, notes=ending.notes)
    elif problem := _beyond_limits(db, ending):
        ending = ending_instead(db, ending, problem, now=now)
    if ending.tolerated is not None:
        joins.tolerate(db, ending.job_id, ending.attempt, is_tolerated=ending.tolerated)
    row = finish.end(
        db, ending.job_id, ending.attempt, "running", ending.outcome, now=now, told=ending.told, run_id=run_id
    )
    if row is None:
        return _stale(db, ending, now=now)
    failpoint("record.after_status")
    if isinstance(ending.outcome, Succeeded):
        _keep_success(db, row, ending, now=now, default_ttl=default_ttl)
        failpoint("record.after_facts")
    children = write_following(
        db, ending, row.id, row.plugin, row.root_job_id, now=now, default_ttl=default_ttl, budget=budget
    )
    failpoint("record.after_children")
    status = job_status(ending.outcome)
    if ending.breaker and job:
        was_probe = apply_rule(db, ending.breaker, job, status, now=now)
        recorded = _recorded(db, row, ending.attempt, status, children, now=now)
        return evolve(recorded, was_probe=True) if was_probe else recorded
    return _recorded(db, row, ending.attempt, status, children, now=now)


def _beyond_limits(db: Db, ending: Completion) -> Failed | None:
    """The failure that a success becomes whose state cannot be kept."""
    if not isinstance(ending.outcome, Succeeded) or not (ending.facts or ending.state_updates):
        return None
    job = get_job(db, ending.job_id)
    problem = job and facts.too_large(db, job.plugin, ending.facts, ending.state_updates, most_bytes=ending.state_limit)
    return Failed(problem, ending.outcome.evidence) if problem else None


def end_queued(
    db: Db,
    job_id: str,
    attempt: int,
    outcome: Skipped | Dead,
    *,
    now: datetime,
    rule: FollowRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
) -> Recorded | None:
    """A job that waits is over without having run, and what `rule` says follows from it; None if it waits no more.

    What cannot be recorded does not follow: the job ends without it and says so.
    """

    def ended(outcome: Skipped | Dead, rule: FollowRule | None) -> Recorded | None:
        following = ask(db, rule, job_id, outcome, now=now)
        if following.tolerated is not None:
            joins.tolerate(db, job_id, attempt, is_tolerated=following.tolerated)
        return end_waiting(db, job_id, attempt, outcome, following, now=now, default_ttl=default_ttl, budget=budget)

    if rule is None or isinstance(outcome, Skipped):
        return ended(outcome, None)
    recorded = written_or_fault(db, lambda: ended(outcome, rule))
    if not isinstance(recorded, RowFault):
        return recorded
    joins.tolerate(db, job_id, attempt, is_tolerated=False)
    return ended(Dead(f"{outcome.error}; what follows cannot be recorded: {recorded.reason}"), None)


def end_waiting(
    db: Db,
    job_id: str,
    attempt: int,
    outcome: Outcome,
    following: FollowUps,
    *,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
) -> Recorded | None:
    """A job that waits has this ending and what follows from it; None if it waits no more."""
    row = finish.end(db, job_id, attempt, "queued", outcome, now=now)
    if row is None:
        return None
    children: tuple[Enqueued, ...] = ()
    if following is not NOTHING:
        children = write_following(
            db, following, row.id, row.plugin, row.root_job_id, now=now, default_ttl=default_ttl, budget=budget
        )
    return _recorded(db, row, attempt, job_status(outcome), children, now=now)


def _recorded(
    db: Db, row: FinishedRow, attempt: int, status: JobStatus, children: tuple[Enqueued, ...], *, now: datetime
) -> Recorded:
    """The ended job has given back what it held."""
    return Recorded(
        job_id=row.id,
        root_job_id=row.root_job_id,
        plugin=row.plugin,
        command=row.command,
        attempt=attempt,
        status=status,
        tree_is_done=finish.give_back(db, row, children, now=now),
        children=children,
    )


# One attempt more only while some are left, and never for a job that somebody asked to end.
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
    db: Db, ending: Completion, outcome: Retried | Interrupted, run_id: str | None, *, now: datetime
) -> Recorded | Stale | Dead:
    """The job is queued for its next attempt; or stale; or it may have none, and how it ends instead."""
    interrupted, error = isinstance(outcome, Interrupted), error_of(outcome)
    delay = timedelta() if isinstance(outcome, Interrupted) else outcome.delay
    next_retry_at = now + delay if delay > timedelta() else None
    # Before the update: the log row of this attempt tells when it began.
    token = {"id": ending.job_id, "attempt": ending.attempt, "run_id": run_id}
    started = db.execute(STARTED_AT, token).fetchone()
    if started is None:
        return _stale(db, ending, now=now)
    values = {
        **token,
        "now": to_text(now),
        "error": error,
        "interrupted": int(interrupted),
        "next_retry_at": to_text(next_retry_at) if next_retry_at else None,
    }
    rows = db.execute(REQUEUE, values).fetchall()
    if not rows:
        return _instead_of_requeue(db, ending, outcome)
    failpoint("record.after_status")
    max_attempts, interruptions, *columns = rows[0]
    row = FinishedRow(*columns)
    status = attempt_status(outcome, ran=True)
    attempts.log_attempt(
        db,
        row.id,
        ending.attempt,
        status,
        now=now,
        error=error,
        evidence=outcome.evidence,
        started_at=started[0],
    )
    failpoint("record.after_retry")
    contexts.put_all(db, ending.contexts, now=now)
    kind = "job.interrupted" if interrupted else "job.retry_scheduled"
    data: dict[str, Any] = {"from": "running", "to": "queued", "attempt": ending.attempt, "command": row.command}
    data |= {"outcome": status, "reason": error, "max_attempts": max_attempts, **ending.told}
    if not interrupted:
        data["tries"] = ending.attempt - interruptions
    if next_retry_at:
        data |= {"next_retry_at": to_text(next_retry_at), "backoff_ms": delay // timedelta(milliseconds=1)}
    journal.append(db, kind, now=now, plugin=row.plugin, job_id=row.id, root_job_id=row.root_job_id, data=data)
    note_all(db, ending.notes, row.id, row.plugin, row.root_job_id, now=now)
    if row.scope:
        dedupe.release_next(db, row.scope)
    return Recorded(
        job_id=row.id,
        root_job_id=row.root_job_id,
        plugin=row.plugin,
        command=row.command,
        attempt=ending.attempt,
        status=JobStatus.QUEUED,
        next_retry_at=next_retry_at,
    )


STARTED_AT = """
    SELECT started_at FROM job_queue
     WHERE id = :id AND status = 'running' AND attempt = :attempt AND (:run_id IS NULL OR claimed_by = :run_id)
"""


def _instead_of_requeue(db: Db, ending: Completion, outcome: Retried | Interrupted) -> Dead:
    """How an attempt ends that may not be followed by another."""
    job = get_job(db, ending.job_id)
    assert job is not None, "the row was there a moment ago in this transaction"
    if job.cancel_requested_at:
        return Dead(f"cancelled: {job.cancel_reason}", outcome.evidence)
    return Dead(f"attempts used up ({job.tries} of {job.max_attempts}): {error_of(outcome)}", outcome.evidence)


def _keep_success(db: Db, row: FinishedRow, ending: Completion, *, now: datetime, default_ttl: timedelta) -> None:
    """What a success leaves behind: facts, state, the dedupe receipt, the schedule's last success."""
    if ending.facts or ending.state_updates is not None:
        facts.keep(db, row.plugin, row.command, row.id, ending.facts, ending.state_updates, now=now)
    if row.scope:
        own = row.dedupe_ttl_seconds
        ttl = default_ttl if own is None else max(timedelta(seconds=own), default_ttl)
        dedupe.put_receipt(db, row.scope, row.id, now=now, ttl=ttl)
    if row.schedule_id:
        note_success(db, row.plugin, row.schedule_id, row.id, now=now)


FOUND = "SELECT status, attempt, plugin, root_job_id FROM job_queue WHERE id = ?"


def _stale(db: Db, ending: Completion, *, now: datetime) -> Stale:
    """A late result is dropped, and the journal says so."""
    found = db.execute(FOUND, (ending.job_id,)).fetchone()
    where = f"{found[0]}, attempt {found[1]}" if found else "unknown"
    journal.append(
        db,
        "job.stale",
        now=now,
        plugin=found[2] if found else None,
        job_id=ending.job_id,
        root_job_id=found[3] if found else None,
        data={"attempt": ending.attempt, "outcome": type(ending.outcome).__name__.lower(), "found": where},
    )
    return Stale(ending.job_id, ending.attempt, where)
