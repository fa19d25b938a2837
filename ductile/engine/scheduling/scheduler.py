"""Schedules become jobs by themselves: sleeps until the next moment something is due, then has the planner turn.

Here are the waiting and what to do when a turn goes wrong. Whoever changes a schedule, the configuration or the clock
makes it look again.
"""

from datetime import datetime, timedelta

import trio
from attrs import define

from ductile.core.errors import LedgerError, LedgerLost
from ductile.core.hub import SCHEDULES, Hub
from ductile.engine.scheduling.tick import AFTER_A_FAULT, Planner
from ductile.ledger.storage.writer import Ledger


@define(eq=False)
class Scheduler(Planner[Ledger, Hub]):
    """The planner of a service."""

    turning_since: float | None = None
    failing_since: float | None = None
    """When the first of the turns began that have gone wrong in a row."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fire what is due, for as long as the service takes work."""
        with self.hub.watch(SCHEDULES) as hints:
            task_status.started()
            while True:
                until = await self._turn_or_later()
                tick = self.snapshot().config.settings.service.tick_interval
                pause = tick if until is None else min(max(until - self._now(), timedelta()), tick)
                with trio.CancelScope(deadline=trio.current_time() + pause.total_seconds()):
                    await hints.receive()
                    self._stale = True

    def _now(self) -> datetime:
        """The time by the clock that the last turn has read: one that was set since is noticed by the next turn."""
        if self._clocks is None:
            return self.clock.now()
        wall, steady = self._clocks
        return wall + timedelta(seconds=self.clock.monotonic() - steady)

    async def _turn_or_later(self) -> datetime | None:
        """The edge of a turn: what goes wrong in one ends nobody else, and everything is looked at again soon."""
        self.turning_since = trio.current_time()
        try:
            until = await self.turn()
        except Exception as error:
            if self.ledger.broken.is_set():
                raise LedgerLost(f"{self.ledger.path}: {error}") from error
            told = str(error) if isinstance(error, LedgerError) else f"internal error: {error!r}"
            self.log.error("scheduler", f"{told}; looking again in {AFTER_A_FAULT.seconds} s")
            self._stale = True
            self.failing_since = self.turning_since if self.failing_since is None else self.failing_since
            return self._now() + AFTER_A_FAULT
        else:
            self.failing_since = None
            return until
        finally:
            self.turning_since = None

    def late_seconds(self) -> float:
        """For how long what is due has waited to be decided."""
        since = self.turning_since if self.failing_since is None else self.failing_since
        return 0.0 if since is None else trio.current_time() - since

    async def _let_others_work(self) -> None:
        await trio.lowlevel.checkpoint()
