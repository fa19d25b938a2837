"""Reports: lists with positions, details, replies of conversations, and what waits on each topic."""

from datetime import timedelta

import pytest

from ductile.core.message import ClaimStatus, MessageState, MessageUnknown, NewMessage, ReplyTopics, TopicRules
from ductile.core.statuses import ReplyState
from ductile.ledger.exchange import message_list, operate
from ductile.ledger.exchange.conversations import ConversationReply, find_reply
from ductile.ledger.exchange.message_list import MessageFilter, list_messages, message_details
from ductile.ledger.exchange.topics import topic_report, topic_reports
from ductile.ledger.storage.connections import transaction
from tests.ledger.exchange.conftest import ALICE, TOPIC, ExchangeDriver

TOPICS = ReplyTopics(success="review.done", failure="review.failed", timeout=f"{TOPIC}.timed_out")


def reply(exchange: ExchangeDriver, conversation_id: str, **values: object) -> ConversationReply:
    return find_reply(exchange.db, conversation_id, TOPICS, **values)  # type: ignore[arg-type]


def bodies(page: message_list.MessagePage) -> list[str]:
    return [item.message.body for item in page.items]


# ── lists ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_list_continues_at_its_position(exchange: ExchangeDriver) -> None:
    for number in range(5):
        exchange.publish(str(number))
    first = list_messages(exchange.db, limit=2)
    rest = list_messages(exchange.db, after=first.position)
    assert (bodies(first), first.has_more) == (["0", "1"], True)
    assert (bodies(rest), rest.has_more) == (["2", "3", "4"], False)
    assert bodies(list_messages(exchange.db, after=rest.position)) == []
    exchange.publish("5")
    assert bodies(list_messages(exchange.db, after=rest.position)) == ["5"]


def test_a_list_can_begin_with_the_newest(exchange: ExchangeDriver) -> None:
    for number in range(5):
        exchange.publish(str(number))
    page = list_messages(exchange.db, before=message_list.NEWEST, limit=2)
    assert bodies(page) == ["4", "3"]
    assert bodies(list_messages(exchange.db, before=page.position)) == ["2", "1", "0"]


def test_filters_select_messages(exchange: ExchangeDriver) -> None:
    parent = exchange.publish("parent", topic="a.request")
    exchange.publish("child", topic="a.done", parent_id=parent.id)
    exchange.publish("other", topic="b", delay=timedelta(hours=1))
    cases = {
        "parent child": MessageFilter(topics=("a.*",)),
        "child": MessageFilter(parent_id=parent.id),
        "other": MessageFilter(topics=("b",)),
        "parent": MessageFilter(conversation_id=parent.id, allowed=("a.request", "b")),
        "": MessageFilter(topics=("b",), allowed=("a.*",)),
        "parent child other": MessageFilter(allowed=("*",)),
    }
    found = {text: " ".join(bodies(list_messages(exchange.db, wanted))) for text, wanted in cases.items()}
    assert found == {text: text for text in cases}


def test_every_state_can_be_listed(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=1)
    ends = {"completed": ClaimStatus.COMPLETED, "failed": ClaimStatus.FAILED, "timed_out": ClaimStatus.TIMED_OUT}
    for body, status in ends.items():
        exchange.publish(body)
        exchange.end(exchange.claim_one().id, status, topic=None)
    exchange.publish("dead")
    exchange.expire(exchange.claim_one().id)
    exchange.publish("claimed")
    exchange.claim_one()
    exchange.publish("ready", ordering_key="k")
    exchange.publish("waiting", ordering_key="k")
    exchange.publish("delayed", delay=timedelta(hours=1))
    found = {
        state: bodies(list_messages(exchange.db, MessageFilter(topics=(TOPIC,), state=state))) for state in MessageState
    }
    assert found == {state: [state.value] for state in MessageState}


def test_a_list_can_leave_out_bodies(exchange: ExchangeDriver) -> None:
    exchange.publish("long")
    (item,) = list_messages(exchange.db, with_body=False).items
    assert (item.message.body, item.message.topic, item.deliveries) == ("", TOPIC, 0)


def test_a_page_has_a_limited_size(exchange: ExchangeDriver) -> None:
    exchange.publish_all([NewMessage(topic=TOPIC, body="x" * (6 << 20))] * 5)
    page = list_messages(exchange.db)
    assert (len(page.items), page.has_more) == (3, True)
    assert len(list_messages(exchange.db, after=page.position).items) == 2


def test_details_have_claims_replies_and_what_a_message_waits_for(exchange: ExchangeDriver) -> None:
    message = exchange.publish()
    exchange.expire(exchange.claim_one().id)
    details = message_details(exchange.db, message.id)
    assert details.delivery is not None
    assert (details.state, details.delivery.deliveries, details.delivery.last_reason) == ("ready", 1, "lease_over")
    exchange.end(exchange.claim_one().id)
    details = message_details(exchange.db, message.id)
    assert ([claim.status for claim in details.claims], details.delivery) == (["expired", "completed"], None)
    assert [one.topic for one in details.replies] == ["review.done"]
    with pytest.raises(MessageUnknown):
        message_details(exchange.db, "nothing")


# ── conversations ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "topic", "expected"),
    [
        (ClaimStatus.COMPLETED, "review.done", ReplyState.SUCCESS),
        (ClaimStatus.FAILED, "review.failed", ReplyState.FAILURE),
        (ClaimStatus.TIMED_OUT, f"{TOPIC}.timed_out", ReplyState.TIMED_OUT),
    ],
)
def test_every_end_of_a_worker_is_a_reply(
    exchange: ExchangeDriver, status: ClaimStatus, topic: str, expected: ReplyState
) -> None:
    request = exchange.publish()
    assert reply(exchange, request.id) == ConversationReply(conversation_id=request.id, state=ReplyState.PENDING)
    exchange.end(exchange.claim_one().id, status, topic=topic, body="answer")
    found = reply(exchange, request.id)
    assert found.message is not None
    assert (found.state, found.message.body) == (expected, "answer")
    other = exchange.publish()
    exchange.end(exchange.claim_one().id, status, topic=None)
    assert reply(exchange, other.id) == ConversationReply(conversation_id=other.id, state=expected)


def test_a_dead_request_is_a_reply_but_a_dead_reply_is_not(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = exchange.topics["review.done"] = TopicRules(max_deliveries=1)
    request = exchange.publish()
    exchange.expire(exchange.claim_one().id)
    found = reply(exchange, request.id)
    assert found.message is not None
    assert (found.state, found.message.topic) == (ReplyState.DEAD, f"{TOPIC}.dead")
    answered = exchange.publish()
    exchange.end(exchange.claim_one().id)
    exchange.expire(exchange.claim_one("review.done").id)
    assert reply(exchange, answered.id).state is ReplyState.SUCCESS


def test_a_request_that_was_handed_over_is_pending_until_the_next_worker_ends(exchange: ExchangeDriver) -> None:
    request = exchange.publish()
    exchange.end(exchange.claim_one().id, topic="human")
    assert reply(exchange, request.id).state is ReplyState.PENDING
    exchange.end(exchange.claim_one("human").id, ClaimStatus.FAILED, topic=None)
    assert reply(exchange, request.id).state is ReplyState.FAILURE


def test_a_purged_request_is_dead(exchange: ExchangeDriver) -> None:
    request = exchange.publish()
    with transaction(exchange.db):
        operate.purge(exchange.db, TOPIC, now=exchange.now, actor=ALICE)
    assert reply(exchange, request.id).state is ReplyState.DEAD


def test_the_first_and_the_last_reply_and_those_of_one_request_are_found(exchange: ExchangeDriver) -> None:
    first = exchange.publish()
    exchange.end(exchange.claim_one().id, body="1")
    second = exchange.publish(conversation_id=first.id)
    assert reply(exchange, first.id).message.body == "1"  # type: ignore[union-attr]
    assert reply(exchange, first.id, request_id=second.id).state is ReplyState.PENDING
    exchange.end(exchange.claim_one().id, ClaimStatus.FAILED, topic="review.failed", body="2")
    found = [reply(exchange, first.id, first=one).message.body for one in (True, False)]  # type: ignore[union-attr]
    assert found == ["1", "2"]
    assert reply(exchange, first.id, request_id=second.id).state is ReplyState.FAILURE
    with pytest.raises(MessageUnknown):
        reply(exchange, "nothing")


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_topics_show_what_waits_on_them(exchange: ExchangeDriver) -> None:
    exchange.topics[TOPIC] = TopicRules(max_deliveries=1)
    exchange.publish()
    exchange.expire(exchange.claim_one().id)
    exchange.publish()
    exchange.claim_one()
    exchange.advance(minutes=1)
    exchange.publish()
    exchange.publish(delay=timedelta(hours=1))
    exchange.publish(ordering_key="k", delay=timedelta(hours=1))
    exchange.publish(ordering_key="k")
    reports = topic_reports(exchange.db, exchange.rules)
    assert [one.topic for one in reports] == [TOPIC, f"{TOPIC}.dead"]
    request = reports[0]
    assert (request.ready, request.delayed, request.waiting, request.claimed, request.dead) == (1, 2, 1, 1, 1)
    assert (request.oldest_ready_at, request.pause) == (exchange.now, None)
    assert request.last_claimed_at is not None
    assert topic_report(exchange.db, TOPIC, exchange.rules) == request
    assert topic_report(exchange.db, "nothing", exchange.rules) is None
    assert topic_reports(exchange.db, exchange.rules, after=TOPIC) == reports[1:]
