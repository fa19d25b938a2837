"""The progress of a tree, for callers that wait for its end: one or two short statements, on the event loop.

For trees of any size see `trees`.
"""

from attrs import frozen

from ductile.ledger.reports.trees import TREE_ROW, TreeNode, node_from_row
from ductile.ledger.storage.db import Db


@frozen
class TreeProgress:
    """The number of open jobs of a tree, and of all its jobs."""

    open_jobs: int
    tree_jobs: int
    nodes: tuple[TreeNode, ...] = ()
    """All jobs, if requested and if the tree is done and small enough."""

    @property
    def is_over(self) -> bool:
        """True if no job is open."""
        return not self.open_jobs


TREE_PROGRESS = "SELECT open_jobs, tree_jobs FROM job_queue WHERE id = ? AND open_jobs IS NOT NULL"


def tree_progress(db: Db, root_job_id: str) -> TreeProgress | None:
    """Return the progress of the tree; None if the queue does not have this root."""
    row = db.execute(TREE_PROGRESS, (root_job_id,)).fetchone()
    return TreeProgress(*row) if row else None


# The jobs of an open or large tree are not read, because results can be long.
_IS_INCLUDED = "open_jobs = 0 AND tree_jobs <= :max_jobs"
FINISHED_TREE = f"""
    SELECT {TREE_ROW} FROM job_queue WHERE id = :root AND {_IS_INCLUDED}
    UNION ALL
    SELECT {TREE_ROW} FROM job_queue
     WHERE root_job_id = :root AND root_job_id <> id
       AND EXISTS (SELECT 1 FROM job_queue WHERE id = :root AND {_IS_INCLUDED})
     ORDER BY 1
"""


def finished_tree(db: Db, root_job_id: str, *, max_jobs: int) -> TreeProgress | None:
    """Return the progress of a tree, with its jobs if it is done and has at most `max_jobs`."""
    nodes = tuple(map(node_from_row, db.execute(FINISHED_TREE, {"root": root_job_id, "max_jobs": max_jobs})))
    return TreeProgress(0, len(nodes), nodes) if nodes else tree_progress(db, root_job_id)
