"""One plugin process from spawn to reaped, watched by the event loop: deadline, stop, sweep.

Whatever a plugin does is a value (`Finished`, `SpawnFailed`), never an exception; what it means is for `judge`.
Knows nothing of jobs, retries or JSON. `run_job` launches and owns runs; the attempt has the `Stop` of each.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import trio

from ductile.engine.launch import BUSY_FILE_SECONDS, BUSY_FILE_TRIES, Launched, SpawnFailed, launch
from ductile.engine.limits import Limits
from ductile.engine.processes import INSTANCE_MARKER, JOB_MARKER
from ductile.engine.running import LOST_SECONDS, Caps, Finished, Running, Tail
from ductile.engine.sweep import House, house
from ductile.values import define

BRIEF_SECONDS, SILENT_SECONDS = 0.005, 0.05
"""How long a process may run before what it says is read; longer if it has said nothing by then, as most have whose
interpreter is still loading. Whose last run was like that is not looked at so soon: it would only lose its core."""

Start: TypeAlias = Callable[..., Launched | SpawnFailed]
"""`launch` with everything but whether it is alone."""


@define
class Stop:
    """A way to end one run from outside: the drain or an operator asks, the run obeys, the first reason counts."""

    reason: str | None = None
    _wake: Callable[[], None] | None = None

    def request(self, reason: str) -> None:
        """The run gets SIGTERM, its grace, then SIGKILL, and says so in `Finished.stopped`."""
        if self.reason is None:
            self.reason = reason
            if self._wake is not None:
                self._wake()

    def wakes(self, wake: Callable[[], None]) -> None:
        """From now on a request calls this; an earlier one does at once."""
        self._wake = wake
        if self.reason is not None:
            wake()


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
    caps, stop = caps or Caps(), stop or Stop()
    launched = await launch_in_turn(partial(launch, argv, request, env, limits))
    if isinstance(launched, SpawnFailed):
        return launched
    # No checkpoint from the launch to the `try` of the run: the process always has an owner.
    tail = tail or Tail(caps.stderr)
    run = Run(launched, argv[0], env, timeout=timeout, grace=grace, caps=caps, stop=stop, tail=tail)
    return await run.to_its_end(on_started)


def may_launch_at_once() -> bool:
    """Whether a launch in the loop is nothing that others would notice."""
    return house().is_at_leisure


def launch_at_once(start: Start) -> Launched | SpawnFailed:
    """For who has asked whether it may. Whoever gets a process owns it: no checkpoint until it has a `Run`."""
    return _launch_here(house(), start)


async def launch_in_turn(start: Start) -> Launched | SpawnFailed:
    """The same, whenever it can be; a file that is being written may be ready a moment later."""
    home = house()
    for _ in range(BUSY_FILE_TRIES):
        launched = await _launch_here_or_in_a_thread(home, start)
        if not (isinstance(launched, SpawnFailed) and launched.is_busy_file):
            break
        await trio.sleep(BUSY_FILE_SECONDS)
    return launched


async def _launch_here_or_in_a_thread(home: House, start: Start) -> Launched | SpawnFailed:
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


def _launch_here(home: House, start: Start) -> Launched | SpawnFailed:
    began = time.monotonic()
    launched = start(is_alone=True)
    home.note_spawn(began)
    return launched


class Run(Running):
    """A process on the event loop, from its launch until nothing of it is left."""

    def __init__(
        self,
        launched: Launched,
        entrypoint: str,
        env: Mapping[str, str],
        *,
        timeout: float,
        grace: float,
        caps: Caps,
        stop: Stop,
        tail: Tail,
    ) -> None:
        super().__init__(launched, caps, tail, trio.current_time)
        self.home = home = house()
        self.entrypoint, self.stop, self.grace = entrypoint, stop, grace
        self.instance = env.get(INSTANCE_MARKER)
        self.began = trio.current_time()
        self.deadline = self.began + timeout
        self.is_slow_starter = entrypoint in home.slow_starters
        home.leaders[launched.pid] = env.get(JOB_MARKER)
        if self.is_slow_starter:
            self.make_room()

    @property
    def is_left_alone_until(self) -> float:
        """Until then only its exit and its stop are waited for."""
        if self.feeding:
            return self.began
        return min(self.deadline, self.began + (SILENT_SECONDS if self.is_slow_starter else BRIEF_SECONDS))

    def finish_at_once(self, most: int) -> Finished | None:
        """What it came to if it has exited, said no more than `most` bytes and left nothing behind.

        Otherwise there is something to wait for, and `to_its_end` does that.
        """
        try:
            is_over = self.has_exited() and self._is_over_at_once(most)
        except Exception:  # met again by `to_its_end`, which leaves no process behind whatever happens
            return None
        if not is_over:
            return None
        self.close()
        return self.finished(self.stop.reason)

    def _is_over_at_once(self, most: int) -> bool:
        """Whether nothing is left of a process that has exited."""
        self.read_what_is_there()
        if self.outputs or self.over_cap or self.stdout.total > most:
            return False
        self._remember_start()
        self.settle(self.stop.reason)
        self.bury()
        return not self.home.may_have_strays

    async def to_its_end(self, on_started: Callable[[int], None] | None = None) -> Finished:
        """What it came to, from wherever it is now. Cancellation ends it as a deadline does, and then goes on."""
        try:
            if on_started is not None:
                on_started(self.process.pid)
            if not self.is_buried:
                await self._until_over()
        finally:
            try:
                await self._until_ended()
                await self._sweep()
            finally:
                self.close()
        return self.finished(self.stop.reason)

    async def _until_over(self) -> None:
        """Returns when the leader has exited, said too much, reached its deadline, or was asked to stop."""
        if not self.feeding:
            await self._leave_alone()
        if self.exited:
            self.read_what_is_there()
        else:
            with trio.CancelScope(deadline=self.deadline) as patience:
                self.stop.wakes(patience.cancel)
                while not self.is_over:
                    await self._step()
        self.settle(self.stop.reason)

    async def _leave_alone(self) -> None:
        """The leader has exited, was asked to stop, or has had its time to start; how it started is remembered."""
        if self.now() < self.is_left_alone_until:
            await self._until_exit(self.is_left_alone_until)
        if not self.is_slow_starter:
            if self.exited or self.stop.reason is not None or not self.is_silent():
                return
            self.is_slow_starter = True
            self.home.slow_starters.add(self.entrypoint)
            self.make_room()
            await self._until_exit(self.is_left_alone_until)
        self._remember_start()

    def _remember_start(self) -> None:
        if self.is_slow_starter:
            is_quick = self.exited and self.now() - self.began < BRIEF_SECONDS
            if is_quick or not (self.exited or self.is_silent()):
                self.home.slow_starters.discard(self.entrypoint)

    async def _until_exit(self, moment: float) -> None:
        """Most plugins are done in a moment, and what they say fits into a pipe: only their exit is waited for."""
        with trio.CancelScope(deadline=moment) as patience:
            self.stop.wakes(patience.cancel)
            # The kernel is asked, for what the loop hears may be of another process whose descriptor had this number.
            while not self.has_exited():
                await trio.lowlevel.wait_readable(self.process.pidfd)

    async def _until_ended(self) -> None:
        """Cannot be cancelled, and nearly never has to wait."""
        for until in self.end(self.grace):
            with trio.CancelScope(deadline=until, shield=True):
                await self._step()

    def bury(self) -> None:
        super().bury()
        del self.home.leaders[self.process.pid]

    async def _sweep(self) -> None:
        """No descendant of this run is left, not even one that left its session and forgot its environment."""
        try:
            if self.home.may_have_strays:
                with trio.move_on_after(LOST_SECONDS, shield=True) as patience:
                    self.swept = await self.home.sweep(self.instance)
                self.lost |= patience.cancelled_caught
        except OSError:  # no descriptor to look with: whoever is left is swept after the next run
            self.lost = True

    async def _step(self) -> None:
        self.watch()
        await trio.lowlevel.wait_readable(self.poll.fileno())
        self.take()
