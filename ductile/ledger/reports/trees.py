"""Whole trees of any size: their jobs and outcome. Read-only. Callers that wait for a tree use `runs.progress`."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from attrs import evolve, frozen

from ductile.core.clock import from_text, from_text_or_none
from ductile.core.model import Job, JobStatus
from ductile.ledger.jobs import joins
from ductile.ledger.jobs.duplicates import DroppedJob, dropped_by
from ductile.ledger.reports import job_details
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using


@frozen(kw_only=True)
class TreeNode:
    """A job of a tree with the result of its last attempt. A job from the queue has only the columns of TREE_ROW."""

    job: Job
    result: str | None
    dropped: tuple[DroppedJob, ...] = ()
    """Its follow-up jobs that were not created because of their dedupe key."""


_RESULT = "(SELECT result FROM job_log WHERE job_id = job_queue.id ORDER BY attempt DESC LIMIT 1)"
TREE_ROW = f"""seq, id, parent_job_id, root_job_id, plugin, command, status, attempt, max_attempts,
    submitted_by, pipeline, step_id, tolerated, created_at, started_at, completed_at, last_error,
    outcome_code, {_RESULT}"""
TREE = f"""
    SELECT {TREE_ROW} FROM job_queue WHERE id = :root
    UNION ALL
    SELECT {TREE_ROW} FROM job_queue WHERE root_job_id = :root AND root_job_id <> id
     ORDER BY 1 LIMIT :limit
"""
TREE_IN_LOG = "SELECT job_id FROM job_log WHERE root_job_id = ? AND root_job_id <> job_id ORDER BY seq LIMIT ?"


ROOT_ID = "SELECT root_job_id FROM job_queue WHERE id = ?"


def tree(db: Db, job_id: str, *, limit: int = 10_001) -> list[TreeNode]:
    """Return all jobs of the tree that `job_id` is in, in order of arrival. Raises NotFound for an unknown id."""
    root = db.execute(ROOT_ID, (job_id,)).fetchone()
    nodes = tree_under(db, root[0], limit=limit) if root else _logged_tree(db, job_id, limit)
    dropped: dict[str, list[DroppedJob]] = {}
    for one in dropped_by(db, (node.job.id for node in nodes)):
        dropped.setdefault(one.producer, []).append(one)
    return [evolve(node, dropped=tuple(dropped[node.job.id])) if node.job.id in dropped else node for node in nodes]


def tree_under(db: Db, root_job_id: str, *, limit: int = 10_001) -> list[TreeNode]:
    """Return all jobs of the tree with this root, the root first; none if the tree has left the queue."""
    return [node_from_row(row) for row in db.execute(TREE, {"root": root_job_id, "limit": limit})]


def node_from_row(row: tuple[Any, ...]) -> TreeNode:
    """Build the node from a row with the columns of TREE_ROW."""
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
        started_at=from_text_or_none(row[14]),
        completed_at=from_text_or_none(row[15]),
        last_error=row[16],
        outcome_code=row[17],
    )
    return TreeNode(job=job, result=row[18])


def _logged_tree(db: Db, job_id: str, limit: int) -> list[TreeNode]:
    root_id = job_details.require_job(db, job_id).root_job_id
    members = [root_id, *(row[0] for row in db.execute(TREE_IN_LOG, (root_id, limit)))]
    nodes = []
    for member in dict.fromkeys(members):
        if logged := job_details.logged_job(db, member):
            attempts = job_details.attempts(db, member)
            nodes.append(TreeNode(job=logged, result=attempts[-1].result))
    return nodes


class TreeStatus(StrEnum):
    """The status of a tree."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@frozen(kw_only=True)
class TreeOutcome:
    """The outcome of a tree. It is failed if a job in it ended failed or dead and that is not tolerated."""

    status: TreeStatus
    created_at: datetime
    completed_at: datetime | None

    @property
    def duration(self) -> timedelta | None:
        """The time from the enqueue of the root to the end of the last job; None while the tree is open."""
        return None if self.completed_at is None else self.completed_at - self.created_at


ROOT = """
    SELECT root.id, root.open_jobs, root.created_at, root.tree_completed_at
      FROM job_queue AS member JOIN job_queue AS root ON root.id = member.root_job_id
     WHERE member.id = ?
"""
_FAILED = "status IN ('failed', 'dead') AND tolerated = 0"
HAS_FAILED = f"""
    SELECT EXISTS (SELECT 1 FROM job_queue WHERE id = :root AND {_FAILED})
        OR EXISTS (SELECT 1 FROM job_queue {using("job_queue_by_root")}
                    WHERE root_job_id = :root AND root_job_id <> id AND {_FAILED})
"""


def tree_outcome(db: Db, job_id: str) -> TreeOutcome:
    """Return the outcome of the tree that `job_id` is in. Raises NotFound for an unknown id."""
    root = db.execute(ROOT, (job_id,)).fetchone()
    if root is None:
        return _logged_outcome(db, job_id)
    root_id, open_jobs, created_at, completed_at = root
    if open_jobs:
        status = TreeStatus.OPEN
    else:
        failed = db.execute(HAS_FAILED, {"root": root_id}).fetchone()[0]
        status = TreeStatus.FAILED if failed else TreeStatus.SUCCEEDED
    return TreeOutcome(status=status, created_at=from_text(created_at), completed_at=from_text_or_none(completed_at))


def _logged_outcome(db: Db, job_id: str) -> TreeOutcome:
    jobs = [node.job for node in _logged_tree(db, job_id, limit=10_001)]
    return TreeOutcome(
        status=TreeStatus.FAILED if any(map(_fails_tree, jobs)) else TreeStatus.SUCCEEDED,
        created_at=min(job.created_at for job in jobs),
        completed_at=max(job.completed_at for job in jobs if job.completed_at),
    )


def _fails_tree(job: Job) -> bool:
    return job.status in (JobStatus.FAILED, JobStatus.DEAD) and not job.tolerated


@frozen(kw_only=True)
class RunSummary:
    """The status of a run, and the jobs that made it fail, causes first."""

    status: TreeStatus
    jobs: int
    open_jobs: int
    failures: list[Job]


JOBS_OF_TREE = TREE.replace(_RESULT, "NULL")


def summarize_run(db: Db, root: Job, *, limit: int = 10_001) -> RunSummary | None:
    """Summarize the run of this root; None if the job is not a root or has no follow-up jobs."""
    if not root.is_root:
        return None
    rows = db.execute(JOBS_OF_TREE, {"root": root.id, "limit": limit}).fetchall()
    nodes = [node_from_row(row) for row in rows] or _logged_tree(db, root.id, limit)
    if len(nodes) < 2:
        return None
    jobs = [node.job for node in nodes]
    failures, open_jobs = [job for job in jobs if _fails_tree(job)], sum(not job.status.is_final for job in jobs)
    ended = TreeStatus.FAILED if failures else TreeStatus.SUCCEEDED
    return RunSummary(
        status=TreeStatus.OPEN if open_jobs else ended,
        jobs=len(jobs),
        open_jobs=open_jobs,
        # A join fails because of its members, at the time when the last of them ends.
        failures=sorted(
            failures, key=lambda job: (job.plugin == joins.JOIN_PLUGIN, job.completed_at or job.created_at)
        ),
    )


HAS_FOLLOW_UPS = "SELECT tree_jobs > 1 FROM job_queue WHERE id = ?"


def status_below(db: Db, root: Job) -> TreeStatus | None:
    """Return the status of the tree; None if the job is not a root in the queue or has no follow-up jobs."""
    has_follow_ups = db.execute(HAS_FOLLOW_UPS, (root.id,)).fetchone() if root.is_root else None
    return tree_outcome(db, root.id).status if has_follow_ups and has_follow_ups[0] else None


def brief(db: Db, job_id: str) -> tuple[job_details.JobBrief, TreeStatus | None]:
    """Return the job with its result, and the status of its tree if the job has ended. Raises NotFound like `tree`."""
    report = job_details.brief(db, job_id)
    return report, status_below(db, report.job) if report.job.status.is_final else None
