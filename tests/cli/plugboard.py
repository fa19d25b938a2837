"""A database as Plugboard makes it: its tables and indexes, and what its commands store."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

SCHEMA = """
CREATE TABLE messages (id TEXT PRIMARY KEY, topic TEXT NOT NULL, body TEXT NOT NULL, created_at TEXT NOT NULL,
    parent_id TEXT REFERENCES messages (id), conversation_id TEXT NOT NULL, producer TEXT, metadata_json TEXT);
CREATE INDEX idx_messages_topic ON messages (topic, created_at);
CREATE INDEX idx_messages_conversation ON messages (conversation_id);
CREATE TABLE claims (id TEXT PRIMARY KEY, message_id TEXT NOT NULL REFERENCES messages (id), runner_name TEXT NOT NULL,
    worker_group TEXT, worker_instance_id TEXT, claimed_at TEXT NOT NULL, lease_until TEXT NOT NULL,
    status TEXT NOT NULL, completed_at TEXT);
CREATE UNIQUE INDEX idx_claims_active ON claims (message_id) WHERE status = 'active';
"""


def make_plugboard(path: Path, *messages: dict[str, Any], claims: tuple[dict[str, Any], ...] = ()) -> Path:
    """Write a database with these messages and claims."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA)
        for message in messages:
            _insert(db, "messages", {"conversation_id": message["id"], "created_at": "2026-02-08T09:30:00Z"} | message)
        for claim in claims:
            worker = {"runner_name": "reviewer", "worker_group": "reviewer", "worker_instance_id": "reviewer-1"}
            times = {"claimed_at": "2026-02-08T09:31:00.5Z", "lease_until": "2026-02-08T09:32:30Z"}
            _insert(db, "claims", {"id": str(uuid4())} | worker | times | claim)
        db.commit()
    return path


def _insert(db: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names = ", ".join(row)
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
