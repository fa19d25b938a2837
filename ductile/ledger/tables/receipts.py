"""Receipts of accepted requests with their responses, so that a repeated request gets the first response.

The scope is the source (`webhook:/path`, `api:<token>`, `relay:<peer>`); the key comes from the sender (delivery id,
Idempotency-Key, event id). Written in the transaction that accepts the request, and valid until retention deletes it:
the wall clock can be wrong when a request is repeated. Also: when each token was last used.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.errors import DuctileError
from ductile.ledger.storage.db import Db


class KeyReused(DuctileError):
    """This key was used for another request."""

    code, exit_code, status = "idempotency_key_reused", 1, 422
    hint = "Use a new key for a new request."


@frozen(kw_only=True)
class Receipt:
    """The first response to a key. `body_hash` distinguishes a repeat from another request with the same key."""

    scope: str
    key: str
    body_hash: str | None
    job_id: str | None
    response: str | None
    created_at: datetime
    expires_at: datetime


@frozen(kw_only=True)
class IdempotencyKey:
    """A caller's key for a request, which is executed once however often it is sent."""

    scope: str
    key: str
    body_hash: str
    ttl: timedelta


@frozen(kw_only=True)
class StoredResponse:
    """The response to a request: the job it created and the JSON text for its caller."""

    job_id: str | None
    text: str
    is_repeat: bool = False
    runs_a_job: bool = False
    """The request has just created a job that will run."""


def run_once(db: Db, ticket: IdempotencyKey, act: Callable[[Db], StoredResponse], *, now: datetime) -> StoredResponse:
    """Run `act` for the first request with this key. Return its stored response for every later one.

    The receipt is inserted before `act` runs, so only one of two transactions with the same key runs it. Raises
    KeyReused if the key belongs to another request.
    """
    if not put(db, ticket.scope, ticket.key, now=now, ttl=ticket.ttl, body_hash=ticket.body_hash):
        known = first_response(db, ticket)
        assert known is not None, "a receipt prevented the insert"
        return known
    answer = act(db)
    set_response(db, ticket.scope, ticket.key, job_id=answer.job_id, response=answer.text)
    return answer


def first_response(db: Db, ticket: IdempotencyKey) -> StoredResponse | None:
    """Return the stored response for this key; None for a first request. Raises KeyReused for another request."""
    receipt = get(db, ticket.scope, ticket.key)
    if receipt is None:
        return None
    if receipt.body_hash != ticket.body_hash:
        raise KeyReused(
            "this Idempotency-Key was used for another request",
            hint="Use a new key for a new request. To repeat the first request, send it unchanged.",
        )
    return StoredResponse(job_id=receipt.job_id, text=receipt.response or "{}", is_repeat=True)


GET = """
    SELECT scope, key, body_hash, job_id, response, created_at, expires_at FROM receipts
     WHERE scope = ? AND key = ?
"""


def get(db: Db, scope: str, key: str) -> Receipt | None:
    row = db.execute(GET, (scope, key)).fetchone()
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


PUT = """
    INSERT INTO receipts (scope, key, body_hash, job_id, response, created_at, expires_at, journal_seq)
    VALUES (?, ?, ?, ?, ?, ?, ?, (SELECT COALESCE(MAX(seq), 0) FROM journal))
    ON CONFLICT (scope, key) DO NOTHING
"""


def put(
    db: Db,
    scope: str,
    key: str,
    *,
    now: datetime,
    ttl: timedelta,
    job_id: str | None = None,
    body_hash: str | None = None,
    response: str | None = None,
) -> bool:
    """Store the receipt; False, with nothing changed, if the key has one."""
    values = (scope, key, body_hash, job_id, response, to_text(now), to_text(now + ttl))
    return db.execute(PUT, values).rowcount == 1


SET_RESPONSE = "UPDATE receipts SET job_id = ?, response = ? WHERE scope = ? AND key = ?"


def set_response(db: Db, scope: str, key: str, *, job_id: str | None, response: str) -> None:
    """Add the response to the receipt that this transaction inserted."""
    db.execute(SET_RESPONSE, (job_id, response, scope, key))


PUT_TOKEN_USE = """
    INSERT INTO token_uses (name, last_used_at) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET last_used_at = excluded.last_used_at
"""


def put_token_uses(db: Db, uses: Mapping[str, datetime]) -> None:
    """Store when each token was last used, by name. Called at intervals, not for every request."""
    db.executemany(PUT_TOKEN_USE, [(name, to_text(used_at)) for name, used_at in uses.items()])


LAST_TOKEN_USES = "SELECT name, last_used_at FROM token_uses"


def last_token_uses(db: Db) -> dict[str, datetime]:
    """Return when each token was last used, by name."""
    return {name: from_text(used_at) for name, used_at in db.execute(LAST_TOKEN_USES)}
