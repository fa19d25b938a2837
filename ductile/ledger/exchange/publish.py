"""Publish messages: each becomes a row of `messages`, a delivery and a journal entry in the caller's transaction.

Follow-ups and dead letters are published here too, without the limits that apply to callers.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from attrs import evolve, frozen

from ductile.core.clock import to_text, to_text_or_none
from ductile.core.instance.failpoints import failpoint
from ductile.core.message import (
    MAX_HOPS,
    FollowUp,
    HopsExceeded,
    Message,
    MessageState,
    NewMessage,
    ParentUnknown,
    ReplyTopics,
    RulesOf,
    TopicFull,
)
from ductile.core.model import Job
from ductile.ledger.exchange import tracking
from ductile.ledger.exchange.rows import claim_of_job, require_message
from ductile.ledger.exchange.waiting_steps import answer_steps
from ductile.ledger.jobs.enqueue import new_ids
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal

SERVICE = "service"
"""Publishes dead letters and the follow-ups of consumers."""


@frozen(kw_only=True)
class Published:
    """A new message and its state: ready, delayed, or waiting for another one of its ordering key."""

    message: Message
    state: MessageState


def publish(db: Db, news: Sequence[NewMessage], *, now: datetime, actor: str, rules: RulesOf) -> list[Published]:
    """Publish the messages in this order. `actor` is who sends them, whatever producer they name.

    Raises ParentUnknown, HopsExceeded or TopicFull; the caller rolls back, so all are written or none.
    """
    _check_room(db, news, rules)
    published = []
    for new, message_id in zip(news, new_ids(now, len(news)), strict=True):
        origin = _origin(db, new)
        draft = _Draft(new, message_id, origin, _ordering_key(new, origin, message_id, rules))
        one = _insert(db, draft, now=now, actor=actor)
        if new.reply_topics:
            tracking.track(db, one.message, new.reply_topics, now=now, actor=actor)
        published.append(one)
    failpoint("exchange.publish")
    _journal(db, published, now=now, actor=actor)
    return published


def publish_follow_up(
    db: Db, parent: Message, follow_up: FollowUp, *, producer: str, now: datetime, actor: str, rules: RulesOf
) -> Published:
    """Publish the answer of a worker to `parent`, in its conversation. Raises HopsExceeded."""
    return _publish_reply(
        db, parent, follow_up, hops=_next_hop(parent), producer=producer, actor=actor, now=now, rules=rules
    )


@frozen(kw_only=True)
class StepMessage:
    """The message of a step. `reply_id` is set once a reply has arrived."""

    message: Message
    reply: Message | None = None
    published: Published | None = None
    """Set if this call has published the message."""


STEP_MESSAGE = "SELECT message_id, reply_id FROM step_messages WHERE job_id = ? AND tries = ?"
PUT_STEP_MESSAGE = """
    INSERT INTO step_messages (job_id, tries, message_id, conversation_id, success_topic, failure_topic, timeout_topic)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (job_id) DO UPDATE
       SET tries = excluded.tries, message_id = excluded.message_id, conversation_id = excluded.conversation_id,
           success_topic = excluded.success_topic, failure_topic = excluded.failure_topic,
           timeout_topic = excluded.timeout_topic, reply_id = NULL
"""


def publish_for_step(
    db: Db, job: Job, new: NewMessage, replies: ReplyTopics | None, *, now: datetime, rules: RulesOf
) -> StepMessage:
    """Publish the message of this try of the job, or return it with its reply if that was done before.

    In a run that a message started, it is a follow-up of that message. With `replies`, the step waits for one of them.
    Raises HopsExceeded or TopicFull.
    """
    tries = job.tries - job.recoveries  # a try that the service did not survive may have published
    row = db.execute(STEP_MESSAGE, (job.id, tries)).fetchone()
    if row is not None:
        message_id, reply_id = row
        return StepMessage(
            message=require_message(db, message_id), reply=require_message(db, reply_id) if reply_id else None
        )
    origin = claim_of_job(db, job.root_job_id)
    if origin is not None:
        new = evolve(new, parent_id=origin.message_id)
    (published,) = publish(db, [new], now=now, actor=SERVICE, rules=rules)
    message = published.message
    topics = (replies.success, replies.failure, replies.timeout) if replies else (None, None, None)
    db.execute(PUT_STEP_MESSAGE, (job.id, tries, message.id, message.conversation_id, *topics))
    return StepMessage(message=message, published=published)


def publish_dead_letter(
    db: Db, parent: Message, metadata_json: str, *, topic: str, now: datetime, rules: RulesOf
) -> Published:
    """Publish the dead letter of `parent`: its body, on `topic`. It is never refused."""
    dead_letter = FollowUp(topic=topic, body=parent.body, metadata_json=metadata_json)
    hops = min(parent.hops + 1, MAX_HOPS)
    return _publish_reply(
        db,
        parent,
        dead_letter,
        hops=hops,
        producer=parent.producer,
        actor=SERVICE,
        now=now,
        rules=rules,
        is_dead_letter=True,
    )


def _publish_reply(
    db: Db,
    parent: Message,
    reply: FollowUp,
    *,
    hops: int,
    producer: str | None,
    actor: str,
    now: datetime,
    rules: RulesOf,
    is_dead_letter: bool = False,
) -> Published:
    new = NewMessage(
        topic=reply.topic,
        body=reply.body,
        metadata_json=reply.metadata_json,
        parent_id=parent.id,
        conversation_id=parent.conversation_id,
        producer=producer,
        source_job_id=reply.source_job_id,
    )
    origin = _Origin(parent.conversation_id, hops)
    (message_id,) = new_ids(now, 1)
    draft = _Draft(new, message_id, origin, _ordering_key(new, origin, message_id, rules), is_dead_letter)
    published = _insert(db, draft, now=now, actor=actor)
    _journal(db, [published], now=now, actor=actor)
    return published


@frozen
class _Origin:
    """What a message has from its parent: the conversation (None for a new one) and the length of the chain."""

    conversation_id: str | None = None
    hops: int = 0


@frozen
class _Draft:
    new: NewMessage
    id: str
    origin: _Origin
    ordering_key: str | None
    is_dead_letter: bool = False


COUNT_UNCLAIMED = """
    SELECT COUNT(*) FROM (SELECT 1 FROM deliveries WHERE topic = ? AND claim_id IS NULL LIMIT ?)
"""
OLDEST_UNCLAIMED = "SELECT MIN(seq) FROM deliveries WHERE topic = ? AND claim_id IS NULL"
NEWEST_UNCLAIMED = "SELECT MAX(seq) FROM deliveries WHERE topic = ? AND claim_id IS NULL"


def _check_room(db: Db, news: Sequence[NewMessage], rules: RulesOf) -> None:
    """Raise TopicFull if a topic would have more than `max_ready` messages that no worker has claimed."""
    for topic, count in Counter(new.topic for new in news).items():
        limit = rules(topic).max_ready
        oldest, newest = (db.execute(end, (topic,)).fetchone()[0] for end in (OLDEST_UNCLAIMED, NEWEST_UNCLAIMED))
        if oldest is None or newest - oldest + 1 + count <= limit:
            unclaimed = 0 if oldest is None else newest - oldest + 1
        else:
            unclaimed = db.execute(COUNT_UNCLAIMED, (topic, limit + 1)).fetchone()[0]
        if unclaimed + count > limit:
            raise TopicFull(
                f"topic {topic}: {count} more would exceed the limit of {limit:,} messages that wait for a worker",
                context={"topic": topic, "max_ready": limit},
            )


PARENT = "SELECT conversation_id, hops FROM messages WHERE id = ?"


def _origin(db: Db, new: NewMessage) -> _Origin:
    if new.parent_id is None:
        return _Origin(new.conversation_id)
    row = db.execute(PARENT, (new.parent_id,)).fetchone()
    if row is None:
        raise ParentUnknown(f"parent {new.parent_id} does not exist", context={"parent_id": new.parent_id})
    conversation_id, hops = row
    _check_hops(new.parent_id, hops)
    return _Origin(new.conversation_id or conversation_id, hops + 1)


def _next_hop(parent: Message) -> int:
    _check_hops(parent.id, parent.hops)
    return parent.hops + 1


def _check_hops(parent_id: str, hops: int) -> None:
    if hops >= MAX_HOPS:
        raise HopsExceeded(
            f"a reply to {parent_id} would be more than {MAX_HOPS} messages away from the first one",
            context={"parent_id": parent_id, "max_hops": MAX_HOPS},
        )


def _ordering_key(new: NewMessage, origin: _Origin, message_id: str, rules: RulesOf) -> str | None:
    if new.ordering_key is None and rules(new.topic).ordered:
        return origin.conversation_id or message_id
    return new.ordering_key


INSERT_MESSAGE = """
    INSERT INTO messages (id, topic, body, created_at, parent_id, conversation_id, producer, metadata_json,
                          ordering_key, hops, source_job_id, published_by, is_dead_letter)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    RETURNING seq
"""
INSERT_DELIVERY = """
    INSERT INTO deliveries (seq, message_id, topic, lane, ready_at, available_at, delayed_at, ordering_key, waits)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def _insert(db: Db, draft: _Draft, *, now: datetime, actor: str) -> Published:
    new, now_text = draft.new, to_text(now)
    conversation_id = draft.origin.conversation_id or draft.id
    content = (draft.id, new.topic, new.body, now_text, new.parent_id, conversation_id, new.producer)
    about = (new.metadata_json, draft.ordering_key, draft.origin.hops, new.source_job_id, actor, draft.is_dead_letter)
    seq: int = db.execute(INSERT_MESSAGE, (*content, *about)).fetchone()[0]
    message = Message(
        seq=seq,
        id=draft.id,
        topic=new.topic,
        body=new.body,
        created_at=now,
        parent_id=new.parent_id,
        conversation_id=conversation_id,
        producer=new.producer,
        metadata_json=new.metadata_json,
        ordering_key=draft.ordering_key,
        hops=draft.origin.hops,
        source_job_id=new.source_job_id,
        published_by=actor,
        is_dead_letter=draft.is_dead_letter,
    )
    answer_steps(db, message)
    return Published(message=message, state=insert_delivery(db, message, now=now, delay=new.delay))


KEY_IS_OPEN = "SELECT EXISTS (SELECT 1 FROM deliveries WHERE topic = ? AND ordering_key = ?)"


def insert_delivery(db: Db, message: Message, *, now: datetime, delay: timedelta = timedelta()) -> MessageState:
    """Offer the message to workers, after the delay and after those of its ordering key. Return its state."""
    waits = message.ordering_key is not None and bool(
        db.execute(KEY_IS_OPEN, (message.topic, message.ordering_key)).fetchone()[0]
    )
    available_at = now + delay if delay else None
    state = MessageState.WAITING if waits else MessageState.DELAYED if available_at else MessageState.READY
    lane, now_text = message.topic if state is MessageState.READY else None, to_text(now)
    delayed_at = now_text if available_at else None
    about = (message.seq, message.id, message.topic, lane, now_text, to_text_or_none(available_at), delayed_at)
    db.execute(INSERT_DELIVERY, (*about, message.ordering_key, waits))
    return state


def _journal(db: Db, published: Sequence[Published], *, now: datetime, actor: str) -> None:
    entries = [(one.message.id, one.message.source_job_id, _data(one)) for one in published]
    journal.append_of_messages(db, "message.published", entries, now=now, actor=actor)


def _data(published: Published) -> dict[str, Any]:
    message = published.message
    data: dict[str, Any] = {
        "topic": message.topic,
        "conversation_id": message.conversation_id,
        "bytes": len(message.body.encode()),
        "state": published.state,
        "parent_id": message.parent_id,
        "producer": message.producer,
        "ordering_key": message.ordering_key,
        "is_dead_letter": message.is_dead_letter or None,
    }
    return {name: value for name, value in data.items() if value is not None}
