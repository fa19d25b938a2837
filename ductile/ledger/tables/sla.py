"""expectations: the deadlines of schedule slots (SLA). Each is checked once, when it is due.

Written in the transaction that decides the slot, and marked as handled in the one that raises the alert, so that no
alert is lost or raised twice. The engine decides what an alert is.
"""

from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none, to_text
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class Expectation:
    """A deadline of a slot. `kind` is the alert that is raised if it is missed."""

    plugin: str
    schedule_id: str
    slot_at: datetime
    kind: str
    due_at: datetime


PUT = """
    INSERT INTO expectations (plugin, schedule_id, slot_at, kind, due_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (plugin, schedule_id, slot_at, kind) DO NOTHING
"""


DELETE_HANDLED = """
    DELETE FROM expectations WHERE plugin = ? AND schedule_id = ? AND slot_at < ? AND taken_at IS NOT NULL
"""


def put(db: Db, expectation: Expectation) -> None:
    """Store the deadline, unless it exists, and delete handled ones of older slots."""
    db.execute(DELETE_HANDLED, (expectation.plugin, expectation.schedule_id, to_text(expectation.slot_at)))
    db.execute(
        PUT,
        (
            expectation.plugin,
            expectation.schedule_id,
            to_text(expectation.slot_at),
            expectation.kind,
            to_text(expectation.due_at),
        ),
    )


MISSED = """
    SELECT missed.plugin, missed.schedule_id, missed.slot_at, missed.kind, missed.due_at
      FROM expectations AS missed
      JOIN job_queue AS job
        ON job.plugin = missed.plugin AND job.schedule_id = missed.schedule_id AND job.slot_at = missed.slot_at
     WHERE missed.due_at <= ?
       AND (job.status = 'queued' OR job.status = 'running' AND missed.kind = 'job.overdue')
       AND (job.attempt = 1 OR missed.kind = 'job.overdue')
     ORDER BY missed.due_at LIMIT ?
"""


def missed(db: Db, *, now: datetime, limit: int = 100) -> list[Expectation]:
    """Return the deadlines that have passed and whose job still has to start or to finish, oldest first."""
    return [_expectation(row) for row in db.execute(MISSED, (to_text(now), limit))]


NEXT_DUE = "SELECT MIN(due_at) FROM expectations WHERE taken_at IS NULL"


def next_due(db: Db) -> datetime | None:
    """Return when the next deadline is due."""
    return from_text_or_none(db.execute(NEXT_DUE).fetchone()[0])


POP_DUE = """
    UPDATE expectations SET taken_at = :now
     WHERE (plugin, schedule_id, slot_at, kind) IN
           (SELECT plugin, schedule_id, slot_at, kind FROM expectations
             WHERE taken_at IS NULL AND due_at <= :now ORDER BY due_at LIMIT :limit)
    RETURNING plugin, schedule_id, slot_at, kind, due_at
"""


def pop_due(db: Db, *, now: datetime, limit: int = 100) -> list[Expectation]:
    """Return the due deadlines, oldest first, and mark them as handled."""
    rows = db.execute(POP_DUE, {"now": to_text(now), "limit": limit}).fetchall()
    return [_expectation(row) for row in sorted(rows, key=lambda row: row[4])]


def _expectation(row: tuple[str, str, str, str, str]) -> Expectation:
    plugin, schedule_id, slot, kind, due = row
    return Expectation(
        plugin=plugin, schedule_id=schedule_id, slot_at=from_text(slot), kind=kind, due_at=from_text(due)
    )


DELETE = "DELETE FROM expectations WHERE plugin = ? AND schedule_id = ?"


def delete(db: Db, plugin: str, schedule_id: str) -> None:
    """Delete all deadlines of the schedule."""
    db.execute(DELETE, (plugin, schedule_id))
