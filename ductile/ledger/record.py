"""The end of an attempt, in one transaction: result, log, facts, contexts, children, breaker, tree, journal.

Every change is guarded by id, status and attempt and touches exactly one row; a late writer finds no row, changes
nothing, and is journalled as stale. What the ending is was decided before; only this room knows how it becomes rows.
"""

import sqlite3
from datetime import datetime, timedelta
from typing import Any

from attrs import evolve, frozen

from ductile.clock import to_text
from ductile.failpoints import failpoint
from ductile.ledger import attempts, contexts, dedupe, facts, journal, trees
from ductile.ledger.breakers import apply_rule
from ductile.ledger.dedupe import DEFAULT_TTL
from ductile.ledger.jobs import Enqueued, enqueue
from ductile.ledger.rows import get_job
from ductile.ledger.schedules import note_success
from ductile.ledger.trees import ORDINARY, Budget
from ductile.model import (
    AttemptStatus,
    Dead,
    Ending,
    Evidence,
    Failed,
    Interrupted,
    JobStatus,
    Outcome,
    Retried,
    Skipped,
    Succeeded,
)


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


@frozen
class Stale:
    """The attempt was no longer the current one; nothing was changed."""

    job_id: str
    attempt: int
    found: str


@frozen
class _Row:
    """What the guarded update tells about the job it changed."""

    id: str
    plugin: str
    command: str
    root_job_id: str
    dedupe_key: str | None
    dedupe_ttl_seconds: float | None
    schedule_id: str | None
    asked_at: str
    open_jobs: int | None = None
    """Of a root that has just ended: the jobs of its tree that are still open."""

    @property
    def scope(self) -> tuple[str, str, str] | None:
        return None if self.dedupe_key is None else (self.plugin, self.command, self.dedupe_key)


_ROW = "id, plugin, command, root_job_id, dedupe_key, dedupe_ttl_seconds, schedule_id, asked_at"


def record(
    db: sqlite3.Connection,
    ending: Ending,
    *,
    now: datetime,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
) -> Recorded | Stale:
    """The attempt is over and everything that follows from it is in the ledger; or it was stale and nothing is."""
    job = get_job(db, ending.job_id) if ending.breaker else None
    if isinstance(ending.outcome, Retried | Interrupted):
        requeued = _requeue(db, ending, ending.outcome, now=now)
        if isinstance(requeued, Recorded | Stale):
            return requeued
        ending = evolve(ending, outcome=requeued)
    ending = _within_limits(db, ending)
    status = _final_status(ending.outcome)
    row = _end(db, ending.job_id, ending.attempt, "running", ending.outcome, now=now)
    if row is None:
        return _stale(db, ending, now=now)
    failpoint("record.after_status")
    if isinstance(ending.outcome, Succeeded):
        _keep_success(db, row, ending, now=now, default_ttl=default_ttl)
        failpoint("record.after_facts")
    contexts.put_all(db, ending.contexts, now=now)
    children = tuple(
        enqueue(
            db,
            child if child.parent_job_id else evolve(child, parent_job_id=row.id),
            now=now,
            default_ttl=default_ttl,
            budget=budget,
        )
        for child in ending.children
    )
    failpoint("record.after_children")
    if ending.breaker and job:
        apply_rule(db, ending.breaker, job, status, now=now)
    _note(db, ending, row, now=now)
    return _close(db, row, ending.attempt, status, now=now, children=children)


def _within_limits(db: sqlite3.Connection, ending: Ending) -> Ending:
    """A success whose state cannot be kept is a failure instead, with nothing else of it kept either."""
    if not isinstance(ending.outcome, Succeeded) or not (ending.facts or ending.state_updates):
        return ending
    job = get_job(db, ending.job_id)
    problem = job and facts.too_large(db, job.plugin, ending.facts, ending.state_updates, most_bytes=ending.state_limit)
    if not problem:
        return ending
    refused = Failed(problem, ending.outcome.evidence)
    return evolve(ending, outcome=refused, facts=(), state_updates=None, contexts=(), children=())


def end_queued(
    db: sqlite3.Connection, job_id: str, attempt: int, outcome: Skipped | Dead, *, now: datetime
) -> Recorded | None:
    """A job that waits is over without having run; None if it does not wait any more."""
    row = _end(db, job_id, attempt, "queued", outcome, now=now)
    return None if row is None else _close(db, row, attempt, _final_status(outcome), now=now)


# A root counts itself out in the same step: it is the only job of most trees.
END = f"""
    UPDATE job_queue
       SET status = :status, completed_at = :now, last_error = :error, next_retry_at = NULL, lane = NULL,
           waits_for_key = 0, claimed_by = NULL, lease_until = NULL, pid = NULL, pid_started = NULL, boot_id = NULL,
           blocked_reason = NULL, open_jobs = open_jobs - 1, tree_completed_at = CASE WHEN open_jobs = 1 THEN :now END
     WHERE id = :id AND status = :was AND attempt = :attempt
    RETURNING {_ROW}, started_at, open_jobs
"""


def _end(
    db: sqlite3.Connection, job_id: str, attempt: int, was: str, outcome: Outcome, *, now: datetime
) -> _Row | None:
    """The guarded step into a final state, with its log and journal rows."""
    status, error, evidence = _final_status(outcome), _error(outcome), _evidence(outcome)
    values = {
        "id": job_id,
        "attempt": attempt,
        "was": was,
        "status": status,
        "now": to_text(now),
        "error": error,
    }
    rows = db.execute(END, values).fetchall()
    if not rows:
        return None
    *columns, started_at, open_jobs = rows[0]
    row = evolve(_Row(*columns), open_jobs=open_jobs)
    attempts.log_attempt(
        db,
        job_id,
        attempt,
        _attempt_status(outcome, ran=was == "running"),
        now=now,
        error=error,
        evidence=evidence,
        started_at=started_at if was == "running" and not isinstance(outcome, Skipped) else None,
    )
    data: dict[str, Any] = {"from": was, "to": status, "status": status, "attempt": attempt, "command": row.command}
    if error is not None:
        data["reason"] = data["error"] = error
    if evidence:
        data["duration_ms"] = evidence.duration // timedelta(milliseconds=1)
    kind = attempts.kind_of(status, timed_out=evidence is not None and evidence.timed_out)
    journal.append(db, kind, now=now, plugin=row.plugin, job_id=job_id, root_job_id=row.root_job_id, data=data)
    return row


def _close(
    db: sqlite3.Connection,
    row: _Row,
    attempt: int,
    status: JobStatus,
    *,
    now: datetime,
    children: tuple[Enqueued, ...] = (),
) -> Recorded:
    """The ended job gave back its key and its place in the tree."""
    if row.scope:
        dedupe.release_next(db, row.scope)
    if row.open_jobs is None:
        done = trees.close_one(db, row.root_job_id, now=to_text(now))
    else:
        done = row.open_jobs == 0 and not any(child.is_open_in(row.root_job_id) for child in children)
    return Recorded(
        job_id=row.id,
        root_job_id=row.root_job_id,
        plugin=row.plugin,
        command=row.command,
        attempt=attempt,
        status=status,
        tree_is_done=done,
        children=children,
    )


# One attempt more only while some are left, and never for a job that somebody asked to end.
REQUEUE = f"""
    UPDATE job_queue
       SET status = 'queued', attempt = attempt + 1, started_at = NULL, last_error = :error,
           failed_at = :now, next_retry_at = :next_retry_at, interruptions = interruptions + :interrupted,
           lane = CASE WHEN :next_retry_at IS NULL THEN plugin END,
           claimed_by = NULL, lease_until = NULL, pid = NULL, pid_started = NULL, boot_id = NULL
     WHERE id = :id AND status = 'running' AND attempt = :attempt AND cancel_requested_at IS NULL
       AND (:interrupted = 1 OR attempt - interruptions < max_attempts)
    RETURNING {_ROW}
"""


def _requeue(
    db: sqlite3.Connection, ending: Ending, outcome: Retried | Interrupted, *, now: datetime
) -> Recorded | Stale | Dead:
    """The job is queued for its next attempt; or stale; or it may have none, and how it ends instead."""
    interrupted = isinstance(outcome, Interrupted)
    delay = timedelta() if isinstance(outcome, Interrupted) else outcome.delay
    next_retry_at = now + delay if delay > timedelta() else None
    # Before the update: the log row of this attempt tells when it began.
    started = db.execute(STARTED_AT, (ending.job_id, ending.attempt)).fetchone()
    values = {
        "id": ending.job_id,
        "attempt": ending.attempt,
        "now": to_text(now),
        "error": _error(outcome),
        "interrupted": int(interrupted),
        "next_retry_at": to_text(next_retry_at) if next_retry_at else None,
    }
    rows = db.execute(REQUEUE, values).fetchall()
    if not rows:
        return _instead_of_requeue(db, ending, outcome, now=now)
    failpoint("record.after_status")
    row = _Row(*rows[0])
    status = _attempt_status(outcome, ran=True)
    attempts.log_attempt(
        db,
        row.id,
        ending.attempt,
        status,
        now=now,
        error=_error(outcome),
        evidence=outcome.evidence,
        started_at=started[0] if started else None,
    )
    contexts.put_all(db, ending.contexts, now=now)
    kind = "job.interrupted" if interrupted else "job.retry_scheduled"
    data = {"from": "running", "to": "queued", "attempt": ending.attempt, "outcome": status, "reason": _error(outcome)}
    if next_retry_at:
        data |= {"next_retry_at": to_text(next_retry_at), "backoff_ms": delay // timedelta(milliseconds=1)}
    journal.append(db, kind, now=now, plugin=row.plugin, job_id=row.id, root_job_id=row.root_job_id, data=data)
    _note(db, ending, row, now=now)
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


STARTED_AT = "SELECT started_at FROM job_queue WHERE id = ? AND status = 'running' AND attempt = ?"


def _instead_of_requeue(
    db: sqlite3.Connection, ending: Ending, outcome: Retried | Interrupted, *, now: datetime
) -> Stale | Dead:
    job = get_job(db, ending.job_id)
    if job is None or job.status is not JobStatus.RUNNING or job.attempt != ending.attempt:
        return _stale(db, ending, now=now)
    if job.cancel_requested_at:
        return Dead(f"cancelled: {job.cancel_reason}", outcome.evidence)
    return Dead(f"attempts used up ({job.tries} of {job.max_attempts}): {_error(outcome)}", outcome.evidence)


def _keep_success(db: sqlite3.Connection, row: _Row, ending: Ending, *, now: datetime, default_ttl: timedelta) -> None:
    """What a success leaves behind: facts, state, the dedupe receipt, the schedule's last success."""
    facts.keep(db, row.plugin, row.command, row.id, ending.facts, ending.state_updates, now=now)
    if row.scope:
        own = row.dedupe_ttl_seconds
        ttl = default_ttl if own is None else max(timedelta(seconds=own), default_ttl)
        dedupe.put_receipt(db, row.scope, row.id, now=now, ttl=ttl)
    if row.schedule_id:
        note_success(db, row.plugin, row.schedule_id, row.id, now=now)


def _note(db: sqlite3.Connection, ending: Ending, row: _Row, *, now: datetime) -> None:
    for note in ending.notes:
        journal.append(
            db,
            note.kind,
            now=now,
            plugin=note.plugin or row.plugin,
            job_id=note.job_id or row.id,
            root_job_id=row.root_job_id,
            data=note.data,
        )


FOUND = "SELECT status, attempt, plugin, root_job_id FROM job_queue WHERE id = ?"


def _stale(db: sqlite3.Connection, ending: Ending, *, now: datetime) -> Stale:
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


def _final_status(outcome: Outcome) -> JobStatus:
    match outcome:
        case Succeeded():
            return JobStatus.SUCCEEDED
        case Failed():
            return JobStatus.FAILED
        case Dead():
            return JobStatus.DEAD
        case Skipped():
            return JobStatus.SKIPPED
        case Retried() | Interrupted():
            return JobStatus.QUEUED


def _attempt_status(outcome: Outcome, *, ran: bool) -> AttemptStatus:
    match outcome:
        case Succeeded():
            return AttemptStatus.SUCCEEDED
        case Skipped():
            return AttemptStatus.SKIPPED
        case Interrupted():
            return AttemptStatus.INTERRUPTED
        case Retried() | Failed() | Dead() if outcome.evidence and outcome.evidence.timed_out:
            return AttemptStatus.TIMED_OUT
        case Dead() if not ran:
            return AttemptStatus.DEAD
        case _:
            return AttemptStatus.FAILED


def _error(outcome: Outcome) -> str | None:
    match outcome:
        case Succeeded():
            return None
        case Skipped() | Interrupted():
            return outcome.reason
        case Retried() | Failed() | Dead():
            return outcome.error


def _evidence(outcome: Outcome) -> Evidence | None:
    return None if isinstance(outcome, Skipped) else outcome.evidence
