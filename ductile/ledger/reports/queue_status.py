"""The status of the queue: counts of queued, running and dead jobs, and the oldest ready job. Read-only."""

from collections.abc import Collection
from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none, to_text
from ductile.core.formats.stored_json import load_stored_object
from ductile.core.model import JobStatus
from ductile.ledger.queue.claim import plugins_with_ready_jobs
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import as_bytes, using


@frozen(kw_only=True)
class PluginQueue:
    """The ready and running jobs of one plugin."""

    plugin: str
    ready: int
    running: int
    oldest_ready_at: datetime | None


@frozen(kw_only=True)
class QueueStatus:
    """The status of the queue. `unclaimable` lists plugins with ready jobs that may not start.

    `queued` includes `waiting_joins`, which are never claimed.
    """

    queued: int
    running: int
    delayed: int
    waiting_for_key: int
    waiting_joins: int
    dead: int
    cancelled: int
    """The dead jobs that an operator cancelled or purged."""
    plugins: list[PluginQueue]
    unclaimable: list[str]


@frozen
class QueuedWork:
    """A number of queued jobs, and the bytes of their payloads."""

    jobs: int = 0
    payload_bytes: int = 0

    def __add__(self, other: "QueuedWork") -> "QueuedWork":
        return QueuedWork(self.jobs + other.jobs, self.payload_bytes + other.payload_bytes)

    def __sub__(self, other: "QueuedWork") -> "QueuedWork":
        return QueuedWork(self.jobs - other.jobs, self.payload_bytes - other.payload_bytes)


COUNT_STATUS = "SELECT COUNT(*) FROM job_queue WHERE status = ?"
COUNT_DELAYED = "SELECT COUNT(*) FROM job_queue WHERE next_retry_at > ''"
COUNT_WAITING = "SELECT COUNT(*) FROM job_queue WHERE waits_for_key = 1"
COUNT_JOINS = f"""
    SELECT COUNT(*) FROM job_queue {using("job_queue_by_status")} WHERE status = 'queued' AND is_join = 1
"""


def queue(db: Db, *, claimable: Collection[str] | None = None) -> QueueStatus:
    """Read the status of the queue. `claimable` are the plugins whose jobs may start; None means all."""
    ready = plugins_with_ready_jobs(db)
    running = running_by_plugin(db)
    return QueueStatus(
        queued=count_status(db, JobStatus.QUEUED),
        running=count_status(db, JobStatus.RUNNING),
        delayed=db.execute(COUNT_DELAYED).fetchone()[0],
        waiting_for_key=db.execute(COUNT_WAITING).fetchone()[0],
        waiting_joins=db.execute(COUNT_JOINS).fetchone()[0],
        dead=count_status(db, JobStatus.DEAD),
        cancelled=count_ended_by_operator(db),
        plugins=[_plugin_queue(db, plugin, running.get(plugin, 0)) for plugin in sorted({*ready, *running})],
        unclaimable=[] if claimable is None else [plugin for plugin in ready if plugin not in claimable],
    )


def count_status(db: Db, status: JobStatus) -> int:
    """Count the jobs in the queue with this status. Takes time in proportion to the count."""
    count: int = db.execute(COUNT_STATUS, (status,)).fetchone()[0]
    return count


# The expression is that of the index, so the payloads are not read.
QUEUED_WORK = f"""
    SELECT COUNT(*), COALESCE(SUM(length({as_bytes("payload")})), 0) FROM job_queue {using("job_queue_by_actor")}
     WHERE status = 'queued' AND actor = ?
"""


def sum_queued_work(db: Db, actor: str) -> QueuedWork:
    """Return the queued jobs that the actor caused, steps and retries included."""
    return QueuedWork(*db.execute(QUEUED_WORK, (actor,)).fetchone())


COUNT_ENDED_BY_OPERATOR = f"""
    SELECT COUNT(*) FROM job_queue {using("job_queue_ended_by_operator")}
     WHERE outcome_code IN ('cancelled', 'purged') AND seq >= ?
"""


def count_ended_by_operator(db: Db, *, first_seq: int = 0) -> int:
    """Count the jobs in the queue that an operator cancelled or purged."""
    count: int = db.execute(COUNT_ENDED_BY_OPERATOR, (first_seq,)).fetchone()[0]
    return count


DEPTH = "SELECT COUNT(*) FROM (SELECT 1 FROM job_queue WHERE status IN ('queued', 'running') LIMIT ?)"


def depth(db: Db, *, at_most: int = 10_000) -> int:
    """Count the queued and running jobs, up to `at_most`."""
    count: int = db.execute(DEPTH, (at_most,)).fetchone()[0]
    return count


COUNT_READY = "SELECT COUNT(*) FROM job_queue WHERE lane = ?"
OLDEST_READY = "SELECT created_at FROM job_queue WHERE lane = ? ORDER BY seq LIMIT 1"


def _plugin_queue(db: Db, plugin: str, running: int) -> PluginQueue:
    ready: int = db.execute(COUNT_READY, (plugin,)).fetchone()[0]
    return PluginQueue(plugin=plugin, ready=ready, running=running, oldest_ready_at=_oldest_ready_at(db, plugin))


def _oldest_ready_at(db: Db, plugin: str) -> datetime | None:
    head = db.execute(OLDEST_READY, (plugin,)).fetchone()
    return from_text_or_none(head[0]) if head else None


RUNNING_BY_PLUGIN = "SELECT plugin, COUNT(*) FROM job_queue WHERE claimed_by > '' GROUP BY +plugin"


def running_by_plugin(db: Db) -> dict[str, int]:
    return dict(db.execute(RUNNING_BY_PLUGIN).fetchall())


@frozen(kw_only=True)
class OldestJob:
    """A job that may start, and since when it has been ready."""

    id: str
    root_job_id: str
    plugin: str
    command: str
    ready_at: datetime


MAX_HEADS = 100
"""Ready jobs of a plugin that are compared, and jobs whose retry is due."""
# A job that failed or was blocked since it was enqueued has waited: it is ready since then or later.
READY_HEADS = """
    SELECT id, root_job_id, plugin, command, asked_at, failed_at FROM job_queue WHERE lane = ? ORDER BY seq LIMIT ?
"""
DUE_RETRIES = """
    SELECT id, root_job_id, plugin, command, next_retry_at, NULL FROM job_queue
     WHERE next_retry_at <= ? ORDER BY next_retry_at LIMIT ?
"""


def oldest_ready_job(db: Db, plugins: Collection[str], *, now: datetime) -> OldestJob | None:
    """Return the job of these plugins that has been ready for longest.

    A job that an operator retried is as old as the retry. A job that waited for its retry time or a breaker is as old
    as the end of that wait, also if the dispatcher has not claimed jobs since then.
    """
    ready = [name for name in plugins_with_ready_jobs(db) if name in plugins]
    heads = [row for name in ready for row in db.execute(READY_HEADS, (name, MAX_HEADS))]
    heads += [row for row in db.execute(DUE_RETRIES, (to_text(now), MAX_HEADS)) if row[2] in plugins]
    oldest: OldestJob | None = None
    for row in sorted(heads, key=_ready_at_least):
        if oldest and to_text(oldest.ready_at) <= _ready_at_least(row):
            break
        job = _ready_job(db, row)
        oldest = job if oldest is None or job.ready_at < oldest.ready_at else oldest
    return oldest


_Head = tuple[str, str, str, str, str, str | None]


def _ready_at_least(head: _Head) -> str:
    *_, asked_at, failed_at = head
    return max(asked_at, failed_at or "")


def _ready_job(db: Db, head: _Head) -> OldestJob:
    job_id, root_job_id, plugin, command, asked_at, failed_at = head
    ready_at = _ready_at_least(head)
    if failed_at and failed_at >= asked_at:
        ready_at = max(ready_at, _end_of_delay(db, job_id), _last_transition(db, plugin, command))
    return OldestJob(id=job_id, root_job_id=root_job_id, plugin=plugin, command=command, ready_at=from_text(ready_at))


LAST_DELAY = """
    SELECT data FROM journal WHERE job_id = ? AND kind IN ('job.retry_scheduled', 'job.held') ORDER BY seq DESC LIMIT 1
"""


def _end_of_delay(db: Db, job_id: str) -> str:
    """Return the retry time that the job last waited for. The queue no longer has it."""
    row = db.execute(LAST_DELAY, (job_id,)).fetchone()
    return str(load_stored_object(row[0] if row else None).get("next_retry_at", ""))


LAST_TRANSITION = "SELECT MAX(created_at) FROM circuit_breaker_transitions WHERE plugin = ? AND command = ?"


def _last_transition(db: Db, plugin: str, command: str) -> str:
    """Return when the breaker of the command last changed its state, which makes the jobs that it blocked ready."""
    return db.execute(LAST_TRANSITION, (plugin, command)).fetchone()[0] or ""
