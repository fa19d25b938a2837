"""Model-based test: random histories of the exchange must leave the ledger and a small model of it in the same state.

`scripts/model-check` sets DUCTILE_MODEL_EXAMPLES to try more than the normal run.
"""

import os
import sqlite3
from collections.abc import Iterator
from datetime import timedelta

import pytest
from attrs import define, evolve, field
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ductile.core.errors import WrongState
from ductile.core.message import Claim, ClaimStatus, FollowUp, MessageState, NewMessage, TopicRules
from ductile.ledger.exchange import finish, operate
from ductile.ledger.exchange.claim import Worker, active_claims, claim_messages
from ductile.ledger.exchange.finish import Ended, LostClaim, Returned
from ductile.ledger.exchange.publish import Published, publish
from ductile.ledger.exchange.retention import delete_conversations, expired_conversations
from ductile.ledger.exchange.rows import state_of
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.integrity import MESSAGE_RULES
from ductile.ledger.storage.open_file import schema
from tests.ledger.conftest import START

EXAMPLES = int(os.environ.get("DUCTILE_MODEL_EXAMPLES", "400"))
PARTS = 4
TOPICS = ("a", "b")
RULES = {
    "a": TopicRules(max_deliveries=2, retention=timedelta(hours=2)),
    "b": TopicRules(max_deliveries=0, ordered=True, dead_letter="a", retention=timedelta(hours=2)),
}
PICK = st.integers(0, 30)
KEYS = st.sampled_from([None, None, "k", "l"])
DELAYS = st.sampled_from([timedelta(), timedelta(), timedelta(minutes=5)])
ENDS = st.sampled_from([ClaimStatus.COMPLETED, ClaimStatus.FAILED, ClaimStatus.TIMED_OUT])
WORKER = Worker(group="g", instance_id="i", actor="token:w")
BODY = "answer"


def rules_of(topic: str) -> TopicRules:
    return RULES.get(topic, TopicRules(max_deliveries=2, retention=timedelta(hours=2)))


@define
class ModelMessage:
    """A message in the model. A decided one has `final`."""

    id: str
    seq: int
    topic: str
    key: str | None
    conversation: str
    is_dead_letter: bool
    is_next: bool
    available: int = 0
    """Minutes from the start."""
    deliveries: int = 0
    claim: str | None = None
    final: MessageState | None = None


@define
class ModelClaim:
    """A claim in the model."""

    message: ModelMessage
    delivery: int
    status: ClaimStatus = ClaimStatus.ACTIVE
    follow_up: tuple[str, str] | None = None


@define
class ExchangeModel:
    """The state machine of the exchange, without a database. Time is in minutes."""

    minute: int = 0
    messages: dict[str, ModelMessage] = field(factory=dict)
    claims: dict[str, ModelClaim] = field(factory=dict)

    def open_messages(self, topic: str, key: str | None = None) -> list[ModelMessage]:
        """In order, those of one key or of all."""
        found = (one for one in self.messages.values() if one.topic == topic and one.final is None)
        return sorted((one for one in found if key is None or one.key == key), key=lambda one: one.seq)

    def add(self, published: Published, delay: timedelta = timedelta()) -> None:
        message = published.message
        self.messages[message.id] = ModelMessage(
            message.id,
            message.seq,
            message.topic,
            message.ordering_key,
            message.conversation_id,
            message.is_dead_letter,
            is_next=message.ordering_key is None or not self.open_messages(message.topic, message.ordering_key),
            available=self.minute + delay // timedelta(minutes=1),
        )

    def decide(self, message: ModelMessage, state: MessageState) -> None:
        was_next, message.final, message.claim, message.is_next = message.is_next, state, None, False
        if message.key is not None and was_next and (others := self.open_messages(message.topic, message.key)):
            others[0].is_next = True

    def state(self, message: ModelMessage) -> MessageState:
        if message.final:
            return message.final
        if message.claim:
            return MessageState.CLAIMED
        if not message.is_next:
            return MessageState.WAITING
        return MessageState.DELAYED if message.available > self.minute else MessageState.READY

    def next_ready(self, topic: str) -> ModelMessage | None:
        ready = (one for one in self.open_messages(topic) if self.state(one) is MessageState.READY)
        return next(ready, None)


class Exchange(RuleBasedStateMachine):
    """Every rule is one transaction on the ledger, and the same step of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.executescript(schema())
        self.model, self.now = ExchangeModel(), START

    def teardown(self) -> None:
        self.db.close()

    def pick(self, number: int, *statuses: ClaimStatus) -> str | None:
        found = [key for key, one in self.model.claims.items() if not statuses or one.status in statuses]
        return found[number % len(found)] if found else None

    @rule(topic=st.sampled_from(TOPICS), key=KEYS, delay=DELAYS, parent=PICK, is_reply=st.booleans())
    def publish(self, topic: str, key: str | None, delay: timedelta, parent: int, is_reply: bool) -> None:
        known = list(self.model.messages) if is_reply else []
        new = NewMessage(topic=topic, body="x", ordering_key=key, delay=delay)
        if known:
            new = evolve(new, parent_id=known[parent % len(known)])
        with transaction(self.db):
            (published,) = publish(self.db, [new], now=self.now, actor="token:p", rules=rules_of)
        if known:
            assert published.message.conversation_id == self.model.messages[new.parent_id or ""].conversation
        self.model.add(published, delay)

    @rule(topic=st.sampled_from(TOPICS))
    def claim(self, topic: str) -> None:
        expected = self.model.next_ready(topic)
        with transaction(self.db):
            claimed = claim_messages(self.db, [topic], WORKER, lease=timedelta(minutes=1), now=self.now)
        assert [one.message.id for one in claimed] == ([expected.id] if expected else [])
        for one in claimed:
            assert expected is not None
            expected.deliveries, expected.claim = expected.deliveries + 1, one.claim.id
            assert one.claim.delivery == expected.deliveries
            self.model.claims[one.claim.id] = ModelClaim(expected, expected.deliveries)

    @rule(number=PICK, status=ENDS, topic=st.sampled_from([None, "a", "b"]))
    def end(self, number: int, status: ClaimStatus, topic: str | None) -> None:
        claim_id = self.pick(number)
        if claim_id is None:
            return
        claim, follow_up = self.model.claims[claim_id], FollowUp(topic=topic, body=BODY) if topic else None
        with transaction(self.db):
            ended = finish.end(
                self.db, claim_id, status, now=self.now, actor="token:w", rules=rules_of, follow_up=follow_up
            )
        wanted = (topic, BODY) if topic else None
        if claim.status is not ClaimStatus.ACTIVE:
            is_same = (claim.status, claim.follow_up) == (status, wanted)
            assert isinstance(ended, Ended if is_same else LostClaim)
            return
        assert isinstance(ended, Ended)
        assert not ended.is_repeat
        claim.status, claim.follow_up = status, wanted
        self.model.decide(claim.message, MessageState(status))
        if ended.follow_up:
            self.model.add(Published(message=ended.follow_up, state=MessageState.READY))
        else:
            assert topic is None or ended.refused == "hops_exceeded"
            claim.follow_up = wanted

    @precondition(lambda self: self.pick(0, ClaimStatus.ACTIVE))
    @rule(number=PICK, delay=DELAYS, uncounted=st.booleans())
    def release(self, number: int, delay: timedelta, uncounted: bool) -> None:
        claim_id = self.pick(number, ClaimStatus.ACTIVE) or ""
        with transaction(self.db):
            returned = finish.release(
                self.db,
                claim_id,
                now=self.now,
                actor="token:w",
                rules=rules_of,
                delay=delay,
                uncounted=uncounted,
            )
        assert isinstance(returned, Returned)
        self.give_back(claim_id, returned, delay, uncounted=uncounted)

    @rule(number=PICK)
    def expire(self, number: int) -> None:
        """A claim that has ended does not expire."""
        claim_id = self.pick(number)
        if claim_id is None:
            return
        is_active = self.model.claims[claim_id].status is ClaimStatus.ACTIVE
        with transaction(self.db):
            returned = finish.expire_claims(self.db, [claim_id], now=self.now, rules=rules_of)
        assert len(returned) == is_active
        for one in returned:
            self.give_back(claim_id, one, timedelta(), uncounted=False)

    def give_back(self, claim_id: str, returned: Returned, delay: timedelta, *, uncounted: bool) -> None:
        claim = self.model.claims[claim_id]
        claim.status, message = returned.claim.status, claim.message
        most = rules_of(message.topic).max_deliveries
        if most and claim.delivery >= most and not uncounted:
            self.model.decide(message, MessageState.DEAD)
            assert (returned.dead_letter is None) == message.is_dead_letter
            if returned.dead_letter:
                self.model.add(Published(message=returned.dead_letter, state=MessageState.READY))
            return
        message.claim, message.deliveries = None, message.deliveries - uncounted
        message.available = self.model.minute + delay // timedelta(minutes=1)

    @rule(number=PICK)
    def extend(self, number: int) -> None:
        if claim_id := self.pick(number):
            with transaction(self.db):
                extended = finish.extend(self.db, claim_id, lease=timedelta(minutes=2), now=self.now, actor="token:w")
            is_active = self.model.claims[claim_id].status is ClaimStatus.ACTIVE
            assert isinstance(extended, Claim if is_active else LostClaim)

    @rule(number=PICK)
    def requeue(self, number: int) -> None:
        messages = list(self.model.messages.values())
        if not messages:
            return
        message = messages[number % len(messages)]
        if message.final not in (MessageState.FAILED, MessageState.TIMED_OUT, MessageState.DEAD):
            with pytest.raises(WrongState), transaction(self.db):
                operate.requeue(self.db, message.id, now=self.now, actor="uid:0")
            return
        with transaction(self.db):
            operate.requeue(self.db, message.id, now=self.now, actor="uid:0")
        message.is_next = message.key is None or not self.model.open_messages(message.topic, message.key)
        message.final, message.deliveries, message.available = None, 0, self.model.minute

    @rule(topic=st.sampled_from(TOPICS), limit=st.integers(1, 3))
    def purge(self, topic: str, limit: int) -> None:
        with transaction(self.db):
            count = operate.purge(self.db, topic, now=self.now, actor="uid:0", limit=limit)
        unclaimed = [one for one in self.model.open_messages(topic) if one.claim is None][:limit]
        assert count == len(unclaimed)
        for message in unclaimed:
            had_claims = [one.status for one in self.model.claims.values() if one.message is message]
            decided = had_claims and had_claims[-1].decides
            self.model.decide(message, MessageState(had_claims[-1]) if decided else MessageState.DEAD)

    @rule(minutes=st.sampled_from([1, 5, 30, 130]))
    def wait(self, minutes: int) -> None:
        self.model.minute += minutes
        self.now += timedelta(minutes=minutes)

    @rule()
    def restart(self) -> None:
        """A service that starts finds exactly the claims that are active."""
        active = {key for key, one in self.model.claims.items() if one.status is ClaimStatus.ACTIVE}
        assert {claim.id for claim in active_claims(self.db)} == active

    @rule()
    def prune(self) -> None:
        """Retention deletes conversations of which nothing is open, as a whole."""
        last = 1 << 62
        found = expired_conversations(self.db, rules_of, shortest=timedelta(hours=2), now=self.now, last=last)
        with transaction(self.db):
            delete_conversations(self.db, found.ids, rules_of, now=self.now, last=last)
        claimed_topics = {one.message.topic for one in self.model.claims.values()}
        gone = [one for one in self.model.messages.values() if one.conversation in found.ids]
        assert not [one for one in gone if one.final is None and one.topic in claimed_topics]
        for message in gone:
            if message.final is None:
                self.model.decide(message, MessageState.DEAD)
        for message in gone:
            del self.model.messages[message.id]
        for key in [key for key, one in self.model.claims.items() if one.message.conversation in found.ids]:
            del self.model.claims[key]

    @invariant()
    def the_states_are_those_of_the_model(self) -> None:
        expected = {one.id: self.model.state(one) for one in self.model.messages.values()}
        found = {key: state_of(self.db, key) for key in expected}
        due = {key for key, state in found.items() if state is MessageState.DELAYED}
        woken = {key for key in due if expected[key] is MessageState.READY}  # the next claim makes them ready
        assert {key: state for key, state in found.items() if key not in woken} == {
            key: state for key, state in expected.items() if key not in woken
        }
        assert self.db.execute("SELECT COUNT(*) FROM messages").fetchone() == (len(expected),)

    @invariant()
    def the_rules_of_the_ledger_hold(self) -> None:
        assert list(self.violations()) == []

    def violations(self) -> Iterator[tuple[str, str]]:
        for name, (statement, _) in MESSAGE_RULES.items():
            yield from ((name, row[0]) for row in self.db.execute(statement))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories_match_the_model(part: int) -> None:
    class Part(Exchange):
        """Another name, so that each part draws other examples."""

    Part.__name__ = Part.__qualname__ = f"Exchange{part}"
    run_state_machine_as_test(
        Part,
        settings=settings(
            max_examples=EXAMPLES // PARTS,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
