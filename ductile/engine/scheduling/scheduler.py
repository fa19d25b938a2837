"""The scheduler loop: sleep until a schedule is due or has changed, then run a tick.

Owns the waiting and the handling of errors; `tick` makes the decisions.
"""

from datetime import datetime, timedelta

import trio
from attrs import define

from ductile.core.errors import LedgerBusy, LedgerError, LedgerLost
from ductile.core.hub import SCHEDULES, Hub
from ductile.engine.scheduling.tick import FAULT_RETRY_INTERVAL, Planner
from ductile.ledger.storage.async_ledger import Ledger

BUSY_RETRY_INTERVAL = timedelta(seconds=1)
"""A tick has waited for the ledger before it fails, so it is tried again soon."""


@define(eq=False)
class Scheduler(Planner[Ledger, Hub]):
    """The planner of a service."""

    tick_started: float | None = None
    failing_since: float | None = None
    """When the first of the latest failed ticks started."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run ticks until cancelled. Raises LedgerLost if the ledger cannot be written."""
        with self.hub.watch(SCHEDULES) as hints:
            task_status.started()
            while True:
                until = await self._tick_safely()
                interval = self.snapshot().config.settings.service.tick_interval
                pause = interval if until is None else min(max(until - self._now(), timedelta()), interval)
                with trio.CancelScope(deadline=trio.current_time() + pause.total_seconds()):
                    await hints.receive()
                    self._is_stale = True

    def _now(self) -> datetime:
        """Return the wall clock of the last tick plus the time since. The next tick detects a clock that was set."""
        if self._last_clocks is None:
            return self.clock.now()
        wall, monotonic = self._last_clocks
        return wall + timedelta(seconds=self.clock.monotonic() - monotonic)

    async def _tick_safely(self) -> datetime | None:
        """Run one tick. An error is logged, and all schedules are evaluated again after a retry interval."""
        self.tick_started = trio.current_time()
        try:
            until = await self.tick()
        except Exception as error:
            if self.ledger.broken.is_set():
                raise LedgerLost(str(error)) from error
            message = str(error) if isinstance(error, LedgerError) else f"internal error: {error!r}"
            retry = BUSY_RETRY_INTERVAL if isinstance(error, LedgerBusy) else FAULT_RETRY_INTERVAL
            self.log.error("scheduler", f"{message}; trying again in {retry.seconds} s")
            self._is_stale = True
            self.failing_since = self.tick_started if self.failing_since is None else self.failing_since
            return self._now() + retry
        else:
            self.failing_since = None
            return until
        finally:
            self.tick_started = None

    def lag_seconds(self) -> float:
        """Return for how long due schedules have waited to be decided."""
        since = self.tick_started if self.failing_since is None else self.failing_since
        return 0.0 if since is None else trio.current_time() - since

    async def _yield_to_others(self) -> None:
        await trio.lowlevel.checkpoint()
