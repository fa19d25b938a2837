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
    "CREATE INDEX job_queue_by_actor ON job_queue (actor, length(CAST(payload AS BLOB))) WHERE status = 'queued'",
    "CREATE INDEX job_queue_roots ON job_queue (seq) WHERE root_job_id = id",
    "CREATE INDEX journal_acts ON journal (seq, at, actor) WHERE actor IS NOT NULL",
    "CREATE INDEX journal_of_service ON journal (kind, seq) WHERE job_id IS NULL AND plugin IS NULL",
    "ALTER TABLE config_snapshots ADD COLUMN sealed_at TEXT",
    "ALTER TABLE config_snapshots ADD COLUMN sealed_by TEXT",
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
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE webhook_deliveries (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        at TEXT NOT NULL,
        path TEXT NOT NULL,
        verdict TEXT NOT NULL CHECK (verdict IN ('accepted', 'unmatched') OR verdict IN ('repeated', 'refused')),
        code TEXT,
        reason TEXT,
        status INTEGER NOT NULL,
        delivery_id TEXT,
        job_ids TEXT NOT NULL DEFAULT '[]',
        peer TEXT NOT NULL,
        headers TEXT NOT NULL,
        body_sha256 TEXT NOT NULL,
        body_bytes INTEGER NOT NULL,
        body BLOB,
        redelivery_of INTEGER
    ) STRICT""",
    "CREATE INDEX webhook_deliveries_by_path ON webhook_deliveries (path, verdict, seq)",
    "CREATE INDEX webhook_deliveries_by_delivery"
    " ON webhook_deliveries (delivery_id, seq) WHERE delivery_id IS NOT NULL",
    """
    INSERT INTO webhook_deliveries (at, path, verdict, code, reason, status, delivery_id, job_ids, peer, headers,
                                    body_sha256, body_bytes)
    SELECT at, path, 'refused',
           CASE status WHEN 403 THEN 'forbidden' WHEN 408 THEN 'too_slow' WHEN 409 THEN 'delivery_id_reused'
                       WHEN 413 THEN 'body_too_large' WHEN 415 THEN 'wrong_media_type' WHEN 422 THEN 'run_refused'
                       WHEN 503 THEN 'endpoint_unavailable' ELSE 'delivery_refused' END,
           reason, status, NULL, '[]', peer, headers, body_sha256, body_bytes
      FROM refused_deliveries
    UNION ALL
    SELECT created_at, substr(scope, 9), CASE WHEN job_id IS NULL THEN 'unmatched' ELSE 'accepted' END, NULL, NULL, 202,
           key, COALESCE(CASE WHEN json_valid(response) THEN response ->> 'job_ids' END,
                         CASE WHEN job_id IS NULL THEN '[]' ELSE json_array(job_id) END), '', '{}', '', 0
      FROM receipts WHERE scope LIKE 'webhook:%'
     ORDER BY 1
    """,
    "DROP TABLE refused_deliveries",
)


def upgrade(db: sqlite3.Connection, schema: str) -> Iterator[str]:
    """Add what schema 3 has."""
    yield "add columns and tables"
    for statement in STATEMENTS:
        db.execute(statement)
