"""Many rows of one table in few statements. What SQLite does for a statement as such costs as much as writing a row."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ductile.ledger.storage.db import Db

SIZES = (25, 5, 1)
"""So that any number of rows is made of few statements, all of which stay compiled."""


def in_portions(insert: str, row: str, otherwise: str = "") -> dict[int, str]:
    """By the number of their rows, the statements that begin with `insert` and end with `otherwise`."""
    return {size: f"{insert} VALUES {', '.join([row] * size)} {otherwise}" for size in SIZES}


def insert_all(db: Db, statements: Mapping[int, str], rows: Sequence[tuple[Any, ...]]) -> int:
    """The rows are in the table, in this order; how many, where the statements leave some out."""
    written = done = 0
    for size, statement in statements.items():
        while len(rows) - done >= size:
            written += db.execute(statement, tuple(chain.from_iterable(rows[done : done + size]))).rowcount
            done += size
    return written
