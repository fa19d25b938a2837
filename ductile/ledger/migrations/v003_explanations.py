"""Schema 3: columns and tables that record who did something, and why something waited or was refused."""

import sqlite3
from collections.abc import Iterator

STATEMENTS = (
    "ALTER TABLE journal ADD COLUMN actor TEXT",
    "ALTER TABLE job_queue ADD COLUMN actor TEXT",
    "ALTER TABLE job_log ADD COLUMN actor TEXT",
    "ALTER TABLE job_queue ADD COLUMN outcome_code TEXT",
    """
    UPDATE job_queue
       SET outcome_code = (SELECT outcome_code FROM job_log WHERE job_id = job_queue.id ORDER BY attempt DESC LIMIT 1)
     WHERE status NOT IN ('queued', 'running')
    """,
    "CREATE INDEX job_queue_ended_by_operator ON job_queue (seq) WHERE outcome_code IN ('cancelled', 'purged')",
    "CREATE INDEX journal_acts ON journal (seq, at, actor) WHERE actor IS NOT NULL",
    "CREATE INDEX journal_of_service ON journal (kind, seq) WHERE job_id IS NULL AND plugin IS NULL",
    "ALTER TABLE receipts ADD COLUMN journal_seq INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE job_log ADD COLUMN plugin_fingerprint TEXT",
    "ALTER TABLE job_log ADD COLUMN plugin_changes TEXT",
    """CREATE TABLE drifted_plugins (
        plugin TEXT NOT NULL PRIMARY KEY,
        code TEXT NOT NULL,
        files TEXT NOT NULL,
        fingerprint TEXT,
        detected_at TEXT NOT NULL
    ) STRICT""",
    """
    CREATE TABLE notification_groups (
        signal TEXT NOT NULL,
        subject TEXT NOT NULL,
        sent_at TEXT NOT NULL,
        held INTEGER NOT NULL DEFAULT 0,
        last TEXT NOT NULL,
        PRIMARY KEY (signal, subject)
    ) STRICT, WITHOUT ROWID
    """,
)


def upgrade(db: sqlite3.Connection, schema: str) -> Iterator[str]:
    """Add what schema 3 has."""
    yield "add columns and tables"
    for statement in STATEMENTS:
        db.execute(statement)
