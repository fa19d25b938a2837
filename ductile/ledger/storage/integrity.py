"""Integrity checks of a ledger, for `selfcheck`. Read-only; the duration grows with the file.

`storage.identify` has the quick checks before a start.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

from ductile.core.clock import to_text
from ductile.ledger.storage.open_file import SCHEMA_VERSION, schema

MAX_REPORTED = 3
STALE_GRACE = timedelta(days=2)
MAX_STALE_TREES = 5_000


def check_pages(db: sqlite3.Connection) -> Iterator[str]:
    """Yield the damage that SQLite finds in pages and indexes."""
    for (result,) in db.execute(f"PRAGMA integrity_check({MAX_REPORTED})"):
        if result != "ok":
            yield result.splitlines()[-1]


def check_references(db: sqlite3.Connection) -> Iterator[str]:
    """Yield the rows that violate a foreign key."""
    for table, row, parent, _ in db.execute("PRAGMA foreign_key_check").fetchmany(MAX_REPORTED):
        yield f"row {row} of {table} refers to a missing row of {parent}"


def check_schema(db: sqlite3.Connection) -> Iterator[str]:
    """Yield the differences of tables, columns, indexes and views from those of a new ledger."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        yield f"schema {version} instead of {SCHEMA_VERSION}"
    new = sqlite3.connect(":memory:")
    try:
        new.executescript(schema())
        expected, found = _objects(new), _objects(db)
    finally:
        new.close()
    yield from (f"{kind} {name} is missing" for kind, name in sorted(expected.keys() - found.keys()))
    for kind, name in sorted(expected.keys() & found.keys()):
        if expected[kind, name] != found[kind, name]:
            yield f"{kind} {name} differs from the schema"


_OBJECTS = "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' AND type IN ('table', 'index', 'view')"


def _objects(db: sqlite3.Connection) -> dict[tuple[str, str], object]:
    """Return the columns of each table, view and index."""
    return {
        (kind, name): [row[2] for row in db.execute("SELECT * FROM pragma_index_info(?)", (name,))]
        if kind == "index"
        else {row[0] for row in db.execute("SELECT name FROM pragma_table_info(?)", (name,))}
        for kind, name in db.execute(_OBJECTS).fetchall()
    }


COUNT_STALE = "SELECT COUNT(*) FROM job_queue WHERE tree_completed_at < ?"


def count_stale_trees(db: sqlite3.Connection, *, retention: timedelta | None, now: datetime) -> int:
    """Count the finished trees that retention should have deleted two days ago. `retention=None` means no retention."""
    if retention is None:
        return 0
    count: int = db.execute(COUNT_STALE, (to_text(now - retention - STALE_GRACE),)).fetchone()[0]
    return count


MISCOUNTED = """
    WITH counted AS (
        SELECT root_job_id, SUM(status IN ('queued', 'running')) AS open FROM job_queue GROUP BY root_job_id)
    SELECT root.id FROM counted JOIN job_queue AS root ON root.id = counted.root_job_id
     WHERE root.open_jobs <> counted.open
"""
UNFINISHED = """
    SELECT id FROM job_queue WHERE open_jobs IS NOT NULL AND (open_jobs = 0) <> (tree_completed_at IS NOT NULL)
"""
ROOTLESS = "SELECT id FROM job_queue AS job WHERE NOT EXISTS (SELECT 1 FROM job_queue WHERE id = job.root_job_id)"
MISSING_CONTEXT = """
    SELECT id FROM job_queue AS job
     WHERE event_context_id IS NOT NULL AND status IN ('queued', 'running')
       AND NOT EXISTS (SELECT 1 FROM event_context WHERE id = job.event_context_id)
"""
UNLOGGED = """
    SELECT id FROM job_queue AS job
     WHERE status IN ('failed', 'dead') AND started_at IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM job_log WHERE job_id = job.id)
"""
RULES: Mapping[str, tuple[str, str]] = {
    "trees_counted": (MISCOUNTED, "has a wrong count of open jobs"),
    "trees_closed": (UNFINISHED, "has an open job count that does not match its completion time"),
    "jobs_rooted": (ROOTLESS, "belongs to a run whose root job is missing"),
    "contexts_kept": (MISSING_CONTEXT, "is open but its context is missing"),
    "endings_logged": (UNLOGGED, "has started and ended but has no attempt in the log"),
}
"""Invariant → statement that finds the jobs that violate it, and the message."""

Rule = Callable[[sqlite3.Connection], Iterator[str]]


def rules() -> dict[str, Rule]:
    """Return the invariants of the queue by name. Each yields its violations."""
    return {name: _rule(statement, message) for name, (statement, message) in RULES.items()}


def _rule(statement: str, message: str) -> Rule:
    def violations(db: sqlite3.Connection) -> Iterator[str]:
        for (job_id,) in db.execute(statement).fetchmany(MAX_REPORTED):
            yield f"job {job_id} {message}"

    return violations
