"""Joins come to their end: the members are over, a rule decides, and what follows is written in the same transaction.

Deciding one may make the one around it ready, so this goes on until none is. A join that cannot be decided is dead
with the reason and does not stop the others. Called by `claim`, after every portion of endings.
"""

from datetime import datetime, timedelta
from functools import partial

from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, Dead, FollowUps, Interrupted, JobStatus, JoinRule, Outcome, Retried
from ductile.ledger.admin.quarantine import quarantine
from ductile.ledger.completion.follow_ups import NOTHING
from ductile.ledger.completion.record import Recorded, end_waiting
from ductile.ledger.queue import joins
from ductile.ledger.queue.dedupe import DEFAULT_TTL
from ductile.ledger.queue.rows import get_job
from ductile.ledger.queue.tree_counters import ORDINARY
from ductile.ledger.storage.db import Db, RowFault, written_or_fault

MOST_AT_ONCE = 500
"""How many joins one call decides at most, so that its transaction stays short."""


def settle_joins(
    db: Db,
    rule: JoinRule,
    *,
    now: datetime,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
    limit: int = MOST_AT_ONCE,
) -> list[Recorded]:
    """No join is ready: each has ended as `rule` says. Call again if as many as `limit` have."""
    settled: list[Recorded] = []
    stuck: set[str] = set()
    while len(settled) < limit:
        waiting = [one for one in joins.ready(db, len(stuck) + 1) if one[0] not in stuck]
        if not waiting:
            break
        ended = _settle(db, *waiting[0], rule, now=now, default_ttl=default_ttl, budget=budget)
        if ended is None:
            stuck.add(waiting[0][0])
        else:
            settled.append(ended)
            failpoint("settle.after_join")
    return settled


def _settle(
    db: Db,
    job_id: str,
    attempt: int,
    rule: JoinRule,
    *,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
) -> Recorded | None:
    """The join is over, in its own savepoint; None if its row takes no change at all."""
    end = partial(end_waiting, db, job_id, attempt, now=now, default_ttl=default_ttl, budget=budget)
    ended = written_or_fault(db, lambda: end(*_decide(db, job_id, rule, now=now)))
    if not isinstance(ended, RowFault):
        return ended
    reason = f"cannot be decided: {ended.reason}"
    given_up = written_or_fault(db, lambda: end(Dead(reason), NOTHING))
    if not isinstance(given_up, RowFault):
        return given_up
    return quarantine(db, job_id, attempt, reason, now=now, was=JobStatus.QUEUED)


def _decide(db: Db, job_id: str, rule: JoinRule, *, now: datetime) -> tuple[Outcome, FollowUps]:
    job = get_job(db, job_id)
    assert job is not None, "the join was ready a moment ago in this transaction"
    outcome, following = rule(joins.joined(db, job), now)
    if isinstance(outcome, Retried | Interrupted):
        raise TypeError(f"a join runs nothing and cannot be {type(outcome).__name__.lower()}")
    return outcome, following
