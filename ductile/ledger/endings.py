"""Many endings in one transaction: together while all is well, one by one when a row of one of them is bad.

A bad ending ends its own job and no other: dead, with its evidence, without anything that should have followed. What
the disk does is not an ending's fault and is raised. Called by `claim`.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from attrs import evolve

from ductile.ledger.connections import RowFault, written_or_fault
from ductile.ledger.quarantine import quarantine
from ductile.ledger.record import Recorded, Stale, record
from ductile.ledger.trees import Budget
from ductile.model import Dead, Ending, Skipped

RecordOne = Callable[[Ending], Recorded | Stale]


def record_all(
    db: sqlite3.Connection, endings: Sequence[Ending], *, now: datetime, default_ttl: timedelta, budget: Budget
) -> list[Recorded | Stale]:
    """Every attempt is over, in the order of `endings`; those that cannot be recorded as they are say why."""

    def record_one(ending: Ending) -> Recorded | Stale:
        return record(db, ending, now=now, default_ttl=default_ttl, budget=budget)

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
    for refused in _refusals(ending, reason):
        given_up = written_or_fault(db, partial(record_one, refused))
        if not isinstance(given_up, RowFault):
            return given_up
    set_apart = quarantine(db, ending.job_id, ending.attempt, reason, now=now)
    return set_apart or Stale(ending.job_id, ending.attempt, f"running; {reason}")


def _refusals(ending: Ending, reason: str) -> Iterator[Ending]:
    """The ending as a death with its evidence; the breaker hears of it unless its own row is the bad one."""
    evidence = None if isinstance(ending.outcome, Skipped) else ending.outcome.evidence
    dead = Ending(job_id=ending.job_id, attempt=ending.attempt, outcome=Dead(reason, evidence))
    if ending.breaker:
        yield evolve(dead, breaker=ending.breaker)
    yield dead
