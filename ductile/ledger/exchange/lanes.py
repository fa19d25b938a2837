"""The deliveries of open messages: return one to its topic, or remove it and free the next one of its ordering key."""

from datetime import datetime, timedelta

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.message import Message, MessageState
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class Removed:
    """A removed delivery. `woken` is the topic if another message has become ready by it."""

    deliveries: int
    woken: str | None = None


REMOVE = "DELETE FROM deliveries WHERE seq = ? RETURNING topic, ordering_key, waits, deliveries"


def remove_delivery(db: Db, seq: int, *, now: datetime) -> Removed:
    """Remove the delivery of a message that is decided, and free the next message of its ordering key."""
    ((topic, ordering_key, waits, deliveries),) = db.execute(REMOVE, (seq,)).fetchall()
    woken = ordering_key is not None and not waits and _free_next(db, topic, ordering_key, now=now)
    return Removed(deliveries=deliveries, woken=topic if woken else None)


# Of a topic and key, all but one message wait. It can have been requeued, so the oldest need not be the one.
FREE_NEXT = """
    UPDATE deliveries
       SET waits = 0, ready_at = :now,
           lane = CASE WHEN available_at IS NULL OR available_at <= :now THEN topic END,
           available_at = CASE WHEN available_at > :now THEN available_at END,
           delayed_at = CASE WHEN available_at > :now THEN delayed_at END
     WHERE seq = (SELECT seq FROM deliveries WHERE topic = :topic AND ordering_key = :key ORDER BY seq LIMIT 1)
    RETURNING lane
"""


def _free_next(db: Db, topic: str, ordering_key: str, *, now: datetime) -> bool:
    """Free the oldest message that waits for this key. Return True if it is ready, and not delayed."""
    rows = db.execute(FREE_NEXT, {"topic": topic, "key": ordering_key, "now": to_text(now)}).fetchall()
    return bool(rows) and rows[0][0] is not None


PUT_BACK = """
    UPDATE deliveries
       SET claim_id = NULL, lane = ?, available_at = ?, delayed_at = ?, ready_at = ?, last_reason = ?,
           deliveries = deliveries - ?
     WHERE seq = ?
"""


def put_back(
    db: Db, message: Message, *, now: datetime, delay: timedelta, reason: str | None, uncounted: bool
) -> MessageState:
    """Return a claimed message to its place in the topic, after the delay. Return its state."""
    now_text = to_text(now)
    lane, available_at, delayed_at = (None, to_text(now + delay), now_text) if delay else (message.topic, None, None)
    db.execute(PUT_BACK, (lane, available_at, delayed_at, now_text, reason, int(uncounted), message.seq))
    return MessageState.DELAYED if delay else MessageState.READY
