"""Record a completion whatever its rows contain: as it is, or dead with the reason, or quarantined.

A bad completion ends its own job and no other. A disk failure is raised.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial

from attrs import evolve

from ductile.core.model import Budget, Completion, Dead, JoinRule, OutcomeCode
from ductile.ledger.completion.follow_ups import replace_outcome
from ductile.ledger.completion.outcomes import evidence_of
from ductile.ledger.completion.quarantine import quarantine
from ductile.ledger.completion.record import Recorded, Stale, record
from ductile.ledger.completion.resolve_joins import resolve_ready_joins
from ductile.ledger.jobs import joins
from ductile.ledger.storage.db import Db, RowFault, try_in_savepoint

RecordOne = Callable[[Completion], Recorded | Stale]


def record_completion(
    db: Db,
    completion: Completion,
    *,
    now: datetime,
    run_id: str,
    default_ttl: timedelta,
    budget: Budget,
    join_rule: JoinRule,
) -> list[Recorded | Stale]:
    """Record one completion with its follow-up jobs, and resolve the joins that waited for it.

    An attempt that another run than `run_id` owns is stale.
    """
    recorded = record_or_give_up(db, completion, now=now, default_ttl=default_ttl, budget=budget, run_id=run_id)
    if not joins.has_ready(db):
        return [recorded]
    return [recorded, *resolve_ready_joins(db, join_rule, now=now, default_ttl=default_ttl, budget=budget)]


def record_or_give_up(
    db: Db, completion: Completion, *, now: datetime, default_ttl: timedelta, budget: Budget, run_id: str | None = None
) -> Recorded | Stale:
    """Record the completion. If a bad row prevents that, end the job dead with the reason, or quarantine it."""

    def record_one(completion: Completion) -> Recorded | Stale:
        return record(db, completion, now=now, default_ttl=default_ttl, budget=budget, run_id=run_id)

    recorded = try_in_savepoint(db, partial(record_one, completion))
    if not isinstance(recorded, RowFault):
        return recorded
    reason = f"cannot be recorded: {recorded.reason}"
    outcome = Dead(reason, evidence_of(completion.outcome), OutcomeCode.NOT_RECORDED, {"error": recorded.reason})
    for reduced in _reduced(completion):
        given_up = try_in_savepoint(db, partial(_give_up, db, reduced, outcome, record_one, now=now))
        if not isinstance(given_up, RowFault):
            return given_up
    quarantined = quarantine(db, completion.job_id, completion.attempt, reason, now=now, run_id=run_id)
    return quarantined or Stale(completion.job_id, completion.attempt, f"running; {reason}")


def _reduced(completion: Completion) -> Iterator[Completion]:
    """Yield the completion with its rules, then with fewer: the follow-ups or the breaker may be the bad part."""
    if completion.rule:
        yield completion
    if completion.breaker:
        yield evolve(completion, rule=None)
    yield evolve(completion, rule=None, breaker=None)


def _give_up(
    db: Db, completion: Completion, outcome: Dead, record_one: RecordOne, *, now: datetime
) -> Recorded | Stale:
    """Record the attempt as dead with its evidence, and what its rule decides for that."""
    if completion.rule is None:
        joins.set_tolerated(db, completion.job_id, completion.attempt, is_tolerated=False)
    return record_one(replace_outcome(db, completion, outcome, now=now))
