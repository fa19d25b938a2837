"""A worker host with real processes on an in-memory service that records what the host does."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, evolve, field

from ductile.core.errors import DuctileError, ServiceUnreachable
from ductile.core.message import ClaimLost, ReplyTopics
from ductile.exchange.worker.host import WorkerHost
from ductile.exchange.worker.values import ClaimEnd, GiveBack, HeldClaim, HostSettings, WorkSettings

TOPICS = ReplyTopics(success="review.done", failure="review.failed", timeout="review.request.timed_out")
TIMEOUT = 60.0
"""Long enough for a busy machine. Only a host that hangs reaches it."""


def make_claim(body: str = "hello", **more: Any) -> HeldClaim:
    defaults: dict[str, Any] = {
        "claim_id": "claim-1",
        "delivery": 1,
        "lease_seconds": 90.0,
        "held_since": 0.0,
        "message_id": "message-1",
        "conversation_id": "conversation-1",
        "topic": "review.request",
    }
    return HeldClaim(**(defaults | more), body=body)


def make_work(*argv: str, **more: Any) -> WorkSettings:
    defaults: dict[str, Any] = {"topics": TOPICS, "timeout_seconds": TIMEOUT, "environment": dict(os.environ)}
    return WorkSettings(argv=argv, **(defaults | more))


def shell(script: str, **more: Any) -> WorkSettings:
    return make_work("/bin/sh", "-c", script, **more)


@define(eq=False)
class RecordingService:
    """Hands out the queued claims and records how they end."""

    queued: list[HeldClaim] = field(factory=list)
    ends: list[ClaimEnd] = field(factory=list)
    releases: list[GiveBack] = field(factory=list)
    extended: trio.Event = field(factory=trio.Event)
    lost: bool = False
    """Every claim has ended on the side of the service."""
    errors: list[DuctileError] = field(factory=list)
    """Raised by the next calls that end or release a claim, one each."""
    claim_errors: list[DuctileError] = field(factory=list)
    is_away: bool = False
    """No request is answered."""
    changed: trio.Event = field(factory=trio.Event)
    """Replaced at each change."""
    most_held: int = 0
    _held: int = 0

    async def claim(self, *, limit: int, wait_seconds: float) -> Sequence[HeldClaim]:
        with trio.move_on_after(wait_seconds):
            while not (self.queued or self.claim_errors):
                await self._change()
        if self.claim_errors:
            raise self.claim_errors.pop(0)
        given, self.queued = self.queued[:limit], self.queued[limit:]
        self._held += len(given)
        self._announce()
        self.most_held = max(self.most_held, self._held)
        return [evolve(claim, held_since=trio.current_time()) for claim in given]

    async def extend(self, claim: HeldClaim) -> None:
        if self.is_away:
            raise ServiceUnreachable
        self.extended.set()
        if self.lost:
            raise ClaimLost

    async def end(self, claim: HeldClaim, end: ClaimEnd) -> None:
        self._finish(end, self.ends)

    async def release(self, claim: HeldClaim, give_back: GiveBack) -> None:
        self._finish(give_back, self.releases)

    async def until(self, is_true: Callable[[], bool]) -> None:
        with trio.fail_after(TIMEOUT):
            while not is_true():
                await self._change()

    def publish(self, *claims: HeldClaim) -> None:
        self.queued += claims
        self._announce()

    def _finish(self, decision: Any, record: list[Any]) -> None:
        if self.is_away:
            raise ServiceUnreachable
        if self.errors:
            raise self.errors.pop(0)
        if self.lost:
            raise ClaimLost
        self._held -= 1
        record.append(decision)
        self._announce()

    def _announce(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def _change(self) -> None:
        await self.changed.wait()


@define(eq=False)
class RunningHost:
    """A host in a task of its own."""

    host: WorkerHost
    reports: list[str]
    exit_code: int | None = None
    ended: trio.Event = field(factory=trio.Event)

    async def run(self) -> None:
        self.exit_code = await self.host.run()
        self.ended.set()

    async def until_ended(self) -> int | None:
        with trio.fail_after(TIMEOUT):
            await self.ended.wait()
        return self.exit_code


def make_host(service: RecordingService, work: WorkSettings, **settings: Any) -> RunningHost:
    reports: list[str] = []
    host = WorkerHost(service=service, work=work, settings=HostSettings(**settings), report=reports.append)
    return RunningHost(host, reports)


@asynccontextmanager
async def running_host(service: RecordingService, work: WorkSettings, **settings: Any) -> AsyncIterator[RunningHost]:
    """Run a host for the length of the block, then stop it."""
    running = make_host(service, work, **settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.run)
        yield running
        running.host.stop()


async def handle(work: WorkSettings, claim: HeldClaim | None = None, **settings: Any) -> RecordingService:
    """Handle one message to its end and return what the service saw."""
    service = RecordingService([claim or make_claim()])
    with trio.fail_after(TIMEOUT):
        await make_host(service, work, max_messages=1, **settings).host.run()
    return service
