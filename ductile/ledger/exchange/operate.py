"""Operator actions on messages and topics: requeue, purge, pause, resume.

Also journals messages that no worker claims.
"""

from collections.abc import Iterable
from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.errors import WrongState
from ductile.core.message import MessageState, RulesOf
from ductile.ledger.exchange.claim import topics_with_ready_messages
from ductile.ledger.exchange.lanes import remove_delivery
from ductile.ledger.exchange.publish import insert_delivery
from ductile.ledger.exchange.rows import require_message, state_of
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using
from ductile.ledger.tables import journal

MAX_PURGED = 1_000
"""Messages that one transaction purges."""


def requeue(db: Db, message_id: str, *, now: datetime, actor: str) -> MessageState:
    """Offer a failed, timed-out or dead message to workers again, at its old place, with no deliveries counted.

    Return its new state: waiting if another message of its ordering key is open. Raises MessageUnknown or WrongState.
    """
    message, state = require_message(db, message_id), state_of(db, message_id)
    if state not in (MessageState.FAILED, MessageState.TIMED_OUT, MessageState.DEAD):
        hint = "Only failed, timed-out and dead messages can be requeued."
        raise WrongState(f"message {message_id}: {state}", hint=hint)
    new_state = insert_delivery(db, message, now=now)
    data = {"topic": message.topic, "from": state, "state": new_state}
    journal.append(db, "message.requeued", now=now, message_id=message_id, data=data, actor=actor)
    return new_state


UNCLAIMED = "SELECT seq, message_id FROM deliveries WHERE topic = ? AND claim_id IS NULL ORDER BY seq LIMIT ?"


def purge(db: Db, topic: str, *, now: datetime, actor: str, limit: int = MAX_PURGED) -> int:
    """End up to `limit` messages of the topic that no worker has claimed, oldest first. Return their number.

    They are dead, without a dead letter. Call again while the number is `limit`.
    """
    found: list[tuple[int, str]] = db.execute(UNCLAIMED, (topic, limit)).fetchall()
    for seq, _ in found:
        remove_delivery(db, seq, now=now)
    entries = [(message_id, None, {"topic": topic}) for _, message_id in found]
    journal.append_of_messages(db, "message.purged", entries, now=now, actor=actor)
    return len(found)


# ── pauses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class TopicPause:
    """A topic whose messages are not delivered."""

    topic: str
    reason: str
    paused_at: datetime


ALL_PAUSES = "SELECT topic, reason, paused_at FROM topic_pauses ORDER BY topic"


def paused_topics(db: Db) -> list[TopicPause]:
    return [
        TopicPause(topic=topic, reason=reason, paused_at=from_text(paused_at))
        for topic, reason, paused_at in db.execute(ALL_PAUSES)
    ]


PAUSE = "INSERT INTO topic_pauses (topic, reason, paused_at) VALUES (?, ?, ?) ON CONFLICT (topic) DO NOTHING"


def pause_topic(db: Db, topic: str, reason: str, *, now: datetime, actor: str) -> bool:
    """Stop delivering messages of the topic; False if it is already paused. Active claims are not affected."""
    changed = db.execute(PAUSE, (topic, reason, to_text(now))).rowcount == 1
    if changed:
        journal.append(db, "topic.paused", now=now, data={"topic": topic, "reason": reason}, actor=actor)
    return changed


RESUME = "DELETE FROM topic_pauses WHERE topic = ?"


def resume_topic(db: Db, topic: str, *, now: datetime, actor: str) -> bool:
    """Deliver messages of the topic again; False if it is not paused."""
    changed = db.execute(RESUME, (topic,)).rowcount == 1
    if changed:
        journal.append(db, "topic.resumed", now=now, data={"topic": topic}, actor=actor)
    return changed


# ── messages that no worker claims ───────────────────────────────────────────────────────────────────────────────────

# A topic that was never claimed has readers, but no workers. It has no lane here, and a paused one has none, either.
OLDEST_READY = f"""
    SELECT seq, message_id, ready_at, warned FROM deliveries {using("deliveries_lanes")}
     WHERE lane = (SELECT :topic WHERE EXISTS (SELECT 1 FROM claims WHERE topic = :topic)
                      AND NOT EXISTS (SELECT 1 FROM topic_pauses WHERE topic = :topic))
     ORDER BY seq LIMIT 1
"""
COUNT_READY = "SELECT COUNT(*) FROM deliveries WHERE lane = ?"


@frozen(kw_only=True)
class UnclaimedMessage:
    """The oldest ready message of a topic that has waited for too long. `ready` counts the ready messages."""

    seq: int
    message_id: str
    topic: str
    ready_at: str
    ready: int


def unclaimed_messages(db: Db, *, now: datetime, rules: RulesOf) -> list[UnclaimedMessage]:
    """Return the oldest ready message of each topic if it has waited for `warn_after` and was not journalled yet.

    Paused topics, and topics that no worker has claimed from, are left out.
    """
    found = []
    for topic in topics_with_ready_messages(db):
        warn_after = rules(topic).warn_after
        row = db.execute(OLDEST_READY, {"topic": topic}).fetchone() if warn_after else None
        if warn_after is None or row is None or row[3] or now - from_text(row[2]) < warn_after:
            continue
        count = db.execute(COUNT_READY, (topic,)).fetchone()[0]
        found.append(UnclaimedMessage(seq=row[0], message_id=row[1], topic=topic, ready_at=row[2], ready=count))
    return found


SET_WARNED = "UPDATE deliveries SET warned = 1 WHERE seq = ? AND lane IS NOT NULL AND warned = 0"


def warn_unclaimed(db: Db, messages: Iterable[UnclaimedMessage], *, now: datetime) -> None:
    """Journal the messages that are still ready, once."""
    for one in messages:
        if db.execute(SET_WARNED, (one.seq,)).rowcount == 1:
            data = {"topic": one.topic, "ready_at": one.ready_at, "ready": one.ready}
            journal.append(db, "message.unclaimed", now=now, message_id=one.message_id, data=data)
