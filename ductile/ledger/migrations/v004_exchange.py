"""Schema 4: the tables of the exchange, and the message of a journal entry."""

import sqlite3
from collections.abc import Iterator

STATEMENTS = (
    "ALTER TABLE journal ADD COLUMN message_id TEXT",
    "CREATE INDEX journal_by_message ON journal (message_id, seq) WHERE message_id IS NOT NULL",
    """CREATE TABLE messages (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        topic TEXT NOT NULL,
        created_at TEXT NOT NULL,
        parent_id TEXT,
        conversation_id TEXT NOT NULL,
        producer TEXT,
        ordering_key TEXT,
        hops INTEGER NOT NULL DEFAULT 0 CHECK (hops >= 0),
        source_job_id TEXT,
        published_by TEXT NOT NULL,
        is_dead_letter INTEGER NOT NULL DEFAULT 0 CHECK (is_dead_letter IN (0, 1)),
        metadata_json TEXT,
        body TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX messages_by_topic ON messages (topic, seq)",
    "CREATE INDEX messages_by_conversation ON messages (conversation_id, seq)",
    "CREATE INDEX messages_by_parent ON messages (parent_id, seq) WHERE parent_id IS NOT NULL",
    "CREATE INDEX messages_by_age ON messages (created_at, seq)",
    """CREATE TRIGGER messages_never_change BEFORE UPDATE ON messages
    BEGIN SELECT RAISE(ABORT, 'a message never changes'); END""",
    """CREATE TABLE deliveries (
        seq INTEGER PRIMARY KEY,
        message_id TEXT NOT NULL,
        topic TEXT NOT NULL,
        lane TEXT,
        deliveries INTEGER NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
        ready_at TEXT NOT NULL,
        available_at TEXT,
        delayed_at TEXT,
        claim_id TEXT,
        ordering_key TEXT,
        waits INTEGER NOT NULL DEFAULT 0 CHECK (waits IN (0, 1)),
        warned INTEGER NOT NULL DEFAULT 0 CHECK (warned IN (0, 1)),
        last_reason TEXT,
        CHECK ((lane IS NOT NULL) = (available_at IS NULL AND claim_id IS NULL AND waits = 0)),
        CHECK (claim_id IS NULL OR (available_at IS NULL AND waits = 0)),
        CHECK (waits = 0 OR ordering_key IS NOT NULL),
        CHECK ((available_at IS NULL) = (delayed_at IS NULL))
    ) STRICT""",
    "CREATE INDEX deliveries_lanes ON deliveries (lane, seq) WHERE lane IS NOT NULL",
    "CREATE INDEX deliveries_unclaimed ON deliveries (topic, seq) WHERE claim_id IS NULL",
    "CREATE INDEX deliveries_delayed ON deliveries (available_at) WHERE available_at IS NOT NULL AND waits = 0",
    "CREATE INDEX deliveries_delayed_since ON deliveries (delayed_at) WHERE available_at IS NOT NULL AND waits = 0",
    "CREATE INDEX deliveries_keys ON deliveries (topic, ordering_key, seq) WHERE ordering_key IS NOT NULL",
    """CREATE TABLE claims (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        message_id TEXT NOT NULL,
        topic TEXT NOT NULL,
        worker_group TEXT NOT NULL,
        worker_instance_id TEXT NOT NULL,
        claimed_at TEXT NOT NULL,
        lease_until TEXT,
        lease_seconds REAL,
        status TEXT NOT NULL
            CHECK (status IN ('active', 'completed') OR status IN ('failed', 'timed_out')
                   OR status IN ('expired', 'released')),
        completed_at TEXT,
        delivery INTEGER NOT NULL CHECK (delivery >= 1),
        extensions INTEGER NOT NULL DEFAULT 0,
        reason TEXT,
        follow_up_id TEXT,
        job_id TEXT,
        claimed_by TEXT NOT NULL,
        runner_name TEXT GENERATED ALWAYS AS (worker_group) VIRTUAL,
        CHECK ((status = 'active') = (completed_at IS NULL))
    ) STRICT""",
    "CREATE UNIQUE INDEX claims_active ON claims (message_id) WHERE status = 'active'",
    "CREATE INDEX claims_by_message ON claims (message_id, seq)",
    "CREATE INDEX claims_by_topic ON claims (topic, seq)",
    "CREATE UNIQUE INDEX claims_by_job ON claims (job_id) WHERE job_id IS NOT NULL",
    """CREATE TABLE tracked_conversations (
        conversation_id TEXT NOT NULL,
        request_id TEXT NOT NULL,
        tracked_by TEXT NOT NULL,
        success_topic TEXT NOT NULL,
        failure_topic TEXT NOT NULL,
        timeout_topic TEXT NOT NULL,
        created_at TEXT NOT NULL,
        notified_at TEXT,
        PRIMARY KEY (conversation_id, tracked_by)
    ) STRICT""",
    "CREATE INDEX tracked_conversations_open"
    " ON tracked_conversations (tracked_by, created_at) WHERE notified_at IS NULL",
    """CREATE TABLE step_messages (
        job_id TEXT NOT NULL PRIMARY KEY,
        tries INTEGER NOT NULL,
        message_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        success_topic TEXT,
        failure_topic TEXT,
        timeout_topic TEXT,
        reply_id TEXT
    ) STRICT""",
    "CREATE INDEX step_messages_by_conversation ON step_messages (conversation_id)",
    """CREATE TABLE topic_pauses (
        topic TEXT NOT NULL PRIMARY KEY,
        reason TEXT NOT NULL,
        paused_at TEXT NOT NULL
    ) STRICT""",
)


def upgrade(db: sqlite3.Connection, schema: str) -> Iterator[str]:
    """Add what schema 4 has."""
    yield "add the exchange"
    for statement in STATEMENTS:
        db.execute(statement)
