"""Publish: conversations, order, delays, limits; lists are all or none."""

import sqlite3
from datetime import timedelta

import pytest

from ductile.core.errors import DuctileError
from ductile.core.message import (
    MAX_HOPS,
    HopsExceeded,
    MessageState,
    NewMessage,
    ParentUnknown,
    ReplyTopics,
    TopicFull,
    TopicRules,
)
from ductile.ledger.exchange.rows import require_message
from ductile.ledger.exchange.tracking import mark_notified, tracked_conversations
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import journal
from tests.ledger.exchange.conftest import ALICE, TOPIC, ExchangeDriver


def test_a_message_is_stored_as_it_was_published(exchange: ExchangeDriver) -> None:
    message = exchange.publish("hällo\0", producer="shell", metadata_json='{"a":1}', conversation_id="talk")
    assert require_message(exchange.db, message.id) == message
    assert (message.published_by, message.producer, message.conversation_id) == (ALICE, "shell", "talk")
    assert exchange.state(message) is MessageState.READY


def test_a_conversation_is_the_given_one_or_the_parents_or_new(exchange: ExchangeDriver) -> None:
    first = exchange.publish()
    reply = exchange.publish(parent_id=first.id)
    other = exchange.publish(parent_id=reply.id, conversation_id="other")
    assert (first.conversation_id, reply.conversation_id, other.conversation_id) == (first.id, first.id, "other")
    assert [message.hops for message in (first, reply, other)] == [0, 1, 2]


def test_positions_follow_the_order_of_publishing(exchange: ExchangeDriver) -> None:
    published = exchange.publish_all(NewMessage(topic=TOPIC, body=str(n)) for n in range(3))
    exchange.advance(hours=-1)
    later = exchange.publish("3")
    seqs = [*(one.message.seq for one in published), later.seq]
    assert seqs == sorted(seqs)
    assert [one.message.body for one in exchange.claim(limit=10)] == ["0", "1", "2", "3"]


def test_a_list_is_stored_completely_or_not_at_all(exchange: ExchangeDriver) -> None:
    good = NewMessage(topic=TOPIC, body="good")
    with pytest.raises(ParentUnknown):
        exchange.publish_all([good, NewMessage(topic=TOPIC, body="bad", parent_id="nothing")])
    assert exchange.counts("messages", "deliveries", "journal") == [0, 0, 0]
    exchange.publish_all([good] * 1_000)
    assert exchange.counts("messages", "deliveries", "journal") == [1_000] * 3


def test_a_chain_of_replies_ends_at_the_hop_limit(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    for _ in range(MAX_HOPS):
        message = exchange.publish(parent_id=message.id)
    with pytest.raises(HopsExceeded):
        exchange.publish(parent_id=message.id)
    assert message.hops == MAX_HOPS


def test_a_message_cannot_be_changed(exchange: ExchangeDriver) -> None:
    exchange.publish()
    for column in ("body", "topic", "conversation_id"):
        with pytest.raises(sqlite3.IntegrityError, match="never changes"):
            exchange.db.execute(f"UPDATE messages SET {column} = 'x'")


def test_a_delayed_message_becomes_ready_when_it_is_due(exchange: ExchangeDriver) -> None:
    delayed = exchange.publish("later", delay=timedelta(minutes=10))
    now = exchange.publish("now")
    assert exchange.state(delayed) is MessageState.DELAYED
    assert [one.message.id for one in exchange.claim(limit=5)] == [now.id]
    exchange.advance(minutes=10)
    assert [one.message.id for one in exchange.claim(limit=5)] == [delayed.id]


def test_a_clock_that_is_set_back_does_not_prolong_a_delay(exchange: ExchangeDriver) -> None:
    delayed = exchange.publish(delay=timedelta(minutes=10))
    exchange.advance(hours=-1)
    assert exchange.claim_one().message_id == delayed.id


def test_a_full_topic_refuses_publishes_but_no_follow_ups(exchange: ExchangeDriver) -> None:
    exchange.topics["review.done"] = TopicRules(max_ready=2)
    exchange.publish()
    exchange.publish(topic="review.done", delay=timedelta(hours=1))
    exchange.publish(topic="other")  # messages of other topics do not count
    exchange.publish(topic="review.done")
    with pytest.raises(TopicFull):
        exchange.publish(topic="review.done")
    ended = exchange.end(exchange.claim_one().id)
    assert getattr(ended, "follow_up", None) is not None
    exchange.claim_one("review.done")
    with pytest.raises(TopicFull):
        exchange.publish_all([NewMessage(topic="review.done", body="")] * 2)


def test_claimed_messages_leave_room_in_their_topic(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_ready=1)
    exchange.publish()
    exchange.claim_one()
    exchange.publish()
    with pytest.raises(TopicFull):
        exchange.publish()


def test_the_journal_has_the_message_but_never_its_body(exchange: ExchangeDriver) -> None:
    message = exchange.publish("a secret", producer="shell", metadata_json='{"secret":1}')
    (entry,) = journal.of_message(exchange.db, message.id)
    assert (entry.kind, entry.actor, entry.message_id) == ("message.published", ALICE, message.id)
    assert entry.data["bytes"] == 8
    assert "secret" not in str(entry.data)


def test_a_tracked_conversation_is_notified_once(exchange: ExchangeDriver) -> None:
    topics = ReplyTopics(success="review.done", failure="review.failed", timeout="review.request.timed_out")
    message = exchange.publish(reply_topics=topics)
    (tracked,) = tracked_conversations(exchange.db, ALICE)
    assert (tracked.conversation_id, tracked.request_id, tracked.topics) == (message.id, message.id, topics)
    assert tracked_conversations(exchange.db, "token:other") == []
    with transaction(exchange.db):
        marks = [mark_notified(exchange.db, message.id, ALICE, now=exchange.now) for _ in range(2)]
    assert marks == [True, False]
    assert tracked_conversations(exchange.db, ALICE) == []


def test_each_caller_tracks_a_conversation_for_itself(exchange: ExchangeDriver) -> None:
    topics = ReplyTopics(success="review.done", failure="review.failed", timeout="review.request.timed_out")
    first = exchange.publish(reply_topics=topics)
    new = NewMessage(topic=TOPIC, body="x", conversation_id=first.id, reply_topics=topics)
    exchange.publish_all([new], actor="token:other")
    with transaction(exchange.db):
        assert mark_notified(exchange.db, first.id, "token:other", now=exchange.now)
    (tracked,) = tracked_conversations(exchange.db, ALICE)
    assert tracked.request_id == first.id


def test_every_refusal_has_a_code_and_a_hint(exchange: ExchangeDriver) -> None:
    for new in (NewMessage(topic=TOPIC, body="", parent_id="nothing"),):
        with pytest.raises(DuctileError) as refused:
            exchange.publish_all([new])
        assert refused.value.code == "parent_unknown"
        assert refused.value.hint
