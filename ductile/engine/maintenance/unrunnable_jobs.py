"""Waiting jobs of plugins that cannot run: they end with the reason, or wait and say why.

Done at start, after a reload, with every round of housekeeping, and when a job of an older configuration has ended.
A plugin that is disabled or gone takes its waiting jobs with it; one that merely failed to load keeps them until it is
put right.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial

from ductile.config.snapshot import Snapshot
from ductile.core.logs import Log
from ductile.engine.follow_up_rules import rule_of
from ductile.ledger.admin.operate import end_queued_jobs_of, queued_by_plugin, queued_plugins
from ductile.ledger.queue.block_reasons import blocked_plugins, forget_block, note_blocked
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import Ledger

MAX_ENDED_AT_ONCE = 500
SnapshotSource = Callable[[], Snapshot]
"""Returns the configuration in use."""


async def settle_under(ledger: Ledger, snapshot: SnapshotSource, log: Log, *, now: datetime) -> dict[str, int]:
    """Release the jobs of plugins that can run again after a reload, then end the unrunnable ones."""
    for plugin in await ledger.read(blocked_plugins):
        if snapshot().why_unavailable(plugin) is None:
            await ledger.write(forget_block, plugin)
    return await end_unrunnable_jobs(ledger, snapshot, log, now=now)


async def end_unrunnable_jobs(ledger: Ledger, snapshot: SnapshotSource, log: Log, *, now: datetime) -> dict[str, int]:
    """End the waiting jobs of plugins that are gone, and store the reason with those that are held.

    Each transaction asks for the snapshot again: a reload can make a plugin available meanwhile. Returns how many jobs
    of which plugin ended.
    """
    gone: dict[str, int] = {}
    for plugin in await ledger.read(queued_plugins):
        reason = snapshot().why_unavailable(plugin)
        if reason is None:
            continue
        if plugin in snapshot().failed_to_load:
            held = await ledger.transact(partial(_block, snapshot=snapshot, plugin=plugin))
            if held:
                log.warn("runtime", f"waiting jobs are held: plugin {plugin} {reason}", plugin=plugin, jobs=held)
        elif ended := await _end_all(ledger, snapshot, plugin, now):
            gone[plugin] = ended
            log.warn("runtime", f"waiting jobs ended: plugin {plugin} {reason}", plugin=plugin, jobs=ended)
    return gone


async def would_end(ledger: Ledger, snapshot: Snapshot) -> dict[str, int]:
    """Return how many waiting jobs of which plugin would end under this configuration."""
    return {
        plugin: jobs
        for plugin, jobs in (await ledger.read(queued_by_plugin)).items()
        if snapshot.why_unavailable(plugin) is not None and plugin not in snapshot.failed_to_load
    }


def _block(db: Db, *, snapshot: SnapshotSource, plugin: str) -> int:
    reason = snapshot().why_unavailable(plugin)
    return note_blocked(db, plugin, f"plugin {plugin} {reason}") if reason is not None else 0


async def _end_all(ledger: Ledger, snapshot: SnapshotSource, plugin: str, now: datetime) -> int:
    total = 0
    while ended := await ledger.transact(partial(_end_some, snapshot=snapshot, plugin=plugin, now=now), in_thread=True):
        total += ended
    return total


def _end_some(db: Db, *, snapshot: SnapshotSource, plugin: str, now: datetime) -> int:
    current = snapshot()
    reason = current.why_unavailable(plugin)
    if reason is None or plugin in current.failed_to_load:
        return 0
    ended = end_queued_jobs_of(
        db,
        plugin=plugin,
        reason=f"plugin {plugin} {reason}",
        now=now,
        limit=MAX_ENDED_AT_ONCE,
        rule=rule_of(current),
        default_ttl=current.config.settings.service.dedupe_ttl,
        budget=current.budget,
    )
    return len(ended)
