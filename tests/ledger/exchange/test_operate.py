"""Operator actions: requeue, purge, pauses, and the report of messages that no worker claims."""

from datetime import timedelta

import pytest

from ductile.core.errors import WrongState
from ductile.core.message import ClaimStatus, MessageState, MessageUnknown, TopicRules
from ductile.ledger.exchange import operate
from ductile.ledger.exchange.message_list import message_details
from ductile.ledger.storage.connections import transaction
from tests.ledger.exchange.conftest import ALICE, TOPIC, ExchangeDriver


def requeue(exchange: ExchangeDriver, message_id: str) -> MessageState:
    with transaction(exchange.db):
        return operate.requeue(exchange.db, message_id, now=exchange.now, actor=ALICE)


def purge(exchange: ExchangeDriver, limit: int = 1_000) -> int:
    with transaction(exchange.db):
        return operate.purge(exchange.db, TOPIC, now=exchange.now, actor=ALICE, limit=limit)


def warn(exchange: ExchangeDriver) -> list[str]:
    found = operate.unclaimed_messages(exchange.db, now=exchange.now, rules=exchange.rules)
    with transaction(exchange.db):
        operate.warn_unclaimed(exchange.db, found, now=exchange.now)
        operate.warn_unclaimed(exchange.db, found, now=exchange.now)
    return [one.message_id for one in found]


def test_a_failed_or_dead_message_is_requeued_at_its_place(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=1)
    failed, dead, other = (exchange.publish(str(n)) for n in range(3))
    exchange.end(exchange.claim_one().id, ClaimStatus.FAILED, topic=None)
    exchange.expire(exchange.claim_one().id)
    assert [requeue(exchange, one.id) for one in (failed, dead)] == [MessageState.READY] * 2
    claimed = exchange.claim(limit=3)
    assert [one.message.id for one in claimed] == [failed.id, dead.id, other.id]
    assert {one.claim.delivery for one in claimed} == {1}
    assert exchange.kinds(failed)[-2:] == ["requeued", "claimed"]


def test_only_failed_timed_out_and_dead_messages_are_requeued(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    with pytest.raises(WrongState):
        requeue(exchange, message.id)
    claim = exchange.claim_one()
    with pytest.raises(WrongState):
        requeue(exchange, message.id)
    exchange.end(claim.id)
    with pytest.raises(WrongState):
        requeue(exchange, message.id)
    with pytest.raises(MessageUnknown):
        requeue(exchange, "nothing")


def test_a_requeued_message_waits_for_its_ordering_key(exchange: ExchangeDriver) -> None:
    first, second, third = (exchange.publish(str(n), ordering_key="k") for n in range(3))
    exchange.end(exchange.claim_one().id, ClaimStatus.FAILED, topic=None)
    running = exchange.claim_one()
    assert requeue(exchange, first.id) is MessageState.WAITING
    assert message_details(exchange.db, first.id).delivery.key_holder == second.id  # type: ignore[union-attr]
    exchange.end(running.id, topic=None)
    assert exchange.claim_one().message_id == first.id
    assert exchange.state(third) is MessageState.WAITING


def test_a_purge_ends_what_no_worker_has_claimed(exchange: ExchangeDriver) -> None:
    claimed = exchange.publish()
    exchange.claim_one()
    purged = [
        exchange.publish(),
        exchange.publish(delay=timedelta(hours=1)),
        exchange.publish(ordering_key="k"),
        exchange.publish(ordering_key="k"),
    ]
    elsewhere = exchange.publish(topic="other")
    assert [purge(exchange, limit=3), purge(exchange, limit=3), purge(exchange)] == [3, 1, 0]
    assert {exchange.state(message) for message in purged} == {MessageState.DEAD}
    assert exchange.state(claimed) is MessageState.CLAIMED
    assert exchange.state(elsewhere) is MessageState.READY
    assert exchange.kinds(purged[0]) == ["published", "purged"]


def test_a_purge_frees_the_ordering_keys_of_later_messages(exchange: ExchangeDriver) -> None:
    exchange.publish(ordering_key="k")
    later = exchange.publish(ordering_key="k")
    purge(exchange, limit=1)
    assert exchange.state(later) is MessageState.READY


def test_a_paused_topic_delivers_nothing(exchange: ExchangeDriver) -> None:
    message, other = exchange.publish(), exchange.publish(topic="other")
    with transaction(exchange.db):
        changes = [operate.pause_topic(exchange.db, TOPIC, "repair", now=exchange.now, actor=ALICE) for _ in range(2)]
    assert changes == [True, False]
    assert [one.message.id for one in exchange.claim(TOPIC, "other", limit=5)] == [other.id]
    (pause,) = operate.paused_topics(exchange.db)
    assert (pause.topic, pause.reason) == (TOPIC, "repair")
    with transaction(exchange.db):
        changes = [operate.resume_topic(exchange.db, TOPIC, now=exchange.now, actor=ALICE) for _ in range(2)]
    assert changes == [True, False]
    assert exchange.claim_one().message_id == message.id
    kinds = "SELECT kind, actor FROM journal WHERE kind LIKE 'topic.%' ORDER BY seq"
    assert exchange.db.execute(kinds).fetchall() == [("topic.paused", ALICE), ("topic.resumed", ALICE)]


def test_the_oldest_unclaimed_message_of_a_topic_is_journalled_once(exchange: ExchangeDriver) -> None:
    exchange.publish()
    exchange.end(exchange.claim_one().id, topic="review.done")
    oldest = exchange.publish()
    exchange.publish()
    exchange.advance(minutes=9)
    assert warn(exchange) == []
    exchange.advance(minutes=1)
    assert warn(exchange) == [oldest.id]  # review.done has no workers
    exchange.advance(minutes=10)
    assert warn(exchange) == []
    assert exchange.kinds(oldest) == ["published", "unclaimed"]
