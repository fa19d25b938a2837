"""pauses: plugins that an operator has paused, or the whole queue. A pause survives restarts.

Jobs are still enqueued. The dispatcher does not start them.
"""

from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.ledger.queue.waits import ALL_PLUGINS as ALL_PLUGINS
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal


@frozen(kw_only=True)
class Pause:
    """A pause of one plugin, or of all."""

    plugin: str
    reason: str
    paused_at: datetime
    actor: str | None = None
    """Who paused it; None after the retention of the journal."""


ALL = """
    SELECT plugin, reason, paused_at, (
        SELECT actor FROM journal
         WHERE journal.plugin = pauses.plugin AND job_id IS NULL AND kind = 'queue.paused' ORDER BY seq DESC LIMIT 1)
      FROM pauses ORDER BY plugin
"""


def all_pauses(db: Db) -> list[Pause]:
    return [
        Pause(plugin=plugin, reason=reason, paused_at=from_text(paused_at), actor=actor)
        for plugin, reason, paused_at, actor in db.execute(ALL)
    ]


PUT = "INSERT INTO pauses (plugin, reason, paused_at) VALUES (?, ?, ?) ON CONFLICT (plugin) DO NOTHING"


def pause(db: Db, plugin: str, reason: str, *, now: datetime, actor: str | None = None) -> bool:
    """Stop starting jobs of the plugin; False if it is already paused."""
    changed = db.execute(PUT, (plugin, reason, to_text(now))).rowcount == 1
    if changed:
        journal.append(db, "queue.paused", now=now, plugin=plugin, data={"reason": reason}, actor=actor)
    return changed


DELETE = "DELETE FROM pauses WHERE plugin = ?"


def resume(db: Db, plugin: str, *, now: datetime, actor: str | None = None) -> bool:
    """Start jobs of the plugin again; False if it is not paused."""
    changed = db.execute(DELETE, (plugin,)).rowcount == 1
    if changed:
        journal.append(db, "queue.resumed", now=now, plugin=plugin, actor=actor)
    return changed
