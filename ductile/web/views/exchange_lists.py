"""Lists of messages, topics and conversations as JSON data, read from the ledger for the API and the CLI.

`allowed` are the topics and patterns whose messages the caller may read; None is every topic.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, TypedDict

from ductile.core.clock import to_text, to_text_or_none
from ductile.core.formats.json_schema import Count, Timestamp
from ductile.core.message import (
    TIMEOUT_SUFFIX,
    Claim,
    MessageState,
    MessageUnknown,
    ReplyTopics,
    RulesOf,
    TopicInvalid,
    default_reply_topics,
    topic_matches,
)
from ductile.core.statuses import ReplyState
from ductile.ledger.exchange.conversations import find_reply
from ductile.ledger.exchange.message_list import NEWEST, MessageFilter, list_messages, message_details
from ductile.ledger.exchange.rows import require_message
from ductile.ledger.exchange.topics import TopicReport, topic_reports
from ductile.ledger.exchange.tracking import tracked_conversations
from ductile.ledger.storage.db import Db
from ductile.web.views.exchange import ClaimView, MessageView, claim_view, message_view

Allowed = tuple[str, ...] | None


class ListedMessageView(MessageView):
    """A message in a list."""

    state: MessageState
    deliveries: Annotated[Count, "How often it was claimed; null if it is decided"] | None


class MessageListView(TypedDict):
    """A page of messages."""

    messages: list[ListedMessageView]
    next: Annotated[int, "Position for `after` of the next page, also if there is none yet"]
    has_more: Annotated[bool, "True if the next page may have messages now"]


class MessageDetailsView(ListedMessageView):
    """A message with its claims and replies."""

    ready_at: Annotated[Timestamp, "Since when it was ready; null if it is decided"] | None
    available_at: Annotated[Timestamp, "When a delayed message becomes ready"] | None
    last_reason: Annotated[str, "Why it was returned the last time"] | None
    key_holder: Annotated[str, "The message of its ordering key that it waits for"] | None
    claims: Annotated[list[ClaimView], "Oldest first"]
    replies: Annotated[list[MessageView], "Messages with this parent, without their bodies"]


class ConversationView(TypedDict):
    """Whether a request has its reply."""

    conversation_id: str
    state: ReplyState
    reply: Annotated[MessageView, "null while there is none, or if the caller may not read its topic"] | None


class TopicView(TypedDict):
    topic: str
    ready: Count
    delayed: Count
    waiting: Annotated[Count, "Messages that wait for another one of their ordering key"]
    claimed: Count
    dead: Annotated[Count, "Dead letters that no worker has claimed"]
    oldest_ready_at: Timestamp | None
    last_claimed_at: Annotated[Timestamp, "null if no worker has claimed from it"] | None
    waiting_workers: Annotated[Count, "Requests that wait for a message of it; null without a service"] | None
    paused: bool
    pause_reason: str | None
    paused_at: Timestamp | None


class TopicListView(TypedDict):
    """Topics that have messages, by name."""

    topics: list[TopicView]
    next: Annotated[str, "Name for `after` of the next page"] | None


class TrackedView(TypedDict):
    """A conversation whose sender waits for the reply."""

    conversation_id: str
    request_id: str
    success_topic: str
    failure_topic: str
    timeout_topic: str
    created_at: Timestamp
    state: ReplyState
    reply: MessageView | None


class TrackedListView(TypedDict):
    """Tracked conversations of which the sender was not notified, oldest first."""

    tracked: list[TrackedView]


def message_list_view(
    db: Db, wanted: MessageFilter, *, after: int = 0, limit: int, newest_first: bool = False, with_body: bool = True
) -> MessageListView:
    """Return the matching messages after a position, in the order of publishing or the opposite one."""
    before = None if not newest_first else after or NEWEST
    page = list_messages(
        db, wanted, after=0 if newest_first else after, before=before, limit=limit, with_body=with_body
    )
    messages: list[ListedMessageView] = [
        {
            **message_view(each.message, shows_body=with_body),
            "state": each.state,
            "deliveries": each.deliveries,
        }
        for each in page.items
    ]
    return {
        "messages": messages,
        "next": after if page.position == NEWEST else page.position,
        "has_more": page.has_more,
    }


def message_details_view(
    db: Db,
    message_id: str,
    *,
    lease_seconds: Callable[[Claim], float | None] = lambda _claim: None,
    allowed: Allowed = None,
) -> MessageDetailsView:
    """Return everything about a message. Raises MessageUnknown, also if the caller may not read its topic."""
    details = message_details(db, message_id)
    if not may_read(allowed, details.message.topic):
        raise unknown_message(message_id)
    delivery = details.delivery
    return {
        **message_view(details.message),
        "state": details.state,
        "deliveries": delivery.deliveries if delivery else None,
        "ready_at": to_text(delivery.ready_at) if delivery else None,
        "available_at": to_text_or_none(delivery.available_at) if delivery else None,
        "last_reason": delivery.last_reason if delivery else None,
        "key_holder": delivery.key_holder if delivery else None,
        "claims": [claim_view(claim, lease_seconds(claim)) for claim in details.claims],
        "replies": [message_view(each, shows_body=False) for each in details.replies if may_read(allowed, each.topic)],
    }


def conversation_view(
    db: Db,
    conversation_id: str,
    topics: ReplyTopics | None = None,
    *,
    request_id: str | None = None,
    first: bool = False,
    allowed: Allowed = None,
) -> ConversationView:
    """Return the state of the conversation and its last reply, or the first one; with a request, of those after it.

    Without `topics`, the reply is expected on the default topics. Raises MessageUnknown and TopicInvalid.
    """
    topics = topics or reply_topics(db, conversation_id, request_id=request_id)
    found = find_reply(db, conversation_id, topics, request_id=request_id, first=first)
    is_shown = found.message is not None and may_read(allowed, found.message.topic)
    return {
        "conversation_id": conversation_id,
        "state": found.state,
        "reply": message_view(found.message) if is_shown and found.message else None,
    }


def reply_topics(
    db: Db,
    conversation_id: str,
    *,
    request_id: str | None = None,
    success: str | None = None,
    failure: str | None = None,
    timeout: str | None = None,
) -> ReplyTopics:
    """Return the topics of the replies. The default of each follows from the topic of the request.

    The request is the first message of the conversation, unless it is named. Raises MessageUnknown and TopicInvalid.
    """
    topic = _topic_of_request(db, conversation_id, request_id)
    defaults = default_reply_topics(topic)
    if defaults is None and not (success and failure):
        hint = "Only X.request has default reply topics. Name them with success_topic and failure_topic."
        raise TopicInvalid(f"the topics of the replies in conversation {conversation_id} are not known", hint=hint)
    return ReplyTopics(
        success=success or (defaults.success if defaults else ""),
        failure=failure or (defaults.failure if defaults else ""),
        timeout=timeout or topic + TIMEOUT_SUFFIX,
    )


def _topic_of_request(db: Db, conversation_id: str, request_id: str | None) -> str:
    if request_id is not None:
        return require_message(db, request_id).topic
    first = list_messages(db, MessageFilter(conversation_id=conversation_id), limit=1, with_body=False).items
    if not first:
        raise MessageUnknown(f"conversation {conversation_id[:80]} has no message")
    return first[0].message.topic


def topic_list_view(
    db: Db,
    rules: RulesOf,
    *,
    pattern: str | None = None,
    allowed: Allowed = None,
    after: str = "",
    limit: int,
    waiting: Callable[[str], int | None] = lambda _topic: None,
) -> TopicListView:
    """Return the topics after a name that match and that the caller may read."""
    patterns = (pattern,) if pattern else None
    reports = topic_reports(
        db,
        rules,
        after=after,
        limit=limit,
        is_wanted=lambda topic: may_read(patterns, topic) and may_read(allowed, topic),
    )
    return {
        "topics": [_topic_view(report, waiting(report.topic)) for report in reports],
        "next": reports[-1].topic if len(reports) == limit else None,
    }


def tracked_view(db: Db, actor: str, *, limit: int, allowed: Allowed = None) -> TrackedListView:
    """Return the conversations that the caller tracks, with their first reply."""
    views: list[TrackedView] = []
    for tracked in tracked_conversations(db, actor, limit=limit):
        topics, request_id = tracked.topics, tracked.request_id
        found = conversation_view(
            db, tracked.conversation_id, topics, request_id=request_id, first=True, allowed=allowed
        )
        views.append(
            {
                "conversation_id": tracked.conversation_id,
                "request_id": tracked.request_id,
                "success_topic": topics.success,
                "failure_topic": topics.failure,
                "timeout_topic": topics.timeout,
                "created_at": to_text(tracked.created_at),
                "state": found["state"],
                "reply": found["reply"],
            }
        )
    return {"tracked": views}


def may_read(allowed: Iterable[str] | None, topic: str) -> bool:
    """True if one of the patterns matches the topic."""
    return allowed is None or any(topic_matches(pattern, topic) for pattern in allowed)


def unknown_message(message_id: str) -> MessageUnknown:
    return MessageUnknown(f"message {message_id[:80]} does not exist")


def _topic_view(report: TopicReport, waiting_workers: int | None) -> TopicView:
    return {
        "topic": report.topic,
        "ready": report.ready,
        "delayed": report.delayed,
        "waiting": report.waiting,
        "claimed": report.claimed,
        "dead": report.dead,
        "oldest_ready_at": to_text_or_none(report.oldest_ready_at),
        "last_claimed_at": to_text_or_none(report.last_claimed_at),
        "waiting_workers": waiting_workers,
        "paused": report.pause is not None,
        "pause_reason": report.pause.reason if report.pause else None,
        "paused_at": to_text(report.pause.paused_at) if report.pause else None,
    }
