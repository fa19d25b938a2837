"""Write follow-ups: contexts, jobs, arrivals at joins, journal notes. All in the caller's transaction.

A pure rule decides them. Most completions carry its result; for an outcome that the ledger itself decides, the rule is
called here.
"""

from datetime import datetime, timedelta

from attrs import evolve

from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, Completion, FollowRule, FollowUps, NewJob, Note, Outcome, Skipped
from ductile.ledger.jobs import joins
from ductile.ledger.jobs.enqueue import Enqueued, enqueue_all
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import contexts, journal

NO_FOLLOW_UPS = FollowUps()


def write_follow_ups(
    db: Db,
    follow_ups: FollowUps | Completion,
    job_id: str,
    plugin: str,
    root_job_id: str,
    *,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
) -> tuple[Enqueued, ...]:
    """Write everything that follows from the job. Return its enqueued children in order."""
    if follow_ups.contexts:
        contexts.put_all(db, follow_ups.contexts, now=now)
    children = [_child_of(job_id, new) for new in follow_ups.children]
    enqueued = enqueue_all(db, children, now=now, default_ttl=default_ttl, budget=budget) if children else ()
    if follow_ups.arrivals:
        joins.put_arrivals(db, follow_ups.arrivals, job_id)
        failpoint("record.after_arrivals")
    append_notes(db, follow_ups.notes, job_id, plugin, root_job_id, now=now)
    return tuple(enqueued)


def _child_of(job_id: str, new: NewJob) -> NewJob:
    return new if new.parent_job_id else evolve(new, parent_job_id=job_id)


def append_notes(
    db: Db,
    notes: tuple[Note, ...],
    job_id: str | None,
    plugin: str | None,
    root_job_id: str | None,
    *,
    now: datetime,
    actor: str | None = None,
) -> None:
    for note in notes:
        journal.append(
            db,
            note.kind,
            now=now,
            plugin=note.plugin or plugin,
            job_id=note.job_id or job_id,
            root_job_id=root_job_id,
            data=note.data,
            actor=actor,
        )


def ask_follow_rule(db: Db, rule: FollowRule | None, job_id: str, outcome: Outcome, *, now: datetime) -> FollowUps:
    """Return what the rule decides for this outcome of an open job.

    Nothing follows from a skipped job, nor from a join that ends before its members.
    """
    if rule is None or isinstance(outcome, Skipped):
        return NO_FOLLOW_UPS
    job = get_job(db, job_id)
    return NO_FOLLOW_UPS if job is None or job.is_join else rule(job, outcome, now)


def replace_outcome(
    db: Db, completion: Completion, outcome: Outcome, *, now: datetime, notes: tuple[Note, ...] = ()
) -> Completion:
    """Return a completion with another final outcome. The rule decides its follow-ups anew."""
    follow_ups = ask_follow_rule(db, completion.rule, completion.job_id, outcome, now=now)
    return Completion(
        job_id=completion.job_id,
        attempt=completion.attempt,
        outcome=outcome,
        contexts=follow_ups.contexts,
        children=follow_ups.children,
        arrivals=follow_ups.arrivals,
        notes=notes + follow_ups.notes,
        breaker=completion.breaker,
        journal_data=completion.journal_data,
        tolerated=follow_ups.tolerated,
    )
