"""The worker host: claim messages of one topic, handle each in its own nursery, and drain on a stop.

The host asks only for as many messages as it can start at once.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import trio
from attrs import define, field

from ductile.core.errors import DuctileError
from ductile.engine.process.descendants import KILL_TIMEOUT_SECONDS, ProcessTable
from ductile.exchange.worker.handle_claim import (
    HOST_STOPS,
    Handling,
    handle_claim,
    is_temporary,
    retry_delays,
)
from ductile.exchange.worker.values import ClaimService, GiveBack, HeldClaim, HostSettings, WorkSettings

POLL_SECONDS, BUSY_POLL_SECONDS = 30.0, 1.0
"""How long one request waits for messages; at least, while commands run."""
MAX_START_FAILURES = 5
CANNOT_START_EXIT = 78
KILL_GRACE_SECONDS = 5.0
RELEASE_SECONDS = 5.0
"""Time to release claims after their processes have ended."""


@define(eq=False)
class WorkerHost:
    """The state of one host."""

    service: ClaimService
    work: WorkSettings
    settings: HostSettings
    report: Callable[[str], None]
    table: ProcessTable = field(factory=ProcessTable)
    handled: int = 0
    """The number of messages whose handling has ended."""
    _stopping: trio.Event = field(factory=trio.Event)
    _waiting: trio.CancelScope = field(factory=trio.CancelScope)
    """The scope of the current wait for messages, or for a free place."""
    _running: set[Handling] = field(factory=set)
    _changed: trio.Event = field(factory=trio.Event)
    """Set when a claim has been handled. Replaced by the task that waits for it."""
    _start_failures: int = 0
    _retry: Iterator[float] = field(factory=retry_delays)
    _has_answered: bool = False
    """The service has answered at least once."""

    def stop(self) -> None:
        """Claim nothing more and start the drain."""
        self._stopping.set()
        self._waiting.cancel()

    async def run(self) -> int:
        """Handle messages until the settings or `stop` end it. Return the exit code.

        Raises the error of the first request if the service is away, and any final refusal.
        """
        failure: DuctileError | None = None
        code = 0
        async with trio.open_nursery() as handling:
            try:
                code = await self._claim_and_start(handling)
            except DuctileError as error:
                failure = error
            await self._finish()
        if failure is not None:
            raise failure
        return CANNOT_START_EXIT if self._start_failures >= MAX_START_FAILURES else code

    async def _claim_and_start(self, handling: trio.Nursery) -> int:
        """Claim messages and start their handling until no more are wanted. Return the exit code."""
        idle_since = trio.current_time()
        while not self._stopping.is_set():
            if self._is_complete():
                return 0
            free = self._free()
            if not free:
                await self._wait_for_change()
                idle_since = trio.current_time()
                continue
            least = BUSY_POLL_SECONDS if self._running else 0.0
            wait_seconds = max(min(POLL_SECONDS, self._idle_left(idle_since)), least)
            claims = await self._claim(free, wait_seconds)
            for claim in claims:
                one = Handling(claim)
                self._running.add(one)
                handling.start_soon(self._handle, one, name=f"message {claim.message_id}")
            if self._running:
                idle_since = trio.current_time()
            elif self._idle_left(idle_since) <= 0:
                return self.settings.idle_exit_code
        return 0

    def _is_complete(self) -> bool:
        maximum = self.settings.max_messages
        is_enough = maximum is not None and self.handled + len(self._running) >= maximum
        return is_enough or self._start_failures >= MAX_START_FAILURES

    def _free(self) -> int:
        """Return how many messages can be started now."""
        maximum = self.settings.max_messages
        left = math.inf if maximum is None else maximum - self.handled - len(self._running)
        return int(min(self.settings.concurrency - len(self._running), left))

    def _idle_left(self, idle_since: float) -> float:
        limit = self.settings.idle_seconds
        return math.inf if limit is None else idle_since + limit - trio.current_time()

    async def _wait_for_change(self) -> None:
        """Wait until a claim has been handled or the host stops."""
        self._changed = trio.Event()
        with trio.CancelScope() as self._waiting:
            await self._changed.wait()

    async def _claim(self, limit: int, wait_seconds: float) -> Sequence[HeldClaim]:
        """Wait for messages. Returns none if the host stops or the service is away for a moment."""
        claims: Sequence[HeldClaim] = ()
        with trio.CancelScope() as self._waiting:
            claims = await self._claim_once(limit, wait_seconds)
        if self._stopping.is_set():
            for claim in claims:
                await self._give_back(claim)
            return ()
        return claims

    async def _claim_once(self, limit: int, wait_seconds: float) -> Sequence[HeldClaim]:
        try:
            claims = await self.service.claim(limit=limit, wait_seconds=wait_seconds)
        except DuctileError as error:
            if not is_temporary(error) or not self._has_answered:
                raise
            self.report(f"{error}; waiting for the service")
            await trio.sleep(next(self._retry))
            return ()
        self._has_answered, self._retry = True, retry_delays()
        return claims

    async def _give_back(self, claim: HeldClaim) -> None:
        """Release a claim that arrived while the host stops."""
        try:
            with trio.move_on_after(RELEASE_SECONDS):
                await self.service.release(claim, GiveBack(reason="the worker host was stopped", uncounted=True))
        except DuctileError as error:
            self.report(f"message {claim.message_id}: the claim was not released: {error}")

    async def _handle(self, one: Handling) -> None:
        try:
            await handle_claim(one, self.work, self.service, self.table, self.report)
            self._start_failures = 0 if one.is_started else self._start_failures + 1
        finally:
            self._running.discard(one)
            self.handled += 1
            self._changed.set()

    async def _finish(self) -> None:
        """Wait for the running commands. After a stop, end those that take longer than the drain."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_after_stop, name="drain")
            while self._running:
                self._changed = trio.Event()
                await self._changed.wait()
            nursery.cancel_scope.cancel()

    async def _end_after_stop(self) -> None:
        await self._stopping.wait()
        give_up_at = trio.current_time() + self.settings.drain_seconds
        for one in self._running:
            one.give_up_at = give_up_at + KILL_GRACE_SECONDS + KILL_TIMEOUT_SECONDS + RELEASE_SECONDS
        await trio.sleep_until(give_up_at)
        for one in self._running:
            one.stop.request(HOST_STOPS)
