"""Claims: exclusive, in order, fenced by their id; ends, releases and expiries."""

import sqlite3
from datetime import timedelta

import pytest

from ductile.core.message import (
    MAX_HOPS,
    Claim,
    ClaimStatus,
    ClaimUnknown,
    FollowUp,
    MessageState,
    NewMessage,
    TopicRules,
)
from ductile.ledger.exchange import claim as claims
from ductile.ledger.exchange import finish, operate, rows
from ductile.ledger.exchange.claim import Worker
from ductile.ledger.exchange.finish import Ended, LostClaim, Returned
from ductile.ledger.exchange.rows import require_claim
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import journal
from tests.ledger.exchange.conftest import ALICE, BOB, TOPIC, ExchangeDriver


def test_a_message_is_claimed_by_one_worker(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    (one,) = exchange.claim()
    assert (one.message, one.claim.delivery, one.claim.claimed_by) == (message, 1, BOB)
    assert require_claim(exchange.db, one.claim.id) == one.claim
    assert exchange.claim() == []
    assert exchange.state(message) is MessageState.CLAIMED


def test_several_topics_are_claimed_in_order_of_arrival(exchange: ExchangeDriver) -> None:
    bodies = [exchange.publish(str(n), topic="b" if n % 2 else "a").body for n in range(4)]
    assert [one.message.body for one in exchange.claim("b", "a", "a", limit=3)] == bodies[:3]


def test_the_end_of_a_claim_publishes_its_follow_up(exchange: ExchangeDriver) -> None:
    message = exchange.publish(conversation_id="talk")
    ended = exchange.end(exchange.claim_one().id, body="answer")
    assert isinstance(ended, Ended)
    answer = ended.follow_up
    assert answer is not None
    assert (answer.topic, answer.body, answer.parent_id) == ("review.done", "answer", message.id)
    assert (answer.conversation_id, answer.producer, answer.published_by) == ("talk", "reviewers", BOB)
    assert (answer.hops, ended.woken) == (1, ("review.done",))
    assert exchange.state(message) is MessageState.COMPLETED
    assert exchange.kinds(message) == ["published", "claimed", "completed"]


@pytest.mark.parametrize("status", [ClaimStatus.COMPLETED, ClaimStatus.FAILED, ClaimStatus.TIMED_OUT])
def test_a_decided_message_is_never_delivered_again(exchange: ExchangeDriver, status: ClaimStatus) -> None:
    message = exchange.publish()
    exchange.end(exchange.claim_one().id, status, topic=None)
    exchange.advance(days=1)
    assert exchange.claim() == []
    assert exchange.state(message) == MessageState(status)


def test_the_same_end_again_has_the_same_answer(exchange: ExchangeDriver) -> None:
    exchange.publish()
    claim = exchange.claim_one()
    first, again = exchange.end(claim.id), exchange.end(claim.id)
    assert isinstance(first, Ended)
    assert isinstance(again, Ended)
    assert (again.follow_up, again.claim, again.is_repeat) == (first.follow_up, first.claim, True)
    assert exchange.counts("messages") == [2]


def test_another_end_of_an_ended_claim_is_late(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    claim = exchange.claim_one()
    exchange.end(claim.id)
    others = [
        exchange.end(claim.id, ClaimStatus.FAILED),
        exchange.end(claim.id, body="another"),
        exchange.end(claim.id, topic="elsewhere"),
        exchange.end(claim.id, topic=None),
    ]
    assert [type(other) for other in others] == [LostClaim] * 4
    assert exchange.counts("messages") == [2]
    assert exchange.kinds(message)[3:] == ["late"] * 4


def test_a_lost_worker_learns_who_has_the_message(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    lost = exchange.claim_one()
    exchange.advance(minutes=2)
    exchange.expire(lost.id)
    exchange.advance(seconds=3)
    (taken,) = exchange.claim(worker=Worker(group="others", instance_id="host-2", actor=ALICE))
    exchange.advance(seconds=5)
    late = exchange.end(lost.id, body="too late")
    assert isinstance(late, LostClaim)
    assert (late.claim.status, late.state, late.holder) == (ClaimStatus.EXPIRED, MessageState.CLAIMED, taken.claim)
    error = late.error()
    assert (error.code, error.status, error.context["claimed_by_group"]) == ("claim_lost", 409, "others")
    entry = journal.of_message(exchange.db, message.id)[-1]
    assert (entry.kind, entry.data["late_ms"], entry.data["bytes"]) == ("message.late", 8_000, 8)
    assert "too late" not in str(entry.data)


def test_an_expired_message_returns_to_the_front(exchange: ExchangeDriver) -> None:
    first, second = exchange.publish("1"), exchange.publish("2")
    lost = exchange.claim_one()
    (returned,) = exchange.expire(lost.id)
    assert (returned.state, returned.woken) == (MessageState.READY, (TOPIC,))
    claimed = exchange.claim(limit=2)
    assert [one.message.id for one in claimed] == [first.id, second.id]
    assert [one.claim.delivery for one in claimed] == [2, 1]
    assert require_claim(exchange.db, lost.id).status is ClaimStatus.EXPIRED


def test_only_active_claims_expire(exchange: ExchangeDriver) -> None:
    exchange.publish()
    claim = exchange.claim_one()
    exchange.end(claim.id)
    assert exchange.expire(claim.id, "unknown") == []


def test_at_the_last_delivery_a_message_is_dead(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=2)
    message = exchange.publish("poison", producer="shell")
    exchange.expire(exchange.claim_one().id)
    (returned,) = exchange.expire(exchange.claim_one().id)
    letter = returned.dead_letter
    assert letter is not None
    assert (letter.topic, letter.body, letter.parent_id) == (f"{TOPIC}.dead", "poison", message.id)
    assert (letter.is_dead_letter, letter.producer, returned.woken) == (True, "shell", (f"{TOPIC}.dead",))
    assert exchange.state(message) is MessageState.DEAD
    assert exchange.kinds(message)[-2:] == ["expired", "dead"]
    assert exchange.claim() == []


def test_a_dead_letter_has_no_dead_letter(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=1, dead_letter=TOPIC)
    message = exchange.publish()
    exchange.expire(exchange.claim_one().id)
    letter = exchange.claim_one()
    (returned,) = exchange.expire(letter.id)
    assert (returned.state, returned.dead_letter, letter.message_id == message.id) == (MessageState.DEAD, None, False)
    assert exchange.counts("messages", "deliveries") == [2, 0]


def test_without_a_limit_a_message_is_delivered_forever(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=0)
    message = exchange.publish()
    for _ in range(20):
        exchange.expire(exchange.claim_one().id)
    assert exchange.state(message) is MessageState.READY


def test_a_dead_letter_is_published_beyond_the_hop_limit(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=1)
    message = exchange.publish(topic="chain")
    for _ in range(MAX_HOPS - 1):
        message = exchange.publish(topic="chain", parent_id=message.id)
    exchange.publish(parent_id=message.id)
    (returned,) = exchange.expire(exchange.claim_one().id)
    assert returned.dead_letter is not None


def test_a_follow_up_beyond_the_hop_limit_is_refused_but_the_claim_ends(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    for _ in range(MAX_HOPS):
        message = exchange.publish(topic="last", parent_id=message.id)
    (claimed,) = exchange.claim("last", limit=100)[-1:]
    ended = exchange.end(claimed.claim.id)
    assert isinstance(ended, Ended)
    assert (ended.refused, ended.follow_up) == ("hops_exceeded", None)
    assert exchange.state(message) is MessageState.COMPLETED
    assert exchange.kinds(message)[2:] == ["refused", "completed"]
    again = exchange.end(claimed.claim.id)
    assert isinstance(again, Ended)
    assert (again.refused, again.is_repeat) == ("hops_exceeded", True)


def test_a_released_message_is_ready_again(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    claim = exchange.claim_one()
    released = exchange.release(claim.id, reason="busy")
    assert isinstance(released, Returned)
    assert (released.state, released.claim.status, released.claim.reason) == (
        MessageState.READY,
        ClaimStatus.RELEASED,
        "busy",
    )
    again = exchange.release(claim.id)
    assert isinstance(again, Returned)
    assert again.is_repeat
    assert exchange.kinds(message) == ["published", "claimed", "released"]
    assert exchange.claim_one().delivery == 2


def test_a_release_can_delay_the_next_delivery(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    exchange.release(exchange.claim_one().id, delay=timedelta(minutes=1))
    assert (exchange.state(message), exchange.claim()) == (MessageState.DELAYED, [])
    assert claims.next_due(exchange.db) == exchange.now + timedelta(minutes=1)
    exchange.advance(minutes=1)
    with transaction(exchange.db):
        assert claims.wake_due(exchange.db, now=exchange.now) == [TOPIC]
    assert exchange.claim_one().message_id == message.id


def test_an_uncounted_release_uses_up_no_delivery(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=1)
    message = exchange.publish()
    for _ in range(3):
        exchange.release(exchange.claim_one().id, uncounted=True)
    assert exchange.state(message) is MessageState.READY
    exchange.release(exchange.claim_one().id)
    assert exchange.state(message) is MessageState.DEAD


def test_a_handover_continues_the_conversation_on_another_topic(exchange: ExchangeDriver) -> None:
    message = exchange.publish("help", metadata_json='{"a":1}')
    claim = exchange.claim_one()
    with transaction(exchange.db):
        ended = finish.hand_over(exchange.db, claim.id, "human", now=exchange.now, actor=BOB, rules=exchange.rules)
    assert isinstance(ended, Ended)
    assert ended.follow_up is not None
    assert (ended.follow_up.topic, ended.follow_up.body, ended.follow_up.metadata_json) == ("human", "help", '{"a":1}')
    assert ended.follow_up.conversation_id == message.conversation_id


def test_a_lease_is_extended_only_while_the_claim_is_active(exchange: ExchangeDriver) -> None:
    exchange.publish()
    claim = exchange.claim_one()
    with transaction(exchange.db):
        extended = finish.extend(exchange.db, claim.id, lease=timedelta(hours=1), now=exchange.now, actor=BOB)
        assert isinstance(extended, Claim)
        assert require_claim(exchange.db, claim.id) == extended
    exchange.expire(claim.id)
    with transaction(exchange.db):
        assert isinstance(
            finish.extend(exchange.db, claim.id, lease=timedelta(hours=1), now=exchange.now, actor=BOB), LostClaim
        )


def test_unknown_and_foreign_claims_are_refused(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    claim = exchange.claim_one()
    with pytest.raises(ClaimUnknown):
        exchange.end("nothing")
    with pytest.raises(ClaimUnknown):
        exchange.end(claim.id, actor=ALICE)
    with pytest.raises(ClaimUnknown), transaction(exchange.db):
        finish.extend(exchange.db, claim.id, lease=timedelta(hours=1), now=exchange.now, actor=ALICE)
    assert exchange.state(message) is MessageState.CLAIMED


def test_messages_of_one_ordering_key_are_delivered_one_after_the_other(exchange: ExchangeDriver) -> None:
    keyed = [exchange.publish(str(n), ordering_key="k") for n in range(3)]
    free = exchange.publish("free")
    assert [exchange.state(message) for message in keyed] == [MessageState.READY, *[MessageState.WAITING] * 2]
    first, _ = exchange.claim(limit=10)
    assert exchange.claim() == []
    exchange.expire(first.claim.id)
    again = exchange.claim_one()
    ended = exchange.end(again.id, topic=None)
    assert isinstance(ended, Ended)
    assert ended.woken == (TOPIC,)
    assert exchange.claim_one().message_id == keyed[1].id
    assert exchange.state(free) is MessageState.CLAIMED


def test_an_ordered_topic_delivers_one_message_of_a_conversation(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(ordered=True)
    first = exchange.publish()
    exchange.publish(parent_id=first.id)
    other = exchange.publish()
    assert [one.message.id for one in exchange.claim(limit=5)] == [first.id, other.id]


def test_a_delayed_message_holds_its_ordering_key(exchange: ExchangeDriver) -> None:
    delayed = exchange.publish("1", ordering_key="k", delay=timedelta(minutes=1))
    exchange.publish("2", ordering_key="k", delay=timedelta(minutes=5))
    assert exchange.claim() == []
    exchange.advance(minutes=1)
    claim = exchange.claim_one()
    assert claim.message_id == delayed.id
    exchange.end(claim.id, topic=None)
    assert exchange.claim() == []
    exchange.advance(minutes=4)
    assert len(exchange.claim()) == 1


def test_a_dead_message_frees_its_ordering_key(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=1)
    exchange.publish("1", ordering_key="k")
    second = exchange.publish("2", ordering_key="k")
    exchange.expire(exchange.claim_one().id)
    assert exchange.claim_one().message_id == second.id


def test_a_service_finds_its_active_claims_after_a_restart(exchange: ExchangeDriver) -> None:
    for _ in range(4):
        exchange.publish()
    ended, active, consumer = exchange.claim_one(), exchange.claim_one(), exchange.claim(lease=None)[0].claim
    exchange.end(ended.id)
    assert claims.active_claims(exchange.db) == [active]
    assert consumer.lease_until is None


def test_the_claim_of_a_consumer_is_found_by_its_run(exchange: ExchangeDriver) -> None:
    exchange.publish()
    (claimed,) = exchange.claim(lease=None)
    with transaction(exchange.db):
        claims.set_job(exchange.db, claimed.claim.id, "job-1")
    found = rows.claim_of_job(exchange.db, "job-1")
    assert found is not None
    assert found.id == claimed.claim.id
    assert rows.claim_of_job(exchange.db, "job-2") is None


def test_two_active_claims_of_a_message_are_impossible(exchange: ExchangeDriver) -> None:
    exchange.publish()
    claim = exchange.claim_one()
    with pytest.raises(sqlite3.IntegrityError):
        exchange.db.execute(
            "INSERT INTO claims (id, message_id, topic, worker_group, worker_instance_id, claimed_at, status, delivery,"
            " claimed_by) VALUES ('x', ?, 't', 'g', 'i', '2026', 'active', 1, 'a')",
            (claim.message_id,),
        )


def test_an_end_that_is_rolled_back_leaves_the_claim_active(exchange: ExchangeDriver) -> None:
    """Claim, delivery, follow-up and journal are one transaction."""
    message = exchange.publish()
    claim = exchange.claim_one()
    before = exchange.counts("messages", "deliveries", "claims", "journal")
    exchange.db.execute("BEGIN")
    follow_up, completed = FollowUp(topic="review.done", body="x"), ClaimStatus.COMPLETED
    finish.end(exchange.db, claim.id, completed, now=exchange.now, actor=BOB, rules=exchange.rules, follow_up=follow_up)
    exchange.db.execute("ROLLBACK")
    assert exchange.counts("messages", "deliveries", "claims", "journal") == before
    assert exchange.state(message) is MessageState.CLAIMED


def test_a_paused_topic_with_many_messages_costs_no_more(exchange: ExchangeDriver) -> None:
    exchange.publish_all([NewMessage(topic=TOPIC, body="x")] * 1_000)
    with transaction(exchange.db):
        operate.pause_topic(exchange.db, TOPIC, "maintenance", now=exchange.now, actor=ALICE)
    tens_of_steps = []
    exchange.db.set_progress_handler(lambda: tens_of_steps.append(10), 10)
    assert exchange.claim() == []
    assert operate.unclaimed_messages(exchange.db, now=exchange.advance(hours=1), rules=exchange.rules) == []
    exchange.db.set_progress_handler(None, 0)
    assert sum(tens_of_steps) < 1_000
