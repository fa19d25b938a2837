"""What must be true of every ledger, asked row by row and page by page: the reader of `selfcheck`.

Reads only, and takes as long as the file is large. `examine` asks the quick questions before a start.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

from ductile.core.clock import to_text
from ductile.ledger.storage.open_file import SCHEMA_VERSION, schema

MOST_TOLD = 3
FRESH = timedelta(days=2)
MOST_STALE = 5_000


def pages_in_order(db: sqlite3.Connection) -> Iterator[str]:
    """Every page and every index is whole."""
    for (verdict,) in db.execute(f"PRAGMA integrity_check({MOST_TOLD})"):
        if verdict != "ok":
            yield verdict.splitlines()[-1]


def references_kept(db: sqlite3.Connection) -> Iterator[str]:
    """No row names a row that is not there."""
    for table, row, parent, _ in db.execute("PRAGMA foreign_key_check").fetchmany(MOST_TOLD):
        yield f"row {row} of {table} names a missing row of {parent}"


def schema_as_made(db: sqlite3.Connection) -> Iterator[str]:
    """Tables, columns, indexes and views are those that a new ledger has."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        yield f"schema {version} instead of {SCHEMA_VERSION}"
    fresh = sqlite3.connect(":memory:")
    try:
        fresh.executescript(schema())
        wanted, found = _objects(fresh), _objects(db)
    finally:
        fresh.close()
    yield from (f"{kind} {name} is missing" for kind, name in sorted(wanted.keys() - found.keys()))
    for kind, name in sorted(wanted.keys() & found.keys()):
        if wanted[kind, name] != found[kind, name]:
            yield f"{kind} {name} is not as it should be"


_OBJECTS = "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' AND type IN ('table', 'index', 'view')"


def _objects(db: sqlite3.Connection) -> dict[tuple[str, str], object]:
    """What there is: tables and views by their columns, indexes by what they index."""
    return {
        (kind, name): [row[2] for row in db.execute("SELECT * FROM pragma_index_info(?)", (name,))]
        if kind == "index"
        else {row[0] for row in db.execute("SELECT name FROM pragma_table_info(?)", (name,))}
        for kind, name in db.execute(_OBJECTS).fetchall()
    }


STALE = "SELECT COUNT(*) FROM job_queue WHERE tree_completed_at < ?"


def stale_trees(db: sqlite3.Connection, *, keep: timedelta | None, now: datetime) -> int:
    """Finished runs that should have left the queue two days ago; none where they are kept for good."""
    if keep is None:
        return 0
    count: int = db.execute(STALE, (to_text(now - keep - FRESH),)).fetchone()[0]
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
STRAY_CONTEXT = """
    SELECT id FROM job_queue AS job
     WHERE event_context_id IS NOT NULL AND status IN ('queued', 'running')
       AND NOT EXISTS (SELECT 1 FROM event_context WHERE id = job.event_context_id)
"""
UNTOLD = """
    SELECT id FROM job_queue AS job
     WHERE status IN ('failed', 'dead') AND started_at IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM job_log WHERE job_id = job.id)
"""
RULES: Mapping[str, tuple[str, str]] = {
    "trees_counted": (MISCOUNTED, "counts other open jobs than it has"),
    "trees_closed": (UNFINISHED, "is over and not marked so, or the other way round"),
    "jobs_rooted": (ROOTLESS, "belongs to a run that is not there"),
    "contexts_kept": (STRAY_CONTEXT, "waits for its step without a context"),
    "endings_logged": (UNTOLD, "ended after a run of which nothing is in the log"),
}
"""Invariant → jobs that break it, and the words for it."""

Rule = Callable[[sqlite3.Connection], Iterator[str]]


def rules() -> dict[str, Rule]:
    """The invariants of the queue by name; each gives what breaks it."""
    return {name: _rule(statement, words) for name, (statement, words) in RULES.items()}


def _rule(statement: str, words: str) -> Rule:
    def breaches(db: sqlite3.Connection) -> Iterator[str]:
        for (job_id,) in db.execute(statement).fetchmany(MOST_TOLD):
            yield f"job {job_id} {words}"

    return breaches
