"""Retention of messages: whole conversations whose messages have all expired and of which none is open.

A message on a topic that no worker has ever claimed from is not open. A conversation in which a pipeline step waits is.
A read finds the conversations, from the position where the last one ended, because conversations that are still in use
must not hide expired ones behind them.
"""

from datetime import datetime, timedelta

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.message import RulesOf
from ductile.ledger.exchange.lanes import remove_delivery
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

MAX_SCANNED = 2_000
"""Messages that one call reads."""


@frozen(order=True)
class AgePosition:
    """A position in the messages by age."""

    created_at: str = ""
    seq: int = 0


OLDEST = AgePosition()


@frozen(kw_only=True)
class ExpiredConversations:
    """Conversations that can be deleted, and where the next call continues."""

    ids: tuple[str, ...]
    position: AgePosition


# The last message of a conversation is the one that can expire the conversation.
SCAN = f"""
    SELECT created_at, seq, topic, conversation_id,
           NOT EXISTS (SELECT 1 FROM messages AS later
                        WHERE later.conversation_id = message.conversation_id AND later.seq > message.seq)
      FROM messages AS message {using("messages_by_age")}
     WHERE (created_at, seq) > (?, ?) AND created_at < ?
     ORDER BY created_at, seq LIMIT ?
"""


def expired_conversations(
    db: Db, rules: RulesOf, *, shortest: timedelta, now: datetime, last: int, position: AgePosition = OLDEST
) -> ExpiredConversations:
    """Find expired conversations after a position. `shortest` is the shortest retention of a topic.

    Messages after `last` are recent, whatever time a wrong clock gave them. At the end the position is OLDEST again.
    """
    rows = db.execute(SCAN, (position.created_at, position.seq, to_text(now - shortest), MAX_SCANNED)).fetchall()
    ids = tuple(
        conversation_id
        for created_at, seq, topic, conversation_id, is_last in rows
        if is_last
        and seq <= last
        and _has_expired(topic, created_at, rules, now=now)
        and _can_be_deleted(db, conversation_id, rules, now=now, last=last)
    )
    reached = AgePosition(rows[-1][0], rows[-1][1]) if len(rows) == MAX_SCANNED else OLDEST
    return ExpiredConversations(ids=ids, position=reached)


def _has_expired(topic: str, created_at: str, rules: RulesOf, *, now: datetime) -> bool:
    retention = rules(topic).retention
    return retention is not None and from_text(created_at) < now - retention


NEWEST_BY_TOPIC = "SELECT topic, MAX(created_at), MAX(seq) FROM messages WHERE conversation_id = ? GROUP BY topic"
IS_OPEN = """
    SELECT EXISTS (SELECT 1 FROM messages AS message JOIN deliveries AS delivery ON delivery.seq = message.seq
                    WHERE message.conversation_id = :id
                      AND EXISTS (SELECT 1 FROM claims WHERE claims.topic = delivery.topic))
        OR EXISTS (SELECT 1 FROM step_messages AS step JOIN job_queue AS job ON job.id = step.job_id
                    WHERE step.conversation_id = :id AND job.status IN ('queued', 'running'))
"""


def _can_be_deleted(db: Db, conversation_id: str, rules: RulesOf, *, now: datetime, last: int) -> bool:
    """True if every message has expired by the rules of its topic, and none is open."""
    topics = db.execute(NEWEST_BY_TOPIC, (conversation_id,)).fetchall()
    are_old = all(seq <= last and _has_expired(topic, at, rules, now=now) for topic, at, seq in topics)
    return are_old and not db.execute(IS_OPEN, {"id": conversation_id}).fetchone()[0]


_FIRST = "FROM messages WHERE conversation_id = ? ORDER BY seq LIMIT ?"
OPEN_DELIVERIES = f"SELECT seq FROM deliveries WHERE seq IN (SELECT seq {_FIRST})"
DELETE_CLAIMS = f"DELETE FROM claims WHERE message_id IN (SELECT id {_FIRST})"
DELETE_MESSAGES = f"DELETE FROM messages WHERE seq IN (SELECT seq {_FIRST})"
DELETE_STEPS = "DELETE FROM step_messages WHERE conversation_id = ?"
DELETE_TRACKED = "DELETE FROM tracked_conversations WHERE conversation_id = ?"


def delete_conversations(
    db: Db, ids: tuple[str, ...], rules: RulesOf, *, now: datetime, last: int, limit: int = 500
) -> int:
    """Delete up to `limit` messages of these conversations, oldest first. Return their number.

    A conversation that is in use again is left out. Call again while any were deleted.
    """
    deleted = 0
    for conversation_id in ids:
        if deleted >= limit:
            break
        if not _can_be_deleted(db, conversation_id, rules, now=now, last=last):
            continue
        first = (conversation_id, limit - deleted)
        for (seq,) in db.execute(OPEN_DELIVERIES, first).fetchall():
            remove_delivery(db, seq, now=now)
        db.execute(DELETE_CLAIMS, first)
        db.execute(DELETE_STEPS, (conversation_id,))
        db.execute(DELETE_TRACKED, (conversation_id,))
        deleted += db.execute(DELETE_MESSAGES, first).rowcount
    if deleted:
        db.execute(f"PRAGMA incremental_vacuum({limit})").fetchall()
    return deleted
