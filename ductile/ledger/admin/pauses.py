"""What the operator has paused: single plugins, or the whole queue. It stays paused over restarts.

Jobs are still taken; nothing starts. Not starting is the dispatcher's doing.
"""

from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal

EVERYTHING = "*"
"""The name under which the whole queue is paused."""


@frozen(kw_only=True)
class Pause:
    """`plugin` starts nothing since `paused_at`."""

    plugin: str
    reason: str
    paused_at: datetime


ALL = "SELECT plugin, reason, paused_at FROM pauses ORDER BY plugin"


def all_pauses(db: Db) -> list[Pause]:
    return [
        Pause(plugin=plugin, reason=reason, paused_at=from_text(paused_at))
        for plugin, reason, paused_at in db.execute(ALL)
    ]


PUT = "INSERT INTO pauses (plugin, reason, paused_at) VALUES (?, ?, ?) ON CONFLICT (plugin) DO NOTHING"


def pause(db: Db, plugin: str, reason: str, *, now: datetime) -> bool:
    """The plugin starts nothing; False if it was paused already."""
    changed = db.execute(PUT, (plugin, reason, to_text(now))).rowcount == 1
    if changed:
        journal.append(db, "queue.paused", now=now, plugin=plugin, data={"reason": reason})
    return changed


DELETE = "DELETE FROM pauses WHERE plugin = ?"


def resume(db: Db, plugin: str, *, now: datetime) -> bool:
    """The plugin's jobs start again; False if it was not paused."""
    changed = db.execute(DELETE, (plugin,)).rowcount == 1
    if changed:
        journal.append(db, "queue.resumed", now=now, plugin=plugin)
    return changed
