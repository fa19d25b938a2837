"""What queued jobs say of a plugin that cannot run: why they do not start, until it was put right.

Only words for readers. Not starting them is the dispatcher's doing: it leaves the plugin out of what is free.
"""

from ductile.ledger.queue import breaker_holds
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

# What a breaker holds keeps that reason: by it the breaker finds them again. What relays wait for is not a plugin.
_SAYS_OTHERWISE = "status = 'queued' AND blocked_reason IS DISTINCT FROM :held AND substr(plugin, 1, 5) <> 'core.'"
BLOCK = f"""
    UPDATE job_queue {using("job_queue_by_status")} SET blocked_reason = :reason
     WHERE {_SAYS_OTHERWISE} AND blocked_reason IS DISTINCT FROM :reason AND plugin = :plugin
"""
BLOCKED = f"""
    SELECT DISTINCT plugin FROM job_queue {using("job_queue_by_status")}
     WHERE {_SAYS_OTHERWISE} AND blocked_reason IS NOT NULL ORDER BY plugin
"""
UNBLOCK = f"""
    UPDATE job_queue {using("job_queue_by_status")} SET blocked_reason = NULL
     WHERE {_SAYS_OTHERWISE} AND blocked_reason IS NOT NULL AND plugin = :plugin
"""


def note_blocked(db: Db, plugin: str, reason: str) -> int:
    """Readers see why a plugin's queued jobs do not start; how many did not say so before."""
    return db.execute(BLOCK, {"plugin": plugin, "reason": reason, "held": breaker_holds.HELD}).rowcount


def blocked_plugins(db: Db) -> list[str]:
    """The plugins that cannot run by what their queued jobs say; proportional to what waits."""
    return [plugin for (plugin,) in db.execute(BLOCKED, {"held": breaker_holds.HELD})]


def forget_block(db: Db, plugin: str) -> int:
    """No queued job of the plugin says that it cannot run; how many did."""
    return db.execute(UNBLOCK, {"plugin": plugin, "held": breaker_holds.HELD}).rowcount
