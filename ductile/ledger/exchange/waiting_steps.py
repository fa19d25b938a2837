"""step_messages: the messages of publish steps. The transaction that publishes a reply ends the wait of its step.

The job of a waiting step is queued and delayed until the step times out.
"""

from ductile.core.message import MAX_HOPS, Message
from ductile.ledger.storage.db import Db

WAITING = """
    SELECT job_id, message_id, failure_topic = ? OR success_topic = ? OR timeout_topic = ?
      FROM step_messages WHERE conversation_id = ? AND success_topic IS NOT NULL AND reply_id IS NULL
"""
ANSWER = "UPDATE step_messages SET reply_id = ? WHERE job_id = ?"
WAKE = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin, blocked_reason = NULL
     WHERE id = ? AND status = 'queued' AND next_retry_at IS NOT NULL
"""


def answer_steps(db: Db, message: Message) -> None:
    """Make the jobs ready whose steps wait for this message.

    The reply is on one of the topics of the step or a dead letter. It descends from the message of the step, unless its
    sender has named the conversation alone.
    """
    if message.conversation_id == message.id:  # it begins a conversation
        return
    topics = (message.topic,) * 3
    for job_id, request_id, is_on_topic in db.execute(WAITING, (*topics, message.conversation_id)).fetchall():
        is_reply = is_on_topic or message.is_dead_letter
        if is_reply and (message.parent_id is None or _descends(db, message.parent_id, request_id)):
            db.execute(ANSWER, (message.id, job_id))
            db.execute(WAKE, (job_id,))


PARENT = "SELECT parent_id FROM messages WHERE id = ?"


def _descends(db: Db, message_id: str | None, ancestor_id: str) -> bool:
    """True if the message is `ancestor_id` or a reply to it, directly or not."""
    for _ in range(MAX_HOPS + 1):
        if message_id is None or message_id == ancestor_id:
            break
        row = db.execute(PARENT, (message_id,)).fetchone()
        message_id = row[0] if row else None
    return message_id == ancestor_id


OPEN = """
    SELECT step.conversation_id, step.job_id FROM step_messages AS step JOIN job_queue ON job_queue.id = step.job_id
     WHERE step.success_topic IS NOT NULL AND job_queue.status IN ('queued', 'running')
"""


def waiting_steps(db: Db) -> list[tuple[str, str]]:
    """Return the conversation and the job of each step that waits for a reply."""
    return list(db.execute(OPEN))
