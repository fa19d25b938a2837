"""circuit_breakers: one row per command of a plugin, and the history of its state.

The breaker rule is a pure function that the caller passes in. It runs in the transaction that ends a job, so that jobs
that end together are counted one after the other.
"""

import sqlite3
import uuid
from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none, to_text
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Breaker, BreakerChange, BreakerRule, BreakerState, Job, JobStatus
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.sqlite_errors import is_row_fault
from ductile.ledger.tables import journal
from ductile.ledger.tables.blocked_jobs import unblock_command

_COLUMNS = "plugin, command, state, failure_count, opened_at, last_failure_at, last_job_id, probe_job_id"
GET = f"SELECT {_COLUMNS} FROM circuit_breakers WHERE plugin = ? AND command = ?"


def get(db: Db, plugin: str, command: str) -> Breaker:
    """Return the breaker. One without a row, or with an unreadable row, is closed."""
    try:
        row = db.execute(GET, (plugin, command)).fetchone()
    except sqlite3.Error as error:
        if not is_row_fault(error):
            raise
        row = None
    return _breaker(row) if row else Breaker(plugin=plugin, command=command)


ALL = f"SELECT {_COLUMNS} FROM circuit_breakers ORDER BY plugin, command"


def all_breakers(db: Db) -> list[Breaker]:
    return [_breaker(row) for row in db.execute(ALL)]


COUNT_OPEN = "SELECT COUNT(DISTINCT plugin) FROM circuit_breakers WHERE state <> 'closed'"


def count_plugins_with_open_breakers(db: Db) -> int:
    """Count the plugins with a command whose breaker is open or half open."""
    count: int = db.execute(COUNT_OPEN).fetchone()[0]
    return count


@frozen(kw_only=True)
class BreakerTransition:
    """A change of the state of a breaker."""

    id: str
    from_state: str | None
    to_state: str
    failure_count: int
    reason: str | None
    job_id: str | None
    created_at: datetime
    actor: str | None = None
    """Who reset it; None after the retention of the journal."""


HISTORY = """
    SELECT id, from_state, to_state, failure_count, reason, job_id, created_at,
           CASE WHEN job_id IS NULL THEN (
               SELECT actor FROM journal
                WHERE journal.plugin = circuit_breaker_transitions.plugin AND journal.job_id IS NULL
                  AND kind = 'scheduler.circuit_state_changed' AND at = created_at AND data ->> 'command' = command
                ORDER BY seq DESC LIMIT 1) END
      FROM circuit_breaker_transitions
     WHERE plugin = ? AND command = ? ORDER BY created_at DESC LIMIT ?
"""


def history(db: Db, plugin: str, command: str, *, limit: int = 20) -> list[BreakerTransition]:
    """Return the state changes of the breaker, newest first."""
    return [
        BreakerTransition(
            id=row[0],
            from_state=row[1],
            to_state=row[2],
            failure_count=row[3],
            reason=row[4],
            job_id=row[5],
            created_at=from_text(row[6]),
            actor=row[7],
        )
        for row in db.execute(HISTORY, (plugin, command, limit))
    ]


def apply_rule(db: Db, rule: BreakerRule, job: Job, status: JobStatus, *, now: datetime) -> bool:
    """Apply `rule` to the breaker of a finished job; True if the job was its probe."""
    before = get(db, job.plugin, job.command)
    change = rule(before, job, status, now)
    if change is not None:
        put(db, change, now=now, job_id=job.id)
    return before.probe_job_id == job.id


PUT = """
    INSERT INTO circuit_breakers
        (plugin, command, state, failure_count, opened_at, last_failure_at, last_job_id, probe_job_id, updated_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (plugin, command) DO UPDATE
       SET state = excluded.state, failure_count = excluded.failure_count, opened_at = excluded.opened_at,
           last_failure_at = excluded.last_failure_at, last_job_id = excluded.last_job_id,
           probe_job_id = excluded.probe_job_id, updated_at = excluded.updated_at
"""


def put(db: Db, change: BreakerChange, *, now: datetime, job_id: str | None = None, actor: str | None = None) -> None:
    """Store the breaker. A change of state is added to its history and to the journal."""
    new = change.breaker
    old = get(db, new.plugin, new.command)
    db.execute(
        PUT,
        (
            new.plugin,
            new.command,
            new.state,
            new.failure_count,
            to_text(new.opened_at) if new.opened_at else None,
            to_text(new.last_failure_at) if new.last_failure_at else None,
            new.last_job_id,
            new.probe_job_id,
            to_text(now),
        ),
    )
    failpoint("breaker.after_change")
    if new.state is BreakerState.CLOSED or (new.state is BreakerState.HALF_OPEN and new.probe_job_id is None):
        unblock_command(db, new.plugin, new.command)
    if new.state is not old.state:
        _add_transition(db, old, new, change.reason, job_id, actor, now=now)


ADD_TRANSITION = """
    INSERT INTO circuit_breaker_transitions
        (id, plugin, command, from_state, to_state, failure_count, reason, job_id, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def _add_transition(
    db: Db, old: Breaker, new: Breaker, reason: str, job_id: str | None, actor: str | None, *, now: datetime
) -> None:
    values = (new.plugin, new.command, old.state, new.state, new.failure_count, reason, job_id, to_text(now))
    db.execute(ADD_TRANSITION, (str(uuid.uuid4()), *values))
    journal.append(
        db,
        "scheduler.circuit_state_changed",
        now=now,
        plugin=new.plugin,
        data={
            "command": new.command,
            "previous_state": old.state,
            "state": new.state,
            "failure_count": new.failure_count,
            "reason": reason,
            "job_id": job_id,
        },
        actor=actor,
    )


def _breaker(row: tuple[str, str, str, int, str | None, str | None, str | None, str | None]) -> Breaker:
    return Breaker(
        plugin=row[0],
        command=row[1],
        state=BreakerState(row[2]) if row[2] in _STATES else BreakerState.CLOSED,
        failure_count=row[3],
        opened_at=_time_or_none(row[4]),
        last_failure_at=_time_or_none(row[5]),
        last_job_id=row[6],
        probe_job_id=row[7],
    )


_STATES = frozenset(BreakerState)


def _time_or_none(text: str | None) -> datetime | None:
    """Return None for an unreadable time: a damaged breaker row must not stop all claims."""
    try:
        return from_text_or_none(text)
    except ValueError:
        return None
