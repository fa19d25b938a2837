"""Waiting jobs of plugins that cannot run: they end with the reason, or wait and say why.

Done at start and after a reload, when it is known which plugins there are. A plugin that is disabled or gone takes its
waiting jobs with it; one that merely failed to load keeps them until it is put right.
"""

from datetime import datetime

from ductile.config.snapshot import Snapshot
from ductile.ledger.claim import note_blocked
from ductile.ledger.operate import end_queued_jobs_of, queued_plugins
from ductile.ledger.writer import Ledger
from ductile.logs import Log

PORTION = 500


async def settle_stranded(ledger: Ledger, snapshot: Snapshot, log: Log, *, now: datetime) -> None:
    """No waiting job belongs to a plugin that is gone, and every job that is held says what holds it."""
    for plugin in ledger.look_up(queued_plugins):
        reason = snapshot.why_unavailable(plugin)
        if reason is None:
            continue
        if plugin in snapshot.failed_to_load:
            held = await ledger.write(note_blocked, plugin, f"plugin {plugin} {reason}")
            log.warn("runtime", f"waiting jobs are held: plugin {plugin} {reason}", plugin=plugin, jobs=held)
        else:
            ended = await _end_all(ledger, plugin, f"plugin {plugin} {reason}", now)
            log.warn("runtime", f"waiting jobs ended: plugin {plugin} {reason}", plugin=plugin, jobs=ended)


async def _end_all(ledger: Ledger, plugin: str, reason: str, now: datetime) -> int:
    total = 0
    while ended := await ledger.write(end_queued_jobs_of, plugin, reason, now=now, limit=PORTION):
        total += len(ended)
    return total
