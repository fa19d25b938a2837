"""Fewer indexes change with every job: open jobs have one, jobs that are over another, attempts only that of their ids.

The ids of attempts therefore all begin with that of their job.
"""

import sqlite3
from collections.abc import Iterator

_RENAME_ATTEMPTS = """
    UPDATE job_log SET id = job_id || '-' || id WHERE id NOT BETWEEN job_id || '-' AND job_id || '.'
"""
_DROPPED = ("job_queue_running", "job_queue_by_status", "job_queue_unusual", "job_log_by_job")
_CREATED = (
    "CREATE INDEX job_queue_open ON job_queue (claimed_by, seq) WHERE status IN ('queued', 'running')",
    "CREATE INDEX job_queue_by_status ON job_queue (status, seq) WHERE completed_at IS NOT NULL",
    """CREATE INDEX job_queue_unusual ON job_queue (plugin, status, seq)
    WHERE status NOT IN ('queued', 'running') AND status <> 'succeeded'""",
    """CREATE VIEW job_attempts AS
    SELECT seq AS id, job_id, attempt, started_at AS created_at
      FROM job_log
     WHERE started_at IS NOT NULL
    UNION ALL
    SELECT -seq, id, attempt, started_at
      FROM job_queue
     WHERE status IN ('queued', 'running') AND claimed_by > ''""",
)


def upgrade(db: sqlite3.Connection, schema: str) -> Iterator[str]:
    """`db`, a ledger of version 1, has the indexes and ids of version 2."""
    yield "name attempts after their jobs"
    db.execute(_RENAME_ATTEMPTS)
    yield "drop old indexes"
    for index in _DROPPED:
        db.execute(f"DROP INDEX IF EXISTS {index}")
    db.execute("DROP VIEW job_attempts")
    yield "create new indexes"
    for statement in _CREATED:
        db.execute(statement)
