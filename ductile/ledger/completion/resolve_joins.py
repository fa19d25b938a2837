"""Resolve joins whose members have all ended: a rule decides the outcome, and its follow-up jobs are enqueued with it.

Resolving a join may make the enclosing join ready. A join that cannot be resolved ends dead with the reason and does
not stop the others.
"""

from datetime import datetime, timedelta
from functools import partial

from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, Dead, FollowUps, Interrupted, JobStatus, JoinRule, Outcome, OutcomeCode, Retried
from ductile.ledger.completion.follow_ups import NO_FOLLOW_UPS
from ductile.ledger.completion.quarantine import quarantine
from ductile.ledger.completion.record import Recorded, end_waiting
from ductile.ledger.jobs import joins
from ductile.ledger.jobs.dedupe import DEFAULT_TTL
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.jobs.tree_counters import DEFAULT_BUDGET
from ductile.ledger.storage.db import Db, RowFault, try_in_savepoint

MAX_JOINS_AT_ONCE = 500
"""Joins that one call resolves, so that its transaction stays short."""


def resolve_ready_joins(
    db: Db,
    rule: JoinRule,
    *,
    now: datetime,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
    limit: int = MAX_JOINS_AT_ONCE,
) -> list[Recorded]:
    """End every ready join as `rule` decides. Call again if `limit` joins were resolved."""
    resolved: list[Recorded] = []
    stuck: set[str] = set()
    while len(resolved) < limit:
        waiting = [join for join in joins.ready_joins(db, len(stuck) + 1) if join[0] not in stuck]
        if not waiting:
            break
        ended = _resolve(db, *waiting[0], rule, now=now, default_ttl=default_ttl, budget=budget)
        if ended is None:
            stuck.add(waiting[0][0])
        else:
            resolved.append(ended)
            failpoint("settle.after_join")
    return resolved


def _resolve(
    db: Db,
    job_id: str,
    attempt: int,
    rule: JoinRule,
    *,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
) -> Recorded | None:
    """End the join in a savepoint of its own; None if its row cannot be changed."""
    end = partial(end_waiting, db, job_id, attempt, now=now, default_ttl=default_ttl, budget=budget)
    ended = try_in_savepoint(db, lambda: end(*_decide(db, job_id, rule, now=now)))
    if not isinstance(ended, RowFault):
        return ended
    reason = f"cannot be decided: {ended.reason}"
    outcome = Dead(reason, code=OutcomeCode.NOT_DECIDED, data={"error": ended.reason})
    given_up = try_in_savepoint(db, lambda: end(outcome, NO_FOLLOW_UPS))
    if not isinstance(given_up, RowFault):
        return given_up
    return quarantine(db, job_id, attempt, reason, now=now, was=JobStatus.QUEUED)


def _decide(db: Db, job_id: str, rule: JoinRule, *, now: datetime) -> tuple[Outcome, FollowUps]:
    job = get_job(db, job_id)
    assert job is not None, "this transaction has just read the ready join"
    outcome, follow_ups = rule(joins.join_input(db, job), now)
    if isinstance(outcome, Retried | Interrupted):
        raise TypeError(f"a join runs nothing and cannot be {type(outcome).__name__.lower()}")
    return outcome, follow_ups
