"""Messages that were handled long ago, written with SQL only: a million of them take a minute."""

import os
import sqlite3
from datetime import UTC, datetime, timedelta

from ductile.ledger.storage.connections import transaction
from scripts.benches.lib.bench import show_progress

INSERTS = (
    """
    WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :rows),
         message (id) AS MATERIALIZED (SELECT lower(hex(randomblob(16))) FROM number)
    INSERT INTO messages (id, topic, created_at, conversation_id, published_by, body)
    SELECT id, :topic, :now, id, 'bench', 'a body of ordinary size' FROM message
    """,
    """
    INSERT INTO claims (id, message_id, topic, worker_group, worker_instance_id, claimed_at, lease_until, status,
                        completed_at, delivery, claimed_by)
    SELECT id || '-1', id, topic, 'bench', 'bench', :now, :now, 'completed', :now, 1, 'bench' FROM messages
    """,
    """
    INSERT INTO journal (at, kind, message_id, data)
    SELECT :now, kind.value, messages.id, '{"topic":"a topic of ordinary size"}'
      FROM messages, json_each('["message.published", "message.claimed", "message.completed"]') AS kind
    """,
)


def write_handled_messages(db: sqlite3.Connection, topic: str, rows: int) -> None:
    """Write `rows` completed messages of the topic, with their claims and journal rows, into a new ledger."""
    show_progress(f"writing {rows:,} handled messages")
    now = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    db.execute("PRAGMA cache_size = -400000")
    for statement in INSERTS:
        with transaction(db):
            db.execute(statement, {"rows": rows, "now": now, "topic": topic})
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    os.sync()
