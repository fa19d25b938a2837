"""refused_deliveries: the latest rejected deliveries of each webhook path, to diagnose a sender.

Stores the hash of the body, never the body: it was not authenticated.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.formats import strict_json
from ductile.ledger.storage.db import Db

MAX_STORED_PER_PATH = 50
"""Older ones of the path are deleted."""
UNREAD_BODY = ""
"""The hash of a body that was not read."""


@frozen(kw_only=True)
class RejectedDelivery:
    """A rejected delivery. `id` is None before it is stored."""

    at: datetime
    path: str
    reason: str
    status: int
    peer: str
    body_sha256: str
    body_bytes: int
    headers: dict[str, list[str]]
    id: int | None = None


PUT = """
    INSERT INTO refused_deliveries (at, path, reason, status, peer, body_sha256, body_bytes, headers)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
DELETE_OLD = """
    DELETE FROM refused_deliveries
     WHERE path = :path AND id <= (SELECT id FROM refused_deliveries WHERE path = :path
                                    ORDER BY id DESC LIMIT 1 OFFSET :most)
"""


def put_all(db: Db, deliveries: Iterable[RejectedDelivery]) -> None:
    """Store the deliveries and delete the oldest ones beyond MAX_STORED_PER_PATH."""
    paths = set()
    for new in deliveries:
        values = (new.reason, new.status, new.peer, new.body_sha256, new.body_bytes, strict_json.dumps(new.headers))
        db.execute(PUT, (to_text(new.at), new.path, *values))
        paths.add(new.path)
    for path in paths:
        db.execute(DELETE_OLD, {"path": path, "most": MAX_STORED_PER_PATH})


_COLUMNS = "id, at, path, reason, status, peer, body_sha256, body_bytes, headers"
NEWEST = f"SELECT {_COLUMNS} FROM refused_deliveries ORDER BY id DESC LIMIT ?"
NEWEST_OF_PATH = f"SELECT {_COLUMNS} FROM refused_deliveries WHERE path = ? ORDER BY id DESC LIMIT ?"


def newest(db: Db, path: str | None = None, *, limit: int = 50) -> list[RejectedDelivery]:
    """Return the deliveries of one path or of all, newest first."""
    rows = db.execute(NEWEST, (limit,)) if path is None else db.execute(NEWEST_OF_PATH, (path, limit))
    return [_delivery(row) for row in rows]


GET = f"SELECT {_COLUMNS} FROM refused_deliveries WHERE id = ?"


def get(db: Db, delivery_id: int) -> RejectedDelivery | None:
    row = db.execute(GET, (delivery_id,)).fetchone()
    return _delivery(row) if row else None


def _delivery(row: tuple[Any, ...]) -> RejectedDelivery:
    return RejectedDelivery(
        id=row[0],
        at=from_text(row[1]),
        path=row[2],
        reason=row[3],
        status=row[4],
        peer=row[5],
        body_sha256=row[6],
        body_bytes=row[7],
        headers=strict_json.loads(row[8]),
    )
