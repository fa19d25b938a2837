"""What a schedule's slot is expected to have done by when: a row each, looked at once when its moment has come.

Written in the transaction that decides the slot, taken in the one that raises the alarm or sees that there is no need,
so that no alarm is lost and none is raised twice. What an alarm is, is the engine's matter.
"""

from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.ledger.queue.rows import moment
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class Expectation:
    """By `due_at`, the job of the slot should have done what `kind` is the alarm for."""

    plugin: str
    schedule_id: str
    slot_at: datetime
    kind: str
    due_at: datetime


PUT = """
    INSERT INTO expectations (plugin, schedule_id, slot_at, kind, due_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (plugin, schedule_id, slot_at, kind) DO NOTHING
"""


REPLACE = """
    DELETE FROM expectations WHERE plugin = ? AND schedule_id = ? AND slot_at < ? AND taken_at IS NOT NULL
"""


def put(db: Db, expectation: Expectation) -> None:
    """Somebody will look at the slot when it is due, unless somebody has; older ones that are done with are gone."""
    one = expectation
    db.execute(REPLACE, (one.plugin, one.schedule_id, to_text(one.slot_at)))
    db.execute(PUT, (one.plugin, one.schedule_id, to_text(one.slot_at), one.kind, to_text(one.due_at)))


NEXT_DUE = "SELECT MIN(due_at) FROM expectations WHERE taken_at IS NULL"


def next_due(db: Db) -> datetime | None:
    """When the next one is to be looked at."""
    return moment(db.execute(NEXT_DUE).fetchone()[0])


TAKE_DUE = """
    UPDATE expectations SET taken_at = :now
     WHERE (plugin, schedule_id, slot_at, kind) IN
           (SELECT plugin, schedule_id, slot_at, kind FROM expectations
             WHERE taken_at IS NULL AND due_at <= :now ORDER BY due_at LIMIT :limit)
    RETURNING plugin, schedule_id, slot_at, kind, due_at
"""


def take_due(db: Db, *, now: datetime, limit: int = 100) -> list[Expectation]:
    """Those whose moment has come, oldest first; nobody will be told of them again."""
    rows = db.execute(TAKE_DUE, {"now": to_text(now), "limit": limit}).fetchall()
    return [
        Expectation(plugin=plugin, schedule_id=schedule_id, slot_at=from_text(slot), kind=kind, due_at=from_text(due))
        for plugin, schedule_id, slot, kind, due in sorted(rows, key=lambda row: row[4])
    ]


FORGET = "DELETE FROM expectations WHERE plugin = ? AND schedule_id = ?"


def forget(db: Db, plugin: str, schedule_id: str) -> None:
    """Nothing is expected of the schedule any more."""
    db.execute(FORGET, (plugin, schedule_id))
