"""What the ledger knows about one message: its delivery, its claims, its place in the topic, the workers of the topic.

For explanations. Nothing here decides.
"""

from datetime import datetime, timedelta

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none
from ductile.core.message import Claim, ClaimStatus, Message, MessageState, MessageUnknown
from ductile.ledger.exchange.rows import CLAIM_COLUMNS, WITHOUT_BODY, claim_from_row, message_from_row, state_of
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal
from ductile.ledger.tables.journal import JournalEntry

MAX_AHEAD = 10_000
"""Older messages are counted up to this number."""
MAX_CLAIMS_OF_MESSAGE, RECENT_CLAIMS, MAX_TOPICS = 50, 100, 200


@frozen(kw_only=True)
class DeliveryFacts:
    """The delivery of a message that is not decided."""

    deliveries: int
    ready_at: datetime
    available_at: datetime | None
    last_reason: str | None


@frozen(kw_only=True)
class TopicFacts:
    """What happens on a topic: whether it is paused, who claims from it, and how fast."""

    pause_reason: str | None = None
    paused_at: datetime | None = None
    last_claim: Claim | None = None
    active_claims: int = 0
    """Of the newest claims."""
    claims_per_second: float | None = None
    """By the newest claims; None if there are fewer than two."""


@frozen(kw_only=True)
class MessageFacts:
    """One message with everything that decides when it is handled. The message has no body."""

    message: Message
    state: MessageState
    delivery: DeliveryFacts | None
    claims: tuple[Claim, ...]
    """The newest claims, oldest first."""
    follow_up_topic: str | None
    """Topic of the follow-up of the last claim."""
    topic: TopicFacts
    ahead: int
    """Ready messages of the topic that are older, up to MAX_AHEAD."""
    key_holder: str | None
    """The message of the same ordering key that is delivered first."""
    journal: tuple[JournalEntry, ...]

    @property
    def last_claim(self) -> Claim | None:
        return self.claims[-1] if self.claims else None


MESSAGE = f"SELECT {WITHOUT_BODY} FROM messages AS message WHERE id = ?"


def message_facts(db: Db, message_id: str) -> MessageFacts:
    """Return the facts of a message. Raises MessageUnknown."""
    row = db.execute(MESSAGE, (message_id,)).fetchone()
    if row is None:
        raise MessageUnknown(f"message {message_id[:80]} does not exist")
    message, state = message_from_row(row), state_of(db, message_id)
    claims = _claims_of(db, message_id)
    follow_up_id = claims[-1].follow_up_id if claims else None
    return MessageFacts(
        message=message,
        state=state,
        delivery=_delivery(db, message.seq),
        claims=claims,
        follow_up_topic=_topic_of(db, follow_up_id) if follow_up_id else None,
        topic=_topic_facts(db, message.topic),
        ahead=_count_ahead(db, message) if state is MessageState.READY else 0,
        key_holder=_key_holder(db, message) if state is MessageState.WAITING else None,
        journal=tuple(journal.of_message(db, message_id)),
    )


DELIVERY = "SELECT deliveries, ready_at, available_at, last_reason FROM deliveries WHERE seq = ?"


def _delivery(db: Db, seq: int) -> DeliveryFacts | None:
    row = db.execute(DELIVERY, (seq,)).fetchone()
    if row is None:
        return None
    deliveries, ready_at, available_at, last_reason = row
    return DeliveryFacts(
        deliveries=deliveries,
        ready_at=from_text(ready_at),
        available_at=from_text_or_none(available_at),
        last_reason=last_reason,
    )


CLAIMS_OF_MESSAGE = f"SELECT {CLAIM_COLUMNS} FROM claims WHERE message_id = ? ORDER BY seq DESC LIMIT ?"


def _claims_of(db: Db, message_id: str) -> tuple[Claim, ...]:
    rows = db.execute(CLAIMS_OF_MESSAGE, (message_id, MAX_CLAIMS_OF_MESSAGE)).fetchall()
    return tuple(claim_from_row(row) for row in reversed(rows))


TOPIC_OF = "SELECT topic FROM messages WHERE id = ?"


def _topic_of(db: Db, message_id: str) -> str | None:
    row = db.execute(TOPIC_OF, (message_id,)).fetchone()
    return row[0] if row else None


COUNT_AHEAD = "SELECT COUNT(*) FROM (SELECT 1 FROM deliveries WHERE lane = ? AND seq < ? LIMIT ?)"


def _count_ahead(db: Db, message: Message) -> int:
    count: int = db.execute(COUNT_AHEAD, (message.topic, message.seq, MAX_AHEAD)).fetchone()[0]
    return count


KEY_HOLDER = "SELECT message_id FROM deliveries WHERE topic = ? AND ordering_key = ? AND waits = 0 LIMIT 1"


def _key_holder(db: Db, message: Message) -> str | None:
    row = db.execute(KEY_HOLDER, (message.topic, message.ordering_key)).fetchone()
    return row[0] if row else None


PAUSE = "SELECT reason, paused_at FROM topic_pauses WHERE topic = ?"
CLAIMS_OF_TOPIC = f"SELECT {CLAIM_COLUMNS} FROM claims WHERE topic = ? ORDER BY seq DESC LIMIT ?"


def _topic_facts(db: Db, topic: str) -> TopicFacts:
    reason, paused_at = db.execute(PAUSE, (topic,)).fetchone() or (None, None)
    recent = [claim_from_row(row) for row in db.execute(CLAIMS_OF_TOPIC, (topic, RECENT_CLAIMS))]
    span = recent[0].claimed_at - recent[-1].claimed_at if recent else timedelta()
    return TopicFacts(
        pause_reason=reason,
        paused_at=from_text_or_none(paused_at),
        last_claim=recent[0] if recent else None,
        active_claims=sum(claim.status is ClaimStatus.ACTIVE for claim in recent),
        claims_per_second=(len(recent) - 1) / span.total_seconds() if span > timedelta() else None,
    )


CLAIMED_TOPICS = """
    WITH RECURSIVE claimed (topic) AS (
        SELECT MIN(topic) FROM claims
        UNION ALL
        SELECT (SELECT MIN(topic) FROM claims WHERE topic > claimed.topic) FROM claimed WHERE claimed.topic IS NOT NULL
    )
    SELECT topic FROM claimed WHERE topic IS NOT NULL LIMIT ?
"""


def claimed_topics(db: Db) -> list[str]:
    """Return topics from which workers have claimed. One index step per topic."""
    return [topic for (topic,) in db.execute(CLAIMED_TOPICS, (MAX_TOPICS,))]
