"""A driver that publishes, claims and ends messages on the ledger of the test, one transaction per call."""

import sqlite3
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest
from attrs import define, field

from ductile.core.message import Claim, ClaimStatus, FollowUp, Message, MessageState, NewMessage, TopicRules
from ductile.ledger.exchange import claim, finish, publish, rows
from ductile.ledger.exchange.claim import ClaimedMessage, Worker
from ductile.ledger.exchange.finish import Ended, LostClaim, Returned
from ductile.ledger.exchange.publish import Published
from ductile.ledger.storage.connections import transaction
from tests.ledger.conftest import START

TOPIC = "review.request"
ALICE, BOB = "token:alice", "token:bob"
WORKER = Worker(group="reviewers", instance_id="host-1", actor=BOB)


@define
class ExchangeDriver:
    """The exchange of a ledger at the time `now`."""

    db: sqlite3.Connection
    now: datetime = START
    topics: dict[str, TopicRules] = field(factory=dict)

    def rules(self, topic: str) -> TopicRules:
        return self.topics.get(topic, TopicRules())

    def advance(self, **span: float) -> datetime:
        self.now += timedelta(**span)
        return self.now

    def publish_all(self, news: Iterable[NewMessage], actor: str = ALICE) -> list[Published]:
        with transaction(self.db):
            return publish.publish(self.db, list(news), now=self.now, actor=actor, rules=self.rules)

    def publish(self, body: str = "hello", topic: str = TOPIC, **values: Any) -> Message:
        (one,) = self.publish_all([NewMessage(topic=topic, body=body, **values)])
        return one.message

    def claim(
        self, *topics: str, limit: int = 1, lease: timedelta | None = timedelta(seconds=90), worker: Worker = WORKER
    ) -> list[ClaimedMessage]:
        with transaction(self.db):
            wanted = topics or (TOPIC,)
            return claim.claim_messages(self.db, wanted, worker, lease=lease, limit=limit, now=self.now)

    def claim_one(self, *topics: str) -> Claim:
        (one,) = self.claim(*topics)
        return one.claim

    def end(
        self,
        claim_id: str,
        status: ClaimStatus = ClaimStatus.COMPLETED,
        topic: str | None = "review.done",
        body: str = "fine",
        actor: str = BOB,
    ) -> Ended | LostClaim:
        follow_up = FollowUp(topic=topic, body=body) if topic else None
        with transaction(self.db):
            return finish.end(
                self.db, claim_id, status, now=self.now, actor=actor, rules=self.rules, follow_up=follow_up
            )

    def release(self, claim_id: str, **values: Any) -> Returned | LostClaim:
        with transaction(self.db):
            return finish.release(self.db, claim_id, now=self.now, actor=BOB, rules=self.rules, **values)

    def expire(self, *claim_ids: str) -> list[Returned]:
        with transaction(self.db):
            return finish.expire_claims(self.db, claim_ids, now=self.now, rules=self.rules)

    def state(self, message: Message | str) -> MessageState:
        return rows.state_of(self.db, message if isinstance(message, str) else message.id)

    def kinds(self, message: Message | str) -> list[str]:
        """Return the kinds of the journal entries of the message, without their prefix."""
        message_id = message if isinstance(message, str) else message.id
        found = self.db.execute("SELECT kind FROM journal WHERE message_id = ? ORDER BY seq", (message_id,))
        return [kind.removeprefix("message.") for (kind,) in found]

    def counts(self, *tables: str) -> list[int]:
        return [self.db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables]


@pytest.fixture
def exchange(db: sqlite3.Connection) -> ExchangeDriver:
    return ExchangeDriver(db)
