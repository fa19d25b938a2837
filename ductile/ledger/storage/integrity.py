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
    """Yield the differences of tables, columns, indexes, views and triggers from those of a new ledger."""
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


_OBJECTS = "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"


def _objects(db: sqlite3.Connection) -> dict[tuple[str, str], object]:
    """Return the columns of each table, view and index; triggers have none."""
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
UNDELIVERABLE = """
    SELECT message_id FROM deliveries AS delivery
     WHERE NOT EXISTS (SELECT 1 FROM messages WHERE seq = delivery.seq AND id = delivery.message_id
                          AND topic = delivery.topic AND ordering_key IS delivery.ordering_key)
"""
WRONGLY_CLAIMED = """
    SELECT message_id FROM deliveries AS delivery
     WHERE claim_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM claims WHERE id = delivery.claim_id AND message_id = delivery.message_id
                          AND status = 'active')
    UNION ALL
    SELECT message_id FROM claims AS claim
     WHERE status = 'active' AND NOT EXISTS (SELECT 1 FROM deliveries WHERE claim_id = claim.id)
"""
UNORDERED = """
    SELECT MIN(message_id) FROM deliveries WHERE ordering_key IS NOT NULL
     GROUP BY topic, ordering_key HAVING SUM(waits = 0) <> 1
"""
UNDECIDED = """
    SELECT id FROM messages AS message
     WHERE NOT EXISTS (SELECT 1 FROM deliveries WHERE seq = message.seq)
       AND NOT EXISTS (SELECT 1 FROM claims WHERE message_id = message.id)
       AND NOT EXISTS (SELECT 1 FROM journal WHERE message_id = message.id AND kind = 'message.purged')
       AND EXISTS (SELECT 1 FROM journal WHERE message_id = message.id AND kind = 'message.published')
"""
UNANSWERED = """
    SELECT message_id FROM claims AS claim
     WHERE follow_up_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM messages WHERE id = claim.follow_up_id)
"""
RULES: Mapping[str, tuple[str, str]] = {
    "trees_counted": (MISCOUNTED, "has a wrong count of open jobs"),
    "trees_closed": (UNFINISHED, "has an open job count that does not match its completion time"),
    "jobs_rooted": (ROOTLESS, "belongs to a run whose root job is missing"),
    "contexts_kept": (MISSING_CONTEXT, "is open but its context is missing"),
    "endings_logged": (UNLOGGED, "has started and ended but has no attempt in the log"),
}
"""Invariant → statement that finds the jobs that violate it, and the message."""
MESSAGE_RULES: Mapping[str, tuple[str, str]] = {
    "deliveries_rooted": (UNDELIVERABLE, "has a delivery that differs from it, or does not exist"),
    "claims_delivered": (WRONGLY_CLAIMED, "has a delivery and an active claim that do not match"),
    "keys_ordered": (UNORDERED, "has an ordering key of which not exactly one message is next"),
    "messages_decided": (UNDECIDED, "is neither offered to workers nor decided"),
    "follow_ups_kept": (UNANSWERED, "has a claim whose follow-up is missing"),
}
"""The same for the messages of the exchange."""

Rule = Callable[[sqlite3.Connection], Iterator[str]]


def rules() -> dict[str, Rule]:
    """Return the invariants of the queue and the exchange by name. Each yields its violations."""
    return {
        name: _rule(statement, f"{noun} {{}} {message}")
        for noun, found in (("job", RULES), ("message", MESSAGE_RULES))
        for name, (statement, message) in found.items()
    }


def _rule(statement: str, message: str) -> Rule:
    def violations(db: sqlite3.Connection) -> Iterator[str]:
        for (row_id,) in db.execute(statement).fetchmany(MAX_REPORTED):
            yield message.format(row_id)

    return violations
