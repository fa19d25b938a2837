"""Write the first jobs of a run that no job of another run created: a trigger, a delivery, an alarm."""

from datetime import datetime, timedelta

from attrs import evolve

from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, FollowUps, RunRule
from ductile.ledger.completion.ended_runs import signal_ended_runs
from ductile.ledger.completion.follow_ups import append_notes, write_follow_ups
from ductile.ledger.jobs.dedupe import DEFAULT_TTL
from ductile.ledger.jobs.enqueue import Enqueued, enqueue
from ductile.ledger.jobs.tree_counters import DEFAULT_BUDGET
from ductile.ledger.storage.db import Db


def start_run(
    db: Db,
    follow_ups: FollowUps,
    *,
    now: datetime,
    actor: str | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
    run_rule: RunRule | None = None,
) -> list[Enqueued]:
    """Write a run. Its first job is the root, and the parent of the jobs that name no other.

    `actor` is the caller that requested the run; None if its producer did.

    A run whose first job is a duplicate, or exists already, is not started: the result is that job alone. For a run
    without jobs only the notes are written. A run that has no open job is signalled by `run_rule`.
    """
    if not follow_ups.children:
        append_notes(db, follow_ups.notes, None, None, None, now=now, actor=actor)
        return []
    first, *others = follow_ups.children
    if actor is not None:
        first = evolve(first, actor=actor)
    root = enqueue(db, first, now=now, default_ttl=default_ttl, budget=budget)
    if not root.is_new:
        return [root]
    failpoint("start_run.after_root")
    jobs = [root]
    if others or follow_ups.contexts or follow_ups.arrivals or follow_ups.notes:
        rest = evolve(follow_ups, children=tuple(others))
        jobs += write_follow_ups(
            db, rest, root.job_id, first.plugin, root.root_job_id, now=now, default_ttl=default_ttl, budget=budget
        )
    if run_rule is not None and not any(job.is_open_in(root.root_job_id) for job in jobs):
        signal_ended_runs(db, [root.root_job_id], run_rule, now=now, default_ttl=default_ttl, budget=budget)
    return jobs
