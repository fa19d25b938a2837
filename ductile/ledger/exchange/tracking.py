"""tracked_conversations: conversations whose first reply a caller wants to be notified of, once."""

from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none, to_text
from ductile.core.message import Message, ReplyTopics
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class TrackedConversation:
    """A conversation that waits for its reply."""

    conversation_id: str
    request_id: str
    tracked_by: str
    topics: ReplyTopics
    created_at: datetime
    notified_at: datetime | None


TRACK = """
    INSERT INTO tracked_conversations (conversation_id, request_id, tracked_by, success_topic, failure_topic,
                                       timeout_topic, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (conversation_id, tracked_by) DO UPDATE
       SET request_id = excluded.request_id, success_topic = excluded.success_topic,
           failure_topic = excluded.failure_topic, timeout_topic = excluded.timeout_topic,
           created_at = excluded.created_at, notified_at = NULL
"""


def track(db: Db, request: Message, topics: ReplyTopics, *, now: datetime, actor: str) -> None:
    """Track the conversation of `request` for `actor`. A later request of `actor` replaces an earlier one."""
    about = (request.conversation_id, request.id, actor)
    db.execute(TRACK, (*about, topics.success, topics.failure, topics.timeout, to_text(now)))


TRACKED = """
    SELECT conversation_id, request_id, tracked_by, success_topic, failure_topic, timeout_topic, created_at, notified_at
      FROM tracked_conversations WHERE tracked_by = ? AND notified_at IS NULL ORDER BY created_at LIMIT ?
"""


def tracked_conversations(db: Db, actor: str, *, limit: int = 1_000) -> list[TrackedConversation]:
    """Return the conversations that `actor` has not been notified of, oldest first."""
    return [
        TrackedConversation(
            conversation_id=row[0],
            request_id=row[1],
            tracked_by=row[2],
            topics=ReplyTopics(success=row[3], failure=row[4], timeout=row[5]),
            created_at=from_text(row[6]),
            notified_at=from_text_or_none(row[7]),
        )
        for row in db.execute(TRACKED, (actor, limit))
    ]


NOTIFIED = """
    UPDATE tracked_conversations SET notified_at = ?
     WHERE conversation_id = ? AND tracked_by = ? AND notified_at IS NULL
"""


def mark_notified(db: Db, conversation_id: str, actor: str, *, now: datetime) -> bool:
    """Record that `actor` was notified; False if it was before, or does not track the conversation."""
    return db.execute(NOTIFIED, (to_text(now), conversation_id, actor)).rowcount == 1
