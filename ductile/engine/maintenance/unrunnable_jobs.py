"""Waiting jobs of plugins that cannot run: they end with the reason, or wait and say why.

Done at start, after a reload, with every round of housekeeping, and when a job of an older configuration has ended.
A plugin that is disabled or gone takes its waiting jobs with it; one that merely failed to load keeps them until it is
put right.
"""

from datetime import datetime
from functools import partial

from ductile.config.snapshot import Snapshot
from ductile.core.logs import Log
from ductile.engine.follow_up_rules import rule_of
from ductile.ledger.admin.operate import end_queued_jobs_of, queued_by_plugin, queued_plugins
from ductile.ledger.queue.block_reasons import blocked_plugins, forget_block, note_blocked
from ductile.ledger.storage.writer import Ledger

PORTION = 500


async def settle_under(ledger: Ledger, snapshot: Snapshot, log: Log, *, now: datetime) -> dict[str, int]:
    """`settle_stranded` under another configuration than before: a plugin that was put right holds nobody any more."""
    for plugin in await ledger.read(blocked_plugins):
        if snapshot.why_unavailable(plugin) is None:
            await ledger.write(forget_block, plugin)
    return await end_unrunnable_jobs(ledger, snapshot, log, now=now)


async def end_unrunnable_jobs(ledger: Ledger, snapshot: Snapshot, log: Log, *, now: datetime) -> dict[str, int]:
    """No waiting job belongs to a plugin that is gone, and every job that is held says what holds it.

    Returns how many jobs of which plugin ended.
    """
    gone: dict[str, int] = {}
    for plugin in await ledger.read(queued_plugins):
        reason = snapshot.why_unavailable(plugin)
        if reason is None:
            continue
        if plugin in snapshot.failed_to_load:
            held = await ledger.write(note_blocked, plugin, f"plugin {plugin} {reason}")
            if held:
                log.warn("runtime", f"waiting jobs are held: plugin {plugin} {reason}", plugin=plugin, jobs=held)
        else:
            ended = gone[plugin] = await _end_all(ledger, snapshot, plugin, f"plugin {plugin} {reason}", now)
            log.warn("runtime", f"waiting jobs ended: plugin {plugin} {reason}", plugin=plugin, jobs=ended)
    return gone


async def would_end(ledger: Ledger, snapshot: Snapshot) -> dict[str, int]:
    """How many waiting jobs of which plugin would end under this configuration."""
    return {
        plugin: jobs
        for plugin, jobs in (await ledger.read(queued_by_plugin)).items()
        if snapshot.why_unavailable(plugin) is not None and plugin not in snapshot.failed_to_load
    }


async def _end_all(ledger: Ledger, snapshot: Snapshot, plugin: str, reason: str, now: datetime) -> int:
    total = 0
    end_portion = partial(
        end_queued_jobs_of,
        plugin=plugin,
        reason=reason,
        now=now,
        limit=PORTION,
        rule=rule_of(snapshot),
        default_ttl=snapshot.config.settings.service.dedupe_ttl,
        budget=snapshot.budget,
    )
    while ended := await ledger.transact(end_portion, in_thread=True):
        total += len(ended)
    return total
