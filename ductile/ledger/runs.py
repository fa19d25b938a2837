"""A tree as those see it who wait for its end: one statement each time, for the event loop.

`reports` shows trees of any size to those who only look.
"""

import sqlite3

from ductile.ledger.reports import TREE, Node, node_from_row
from ductile.values import frozen


@frozen
class Standing:
    """How many jobs of a tree still wait or run, and how many there ever were."""

    open_jobs: int
    tree_jobs: int
    nodes: tuple[Node, ...] = ()
    """All of them, if they were asked for and can be told."""

    @property
    def is_over(self) -> bool:
        """True if there is nothing to wait for."""
        return not self.open_jobs


STANDING = "SELECT open_jobs, tree_jobs FROM job_queue WHERE id = ? AND open_jobs IS NOT NULL"


def standing(db: sqlite3.Connection, root_job_id: str) -> Standing | None:
    """How the tree of this root stands; None if the queue has no such root (any more)."""
    row = db.execute(STANDING, (root_job_id,)).fetchone()
    return Standing(*row) if row else None


def ended(db: sqlite3.Connection, root_job_id: str, *, most: int) -> Standing | None:
    """`standing` of a tree that is probably over: with its jobs, if it is and there are at most so many."""
    rows = db.execute(TREE, {"root": root_job_id, "limit": most + 1}).fetchall()
    if not rows:
        return None
    _, open_jobs, tree_jobs, *_ = rows[0]
    is_told = not open_jobs and len(rows) <= most
    return Standing(open_jobs, tree_jobs, tuple(map(node_from_row, rows)) if is_told else ())
