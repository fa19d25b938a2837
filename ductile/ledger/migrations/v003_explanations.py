"""Schema 3: columns and tables that record who did something, and why something waited or was refused."""

import sqlite3
from collections.abc import Iterator

STATEMENTS = (
    "ALTER TABLE journal ADD COLUMN actor TEXT",
    "ALTER TABLE job_queue ADD COLUMN actor TEXT",
    "ALTER TABLE job_log ADD COLUMN actor TEXT",
)


def upgrade(db: sqlite3.Connection, schema: str) -> Iterator[str]:
    """Add what schema 3 has."""
    yield "add columns and tables"
    for statement in STATEMENTS:
        db.execute(statement)
