"""The counters on a root row: how many jobs of its tree are open, how many there ever were, when it was done.

Changed only inside the transactions that add or end jobs, so "the tree is done" is one number that is never wrong.
"""

from attrs import frozen

from ductile.core.model import Budget
from ductile.ledger.storage.db import Db

ORDINARY = Budget()


@frozen
class Root:
    id: str
    tree_jobs: int
    is_replay: bool


ROOT_OF = """
    SELECT root.id, root.tree_jobs, root.replay_of IS NOT NULL
      FROM job_queue AS member JOIN job_queue AS root ON root.id = member.root_job_id
     WHERE member.id = ?
"""


def root_of(db: Db, job_id: str) -> Root | None:
    """The root of the tree `job_id` is in; None if the job is unknown."""
    row = db.execute(ROOT_OF, (job_id,)).fetchone()
    return Root(*row) if row else None


GROW = """
    UPDATE job_queue
       SET open_jobs = open_jobs + ?, tree_jobs = tree_jobs + ?,
           tree_completed_at = CASE WHEN open_jobs + ? = 0 THEN tree_completed_at END
     WHERE id = ?
"""


def grow(db: Db, root_id: str, *, jobs: int = 1, opened: int) -> None:
    """So many more jobs are in the tree, and so many of them are open."""
    db.execute(GROW, (opened, jobs, opened, root_id))


CLOSE_ONE = """
    UPDATE job_queue SET open_jobs = open_jobs - 1, tree_completed_at = CASE WHEN open_jobs = 1 THEN ? END WHERE id = ?
"""
# Asked afterwards: an update that returns what it changed makes a table for that, which costs more than the look.
IS_DONE = "SELECT open_jobs = 0 FROM job_queue WHERE id = ?"


def close_one(db: Db, root_id: str, *, now: str) -> bool:
    """One job of the tree is final; True if it was the last open one."""
    db.execute(CLOSE_ONE, (now, root_id))
    row = db.execute(IS_DONE, (root_id,)).fetchone()
    return row is not None and bool(row[0])


REOPEN_ONE = "UPDATE job_queue SET open_jobs = open_jobs + 1, tree_completed_at = NULL WHERE id = ?"


def reopen_one(db: Db, root_id: str) -> None:
    """One final job of the tree is queued again."""
    db.execute(REOPEN_ONE, (root_id,))


OPEN_JOBS = "SELECT open_jobs FROM job_queue WHERE id = ?"


def open_jobs(db: Db, root_job_id: str) -> int | None:
    """How many jobs of the tree are not over; 0 means done, None that there is no such root in the queue."""
    row = db.execute(OPEN_JOBS, (root_job_id,)).fetchone()
    return row[0] if row else None
