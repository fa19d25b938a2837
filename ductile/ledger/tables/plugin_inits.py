"""plugin_inits: for which manifest and configuration a plugin's `init` has run, and how it ended.

A plugin whose `init` is to run, or runs, has no row: whoever reads only the ledger knows that its jobs wait for that.
"""

from collections.abc import Iterable
from datetime import datetime

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.model import NewFact
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import facts, journal


@frozen(kw_only=True)
class Init:
    """The last `init` of one plugin. `error` is None if it went well."""

    plugin: str
    fingerprint: str
    error: str | None = None


ALL = "SELECT plugin, fingerprint, error FROM plugin_inits"


def all_inits(db: Db) -> dict[str, Init]:
    """What is known, by plugin."""
    return {row[0]: Init(plugin=row[0], fingerprint=row[1], error=row[2]) for row in db.execute(ALL)}


FORGET = "DELETE FROM plugin_inits WHERE plugin = ?"


def forget(db: Db, plugins: Iterable[str]) -> None:
    """How their last `init` ended says nothing any more."""
    db.executemany(FORGET, [(plugin,) for plugin in plugins])


PUT = """
    INSERT INTO plugin_inits (plugin, fingerprint, error, ended_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (plugin) DO UPDATE
       SET fingerprint = excluded.fingerprint, error = excluded.error, ended_at = excluded.ended_at
"""


def put(
    db: Db,
    init: Init,
    *,
    now: datetime,
    job_id: str,
    new_facts: tuple[NewFact, ...] = (),
    state_updates: str | None = None,
) -> None:
    """The outcome is known, with the state the plugin begins with; the journal has it too."""
    db.execute(PUT, (init.plugin, init.fingerprint, init.error, to_text(now)))
    if init.error is None:
        facts.keep(db, init.plugin, "init", job_id, new_facts, state_updates, now=now)
    kind = "plugin.initialised" if init.error is None else "plugin.unhealthy"
    data = {"fingerprint": init.fingerprint} | ({"error": init.error} if init.error is not None else {})
    journal.append(db, kind, now=now, plugin=init.plugin, data=data)
