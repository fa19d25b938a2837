"""The task of the exchange that waits for deadlines: leases that are over, delayed messages that are due.

Sleeps until the next one. A second task reads the ledger again after commits, because a wake-up can be missed.
"""

from functools import partial
from math import inf

import trio
from attrs import define, field

from ductile.core.errors import DuctileError
from ductile.core.hub import JOURNAL
from ductile.core.logs import Log
from ductile.exchange.service import MessageExchange
from ductile.ledger.exchange.claim import next_due, topics_with_ready_messages, wake_due

RETRY_INTERVAL = 1.0
"""Seconds after which a failed round is repeated."""
RECHECK_INTERVAL = 1.0
"""Seconds after a commit in which a ready message without a wake-up is found."""
MAX_DELAY_SLEEP = 30.0
"""While messages are delayed, the wall clock is read this often, because it can be set."""


@define(eq=False)
class ExchangeTimers:
    """The tasks of the exchange."""

    exchange: MessageExchange
    log: Log
    _next: float = inf
    """The earliest deadline that was noted since the ledger was read."""
    _sleeps_until: float = -inf
    _is_earlier: trio.Event = field(factory=trio.Event)

    async def run(self, stopping: trio.Event) -> None:
        """Run until cancelled. When the service stops, the workers that wait get an empty answer."""
        self.exchange.on_deadline = self._note_deadline
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._handle_deadlines, name="leases and delays")
            nursery.start_soon(self._find_missed_messages, name="missed messages")
            await stopping.wait()
            self.exchange.waiters.wake_all()

    def _note_deadline(self, deadline: float) -> None:
        self._next = min(self._next, deadline)
        if deadline < self._sleeps_until:
            self._is_earlier.set()

    async def _handle_deadlines(self) -> None:
        while True:
            self._next, self._sleeps_until, self._is_earlier = inf, -inf, trio.Event()
            try:
                await self._expire()
                deadline = min(self.exchange.leases.next_deadline(), await self._wake_delayed(), self._next)
            except DuctileError as error:
                self.log.warn("exchange", f"leases and delays are handled late: {error}")
                deadline = self.exchange.clock.monotonic() + RETRY_INTERVAL
            self._sleeps_until = deadline
            with trio.move_on_after(max(deadline - self.exchange.clock.monotonic(), 0.0)):
                await self._is_earlier.wait()

    async def _expire(self) -> None:
        if self.exchange.leases.next_deadline() <= self.exchange.clock.monotonic():
            await self.exchange.expire()

    async def _wake_delayed(self) -> float:
        """Make the delayed messages ready that are due. Return when to look again, on the monotonic clock."""
        ledger, clock = self.exchange.ledger, self.exchange.clock
        if await ledger.read(next_due) is None:
            return inf
        self.exchange.wake(await ledger.transact(partial(wake_due, now=clock.now()), wait=False))
        due = await ledger.read(next_due)
        if due is None:
            return inf
        return clock.monotonic() + min(max((due - clock.now()).total_seconds(), 0.0), MAX_DELAY_SLEEP)

    async def _find_missed_messages(self) -> None:
        """After commits, look for ready and delayed messages for which no task was woken."""
        with self.exchange.hub.watch(JOURNAL) as hints:
            while True:
                await hints.receive()
                await trio.sleep(RECHECK_INTERVAL)
                try:
                    await self._find_missed()
                except DuctileError as error:
                    self.log.warn("exchange", f"messages may be delivered late: {error}")

    async def _find_missed(self) -> None:
        """Wake a worker of each topic with a ready message. Note when the next delayed message is due.

        A delayed message that waited for its ordering key has no deadline until the key is free.
        """
        waiters, ledger, clock = self.exchange.waiters, self.exchange.ledger, self.exchange.clock
        if not len(waiters):
            return
        for topic in await ledger.read(topics_with_ready_messages):
            waiters.wake(topic)
        due = await ledger.read(next_due)
        if due is not None:
            self._note_deadline(clock.monotonic() + (due - clock.now()).total_seconds())
