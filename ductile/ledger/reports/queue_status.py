"""Read-only answers about the queue at a glance: how many wait, run or are dead, and who has waited longest."""

from collections.abc import Collection
from datetime import datetime

from attrs import frozen

from ductile.core.model import JobStatus
from ductile.ledger.queue.lanes import lanes_with_work
from ductile.ledger.queue.rows import moment
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using


@frozen(kw_only=True)
class PluginQueue:
    """One plugin's part of the queue."""

    plugin: str
    ready: int
    running: int
    oldest_ready_at: datetime | None


@frozen(kw_only=True)
class Queue:
    """The queue at a glance. `unclaimable` are lanes of plugins that nobody may claim for now.

    `waiting_joins` are among the queued; nobody ever claims them.
    """

    queued: int
    running: int
    delayed: int
    waiting_for_key: int
    waiting_joins: int
    dead: int
    lanes: list[PluginQueue]
    unclaimable: list[str]


COUNT_STATUS = "SELECT COUNT(*) FROM job_queue WHERE status = ?"
COUNT_DELAYED = "SELECT COUNT(*) FROM job_queue WHERE next_retry_at > ''"
COUNT_WAITING = "SELECT COUNT(*) FROM job_queue WHERE waits_for_key = 1"
COUNT_JOINS = f"""
    SELECT COUNT(*) FROM job_queue {using("job_queue_by_status")} WHERE status = 'queued' AND is_join = 1
"""


def queue(db: Db, *, claimable: Collection[str] | None = None) -> Queue:
    """Counts of what is open and of what is dead; `claimable` names the plugins whose jobs may start."""
    ready = lanes_with_work(db)
    running = running_by_plugin(db)
    return Queue(
        queued=count_status(db, JobStatus.QUEUED),
        running=count_status(db, JobStatus.RUNNING),
        delayed=db.execute(COUNT_DELAYED).fetchone()[0],
        waiting_for_key=db.execute(COUNT_WAITING).fetchone()[0],
        waiting_joins=db.execute(COUNT_JOINS).fetchone()[0],
        dead=count_status(db, JobStatus.DEAD),
        lanes=[_lane(db, plugin, running.get(plugin, 0)) for plugin in sorted({*ready, *running})],
        unclaimable=[] if claimable is None else [plugin for plugin in ready if plugin not in claimable],
    )


def count_status(db: Db, status: JobStatus) -> int:
    """How many jobs in the queue have this status; proportional to that number."""
    count: int = db.execute(COUNT_STATUS, (status,)).fetchone()[0]
    return count


DEPTH = "SELECT COUNT(*) FROM (SELECT 1 FROM job_queue WHERE status IN ('queued', 'running') LIMIT ?)"


def depth(db: Db, *, at_most: int = 10_000) -> int:
    """How many jobs wait or run, counted up to `at_most`."""
    count: int = db.execute(DEPTH, (at_most,)).fetchone()[0]
    return count


COUNT_LANE = "SELECT COUNT(*) FROM job_queue WHERE lane = ?"
HEAD_OF_LANE = "SELECT created_at FROM job_queue WHERE lane = ? ORDER BY seq LIMIT 1"


def _lane(db: Db, plugin: str, running: int) -> PluginQueue:
    ready: int = db.execute(COUNT_LANE, (plugin,)).fetchone()[0]
    return PluginQueue(plugin=plugin, ready=ready, running=running, oldest_ready_at=_oldest_ready_at(db, plugin))


def _oldest_ready_at(db: Db, plugin: str) -> datetime | None:
    head = db.execute(HEAD_OF_LANE, (plugin,)).fetchone()
    return moment(head[0]) if head else None


RUNNING_BY_PLUGIN = "SELECT plugin, COUNT(*) FROM job_queue WHERE claimed_by > '' GROUP BY +plugin"


def running_by_plugin(db: Db) -> dict[str, int]:
    return dict(db.execute(RUNNING_BY_PLUGIN).fetchall())


def oldest_claimable(db: Db, claimable: Collection[str]) -> datetime | None:
    """When the job was asked for that has waited longest although its plugin may run; one step per lane."""
    heads = [_oldest_ready_at(db, plugin) for plugin in lanes_with_work(db) if plugin in claimable]
    return min((head for head in heads if head is not None), default=None)
