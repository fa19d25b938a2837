"""Retention deletes whole conversations that have expired and of which nothing is open."""

from datetime import timedelta

from attrs import define

from ductile.core.message import TopicRules
from ductile.ledger.exchange import retention
from ductile.ledger.exchange.retention import OLDEST, delete_conversations, expired_conversations
from ductile.ledger.storage.connections import transaction
from tests.ledger.exchange.conftest import ExchangeDriver

TABLES = ("messages", "deliveries", "claims", "tracked_conversations")


@define
class Pruned:
    ids: set[str]
    deleted: int


def prune(exchange: ExchangeDriver, last: int = 1 << 62, limit: int = 500) -> Pruned:
    shortest = min(span for rules in (TopicRules(), *exchange.topics.values()) if (span := rules.retention))
    pruned, position, ids = 0, None, set()
    while position != OLDEST:
        found = expired_conversations(
            exchange.db, exchange.rules, shortest=shortest, now=exchange.now, last=last, position=position or OLDEST
        )
        position = found.position
        ids |= set(found.ids)
        with transaction(exchange.db):
            more = found.ids
            while more:
                deleted = delete_conversations(
                    exchange.db, found.ids, exchange.rules, now=exchange.now, last=last, limit=limit
                )
                pruned += deleted
                more = found.ids if deleted else ()
    return Pruned(ids, pruned)


def test_a_conversation_is_deleted_after_its_last_message_has_expired(exchange: ExchangeDriver) -> None:
    first = exchange.publish()
    exchange.advance(days=29)
    exchange.end(exchange.claim_one().id)  # nothing claims from review.done
    exchange.advance(days=2)
    assert prune(exchange) == Pruned(set(), 0)
    exchange.advance(days=29)
    assert prune(exchange) == Pruned({first.id}, 2)
    assert exchange.counts(*TABLES) == [0, 0, 0, 0]


def test_a_conversation_with_an_open_message_is_kept(exchange: ExchangeDriver) -> None:
    exchange.publish()
    exchange.end(exchange.claim_one().id)
    waiting = exchange.publish()
    exchange.advance(days=31)
    assert prune(exchange).deleted == 2
    exchange.end(exchange.claim_one().id, topic=None)
    assert prune(exchange) == Pruned({waiting.id}, 1)


def test_a_message_is_not_open_on_a_topic_that_no_worker_claims_from(exchange: ExchangeDriver) -> None:
    exchange.publish(topic="inbox", ordering_key="k")
    kept = exchange.publish(topic="inbox", ordering_key="k", conversation_id="talk")
    exchange.advance(days=20)
    exchange.publish(topic="inbox", conversation_id="talk")
    exchange.advance(days=11)
    assert prune(exchange).deleted == 1
    assert exchange.claim_one("inbox").message_id == kept.id  # its ordering key is free


def test_each_topic_has_its_own_retention(exchange: ExchangeDriver) -> None:
    exchange.topics = {"short": TopicRules(retention=timedelta(days=1)), "forever": TopicRules(retention=None)}
    short, _ = exchange.publish(topic="short"), exchange.publish(topic="forever")
    mixed = exchange.publish(topic="short", conversation_id="mixed")
    exchange.publish(topic="other", conversation_id="mixed", parent_id=mixed.id)
    exchange.publish(topic="short", conversation_id="mixed")
    exchange.advance(days=2)
    assert prune(exchange).ids == {short.id}
    exchange.advance(days=400)
    assert prune(exchange).ids == {"mixed"}
    assert exchange.counts("messages") == [1]


def test_messages_after_the_watermark_are_kept(exchange: ExchangeDriver) -> None:
    """They are recent, whatever time a wrong clock gave them."""
    old, recent = exchange.publish(), exchange.publish()
    exchange.advance(days=31)
    assert prune(exchange, last=old.seq).ids == {old.id}
    assert prune(exchange, last=recent.seq).ids == {recent.id}


def test_a_large_conversation_is_deleted_in_parts(exchange: ExchangeDriver) -> None:
    for _ in range(7):
        exchange.publish(conversation_id="long")
        exchange.end(exchange.claim_one().id, topic=None)
    exchange.advance(days=31)
    assert prune(exchange, limit=3) == Pruned({"long"}, 7)
    assert exchange.counts("messages", "claims") == [0, 0]


def test_conversations_in_use_do_not_hide_expired_ones(exchange: ExchangeDriver) -> None:
    """A read continues where the last one ended."""
    for _ in range(retention.MAX_SCANNED + 10):
        exchange.publish(topic="log", conversation_id="long")
    expired = exchange.publish(topic="log")
    exchange.advance(days=31)
    exchange.publish(topic="log", conversation_id="long")
    assert prune(exchange).ids == {expired.id}
