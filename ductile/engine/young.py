"""Attempts whose process has only just started: most are over in a few milliseconds, and one wait serves them all.

Tells who has exited, and who needs a task of its own by now; what becomes of either is for `slots`.
"""

import math
import select

import trio

from ductile.engine.run_job import Begun
from ductile.values import define, field

SOON_SECONDS = 0.002


@define(eq=False)
class Young:
    """The attempts that have no task of their own. Whoever is told of one owns it from then on."""

    _all: dict[int, Begun] = field(factory=dict)
    """By the descriptor that tells of the exit of its process."""
    _exits: select.epoll = field(factory=select.epoll)
    """Watches these descriptors, but for some that the kernel would not watch."""
    _unwatched: set[int] = field(factory=set)
    _patience: trio.CancelScope = field(factory=trio.CancelScope)
    """Ends when one of them may have had its time."""

    def take_in(self, begun: Begun) -> None:
        """From now on `exited` or `outgrown` will tell of it."""
        pidfd = begun.run.process.pidfd
        self._all[pidfd] = begun
        begun.attempt.stop.wakes(self._look_now)
        try:
            self._exits.register(pidfd, select.EPOLLIN)
        except OSError:
            self._unwatched.add(pidfd)
            self._look_now()
        # To look for somebody who is gone costs more than to put it off; and that is not done for everybody.
        look_at = self._patience.deadline
        if begun.run.is_left_alone_until < look_at or look_at < begun.run.began + SOON_SECONDS:
            self._patience.deadline = self._next_look()

    async def exited(self) -> list[Begun]:
        """Waits until some have exited."""
        await trio.lowlevel.wait_readable(self._exits.fileno())
        return [self._let_go(pidfd) for pidfd, _ in self._exits.poll(0)]

    async def outgrown(self) -> list[Begun]:
        """Waits until some have had their time, or are to stop."""
        while True:
            now = trio.current_time()
            found = [pidfd for pidfd, begun in self._all.items() if self._needs_a_task(pidfd, begun, now)]
            if found:
                return [self._let_go(pidfd) for pidfd in found]
            self._patience = trio.CancelScope(deadline=self._next_look())
            with self._patience:
                await trio.sleep_forever()

    def leave(self) -> list[Begun]:
        """All of them; there will be no others."""
        left = [self._let_go(pidfd) for pidfd in list(self._all)]
        self._exits.close()
        return left

    def _next_look(self) -> float:
        return min((begun.run.is_left_alone_until for begun in self._all.values()), default=math.inf)

    def _look_now(self) -> None:
        self._patience.cancel()

    def _needs_a_task(self, pidfd: int, begun: Begun, now: float) -> bool:
        is_stopped = begun.attempt.stop.reason is not None
        return is_stopped or begun.run.is_left_alone_until <= now or pidfd in self._unwatched

    def _let_go(self, pidfd: int) -> Begun:
        if pidfd in self._unwatched:
            self._unwatched.remove(pidfd)
        else:
            self._exits.unregister(pidfd)
        return self._all.pop(pidfd)
