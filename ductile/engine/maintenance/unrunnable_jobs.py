"""End or block the queued jobs of plugins that cannot run.

Jobs of a disabled or removed plugin end. Jobs of a plugin that failed to load stay queued, with the reason, until it
loads. Runs at start, after a reload, with periodic maintenance, and when a job of an older configuration has ended.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial

from ductile.config.snapshot import Snapshot
from ductile.core.logs import Log
from ductile.engine.follow_up_rules import follow_up_rule_of, signal_runs
from ductile.ledger.admin.job_actions import end_queued_jobs, queued_by_plugin, queued_plugins
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.blocked_jobs import blocked_plugins, clear_block_reason, set_block_reason

MAX_ENDED_AT_ONCE = 500
SnapshotSource = Callable[[], Snapshot]
"""Returns the configuration in use."""


async def update_unrunnable_jobs(
    ledger: Ledger, snapshot: SnapshotSource, log: Log, *, now: datetime
) -> dict[str, int]:
    """Unblock the jobs of plugins that can run again, then end or block those of plugins that cannot."""
    for plugin in await ledger.read(blocked_plugins):
        if snapshot().why_unavailable(plugin) is None:
            await ledger.write(clear_block_reason, plugin)
    return await end_unrunnable_jobs(ledger, snapshot, log, now=now)


async def end_unrunnable_jobs(ledger: Ledger, snapshot: SnapshotSource, log: Log, *, now: datetime) -> dict[str, int]:
    """End the queued jobs of disabled or removed plugins, and block those of plugins that failed to load.

    Each transaction reads the snapshot again, because a reload can make a plugin available meanwhile. Returns the
    number of ended jobs by plugin.
    """
    ended_by_plugin: dict[str, int] = {}
    for plugin in await ledger.read(queued_plugins):
        reason = snapshot().why_unavailable(plugin)
        if reason is None:
            continue
        if plugin in snapshot().failed_to_load:
            if blocked := await ledger.transact(partial(_block, snapshot=snapshot, plugin=plugin)):
                log.warn("runtime", f"queued jobs blocked: plugin {plugin} {reason}", plugin=plugin, jobs=blocked)
        elif ended := await _end_all(ledger, snapshot, plugin, now):
            ended_by_plugin[plugin] = ended
            log.warn("runtime", f"queued jobs ended: plugin {plugin} {reason}", plugin=plugin, jobs=ended)
    return ended_by_plugin


async def count_jobs_to_end(ledger: Ledger, snapshot: Snapshot) -> dict[str, int]:
    """Return the number of queued jobs by plugin that would end under this configuration."""
    return {
        plugin: jobs
        for plugin, jobs in (await ledger.read(queued_by_plugin)).items()
        if snapshot.why_unavailable(plugin) is not None and plugin not in snapshot.failed_to_load
    }


def _block(db: Db, *, snapshot: SnapshotSource, plugin: str) -> int:
    reason = snapshot().why_unavailable(plugin)
    return set_block_reason(db, plugin, f"plugin {plugin} {reason}") if reason is not None else 0


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
    ended = end_queued_jobs(
        db,
        plugin=plugin,
        reason=f"plugin {plugin} {reason}",
        now=now,
        limit=MAX_ENDED_AT_ONCE,
        rule=follow_up_rule_of(current),
        default_ttl=current.config.settings.service.dedupe_ttl,
        budget=current.budget,
    )
    signal_runs(db, ended, current, now=now)
    return len(ended)
