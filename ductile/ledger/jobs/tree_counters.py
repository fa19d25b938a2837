"""The counters on a root row: open jobs of its tree, all jobs of its tree, and when the tree was done.

Changed only in the transactions that add or end jobs, so they always match the rows.
"""

from attrs import frozen

from ductile.core.model import Budget
from ductile.ledger.storage.db import Db

DEFAULT_BUDGET = Budget()


@frozen
class Root:
    """The root of a tree."""

    id: str
    tree_jobs: int
    is_replay: bool
    actor: str | None


FIND_ROOT = """
    SELECT root.id, root.tree_jobs, root.replay_of IS NOT NULL, root.actor
      FROM job_queue AS member JOIN job_queue AS root ON root.id = member.root_job_id
     WHERE member.id = ?
"""


def find_root(db: Db, job_id: str) -> Root | None:
    """Return the root of the tree that `job_id` is in; None if the job is unknown."""
    row = db.execute(FIND_ROOT, (job_id,)).fetchone()
    return Root(*row) if row else None


ADD_JOBS = """
    UPDATE job_queue
       SET open_jobs = open_jobs + ?, tree_jobs = tree_jobs + ?,
           tree_completed_at = CASE WHEN open_jobs + ? = 0 THEN tree_completed_at END
     WHERE id = ?
"""


def add_jobs(db: Db, root_id: str, *, jobs: int = 1, opened: int) -> None:
    """Add `jobs` jobs to the tree, of which `opened` are open."""
    db.execute(ADD_JOBS, (opened, jobs, opened, root_id))


CLOSE_JOB = """
    UPDATE job_queue SET open_jobs = open_jobs - 1, tree_completed_at = CASE WHEN open_jobs = 1 THEN ? END WHERE id = ?
"""
# A second statement: UPDATE … RETURNING builds a temporary table, which costs more than this lookup.
IS_DONE = "SELECT open_jobs = 0 FROM job_queue WHERE id = ?"


def close_job(db: Db, root_id: str, *, now: str) -> bool:
    """Count one job of the tree as finished; True if it was the last open one."""
    db.execute(CLOSE_JOB, (now, root_id))
    row = db.execute(IS_DONE, (root_id,)).fetchone()
    return row is not None and bool(row[0])


REOPEN_JOB = "UPDATE job_queue SET open_jobs = open_jobs + 1, tree_completed_at = NULL WHERE id = ?"


def reopen_job(db: Db, root_id: str) -> None:
    """Count a finished job of the tree as open again."""
    db.execute(REOPEN_JOB, (root_id,))


COUNT_OPEN_JOBS = "SELECT open_jobs FROM job_queue WHERE id = ?"


def open_jobs(db: Db, root_job_id: str) -> int | None:
    """Return the number of open jobs of the tree; 0 if it is done, None if the queue has no such root."""
    row = db.execute(COUNT_OPEN_JOBS, (root_job_id,)).fetchone()
    return row[0] if row else None
