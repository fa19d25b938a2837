"""Many waiting jobs that nobody wants any more: dead, portion by portion.

Only jobs that wait, and only those that were there when the purge began: what follows from one is left alone, and a job
that has started in the meantime goes on. Called by the engine, for the web.
"""

from datetime import datetime, timedelta

from attrs import frozen

from ductile.core.model import Budget, Dead, FollowRule
from ductile.ledger.completion.record import Recorded, end_queued
from ductile.ledger.queue.dedupe import DEFAULT_TTL
from ductile.ledger.queue.tree_counters import ORDINARY
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

MOST_AT_ONCE = 200
"""Jobs that one transaction ends; other writers wait for it."""

# By status: the index by plugin would lead through the plugin's whole history. A join ends with its members.
_WAITING = f"""
    FROM job_queue {using("job_queue_by_status")}
   WHERE status = 'queued' AND is_join = 0 AND seq <= :up_to AND (:plugin IS NULL OR plugin = :plugin)
"""
COUNT = f"SELECT COUNT(*), COALESCE(MAX(seq), 0) {_WAITING}"
PORTION = f"SELECT id, attempt {_WAITING} ORDER BY seq LIMIT :limit"


@frozen
class Doomed:
    """How many jobs wait, and the last place in the queue that counts."""

    count: int
    up_to: int


def doomed(db: Db, plugin: str | None, up_to: int) -> Doomed:
    """What a purge up to this place would end; None as plugin means every plugin."""
    count, newest = db.execute(COUNT, {"plugin": plugin, "up_to": up_to}).fetchone()
    return Doomed(count, newest)


def purge(
    db: Db,
    plugin: str | None,
    up_to: int,
    reason: str,
    *,
    now: datetime,
    limit: int = MOST_AT_ONCE,
    rule: FollowRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
) -> list[Recorded]:
    """The oldest `limit` of them are dead, as if each had been cancelled; call again while it returns any."""
    rows = db.execute(PORTION, {"plugin": plugin, "up_to": up_to, "limit": limit}).fetchall()
    ended = [
        end_queued(
            db,
            job_id,
            attempt,
            Dead(f"cancelled: {reason}"),
            now=now,
            rule=rule,
            default_ttl=default_ttl,
            budget=budget,
        )
        for job_id, attempt in rows
    ]
    return [one for one in ended if one is not None]
