"""Read-only answers for people and for the API: one job, its attempts, its tree, the queue at a glance.

Every answer goes through an index; nothing here counts or sorts all of history. A job stays inspectable after it left
the queue, from its attempts. Lists are in `history`.
"""

import sqlite3
from collections.abc import Collection
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from ductile.clock import from_text, to_text
from ductile.errors import NotFound
from ductile.ledger import contexts, journal
from ductile.ledger.lanes import lanes_with_work
from ductile.ledger.rows import LISTED_COLUMNS, get_job, job_from_row, moment
from ductile.model import AttemptStatus, Job, JobStatus
from ductile.values import frozen


@frozen(kw_only=True)
class Attempt:
    """One attempt as the log keeps it."""

    seq: int
    id: str
    job_id: str
    plugin: str
    command: str
    attempt: int
    status: AttemptStatus
    job_status: JobStatus
    submitted_by: str
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime
    duration: timedelta | None
    exit_code: int | None
    signal: int | None
    last_error: str | None
    stderr: str | None
    result: str | None


@frozen(kw_only=True)
class JobBrief:
    """One job with the result of its last attempt that is over."""

    job: Job
    result: str | None


@frozen(kw_only=True)
class JobReport:
    """Everything about one job. `in_queue` is false once only its attempts are left.

    `blocked_reason` is why its plugin's queued jobs do not start, if something holds them; `waits_for` is how many jobs
    a join still waits for.
    """

    job: Job
    in_queue: bool
    blocked_reason: str | None
    waits_for: int
    attempts: list[Attempt]
    children: list[Job]
    journal: list[journal.Entry]
    contexts: list[contexts.Context]
    open_jobs: int

    @property
    def result(self) -> str | None:
        """Of the last attempt that is over; None if that one left none."""
        return self.attempts[-1].result if self.attempts else None


def job(db: sqlite3.Connection, job_id: str) -> JobReport:
    """Raises NotFound for an id that neither the queue nor the log knows."""
    found = _found(db, job_id)
    held = db.execute(HELD, (job_id,)).fetchone()
    return JobReport(
        job=found,
        in_queue=held is not None,
        blocked_reason=held[0] if held else None,
        waits_for=held[1] if held else 0,
        attempts=attempts(db, job_id),
        children=children(db, job_id),
        journal=journal.of_job(db, job_id),
        contexts=contexts.lineage(db, found.event_context_id) if found.event_context_id else [],
        open_jobs=open_jobs(db, found.root_job_id) or 0,
    )


HELD = "SELECT blocked_reason, waits_for FROM job_queue WHERE id = ?"
LAST_RESULT = "SELECT result FROM job_log WHERE job_id = ? ORDER BY attempt DESC LIMIT 1"


def brief(db: sqlite3.Connection, job_id: str) -> JobBrief:
    """What a caller who waits for a job wants to know. Raises NotFound like `job`."""
    found = _found(db, job_id)
    last = db.execute(LAST_RESULT, (job_id,)).fetchone()
    return JobBrief(job=found, result=last[0] if last else None)


def _found(db: sqlite3.Connection, job_id: str) -> Job:
    found = get_job(db, job_id) or logged_job(db, job_id)
    if found is None:
        raise NotFound(f"{job_id}: there is no such job")
    return found


ATTEMPT_COLUMNS = """seq, id, job_id, plugin, command, attempt, status, job_status, submitted_by, created_at,
    started_at, completed_at, duration_ms, exit_code, signal, last_error, stderr, result"""
ATTEMPTS = f"SELECT {ATTEMPT_COLUMNS} FROM job_log WHERE job_id = ? ORDER BY attempt"


def attempts(db: sqlite3.Connection, job_id: str) -> list[Attempt]:
    """The attempts that are over, first to last."""
    return [attempt_from_row(row) for row in db.execute(ATTEMPTS, (job_id,))]


# The names of LISTED_COLUMNS, for a job of which only the log is left.
FROM_LOG = """
    SELECT job_id, plugin, command, job_status, attempt, max_attempts, submitted_by, created_at, NULL, NULL,
           parent_job_id, root_job_id, 0, 0, 0, started_at, completed_at, NULL, last_error,
           NULL, NULL, source_event_id, event_context_id, pipeline, step_id, schedule_id, slot_at, 0,
           enqueued_config_snapshot_id, started_config_snapshot_id, 0, NULL, NULL, NULL, NULL, 0, tolerated, NULL
      FROM job_log WHERE job_id = ? ORDER BY attempt DESC LIMIT 1
"""


def logged_job(db: sqlite3.Connection, job_id: str) -> Job | None:
    """The job as its last attempt in the log tells it."""
    row = db.execute(FROM_LOG, (job_id,)).fetchone()
    return job_from_row(row) if row else None


CHILDREN = f"SELECT {LISTED_COLUMNS} FROM job_queue WHERE parent_job_id = ? ORDER BY seq LIMIT ?"


def children(db: sqlite3.Connection, job_id: str, *, limit: int = 1000) -> list[Job]:
    """The jobs this one led to directly, in order of arrival."""
    return [job_from_row(row) for row in db.execute(CHILDREN, (job_id, limit))]


@frozen(kw_only=True)
class Node:
    """One job of a tree with the result of its last attempt. Of a job in the queue it has what a tree tells."""

    job: Job
    result: str | None


TREE_ROW = """seq, id, parent_job_id, root_job_id, plugin, command, status, attempt, max_attempts,
    submitted_by, pipeline, step_id, tolerated, created_at, started_at, completed_at, last_error,
    (SELECT result FROM job_log WHERE job_id = job_queue.id ORDER BY attempt DESC LIMIT 1)"""
TREE = f"""
    SELECT {TREE_ROW} FROM job_queue WHERE id = :root
    UNION ALL
    SELECT {TREE_ROW} FROM job_queue WHERE root_job_id = :root AND root_job_id <> id
     ORDER BY 1 LIMIT :limit
"""
TREE_IN_LOG = "SELECT job_id FROM job_log WHERE root_job_id = ? AND root_job_id <> job_id ORDER BY seq LIMIT ?"


ROOT_ID = "SELECT root_job_id FROM job_queue WHERE id = ?"


def tree(db: sqlite3.Connection, job_id: str, *, limit: int = 10_001) -> list[Node]:
    """All jobs of the tree `job_id` is in, in order of arrival. Raises NotFound for an unknown id."""
    root = db.execute(ROOT_ID, (job_id,)).fetchone()
    return tree_under(db, root[0], limit=limit) if root else _treelogged_job(db, job_id, limit)


def tree_under(db: sqlite3.Connection, root_job_id: str, *, limit: int = 10_001) -> list[Node]:
    """All jobs under this root, itself first, of one moment; none if they have left the queue, as they do together."""
    return [node_from_row(row) for row in db.execute(TREE, {"root": root_job_id, "limit": limit})]


def node_from_row(row: tuple[Any, ...]) -> Node:
    """The node in a row of TREE_ROW."""
    job = Job(
        seq=row[0],
        id=row[1],
        parent_job_id=row[2],
        root_job_id=row[3],
        plugin=row[4],
        command=row[5],
        status=JobStatus(row[6]),
        attempt=row[7],
        max_attempts=row[8],
        submitted_by=row[9],
        pipeline=row[10],
        step_id=row[11],
        tolerated=bool(row[12]),
        created_at=from_text(row[13]),
        started_at=moment(row[14]),
        completed_at=moment(row[15]),
        last_error=row[16],
    )
    return Node(job=job, result=row[17])


def _treelogged_job(db: sqlite3.Connection, job_id: str, limit: int) -> list[Node]:
    found = _found(db, job_id)
    members = [found.root_job_id, *(row[0] for row in db.execute(TREE_IN_LOG, (found.root_job_id, limit)))]
    nodes = []
    for member in dict.fromkeys(members):
        if logged := logged_job(db, member):
            tries = attempts(db, member)
            nodes.append(Node(job=logged, result=tries[-1].result))
    return nodes


class TreeStatus(StrEnum):
    """Where a whole tree is."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@frozen(kw_only=True)
class TreeOutcome:
    """What a tree has come to. It is failed if a job in it ended failed or dead and nobody tolerates that."""

    status: TreeStatus
    created_at: datetime
    completed_at: datetime | None

    @property
    def duration(self) -> timedelta | None:
        """From asked for to the end of its last job; None while it is open."""
        return None if self.completed_at is None else self.completed_at - self.created_at


ROOT = """
    SELECT root.id, root.open_jobs, root.created_at, root.tree_completed_at
      FROM job_queue AS member JOIN job_queue AS root ON root.id = member.root_job_id
     WHERE member.id = ?
"""
_FAILED = "status IN ('failed', 'dead') AND tolerated = 0"
HAS_FAILED = f"""
    SELECT EXISTS (SELECT 1 FROM job_queue WHERE id = :root AND {_FAILED})
        OR EXISTS (SELECT 1 FROM job_queue INDEXED BY job_queue_by_root
                    WHERE root_job_id = :root AND root_job_id <> id AND {_FAILED})
"""


def tree_outcome(db: sqlite3.Connection, job_id: str) -> TreeOutcome:
    """How the tree `job_id` is in stands or ended. Raises NotFound for an unknown id."""
    root = db.execute(ROOT, (job_id,)).fetchone()
    if root is None:
        return _outcomelogged_job(db, job_id)
    root_id, open_jobs, created_at, completed_at = root
    if open_jobs:
        status = TreeStatus.OPEN
    else:
        failed = db.execute(HAS_FAILED, {"root": root_id}).fetchone()[0]
        status = TreeStatus.FAILED if failed else TreeStatus.SUCCEEDED
    return TreeOutcome(status=status, created_at=from_text(created_at), completed_at=moment(completed_at))


def _outcomelogged_job(db: sqlite3.Connection, job_id: str) -> TreeOutcome:
    jobs = [node.job for node in _treelogged_job(db, job_id, limit=10_001)]
    failed = any(job.status in (JobStatus.FAILED, JobStatus.DEAD) and not job.tolerated for job in jobs)
    return TreeOutcome(
        status=TreeStatus.FAILED if failed else TreeStatus.SUCCEEDED,
        created_at=min(job.created_at for job in jobs),
        completed_at=max(job.completed_at for job in jobs if job.completed_at),
    )


OPEN_JOBS = "SELECT open_jobs FROM job_queue WHERE id = ?"


def open_jobs(db: sqlite3.Connection, root_job_id: str) -> int | None:
    """How many jobs of the tree are not over; 0 means done, None that there is no such root in the queue."""
    row = db.execute(OPEN_JOBS, (root_job_id,)).fetchone()
    return row[0] if row else None


@frozen(kw_only=True)
class Lane:
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
    lanes: list[Lane]
    unclaimable: list[str]


COUNT_STATUS = "SELECT COUNT(*) FROM job_queue WHERE status = ?"
COUNT_DELAYED = "SELECT COUNT(*) FROM job_queue WHERE next_retry_at > ''"
COUNT_WAITING = "SELECT COUNT(*) FROM job_queue WHERE waits_for_key = 1"
COUNT_JOINS = """
    SELECT COUNT(*) FROM job_queue INDEXED BY job_queue_by_status WHERE status = 'queued' AND is_join = 1
"""


def queue(db: sqlite3.Connection, *, claimable: Collection[str] | None = None) -> Queue:
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


def count_status(db: sqlite3.Connection, status: JobStatus) -> int:
    """How many jobs in the queue have this status; proportional to that number."""
    count: int = db.execute(COUNT_STATUS, (status,)).fetchone()[0]
    return count


DEPTH = "SELECT COUNT(*) FROM (SELECT 1 FROM job_queue WHERE status IN ('queued', 'running') LIMIT ?)"


def depth(db: sqlite3.Connection, *, at_most: int = 10_000) -> int:
    """How many jobs wait or run, counted up to `at_most`."""
    count: int = db.execute(DEPTH, (at_most,)).fetchone()[0]
    return count


OPEN = "SELECT 1 FROM job_queue WHERE id = ? AND status IN ('queued', 'running')"


def is_over(db: sqlite3.Connection, job_id: str) -> bool:
    """True unless the job still waits or runs; an unknown job has nothing to wait for."""
    return db.execute(OPEN, (job_id,)).fetchone() is None


COUNT_LANE = "SELECT COUNT(*) FROM job_queue WHERE lane = ?"
HEAD_OF_LANE = "SELECT created_at FROM job_queue WHERE lane = ? ORDER BY seq LIMIT 1"


def _lane(db: sqlite3.Connection, plugin: str, running: int) -> Lane:
    ready: int = db.execute(COUNT_LANE, (plugin,)).fetchone()[0]
    return Lane(plugin=plugin, ready=ready, running=running, oldest_ready_at=_oldest_ready_at(db, plugin))


def _oldest_ready_at(db: sqlite3.Connection, plugin: str) -> datetime | None:
    head = db.execute(HEAD_OF_LANE, (plugin,)).fetchone()
    return moment(head[0]) if head else None


RUNNING_BY_PLUGIN = "SELECT plugin, COUNT(*) FROM job_queue WHERE claimed_by > '' GROUP BY +plugin"


def running_by_plugin(db: sqlite3.Connection) -> dict[str, int]:
    return dict(db.execute(RUNNING_BY_PLUGIN).fetchall())


def oldest_claimable(db: sqlite3.Connection, claimable: Collection[str]) -> datetime | None:
    """When the job was asked for that has waited longest although its plugin may run; one step per lane."""
    heads = [_oldest_ready_at(db, plugin) for plugin in lanes_with_work(db) if plugin in claimable]
    return min((head for head in heads if head is not None), default=None)


ENDED_SINCE = """
    SELECT job_status, COUNT(*) FROM job_log WHERE completed_at >= ? AND job_status <> 'queued' GROUP BY job_status
"""


def ended_since(db: sqlite3.Connection, since: datetime) -> dict[str, int]:
    """How many jobs ended since then, by final status; proportional to what happened since."""
    return dict(db.execute(ENDED_SINCE, (to_text(since),)).fetchall())


def attempt_from_row(row: tuple[Any, ...]) -> Attempt:
    return Attempt(
        seq=row[0],
        id=row[1],
        job_id=row[2],
        plugin=row[3],
        command=row[4],
        attempt=row[5],
        status=AttemptStatus(row[6]),
        job_status=JobStatus(row[7]),
        submitted_by=row[8],
        created_at=from_text(row[9]),
        started_at=moment(row[10]),
        completed_at=from_text(row[11]),
        duration=None if row[12] is None else timedelta(milliseconds=row[12]),
        exit_code=row[13],
        signal=row[14],
        last_error=row[15],
        stderr=row[16],
        result=row[17],
    )
