"""The reply to a request: success, failure, timeout or dead, found in its conversation. Read-only."""

from attrs import frozen

from ductile.core.message import MAX_HOPS, Claim, Message, MessageState, MessageUnknown, ReplyTopics
from ductile.core.statuses import ReplyState
from ductile.ledger.exchange.rows import (
    CLAIM_COLUMNS,
    MESSAGE_COLUMNS,
    claim_from_row,
    find_message,
    message_from_row,
    require_message,
    state_of,
)
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class ConversationReply:
    """The state of a conversation. `message` is the reply; None while pending, or if the worker published none."""

    conversation_id: str
    state: ReplyState
    message: Message | None = None


_IS_REPLY = """
    (message.topic = :success OR message.topic = :failure OR message.topic = :timeout
     OR (message.is_dead_letter = 1
         AND (SELECT topic FROM messages AS parent WHERE parent.id = message.parent_id)
             NOT IN (:success, :failure, :timeout)))
"""
FIRST_REPLY = f"""
    SELECT {MESSAGE_COLUMNS} FROM messages AS message
     WHERE message.conversation_id = :conversation AND message.seq > :after AND {_IS_REPLY}
     ORDER BY message.seq LIMIT 1
"""
LAST_REPLY = FIRST_REPLY.replace("ORDER BY message.seq", "ORDER BY message.seq DESC")
FIRST_MESSAGE = f"""
    SELECT {MESSAGE_COLUMNS} FROM messages AS message WHERE conversation_id = ? ORDER BY seq LIMIT 1
"""


def find_reply(
    db: Db, conversation_id: str, topics: ReplyTopics, *, request_id: str | None = None, first: bool = False
) -> ConversationReply:
    """Return the last reply in the conversation, or the first. With `request_id`: of those after that message.

    Without a message on these topics, the end of the request decides, or of the message that it was handed over as.
    Raises MessageUnknown for an unknown conversation or request.
    """
    request = require_message(db, request_id) if request_id else _first_message(db, conversation_id)
    values = {
        "conversation": conversation_id,
        "after": request.seq if request_id else 0,
        "success": topics.success,
        "failure": topics.failure,
        "timeout": topics.timeout,
    }
    row = db.execute(FIRST_REPLY if first else LAST_REPLY, values).fetchone()
    if row is None:
        return ConversationReply(conversation_id=conversation_id, state=_end_of(db, request))
    message = message_from_row(row)
    return ConversationReply(conversation_id=conversation_id, state=_state_of_reply(message, topics), message=message)


def _first_message(db: Db, conversation_id: str) -> Message:
    row = db.execute(FIRST_MESSAGE, (conversation_id,)).fetchone()
    if row is None:
        raise MessageUnknown(f"conversation {conversation_id} has no message")
    return message_from_row(row)


def _state_of_reply(message: Message, topics: ReplyTopics) -> ReplyState:
    if message.topic == topics.success:
        return ReplyState.SUCCESS
    if message.topic == topics.failure and not message.is_dead_letter:
        return ReplyState.FAILURE
    return ReplyState.DEAD if message.is_dead_letter else ReplyState.TIMED_OUT


LAST_CLAIM = f"SELECT {CLAIM_COLUMNS} FROM claims WHERE message_id = ? ORDER BY seq DESC LIMIT 1"
_ENDS = {
    MessageState.COMPLETED: ReplyState.SUCCESS,
    MessageState.FAILED: ReplyState.FAILURE,
    MessageState.TIMED_OUT: ReplyState.TIMED_OUT,
    MessageState.DEAD: ReplyState.DEAD,
}


def _end_of(db: Db, request: Message) -> ReplyState:
    """Return how the request ended without a reply. A follow-up on another topic continues it."""
    message = request
    for _ in range(MAX_HOPS + 1):
        claim = _last_claim(db, message)
        follow_up = find_message(db, claim.follow_up_id) if claim and claim.follow_up_id else None
        state = state_of(db, message.id)
        if state.is_open or follow_up is None:
            return _ENDS.get(state, ReplyState.PENDING)
        message = follow_up
    return ReplyState.PENDING


def _last_claim(db: Db, message: Message) -> Claim | None:
    row = db.execute(LAST_CLAIM, (message.id,)).fetchone()
    return claim_from_row(row) if row else None
