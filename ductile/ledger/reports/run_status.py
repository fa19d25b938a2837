"""A tree as those see it who wait for its end: one or two short statements, for the event loop.

`tree_reports` shows trees of any size to those who only look.
"""

from attrs import frozen

from ductile.ledger.reports.trees import TREE_ROW, TreeNode, node_from_row
from ductile.ledger.storage.db import Db


@frozen
class Standing:
    """How many jobs of a tree still wait or run, and how many there ever were."""

    open_jobs: int
    tree_jobs: int
    nodes: tuple[TreeNode, ...] = ()
    """All of them, if they were asked for and can be told."""

    @property
    def is_over(self) -> bool:
        """True if there is nothing to wait for."""
        return not self.open_jobs


STANDING = "SELECT open_jobs, tree_jobs FROM job_queue WHERE id = ? AND open_jobs IS NOT NULL"


def standing(db: Db, root_job_id: str) -> Standing | None:
    """How the tree of this root stands; None if the queue has no such root (any more)."""
    row = db.execute(STANDING, (root_job_id,)).fetchone()
    return Standing(*row) if row else None


# Nothing is read of a tree that goes on, or is large: results can be long.
_IS_TOLD = "open_jobs = 0 AND tree_jobs <= :most"
ENDED = f"""
    SELECT {TREE_ROW} FROM job_queue WHERE id = :root AND {_IS_TOLD}
    UNION ALL
    SELECT {TREE_ROW} FROM job_queue
     WHERE root_job_id = :root AND root_job_id <> id
       AND EXISTS (SELECT 1 FROM job_queue WHERE id = :root AND {_IS_TOLD})
     ORDER BY 1
"""


def ended(db: Db, root_job_id: str, *, most: int) -> Standing | None:
    """`standing` of a tree that is probably over: with its jobs, if it is and there are at most so many."""
    nodes = tuple(map(node_from_row, db.execute(ENDED, {"root": root_job_id, "most": most})))
    return Standing(0, len(nodes), nodes) if nodes else standing(db, root_job_id)
