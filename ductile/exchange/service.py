"""The exchange of a running service: publish, claim and end as transactions, the leases, and the workers that wait.

Deadlines of leases are in memory (`leases.py`). Each transaction is followed by the wake-ups that it makes necessary.
The ledger is authoritative; does not know HTTP.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

import trio
from attrs import define, field

from ductile.config.sections.exchange import ExchangeSettings
from ductile.core.clock import Clock
from ductile.core.errors import DuctileError, LedgerBusy
from ductile.core.hub import Hub
from ductile.core.message import (
    Claim,
    ClaimStatus,
    FollowUp,
    HopsExceeded,
    Message,
    MessageState,
    NewMessage,
    TopicFull,
    TopicRules,
)
from ductile.exchange.leases import Leases
from ductile.exchange.metrics import ExchangeMetrics
from ductile.exchange.waiters import TopicWaiters
from ductile.ledger.exchange import finish
from ductile.ledger.exchange.claim import ClaimedMessage, Worker, active_claims, claim_messages
from ductile.ledger.exchange.finish import Ended, LostClaim, Returned
from ductile.ledger.exchange.publish import Published, publish
from ductile.ledger.exchange.waiting_steps import waiting_steps
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal
from ductile.ledger.tables.receipts import IdempotencyKey, StoredResponse, run_once

T = TypeVar("T")
COMMIT_TIMEOUT = 90.0
UNSENT_TIMEOUT = 5.0
"""Seconds to release claims whose client has disconnected."""
LARGE_BYTES = 1 << 20
MANY_MESSAGES = 50
"""Bodies of more than this size together, or more messages than this, are written by a thread."""
REFUSAL_INTERVAL = 60.0
MAX_REFUSALS = 100
"""Refusals that are journalled in one interval."""
MAX_EXPIRED = 40
"""Claims that one transaction expires."""
MESSAGES = "messages"
"""Announced to the hub for every new message and every ended claim."""


def topic_hint(topic: str) -> str:
    """Return the hub topic that is announced for new messages of this topic."""
    return f"topic {topic}"


def conversation_hint(conversation_id: str) -> str:
    """Return the hub topic that is announced for new messages of this conversation."""
    return f"conversation {conversation_id}"


@define(eq=False, kw_only=True)
class MessageExchange:
    """The exchange of this process."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    settings: Callable[[], ExchangeSettings]
    is_stopping: Callable[[], bool]
    metrics: ExchangeMetrics = field(factory=ExchangeMetrics)
    leases: Leases = field(factory=Leases)
    waiters: TopicWaiters = field(factory=TopicWaiters)
    awaited: dict[str, set[str]] = field(factory=dict)
    """Conversation → the jobs of pipeline steps that wait for a reply in it."""
    _refused_at: dict[tuple[str, str | None, str], float] = field(factory=dict)
    on_deadline: Callable[[float], None] = lambda _deadline: None
    """Receives each new deadline of a lease or delay, on the monotonic clock. Set by the timers."""

    async def load(self) -> None:
        """Read the active claims of an earlier run. Each has at least RESTART_LEASE left."""
        claims = await self.ledger.read(active_claims)
        self.leases.restore(claims, now=self.clock.now(), clock=self.clock.monotonic())
        for conversation_id, job_id in await self.ledger.read(waiting_steps):
            self.awaited.setdefault(conversation_id, set()).add(job_id)

    def await_reply(self, conversation_id: str, job_id: str) -> None:
        """Wake the dispatcher for new messages of this conversation, until `end_wait`."""
        self.awaited.setdefault(conversation_id, set()).add(job_id)

    def end_wait(self, conversation_id: str, job_id: str) -> None:
        """The step of this job waits no longer."""
        jobs = self.awaited.get(conversation_id, set())
        jobs.discard(job_id)
        if not jobs:
            self.awaited.pop(conversation_id, None)

    def rules(self, topic: str) -> TopicRules:
        return self.settings().rules_of(topic)

    def seconds_left(self, claim: Claim) -> float | None:
        """Return how long the lease of the claim lasts; None if it has ended or has no lease."""
        return self.leases.seconds_left(claim.id, clock=self.clock.monotonic())

    # ── publish ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(
        self,
        news: Sequence[NewMessage],
        respond: Callable[[list[Published]], StoredResponse],
        *,
        actor: str,
        key: IdempotencyKey | None = None,
    ) -> StoredResponse:
        """Publish all messages or none, and return their response when they are durable.

        With a key that was used before, return the stored response. Raises ParentUnknown, HopsExceeded or TopicFull.
        """
        published: list[Published] = []
        now = self.clock.now()

        def act(db: Db) -> StoredResponse:
            published.extend(publish(db, news, now=now, actor=actor, rules=self.rules))
            return respond(published)

        work = act if key is None else partial(run_once, ticket=key, act=act, now=now)
        with trio.move_on_after(COMMIT_TIMEOUT, shield=True):
            try:
                stored = await self.ledger.transact(work, wait=False, in_thread=_are_large(news))
            except (HopsExceeded, TopicFull) as error:
                await self.journal_refusal(error, actor=actor)
                raise
            self.announce_messages(each.message for each in published)
            self.wake(each.message.topic for each in published if each.state is MessageState.READY)
            self.note_delays(new.delay for new in news)
            await self.ledger.until_durable()
            return stored
        raise _busy()

    async def try_to_publish(
        self, news: Sequence[NewMessage], respond: Callable[[list[Published]], StoredResponse], *, actor: str
    ) -> StoredResponse:
        """Return the response that `publish` would return, or raise its error, and store nothing."""
        return await self.try_out(
            lambda db: respond(publish(db, news, now=self.clock.now(), actor=actor, rules=self.rules)),
            in_thread=_are_large(news),
        )

    async def try_out(self, work: Callable[[Db], T], *, in_thread: bool = False) -> T:
        """Return the result of the transaction, which is rolled back."""
        results: list[T] = []

        def work_and_roll_back(db: Db) -> None:
            results.append(work(db))
            raise _RolledBack

        with suppress(_RolledBack):
            await self.ledger.transact(work_and_roll_back, in_thread=in_thread)
        return results[0]

    async def journal_refusal(self, error: DuctileError, *, actor: str) -> None:
        """Journal a refused message: at most one entry per REFUSAL_INTERVAL for the same code, topic and caller."""
        key, clock = (error.code, error.context.get("topic"), actor), self.clock.monotonic()
        self._refused_at = {each: at for each, at in self._refused_at.items() if clock < at + REFUSAL_INTERVAL}
        if key in self._refused_at or len(self._refused_at) >= MAX_REFUSALS:
            return
        self._refused_at[key] = clock
        data = {"code": error.code, **error.context}
        await self.ledger.write(journal.append, "message.refused", now=self.clock.now(), data=data, actor=actor)

    # ── claim ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(
        self, topics: Sequence[str], worker: Worker, *, lease: timedelta, limit: int, wait_seconds: float
    ) -> list[ClaimedMessage]:
        """Claim up to `limit` ready messages of the topics; wait for the first one. Empty when the service stops.

        If the caller is cancelled, what it has claimed is released, as if it had never been delivered.
        """
        deadline, claimed = trio.current_time() + wait_seconds, list[ClaimedMessage]()
        with self.waiters.waiting(topics) as waiter:
            while not self.is_stopping():
                claimed = await self._claim_ready(topics, worker, lease=lease, limit=limit)
                waiter.use({each.message.topic for each in claimed})
                if claimed or trio.current_time() >= deadline:
                    break
                with trio.move_on_at(deadline):
                    await waiter.wait()
        if claimed:
            await self._confirm(claimed, worker)
        return claimed

    async def _claim_ready(
        self, topics: Sequence[str], worker: Worker, *, lease: timedelta, limit: int
    ) -> list[ClaimedMessage]:
        """Claim what is ready now. Cancelled means: nothing is claimed."""

        def work(db: Db) -> list[ClaimedMessage]:
            claimed = claim_messages(db, topics, worker, lease=lease, limit=limit, now=self.clock.now())
            for each in claimed:
                self.leases.start(each.claim.id, lease, clock=self.clock.monotonic())
            return claimed

        claimed = await self.ledger.transact(work, wait=False)
        if claimed:
            self._note_deadline(lease)
        for each in claimed:
            self.metrics.claim_waits.observe(max((each.claim.claimed_at - each.ready_at).total_seconds(), 0.0))
        return claimed

    async def _confirm(self, claimed: Sequence[ClaimedMessage], worker: Worker) -> None:
        """Return when the claims are durable. If the caller is cancelled, release them uncounted."""
        try:
            await self.ledger.until_durable()
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            with trio.move_on_after(UNSENT_TIMEOUT, shield=True), suppress(DuctileError):
                await self._give_back(claimed, worker.actor)
            raise

    async def _give_back(self, claimed: Sequence[ClaimedMessage], actor: str) -> None:
        """Release claims that their caller has not received, as if they had never been made."""
        release = partial(
            finish.release, now=self.clock.now(), actor=actor, rules=self.rules, reason="not delivered", uncounted=True
        )
        results = await self.ledger.transact(lambda db: [release(db, each.claim.id) for each in claimed], wait=False)
        for result in results:
            if isinstance(result, Returned):
                self.announce_returned(result)

    # ── the end of a claim ──────────────────────────────────────────────────────────────────────────────────────────

    async def end(
        self, claim_id: str, status: ClaimStatus, *, actor: str, follow_up: FollowUp | None, reason: str | None
    ) -> Ended:
        """End the claim and publish its follow-up; return when that is durable. Raises ClaimLost or ClaimUnknown."""
        change = partial(finish.end, status=status, actor=actor, follow_up=follow_up, reason=reason, rules=self.rules)
        return await self._end(claim_id, change, in_thread=follow_up is not None and len(follow_up.body) > LARGE_BYTES)

    async def hand_over(self, claim_id: str, topic: str, *, actor: str, reason: str | None) -> Ended:
        """Complete the claim with its message as the follow-up on another topic. Raises as `end` does."""
        return await self._end(
            claim_id, partial(finish.hand_over, topic=topic, actor=actor, reason=reason, rules=self.rules)
        )

    async def _end(self, claim_id: str, change: Callable[..., Ended | LostClaim], *, in_thread: bool = False) -> Ended:
        ended = await self._change(claim_id, change, self.announce_end, in_thread=in_thread)
        if isinstance(ended, LostClaim):
            self.metrics.late += 1
        return _held(ended)

    async def release(
        self,
        claim_id: str,
        *,
        actor: str,
        delay: timedelta = timedelta(),
        reason: str | None = None,
        uncounted: bool = False,
    ) -> Returned:
        """Give the message back after the delay; return when that is durable. Raises ClaimLost or ClaimUnknown."""
        change: Callable[..., Returned | LostClaim] = partial(
            finish.release, actor=actor, delay=delay, reason=reason, uncounted=uncounted, rules=self.rules
        )
        returned = await self._change(claim_id, change, self.announce_returned)
        self.note_delays([delay])
        return _held(returned)

    async def extend(self, claim_id: str, *, lease: timedelta | None, actor: str) -> Claim:
        """Begin the lease again; return when that is durable. Raises ClaimLost or ClaimUnknown.

        Without `lease`, it is as long as before.
        """

        def extend(db: Db, claim_id: str, *, now: datetime) -> Claim | LostClaim:
            result = finish.extend(db, claim_id, lease=lease, now=now, actor=actor)
            if isinstance(result, Claim) and result.lease is not None:
                self.leases.start(claim_id, result.lease, clock=self.clock.monotonic())
            return result

        claim = await self._change(claim_id, extend, self._announce_extension)
        return _held(claim)

    async def expire(self) -> None:
        """Expire claims whose lease is over, at most MAX_EXPIRED."""

        over: list[str] = []

        def work(db: Db) -> list[Returned]:
            due = self.leases.over(clock=self.clock.monotonic())  # here, because one may have been extended
            over.extend(due[:MAX_EXPIRED])
            return finish.expire_claims(db, over, now=self.clock.now(), rules=self.rules)

        expired = await self.ledger.transact(work, wait=False)
        for claim_id in over:
            self.leases.end(claim_id)
        for returned in expired:
            self.announce_returned(returned)

    async def _change(
        self,
        claim_id: str,
        change: Callable[..., T | LostClaim],
        announce: Callable[[T], None],
        *,
        in_thread: bool = False,
    ) -> T | LostClaim:
        """Change the claim in one durable transaction. A claim whose lease is over is expired first."""
        now, expired = self.clock.now(), list[Returned]()

        def work(db: Db) -> T | LostClaim:
            if self.leases.is_over(claim_id, clock=self.clock.monotonic()):
                expired.extend(finish.expire_claims(db, [claim_id], now=now, rules=self.rules))
            return change(db, claim_id, now=now)

        with trio.move_on_after(COMMIT_TIMEOUT, shield=True):
            result = await self.ledger.transact(work, wait=False, in_thread=in_thread)
            for returned in expired:
                self.announce_returned(returned)
            if isinstance(result, LostClaim):
                self.leases.end(claim_id)
            else:
                announce(result)
            await self.ledger.until_durable()
            return result
        raise _busy()

    # ── wake-ups ────────────────────────────────────────────────────────────────────────────────────────────────────

    def announce_messages(self, messages: Iterable[Message]) -> None:
        """Count new messages, and wake the callers that read their topic or conversation."""
        for message in messages:
            self.metrics.count_message(message.topic)
            self.hub.announce(topic_hint(message.topic))
            self.hub.announce(conversation_hint(message.conversation_id))
            self.hub.announce(MESSAGES)
            if message.conversation_id in self.awaited:
                self.hub.announce_work()

    def wake(self, topics: Iterable[str]) -> None:
        """Wake one worker for each ready message, given by its topic."""
        for topic in topics:
            self.waiters.wake(topic)

    def note_delays(self, delays: Iterable[timedelta]) -> None:
        """Note when the next delayed message becomes ready."""
        shortest = min((delay for delay in delays if delay), default=None)
        if shortest is not None:
            self._note_deadline(shortest)

    def announce_end(self, ended: Ended) -> None:
        """Count the end of a claim, and wake the workers and readers of what it has published."""
        self.leases.end(ended.claim.id)
        if not ended.is_repeat:
            self.metrics.count_end(ended.claim.topic, ended.claim.status)
            self.announce_messages([ended.follow_up] if ended.follow_up else [])
            if ended.conversation_id:  # a request can end without a reply
                self.hub.announce(conversation_hint(ended.conversation_id))
                self.hub.announce(MESSAGES)
            self.wake(ended.woken)

    def announce_returned(self, returned: Returned) -> None:
        """Count the end of a released or expired claim, and wake the workers that can have its message."""
        self.leases.end(returned.claim.id)
        if not returned.is_repeat:
            self.metrics.count_end(returned.claim.topic, returned.claim.status)
            self.announce_messages([returned.dead_letter] if returned.dead_letter else [])
            self.wake(returned.woken)

    def _announce_extension(self, claim: Claim) -> None:
        if claim.lease is not None:
            self._note_deadline(claim.lease)

    def _note_deadline(self, span: timedelta) -> None:
        self.on_deadline(self.clock.monotonic() + span.total_seconds())


def _held(result: T | LostClaim) -> T:
    """Return the result. Raises ClaimLost if the claim had ended before."""
    if isinstance(result, LostClaim):
        raise result.error()
    return result


class _RolledBack(Exception):
    """Rolls back the transaction of a dry run."""


def _are_large(news: Sequence[NewMessage]) -> bool:
    """True if a thread should write the messages."""
    return sum(len(new.body) for new in news) > LARGE_BYTES or len(news) > MANY_MESSAGES


def _busy() -> LedgerBusy:
    return LedgerBusy(f"the ledger was busy for {COMMIT_TIMEOUT:.0f} seconds", hint="Try again later.")
