"""Receipts: what was already accepted and how it was answered, so that a repeat gets the first answer.

The scope names the door (`webhook:/path`, `api:<token>`, `relay:<peer>`); the key is the sender's own (delivery id,
Idempotency-Key, event id). Written in the transaction that accepts, so there is no moment between.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.errors import DuctileError
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using


class KeyReused(DuctileError):
    """Another request had this key."""

    code, exit_code, status = "idempotency_key_reused", 1, 422
    hint = "take a new key for a new request"


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


@frozen(kw_only=True)
class Ticket:
    """A caller's own name for a request, which makes it one request however often it comes."""

    scope: str
    key: str
    body_hash: str
    keep: timedelta


@frozen(kw_only=True)
class StoredAnswer:
    """What a request came to: the job it made and the JSON text its caller is told."""

    job_id: str | None
    text: str
    is_repeat: bool = False
    runs_a_job: bool = False
    """The request has just created a job that will run."""


def once(db: Db, ticket: Ticket, act: Callable[[Db], StoredAnswer], *, now: datetime) -> StoredAnswer:
    """Run `act` for the first request of a ticket; return the first answer for every later one.

    The receipt is inserted before `act` runs, so of two transactions with the same key only one gets that far. Raises
    KeyReused if the key belongs to another request.
    """
    if not put(db, ticket.scope, ticket.key, now=now, keep=ticket.keep, body_hash=ticket.body_hash):
        known = first_answer(db, ticket, now=now)
        assert known is not None, "a valid receipt stood in the way"
        return known
    answer = act(db)
    note_answer(db, ticket.scope, ticket.key, job_id=answer.job_id, response=answer.text)
    return answer


def first_answer(db: Db, ticket: Ticket, *, now: datetime) -> StoredAnswer | None:
    """What the ticket's first request came to; None if this is the first."""
    receipt = get(db, ticket.scope, ticket.key, now=now)
    if receipt is None:
        return None
    if receipt.body_hash != ticket.body_hash:
        raise KeyReused(
            "this Idempotency-Key came with another request before",
            hint="a new request needs a new key; to repeat the first one, send it unchanged",
        )
    return StoredAnswer(job_id=receipt.job_id, text=receipt.response or "{}", is_repeat=True)


GET = """
    SELECT scope, key, body_hash, job_id, response, created_at, expires_at FROM receipts
     WHERE scope = ? AND key = ? AND expires_at > ?
"""


def get(db: Db, scope: str, key: str, *, now: datetime) -> Receipt | None:
    """The receipt for this key, if it has not expired."""
    row = db.execute(GET, (scope, key, to_text(now))).fetchone()
    return _receipt(row) if row else None


def _receipt(row: tuple[Any, ...]) -> Receipt:
    return Receipt(
        scope=row[0],
        key=row[1],
        body_hash=row[2],
        job_id=row[3],
        response=row[4],
        created_at=from_text(row[5]),
        expires_at=from_text(row[6]),
    )


# By expiry: what has the same scope is kept equally long, so this is the order of arrival.
NEWEST = f"""
    SELECT scope, key, body_hash, job_id, response, created_at, expires_at
      FROM receipts {using("receipts_by_expiry")}
     WHERE scope = ? ORDER BY expires_at DESC LIMIT ?
"""


def newest(db: Db, scope: str, *, limit: int = 50) -> list[Receipt]:
    """The latest of one door first."""
    return [_receipt(row) for row in db.execute(NEWEST, (scope, limit))]


PUT = """
    INSERT INTO receipts (scope, key, body_hash, job_id, response, created_at, expires_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (scope, key) DO UPDATE
       SET body_hash = excluded.body_hash, job_id = excluded.job_id, response = excluded.response,
           created_at = excluded.created_at, expires_at = excluded.expires_at
     WHERE receipts.expires_at <= excluded.created_at
"""


def put(
    db: Db,
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


NOTE_ANSWER = "UPDATE receipts SET job_id = ?, response = ? WHERE scope = ? AND key = ?"


def note_answer(db: Db, scope: str, key: str, *, job_id: str | None, response: str) -> None:
    """Complete the receipt that this transaction inserted."""
    db.execute(NOTE_ANSWER, (job_id, response, scope, key))
