"""Deliveries that were refused, a few of each endpoint: enough to find out what is wrong with a sender.

Never the body, only its hash: what nobody signed is not kept. Old ones make room for new ones.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.formats import strict_json
from ductile.ledger.storage.db import Db

MOST_KEPT = 50
"""For each path."""
UNREAD_BODY = ""
"""The hash of a body that nobody has read."""


@frozen(kw_only=True)
class RejectedDelivery:
    """One delivery that was not taken. `id` is the ledger's; None before it is there."""

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
FORGET = """
    DELETE FROM refused_deliveries
     WHERE path = :path AND id <= (SELECT id FROM refused_deliveries WHERE path = :path
                                    ORDER BY id DESC LIMIT 1 OFFSET :most)
"""


def put_all(db: Db, refused: Iterable[RejectedDelivery]) -> None:
    """They are on record, and no path has more than its share."""
    paths = set()
    for one in refused:
        values = (one.reason, one.status, one.peer, one.body_sha256, one.body_bytes, strict_json.dumps(one.headers))
        db.execute(PUT, (to_text(one.at), one.path, *values))
        paths.add(one.path)
    for path in paths:
        db.execute(FORGET, {"path": path, "most": MOST_KEPT})


_COLUMNS = "id, at, path, reason, status, peer, body_sha256, body_bytes, headers"
NEWEST = f"SELECT {_COLUMNS} FROM refused_deliveries ORDER BY id DESC LIMIT ?"
NEWEST_OF_PATH = f"SELECT {_COLUMNS} FROM refused_deliveries WHERE path = ? ORDER BY id DESC LIMIT ?"


def newest(db: Db, path: str | None = None, *, limit: int = 50) -> list[RejectedDelivery]:
    """The latest first, of one path or of all."""
    rows = db.execute(NEWEST, (limit,)) if path is None else db.execute(NEWEST_OF_PATH, (path, limit))
    return [_refused(row) for row in rows]


GET = f"SELECT {_COLUMNS} FROM refused_deliveries WHERE id = ?"


def get(db: Db, refusal_id: int) -> RejectedDelivery | None:
    row = db.execute(GET, (refusal_id,)).fetchone()
    return _refused(row) if row else None


def _refused(row: tuple[Any, ...]) -> RejectedDelivery:
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
