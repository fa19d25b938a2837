"""What follows from an ending becomes rows: contexts, jobs, arrivals at joins, notes. All in the caller's transaction.

What it is was decided by a pure rule. Most endings bring it along; one that the ledger made itself asks the rule here.
Called by `record`, `settle` and the web, which starts runs.
"""

from datetime import datetime, timedelta

from attrs import evolve

from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, Completion, FollowRule, FollowUps, NewJob, Note, Outcome, Skipped
from ductile.ledger.queue import joins
from ductile.ledger.queue.dedupe import DEFAULT_TTL
from ductile.ledger.queue.enqueue import Enqueued, enqueue, enqueue_all
from ductile.ledger.queue.rows import get_job
from ductile.ledger.queue.tree_counters import ORDINARY
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import contexts, journal

NOTHING = FollowUps()


def start_run(
    db: Db,
    following: FollowUps,
    *,
    now: datetime,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
) -> list[Enqueued]:
    """The run is in the ledger: its first job is the root, and the parent of those that name no other.

    A run whose first job is a duplicate, or exists already, is not started: the answer is that job alone. A run
    without jobs leaves its notes and gives an empty answer.
    """
    if not following.children:
        note_all(db, following.notes, None, None, None, now=now)
        return []
    first, *others = following.children
    root = enqueue(db, first, now=now, default_ttl=default_ttl, budget=budget)
    if not root.is_new:
        return [root]
    failpoint("start_run.after_root")
    if not (others or following.contexts or following.arrivals or following.notes):
        return [root]
    rest = evolve(following, children=tuple(others))
    children = write_following(
        db, rest, root.job_id, first.plugin, root.root_job_id, now=now, default_ttl=default_ttl, budget=budget
    )
    return [root, *children]


def write_following(
    db: Db,
    following: FollowUps | Completion,
    job_id: str,
    plugin: str,
    root_job_id: str,
    *,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
) -> tuple[Enqueued, ...]:
    """Everything that follows from the job is in the ledger; the answers to its children, in order."""
    if following.contexts:
        contexts.put_all(db, following.contexts, now=now)
    children = [_child_of(job_id, new) for new in following.children]
    made = enqueue_all(db, children, now=now, default_ttl=default_ttl, budget=budget) if children else ()
    if following.arrivals:
        joins.put_arrivals(db, following.arrivals, job_id)
        failpoint("record.after_arrivals")
    note_all(db, following.notes, job_id, plugin, root_job_id, now=now)
    return tuple(made)


def _child_of(job_id: str, new: NewJob) -> NewJob:
    return new if new.parent_job_id else evolve(new, parent_job_id=job_id)


def note_all(
    db: Db,
    notes: tuple[Note, ...],
    job_id: str | None,
    plugin: str | None,
    root_job_id: str | None,
    *,
    now: datetime,
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
        )


def ask(db: Db, rule: FollowRule | None, job_id: str, outcome: Outcome, *, now: datetime) -> FollowUps:
    """What the rule says about this ending of a job that is still open.

    Nothing follows from a job that was decided not to run, nor from a join that its members did not bring to its end.
    """
    if rule is None or isinstance(outcome, Skipped):
        return NOTHING
    job = get_job(db, job_id)
    return NOTHING if job is None or job.is_join else rule(job, outcome, now)


def ending_instead(
    db: Db, ending: Completion, outcome: Outcome, *, now: datetime, notes: tuple[Note, ...] = ()
) -> Completion:
    """Another final ending of the attempt: nothing that was brought is kept, its rule says what follows."""
    following = ask(db, ending.rule, ending.job_id, outcome, now=now)
    return Completion(
        job_id=ending.job_id,
        attempt=ending.attempt,
        outcome=outcome,
        contexts=following.contexts,
        children=following.children,
        arrivals=following.arrivals,
        notes=notes + following.notes,
        breaker=ending.breaker,
        told=ending.told,
        tolerated=following.tolerated,
    )
