"""Receipts: what was already accepted and how it was answered, so that a repeat gets the first answer.

The scope names the door (`webhook:/path`, `api:<token>`, `relay:<peer>`); the key is the sender's own (delivery id,
Idempotency-Key, event id). Written in the transaction that accepts, so there is no moment between.
"""

import sqlite3
from datetime import datetime, timedelta

from attrs import frozen

from ductile.clock import from_text, to_text


@frozen(kw_only=True)
class Receipt:
    """The first answer to a key. `body_hash` tells a repeat from a different request under the same key."""

    scope: str
    key: str
    body_hash: str | None
    job_id: str | None
    response: str | None
    created_at: datetime
    expires_at: datetime


GET = """
    SELECT scope, key, body_hash, job_id, response, created_at, expires_at FROM receipts
     WHERE scope = ? AND key = ? AND expires_at > ?
"""


def get(db: sqlite3.Connection, scope: str, key: str, *, now: datetime) -> Receipt | None:
    """The receipt for this key, if it has not expired."""
    row = db.execute(GET, (scope, key, to_text(now))).fetchone()
    if row is None:
        return None
    return Receipt(
        scope=row[0],
        key=row[1],
        body_hash=row[2],
        job_id=row[3],
        response=row[4],
        created_at=from_text(row[5]),
        expires_at=from_text(row[6]),
    )


PUT = """
    INSERT INTO receipts (scope, key, body_hash, job_id, response, created_at, expires_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (scope, key) DO UPDATE
       SET body_hash = excluded.body_hash, job_id = excluded.job_id, response = excluded.response,
           created_at = excluded.created_at, expires_at = excluded.expires_at
     WHERE receipts.expires_at <= excluded.created_at
"""


def put(
    db: sqlite3.Connection,
    scope: str,
    key: str,
    *,
    now: datetime,
    keep: timedelta,
    job_id: str | None = None,
    body_hash: str | None = None,
    response: str | None = None,
) -> bool:
    """The key has this receipt; False, and nothing changed, if it has another that is still valid."""
    values = (scope, key, body_hash, job_id, response, to_text(now), to_text(now + keep))
    return db.execute(PUT, values).rowcount == 1
