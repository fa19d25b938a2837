"""Lists of messages in the order of publishing, and everything about one message. Read-only.

A page reads a bounded number of rows, however long the history is, so it may be short although more rows follow.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none
from ductile.core.message import Claim, Message, MessageState, topic_matches
from ductile.ledger.exchange.rows import (
    CLAIM_COLUMNS,
    MESSAGE_COLUMNS,
    STATE,
    WITHOUT_BODY,
    claim_from_row,
    message_from_row,
    require_message,
    state_of,
)
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

NEWEST = 1 << 62
MAX_SCANNED = 5_000
"""Rows that one page reads to find matches."""
MAX_PAGE_BYTES = 16 << 20
"""A page ends after the body that exceeds this."""


@frozen(kw_only=True)
class MessageFilter:
    """The messages of a list; None matches everything.

    `topics` are topics or patterns of which one must match; so are `allowed`, those that the caller may read.
    """

    topics: tuple[str, ...] | None = None
    allowed: tuple[str, ...] | None = None
    conversation_id: str | None = None
    parent_id: str | None = None
    state: MessageState | None = None

    def matches_topic(self, topic: str) -> bool:
        lists = (self.topics, self.allowed)
        return all(patterns is None or any(topic_matches(one, topic) for one in patterns) for patterns in lists)


NO_FILTER = MessageFilter()


@frozen(kw_only=True)
class ListedMessage:
    """A message in a list, and how often it was delivered; None if it is decided."""

    message: Message
    state: MessageState
    deliveries: int | None


@frozen(kw_only=True)
class MessagePage:
    """A page of a list. `position` is where the next page begins, also if there is none yet."""

    items: tuple[ListedMessage, ...]
    position: int
    has_more: bool


def list_messages(
    db: Db,
    wanted: MessageFilter = NO_FILTER,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int = 100,
    with_body: bool = True,
    max_bytes: int = MAX_PAGE_BYTES,
) -> MessagePage:
    """Return the matching messages after a position, oldest first. With `before`: those before it, newest first."""
    rows = _scan(db, wanted, after, before)
    matching = [seq for seq, topic, state in rows if wanted.matches_topic(topic) and wanted.state in (None, state)]
    items, size = [], 0
    for seq in matching[:limit]:
        items.append(_listed(db, seq, with_body=with_body))
        size += len(items[-1].message.body)
        if size > max_bytes:
            break
    start = after if before is None else before
    if len(items) < len(matching):
        return MessagePage(items=tuple(items), position=items[-1].message.seq if items else start, has_more=True)
    position = rows[-1][0] if rows else start
    return MessagePage(items=tuple(items), position=position, has_more=len(rows) == MAX_SCANNED)


_OPEN = (MessageState.READY, MessageState.DELAYED, MessageState.WAITING, MessageState.CLAIMED)


def _scan(db: Db, wanted: MessageFilter, after: int, before: int | None) -> list[tuple[int, str, str | None]]:
    """Read the next rows that may match, from the narrowest index."""
    source, condition, values = _source(wanted)
    order, state = "ASC" if before is None else "DESC", STATE if wanted.state else "NULL"
    statement = f"""
        SELECT message.seq, message.topic, {state}
          FROM (SELECT seq FROM {source} WHERE {condition} AND seq > ? AND seq < ?
                 ORDER BY seq {order} LIMIT ?) AS scanned
         CROSS JOIN messages AS message ON message.seq = scanned.seq
          LEFT JOIN deliveries AS delivery ON delivery.seq = message.seq
         ORDER BY message.seq {order}
    """
    last = NEWEST if before is None else before
    return db.execute(statement, (*values, after, last, MAX_SCANNED)).fetchall()


def _source(wanted: MessageFilter) -> tuple[str, str, tuple[str, ...]]:
    """Return the table, with its index, the condition that the index covers, and its values."""
    if wanted.parent_id is not None:
        return f"messages {using('messages_by_parent')}", "parent_id = ?", (wanted.parent_id,)
    if wanted.conversation_id is not None:
        return f"messages {using('messages_by_conversation')}", "conversation_id = ?", (wanted.conversation_id,)
    if wanted.state in _OPEN:
        return "deliveries", "1", ()
    if wanted.topics is not None and len(wanted.topics) == 1 and not wanted.topics[0].endswith("*"):
        return f"messages {using('messages_by_topic')}", "topic = ?", wanted.topics
    return "messages", "1", ()


LISTED = f"""
    SELECT {MESSAGE_COLUMNS}, {STATE}, delivery.deliveries
      FROM messages AS message LEFT JOIN deliveries AS delivery ON delivery.seq = message.seq WHERE message.seq = ?
"""
LISTED_WITHOUT_BODY = LISTED.replace(MESSAGE_COLUMNS, WITHOUT_BODY)


def _listed(db: Db, seq: int, *, with_body: bool) -> ListedMessage:
    row = db.execute(LISTED if with_body else LISTED_WITHOUT_BODY, (seq,)).fetchone()
    *message, state, deliveries = row
    return ListedMessage(message=message_from_row(tuple(message)), state=MessageState(state), deliveries=deliveries)


BOUNDS = "SELECT COALESCE((SELECT MIN(seq) FROM messages), 0), COALESCE((SELECT MAX(seq) FROM messages), 0)"


def message_bounds(db: Db) -> tuple[int, int]:
    """Return the positions of the oldest and the newest message; (0, 0) if there is none."""
    first, last = db.execute(BOUNDS).fetchone()
    return first, last


# ── one message ──────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class OpenDelivery:
    """What a message that is not decided waits for. `key_holder` is the message of its ordering key that is next."""

    deliveries: int
    ready_at: datetime
    available_at: datetime | None
    last_reason: str | None
    key_holder: str | None


@frozen(kw_only=True)
class MessageDetails:
    """A message with its claims, oldest first, and its replies without their bodies. `delivery` is None if decided."""

    message: Message
    state: MessageState
    delivery: OpenDelivery | None
    claims: tuple[Claim, ...]
    replies: tuple[Message, ...]


CLAIMS_OF_MESSAGE = f"SELECT {CLAIM_COLUMNS} FROM claims WHERE message_id = ? ORDER BY seq LIMIT ?"
REPLIES = f"SELECT {WITHOUT_BODY} FROM messages AS message WHERE parent_id = ? ORDER BY seq LIMIT ?"


def message_details(db: Db, message_id: str, *, limit: int = 1_000) -> MessageDetails:
    """Return everything about a message. Raises MessageUnknown."""
    message = require_message(db, message_id)
    return MessageDetails(
        message=message,
        state=state_of(db, message_id),
        delivery=_delivery(db, message),
        claims=tuple(claim_from_row(row) for row in db.execute(CLAIMS_OF_MESSAGE, (message_id, limit))),
        replies=_messages(db.execute(REPLIES, (message_id, limit)).fetchall()),
    )


DELIVERY = "SELECT deliveries, ready_at, available_at, last_reason, waits FROM deliveries WHERE seq = ?"
KEY_HOLDER = "SELECT message_id FROM deliveries WHERE topic = ? AND ordering_key = ? AND waits = 0"


def _delivery(db: Db, message: Message) -> OpenDelivery | None:
    row = db.execute(DELIVERY, (message.seq,)).fetchone()
    if row is None:
        return None
    deliveries, ready_at, available_at, last_reason, waits = row
    holder = db.execute(KEY_HOLDER, (message.topic, message.ordering_key)).fetchone() if waits else None
    return OpenDelivery(
        deliveries=deliveries,
        ready_at=from_text(ready_at),
        available_at=from_text_or_none(available_at),
        last_reason=last_reason,
        key_holder=holder[0] if holder else None,
    )


def _messages(rows: Sequence[tuple[Any, ...]]) -> tuple[Message, ...]:
    return tuple(message_from_row(row) for row in rows)
