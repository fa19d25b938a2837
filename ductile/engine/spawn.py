"""One plugin process from spawn to reaped, watched by one task of the event loop: deadline, stop, sweep.

Whatever a plugin does is a value (`Finished`, `SpawnFailed`), never an exception; what it means is for `judge`.
Knows nothing of jobs, retries or JSON. `run_job` calls `run_plugin`; `dispatcher` holds the `Stop` of each run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio

from ductile.engine.launch import BUSY_FILE_SECONDS, BUSY_FILE_TRIES, Launched, SpawnFailed, launch
from ductile.engine.limits import Limits
from ductile.engine.processes import INSTANCE_MARKER, JOB_MARKER
from ductile.engine.running import LOST_SECONDS, Caps, Ending, Finished, Running, Tail
from ductile.engine.sweep import House, house
from ductile.values import define

BRIEF_SECONDS, SILENT_SECONDS = 0.005, 0.05
"""How long a process may run before what it says is read; longer if it has said nothing by then, as most have whose
interpreter is still loading. Whose last run was like that is not looked at so soon: it would only lose its core."""

__all__ = ["Caps", "Ending", "Finished", "Limits", "SpawnFailed", "Stop", "Tail", "run_plugin"]


@define
class Stop:
    """A way to end one run from outside: the drain or an operator asks, the run obeys, the first reason counts."""

    reason: str | None = None
    _wake: trio.CancelScope | None = None

    def request(self, reason: str) -> None:
        """The run gets SIGTERM, its grace, then SIGKILL, and says so in `Finished.stopped`."""
        if self.reason is None:
            self.reason = reason
            if self._wake is not None:
                self._wake.cancel()

    def wakes(self, scope: trio.CancelScope) -> None:
        """From now on a request cancels this scope; an earlier one does at once."""
        self._wake = scope
        if self.reason is not None:
            scope.cancel()


async def run_plugin(
    argv: Sequence[str],
    request: bytes,
    *,
    timeout: float,  # noqa: ASYNC109 - the plugin's, not the caller's: what it said until then is the result
    env: Mapping[str, str],
    grace: float = 5.0,
    caps: Caps | None = None,
    limits: Limits | None = None,
    stop: Stop | None = None,
    tail: Tail | None = None,
    on_started: Callable[[int], None] | None = None,
) -> Finished | SpawnFailed:
    """Run one process to its end and leave nothing of it behind: no process, no zombie, no descriptor.

    `argv[0]` is a path; the working directory is ours. Cancellation ends the process as a deadline does, and then
    goes on. `on_started` gets the pid, which is this process and no other until the run is over.
    """
    caps, stop, home = caps or Caps(), stop or Stop(), house()
    launched = await _launch_in_turn(home, argv, request, env, limits)
    if isinstance(launched, SpawnFailed):
        return launched
    # No checkpoint from the launch to the `try`: the process always has an owner.
    run = _Run(launched, caps, tail or Tail(caps.stderr), trio.current_time)
    home.leaders[launched.pid] = env.get(JOB_MARKER)
    try:
        if on_started is not None:
            on_started(launched.pid)
        await run.until_over(trio.current_time() + timeout, stop, argv[0], home.slow_starters)
    finally:
        try:
            await run.until_ended(grace)
            del home.leaders[launched.pid]
            await run.sweep(home, env.get(INSTANCE_MARKER))
        finally:
            run.close()
    return run.finished(stop.reason)


async def _launch_in_turn(
    home: House, argv: Sequence[str], request: bytes, env: Mapping[str, str], limits: Limits | None
) -> Launched | SpawnFailed:
    for _ in range(BUSY_FILE_TRIES):
        launched = await _launch_here_or_in_a_thread(home, partial(launch, argv, request, env, limits))
        if not (isinstance(launched, SpawnFailed) and launched.is_busy_file):
            break
        await trio.sleep(BUSY_FILE_SECONDS)
    return launched


async def _launch_here_or_in_a_thread(
    home: House, start: Callable[..., Launched | SpawnFailed]
) -> Launched | SpawnFailed:
    """Here costs half as much; but where every core is busy a spawn waits for its turn, and the loop with it."""
    if home.is_at_leisure:
        await trio.lowlevel.checkpoint_if_cancelled()
        return _launch_here(home, start)
    if not home.is_busy:
        async with home.door:
            if not home.is_busy:  # the one before us may have found out
                return _launch_here(home, start)
    # Not abandoned when cancelled: the process could be lost.
    return await trio.to_thread.run_sync(start, limiter=home.side_door)


def _launch_here(home: House, start: Callable[..., Launched | SpawnFailed]) -> Launched | SpawnFailed:
    began = time.monotonic()
    launched = start(is_alone=True)
    home.note_spawn(began)
    return launched


class _Run(Running):
    """A process that a single task of the event loop watches."""

    async def until_over(self, deadline: float, stop: Stop, entrypoint: str, slow_starters: set[str]) -> None:
        """Returns when the leader has exited, said too much, reached its deadline, or was asked to stop."""
        if not self.feeding:
            await self._leave_alone(deadline, stop, entrypoint, slow_starters)
        if self.exited:
            self.read_what_is_there()
        else:
            async with trio.open_nursery() as own:
                own.cancel_scope.deadline = deadline
                stop.wakes(own.cancel_scope)
                while not self.is_over:
                    await self._step()
        self.settle(stop.reason)

    async def _leave_alone(self, deadline: float, stop: Stop, entrypoint: str, slow_starters: set[str]) -> None:
        """The leader has exited, was asked to stop, or has had its time to start; how it started is remembered."""
        began = trio.current_time()
        if entrypoint not in slow_starters:
            await self._until_exit(min(deadline, began + BRIEF_SECONDS), stop)
            if self.exited or stop.reason is not None or not self.is_silent():
                return
            slow_starters.add(entrypoint)
        self.make_room()
        await self._until_exit(min(deadline, began + SILENT_SECONDS), stop)
        is_quick = self.exited and trio.current_time() - began < BRIEF_SECONDS
        if is_quick or not (self.exited or self.is_silent()):
            slow_starters.discard(entrypoint)

    async def _until_exit(self, moment: float, stop: Stop) -> None:
        """Most plugins are done in a moment, and what they say fits into a pipe: only their exit is waited for."""
        with trio.CancelScope(deadline=moment) as patience:
            stop.wakes(patience)
            # The kernel is asked, for what the loop hears may be of another process whose descriptor had this number.
            while not self.has_exited():
                await trio.lowlevel.wait_readable(self.process.pidfd)

    async def until_ended(self, grace: float) -> None:
        """Cannot be cancelled, and nearly never has to wait."""
        for until in self.end(grace):
            with trio.CancelScope(deadline=until, shield=True):
                await self._step()

    async def sweep(self, home: House, instance: str | None) -> None:
        """No descendant of this run is left, not even one that left its session and forgot its environment."""
        if home.may_have_strays:
            with trio.move_on_after(LOST_SECONDS, shield=True) as patience:
                self.swept = await home.sweep(instance)
            self.lost |= patience.cancelled_caught

    async def _step(self) -> None:
        self.watch()
        await trio.lowlevel.wait_readable(self.poll.fileno())
        self.take()
