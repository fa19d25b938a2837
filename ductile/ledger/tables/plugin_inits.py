"""plugin_inits: the manifest and configuration for which a plugin's `init` has run, and its result.

A plugin whose `init` is pending or running has no row. Its jobs wait for it.
"""

from collections.abc import Iterable
from datetime import datetime

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.model import NewFact
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import facts, journal


@frozen(kw_only=True)
class PluginInit:
    """The last `init` of a plugin. `error` is None if it succeeded."""

    plugin: str
    fingerprint: str
    error: str | None = None


ALL = "SELECT plugin, fingerprint, error FROM plugin_inits"


def all_inits(db: Db) -> dict[str, PluginInit]:
    """Return the last `init` by plugin."""
    return {row[0]: PluginInit(plugin=row[0], fingerprint=row[1], error=row[2]) for row in db.execute(ALL)}


DELETE = "DELETE FROM plugin_inits WHERE plugin = ?"


def delete_inits(db: Db, plugins: Iterable[str]) -> None:
    """Delete the results of these plugins, because their `init` must run again."""
    db.executemany(DELETE, [(plugin,) for plugin in plugins])


PUT = """
    INSERT INTO plugin_inits (plugin, fingerprint, error, ended_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (plugin) DO UPDATE
       SET fingerprint = excluded.fingerprint, error = excluded.error, ended_at = excluded.ended_at
"""


def put(
    db: Db,
    init: PluginInit,
    *,
    now: datetime,
    job_id: str,
    new_facts: tuple[NewFact, ...] = (),
    state_updates: str | None = None,
) -> None:
    """Store and journal the result. After a success also store the plugin's first facts and state."""
    db.execute(PUT, (init.plugin, init.fingerprint, init.error, to_text(now)))
    if init.error is None:
        facts.store(db, init.plugin, "init", job_id, new_facts, state_updates, now=now)
    kind = "plugin.initialised" if init.error is None else "plugin.unhealthy"
    data = {"fingerprint": init.fingerprint} | ({"error": init.error} if init.error is not None else {})
    journal.append(db, kind, now=now, plugin=init.plugin, data=data)
