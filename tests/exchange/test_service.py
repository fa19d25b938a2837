"""The exchange of a service on a ledger of its own, with clocks that the test sets: leases, deadlines, wake-ups."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from ductile.config.sections.exchange import ExchangeSettings, TopicSettings
from ductile.core.clock import Clock
from ductile.core.errors import LedgerFull
from ductile.core.hub import JOURNAL, Hub
from ductile.core.logs import Log
from ductile.core.message import Claim, ClaimStatus, NewMessage
from ductile.exchange.service import MAX_EXPIRED, MessageExchange
from ductile.exchange.timers import ExchangeTimers
from ductile.ledger.exchange.claim import ClaimedMessage, Worker
from ductile.ledger.exchange.publish import Published
from ductile.ledger.storage.async_ledger import open_ledger
from ductile.ledger.tables.receipts import StoredResponse

TOPIC, OTHER = "review.request", "deploy.request"
ACTOR = "token:tests"
WORKER = Worker(group="tests", instance_id="1", actor=ACTOR)
HOUR = timedelta(hours=1)


@define
class SetClock(Clock):
    """Clocks that stand still until the test sets them."""

    wall: datetime = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
    seconds: float = 1_000.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.seconds += seconds


@define
class ExchangeHarness:
    """An exchange, its clocks, and the deadlines that it has noted for the timers."""

    exchange: MessageExchange
    clock: SetClock
    deadlines: list[float] = field(factory=list)

    async def publish(self, *bodies: str, topic: str = TOPIC, **values: Any) -> list[str]:
        news = [NewMessage(topic=topic, body=body, **values) for body in bodies]
        ids: list[str] = []

        def respond(published: list[Published]) -> StoredResponse:
            ids.extend(one.message.id for one in published)
            return StoredResponse(job_id=None, text="{}")

        await self.exchange.publish(news, respond, actor=ACTOR)
        return ids

    async def claim(self, *topics: str, lease: timedelta = HOUR, limit: int = 1, wait: float = 0) -> list[Claim]:
        found = await self.claim_messages(*topics, lease=lease, limit=limit, wait=wait)
        return [each.claim for each in found]

    async def claim_messages(
        self, *topics: str, lease: timedelta = HOUR, limit: int = 1, wait: float = 0
    ) -> list[ClaimedMessage]:
        return await self.exchange.claim(topics or (TOPIC,), WORKER, lease=lease, limit=limit, wait_seconds=wait)

    async def complete_later(self, claim: Claim, seconds: float) -> None:
        """Complete the claim once all other tasks wait. Then set the clocks forward."""
        await wait_all_tasks_blocked(0.1)
        await self.exchange.end(claim.id, ClaimStatus.COMPLETED, actor=ACTOR, follow_up=None, reason=None)
        self.clock.advance(seconds)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ExchangeHarness]:
    settings = ExchangeSettings(topics={OTHER: TopicSettings(max_deliveries=1)})
    hub, clock = Hub(), SetClock()
    path, announce = tmp_path / "state.db", partial(hub.announce, JOURNAL)
    async with open_ledger(path, synchronous="normal", on_commit=announce) as ledger:
        exchange = MessageExchange(
            ledger=ledger, hub=hub, clock=clock, settings=lambda: settings, is_stopping=lambda: False
        )
        made = ExchangeHarness(exchange, clock)
        exchange.on_deadline = made.deadlines.append
        yield made


async def test_a_lease_that_an_extension_shortens_is_a_new_deadline(harness: ExchangeHarness) -> None:
    """Otherwise the timers sleep until the end of the longer lease."""
    await harness.publish("one")
    (claim,) = await harness.claim(lease=HOUR)
    await harness.exchange.extend(claim.id, lease=timedelta(seconds=5), actor=ACTOR)
    assert harness.deadlines[-1] == harness.clock.seconds + 5


async def test_an_expiry_that_the_ledger_refuses_is_repeated(harness: ExchangeHarness) -> None:
    """The dead letter needs space. The claim expires when there is some again."""
    await harness.publish("x" * 500_000, topic=OTHER)
    (claim,) = await harness.claim(OTHER, lease=timedelta(seconds=5))
    harness.clock.advance(6)
    ledger = harness.exchange.ledger
    pages = await ledger.write(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    await ledger.write(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    with pytest.raises(LedgerFull):
        await harness.exchange.expire()
    await ledger.write(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
    await harness.exchange.expire()
    assert await harness.claim(f"{OTHER}.dead")
    assert harness.exchange.seconds_left(claim) is None


async def test_claims_of_a_caller_that_has_disconnected_are_given_back(harness: ExchangeHarness) -> None:
    """All of them, uncounted, also if a lease is over already."""
    ids = await harness.publish("one", "two", "three")
    with trio.CancelScope() as caller:

        def disconnect(_deadline: float) -> None:
            harness.clock.advance(2)
            caller.cancel()

        harness.exchange.on_deadline = disconnect
        await harness.claim(lease=timedelta(seconds=1), limit=3)
    assert caller.cancelled_caught
    claims = await harness.claim(limit=3)
    assert [(claim.message_id, claim.delivery) for claim in claims] == [(message_id, 1) for message_id in ids]


async def test_many_leases_expire_in_several_transactions(harness: ExchangeHarness) -> None:
    await harness.publish(*(str(number) for number in range(MAX_EXPIRED + 5)))
    while await harness.claim(lease=timedelta(seconds=5), limit=100):
        pass
    harness.clock.advance(6)
    await harness.exchange.expire()
    assert len(harness.exchange.leases) == 5
    await harness.exchange.expire()
    assert len(harness.exchange.leases) == 0


async def test_one_claim_has_a_limited_size(harness: ExchangeHarness) -> None:
    """The bodies of one claim are in memory together."""
    for _ in range(6):
        await harness.publish("x" * (4 << 20))
    assert len(await harness.claim(limit=100)) == 4
    assert len(await harness.claim(limit=100)) == 2


async def test_a_delayed_message_that_waited_for_its_key_becomes_ready_in_time(harness: ExchangeHarness) -> None:
    """Its delay is no deadline while another message of its ordering key is claimed."""
    await harness.publish("first", ordering_key="k")
    (first,) = await harness.claim()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ExchangeTimers(harness.exchange, Log()).run, trio.Event())
            (second,) = await harness.publish("second", ordering_key="k", delay=timedelta(seconds=10))
            nursery.start_soon(harness.complete_later, first, 11)
            (claim,) = await harness.claim(wait=60)
            assert claim.message_id == second
            nursery.cancel_scope.cancel()
