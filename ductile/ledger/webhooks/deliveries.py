"""webhook_deliveries: what arrived at each webhook endpoint, and what it became.

An accepted delivery is written in the transaction of its jobs, with its body, so that it can be delivered again.
Refused and repeated ones need no valid secret: only the latest of each endpoint are kept, without their bodies.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, TypeAlias, get_args

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.formats import strict_json
from ductile.ledger.reports.pagination import CLOCK_SLACK, NEWEST, Listing, Page, SqlFilter, find_seq, page
from ductile.ledger.storage.db import Db

DeliveryVerdict: TypeAlias = Literal["accepted", "unmatched", "repeated", "refused"]
VERDICTS: tuple[DeliveryVerdict, ...] = get_args(DeliveryVerdict)
MAX_STORED_PER_PATH = 50
"""Refused deliveries of a path, and repeated ones; older ones are deleted."""
MAX_STORED_BODY = 256 << 10
"""Larger bodies are not stored."""
UNREAD_BODY = ""
"""The hash of a body that was not read."""


@frozen(kw_only=True)
class DeliveryRecord:
    """A delivery. `id` is None before it is stored; `body` is not read back with the record."""

    at: datetime
    path: str
    verdict: DeliveryVerdict
    code: str | None = None
    """Why it is refused or unmatched."""
    reason: str | None = None
    status: int
    delivery_id: str | None = None
    """The id that the sender gave it."""
    job_ids: tuple[str, ...] = ()
    peer: str
    headers: dict[str, list[str]]
    body_sha256: str
    body_bytes: int
    body: bytes | None = None
    has_body: bool = False
    """The body is stored."""
    redelivery_of: int | None = None
    id: int | None = None


PUT = """
    INSERT INTO webhook_deliveries (at, path, verdict, code, reason, status, delivery_id, job_ids, peer, headers,
                                    body_sha256, body_bytes, body, redelivery_of)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    RETURNING seq
"""


def put(db: Db, new: DeliveryRecord) -> int:
    """Store the delivery and return its id."""
    body = new.body if new.body is not None and len(new.body) <= MAX_STORED_BODY else None
    values = (new.path, new.verdict, new.code, new.reason, new.status, new.delivery_id, strict_json.dumps(new.job_ids))
    about = (new.peer, strict_json.dumps(new.headers), new.body_sha256, new.body_bytes, body, new.redelivery_of)
    stored: int = db.execute(PUT, (to_text(new.at), *values, *about)).fetchone()[0]
    return stored


DELETE_OLD = """
    DELETE FROM webhook_deliveries
     WHERE path = :path AND verdict = :verdict
       AND seq <= (SELECT seq FROM webhook_deliveries WHERE path = :path AND verdict = :verdict
                    ORDER BY seq DESC LIMIT 1 OFFSET :most)
"""


def put_latest(db: Db, deliveries: Iterable[DeliveryRecord]) -> None:
    """Store the deliveries, and delete the oldest ones with their path and verdict beyond MAX_STORED_PER_PATH."""
    kinds = set()
    for new in deliveries:
        put(db, new)
        kinds.add((new.path, new.verdict))
    for path, verdict in kinds:
        db.execute(DELETE_OLD, {"path": path, "verdict": verdict, "most": MAX_STORED_PER_PATH})


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class DeliveryFilter:
    """The filters of the list; None matches everything."""

    path: str | None = None
    verdict: DeliveryVerdict | None = None
    delivery_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


ALL_DELIVERIES = DeliveryFilter()
_COLUMNS = """
    seq, at, path, verdict, code, reason, status, delivery_id, job_ids, peer, headers, body_sha256, body_bytes,
    body IS NOT NULL, redelivery_of
"""


def _record(row: tuple[Any, ...]) -> DeliveryRecord:
    return DeliveryRecord(
        id=row[0],
        at=from_text(row[1]),
        path=row[2],
        verdict=row[3],
        code=row[4],
        reason=row[5],
        status=row[6],
        delivery_id=row[7],
        job_ids=tuple(strict_json.loads(row[8])),
        peer=row[9],
        headers=strict_json.loads(row[10]),
        body_sha256=row[11],
        body_bytes=row[12],
        has_body=bool(row[13]),
        redelivery_of=row[14],
    )


def _id_of(delivery: DeliveryRecord) -> int:
    assert delivery.id is not None, "a delivery that was read has an id"
    return delivery.id


DELIVERIES = Listing[DeliveryRecord](
    table="webhook_deliveries",
    columns=_COLUMNS,
    time_column="at",
    id_column="delivery_id",
    search_columns=(),
    read=_record,
    seq_of=_id_of,
)


def list_deliveries(
    db: Db, wanted: DeliveryFilter = ALL_DELIVERIES, *, before: int = NEWEST, limit: int = 50
) -> Page[DeliveryRecord]:
    """Return a page of the matching deliveries, newest first."""
    return page(db, DELIVERIES, _sql_filter(db, wanted), before=before, limit=limit)


def _sql_filter(db: Db, wanted: DeliveryFilter) -> SqlFilter:
    conditions = {"path": wanted.path, "verdict": wanted.verdict, "delivery_id": wanted.delivery_id}
    given = {name: value for name, value in conditions.items() if value is not None}
    if wanted.delivery_id is not None:
        indexed, index = ["delivery_id"], "webhook_deliveries_by_delivery"
    elif wanted.path is not None and wanted.verdict is not None:
        indexed, index = ["path", "verdict"], "webhook_deliveries_by_path"
    else:
        indexed, index = [], ""
    bounds = [(sign, to_text(time)) for sign, time in ((">=", wanted.since), ("<", wanted.until)) if time]
    others = [name for name in given if name not in indexed]
    return SqlFilter(
        index_condition=" AND ".join(f"{name} = ?" for name in indexed),
        index_name=index,
        values=tuple(given[name] for name in indexed),
        row_condition=" AND ".join([*(f"{name} = ?" for name in others), *(f"at {sign} ?" for sign, _ in bounds)]),
        row_values=(*(given[name] for name in others), *(time for _, time in bounds)),
        after=find_seq(db, DELIVERIES, wanted.since, -CLOCK_SLACK) - 1 if wanted.since else 0,
        before=find_seq(db, DELIVERIES, wanted.until, CLOCK_SLACK) if wanted.until else NEWEST,
    )


GET = f"SELECT {_COLUMNS} FROM webhook_deliveries WHERE seq = ?"


def get(db: Db, delivery: int) -> DeliveryRecord | None:
    row = db.execute(GET, (delivery,)).fetchone()
    return _record(row) if row else None


BODY = "SELECT body FROM webhook_deliveries WHERE seq = ?"


def read_body(db: Db, delivery: int) -> bytes | None:
    """Return the stored body; None if there is none."""
    row = db.execute(BODY, (delivery,)).fetchone()
    return row[0] if row else None
