"""Record a completion, whatever its rows are like: as it is, or dead with the reason, or quarantined.

A bad ending ends its own job and no other. A failure of the disk is not the fault of an ending and is raised.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial

from attrs import evolve

from ductile.core.model import Budget, Completion, Dead, JoinRule
from ductile.ledger.admin.quarantine import quarantine
from ductile.ledger.completion.follow_ups import ending_instead
from ductile.ledger.completion.outcomes import evidence_of
from ductile.ledger.completion.record import Recorded, Stale, record
from ductile.ledger.queue import joins
from ductile.ledger.queue.resolve_joins import settle_joins
from ductile.ledger.storage.db import Db, RowFault, written_or_fault

RecordOne = Callable[[Completion], Recorded | Stale]


def record_completion(
    db: Db,
    ending: Completion,
    *,
    now: datetime,
    run_id: str,
    default_ttl: timedelta,
    budget: Budget,
    join_rule: JoinRule,
) -> list[Recorded | Stale]:
    """Record one ending with its follow-up jobs, and end the joins that waited for it.

    An attempt that another run than `run_id` owns is stale.
    """
    recorded = record_or_give_up(db, ending, now=now, default_ttl=default_ttl, budget=budget, run_id=run_id)
    if not joins.any_ready(db):
        return [recorded]
    return [recorded, *settle_joins(db, join_rule, now=now, default_ttl=default_ttl, budget=budget)]


def record_or_give_up(
    db: Db, ending: Completion, *, now: datetime, default_ttl: timedelta, budget: Budget, run_id: str | None = None
) -> Recorded | Stale:
    """Record the ending; if a bad row prevents that, end the job dead with the reason, or quarantine it."""

    def record_one(ending: Completion) -> Recorded | Stale:
        return record(db, ending, now=now, default_ttl=default_ttl, budget=budget, run_id=run_id)

    recorded = written_or_fault(db, partial(record_one, ending))
    if not isinstance(recorded, RowFault):
        return recorded
    reason = f"cannot be recorded: {recorded.reason}"
    for refusal in _refusals(ending):
        given_up = written_or_fault(db, partial(_give_up, db, refusal, reason, record_one, now=now))
        if not isinstance(given_up, RowFault):
            return given_up
    set_apart = quarantine(db, ending.job_id, ending.attempt, reason, now=now, run_id=run_id)
    return set_apart or Stale(ending.job_id, ending.attempt, f"running; {reason}")


def _refusals(ending: Completion) -> Iterator[Completion]:
    """The ending with all that hears of a death, then with less: what follows may be the bad part, or the breaker."""
    if ending.rule:
        yield ending
    if ending.breaker:
        yield evolve(ending, rule=None)
    yield evolve(ending, rule=None, breaker=None)


def _give_up(db: Db, ending: Completion, reason: str, record_one: RecordOne, *, now: datetime) -> Recorded | Stale:
    """The attempt is over as a death with its evidence, and what follows from that if somebody can say it."""
    if ending.rule is None:
        joins.tolerate(db, ending.job_id, ending.attempt, is_tolerated=False)
    return record_one(ending_instead(db, ending, Dead(reason, evidence_of(ending.outcome)), now=now))
