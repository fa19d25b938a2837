"""Many endings in one transaction: together while all is well, one by one when a row of one of them is bad.

A bad ending ends its own job and no other: dead, with its evidence, and followed by what follows from a death, not by
what it brought. What the disk does is not an ending's fault and is raised. Called by `claim`.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from attrs import evolve

from ductile.ledger import joins
from ductile.ledger.connections import RowFault, written_or_fault
from ductile.ledger.following import ending_instead
from ductile.ledger.outcomes import evidence_of
from ductile.ledger.quarantine import quarantine
from ductile.ledger.record import Recorded, Stale, record
from ductile.model import Budget, Dead, Ending

RecordOne = Callable[[Ending], Recorded | Stale]


def record_all(
    db: sqlite3.Connection,
    endings: Sequence[Ending],
    *,
    now: datetime,
    default_ttl: timedelta,
    budget: Budget,
    carefully: bool = True,
) -> list[Recorded | Stale]:
    """Every attempt is over, in the order of `endings`; those that cannot be recorded as they are say why.

    Without care the first of those raises, and what was written before it is for the caller to undo.
    """

    def record_one(ending: Ending) -> Recorded | Stale:
        return record(db, ending, now=now, default_ttl=default_ttl, budget=budget)

    if not carefully:
        return [record_one(ending) for ending in endings]
    if not endings:
        return []
    recorded = written_or_fault(db, lambda: [record_one(ending) for ending in endings])
    if isinstance(recorded, RowFault):
        return [_record_alone(db, ending, record_one, now=now) for ending in endings]
    return recorded


def _record_alone(db: sqlite3.Connection, ending: Ending, record_one: RecordOne, *, now: datetime) -> Recorded | Stale:
    recorded = written_or_fault(db, partial(record_one, ending))
    if not isinstance(recorded, RowFault):
        return recorded
    reason = f"cannot be recorded: {recorded.reason}"
    for refusal in _refusals(ending):
        given_up = written_or_fault(db, partial(_give_up, db, refusal, reason, record_one, now=now))
        if not isinstance(given_up, RowFault):
            return given_up
    set_apart = quarantine(db, ending.job_id, ending.attempt, reason, now=now)
    return set_apart or Stale(ending.job_id, ending.attempt, f"running; {reason}")


def _refusals(ending: Ending) -> Iterator[Ending]:
    """The ending with all that hears of a death, then with less: what follows may be the bad part, or the breaker."""
    if ending.rule:
        yield ending
    if ending.breaker:
        yield evolve(ending, rule=None)
    yield evolve(ending, rule=None, breaker=None)


def _give_up(
    db: sqlite3.Connection, ending: Ending, reason: str, record_one: RecordOne, *, now: datetime
) -> Recorded | Stale:
    """The attempt is over as a death with its evidence, and what follows from that if somebody can say it."""
    if ending.rule is None:
        joins.tolerate(db, ending.job_id, ending.attempt, is_tolerated=False)
    return record_one(ending_instead(db, ending, Dead(reason, evidence_of(ending.outcome)), now=now))
