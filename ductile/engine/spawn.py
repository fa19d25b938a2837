"""One plugin process from spawn to reaped: pipes, caps, deadline, SIGTERM, SIGKILL, sweep.

Whatever a plugin does is a value (`Finished`, `SpawnFailed`), never an exception; what it means is for `judge`.
Knows nothing of jobs, retries or JSON. `run_job` calls `run_plugin`; `dispatcher` holds the `Stop` of each run.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial

import trio
from attrs import Factory, define, field, frozen

from ductile.engine.launch import CHUNK, WIDE_PIPE, Launched, SpawnFailed, launch, widen
from ductile.engine.limits import Limits
from ductile.engine.processes import INSTANCE_MARKER, JOB_MARKER
from ductile.engine.sweep import House, house

__all__ = ["Caps", "Ending", "Finished", "Limits", "SpawnFailed", "Stop", "Tail", "run_plugin"]

# After the leader's exit: how long its pipes may stay quiet, and how long they may go on at all.
QUIET_SECONDS = 0.25
DRAIN_SECONDS = 1.0
# Nothing survives SIGKILL this long, unless the kernel itself is stuck on its behalf.
LOST_SECONDS = 5.0
# A file that somebody has only just written may still be open in a process of theirs.
BUSY_FILE_TRIES, BUSY_FILE_SECONDS = 5, 0.02


@frozen
class Caps:
    """How many bytes of each stream are kept: more on stdout ends the run, more on stderr pushes out the oldest."""

    stdout: int = 10 << 20
    stderr: int = 64 << 10


@define
class Tail:
    """The last bytes of a stream, readable while it is still being written."""

    cap: int = Caps().stderr
    total: int = 0
    _kept: bytearray = Factory(bytearray)

    def write(self, chunk: bytes) -> None:
        self._kept += chunk
        self.total += len(chunk)
        if len(self._kept) > 2 * self.cap:
            del self._kept[: -self.cap]

    def read(self) -> bytes:
        """What is kept now: everything, or the last `cap` bytes of it."""
        return bytes(self._kept[-self.cap :])


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


class Ending(StrEnum):
    """Why a run ended. One owner decides it, once."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    OUTPUT_LIMIT = "output_limit"


@frozen(kw_only=True)
class Finished:
    """What a process did, from its start until the last of its descendants was gone."""

    exit_code: int | None
    signal: int | None
    ending: Ending
    stopped: str | None
    stdout: bytes = field(repr=False)
    stdout_total: int
    stdout_over_cap: bool
    stderr: bytes = field(repr=False)
    stderr_total: int
    pipe_held: bool
    swept: int
    lost: bool
    started_at: float
    duration: float

    @property
    def timed_out(self) -> bool:
        return self.ending is Ending.TIMED_OUT

    @property
    def interrupted(self) -> bool:
        return self.ending is Ending.STOPPED

    @property
    def stderr_truncated(self) -> bool:
        return self.stderr_total > len(self.stderr)


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
    run = _Run(launched, caps, tail or Tail(caps.stderr))
    home.leaders[launched.pid] = env.get(JOB_MARKER)
    try:
        if on_started is not None:
            on_started(launched.pid)
        await run.until_over(trio.current_time() + timeout, stop)
    finally:
        try:
            if not run.end_at_once():
                with trio.CancelScope(shield=True):
                    await run.end(grace)
            del home.leaders[launched.pid]
            if home.may_have_strays:
                with trio.CancelScope(shield=True):
                    await run.sweep(home, env.get(INSTANCE_MARKER))
        finally:
            run.close()
    return run.finished(stop)


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
    if not home.is_busy:
        async with home.door:
            if not home.is_busy:  # the one before us may have found out
                began = time.monotonic()
                launched = start()
                home.note_spawn(began)
                return launched
    # Not abandoned when cancelled: the process could be lost.
    return await trio.to_thread.run_sync(start, limiter=home.side_door)


class _Run:
    """A live process and its three pipes behind one epoll, so that a single task watches all of them."""

    def __init__(self, launched: Launched, caps: Caps, tail: Tail) -> None:
        self.process, self.caps, self.tail = launched, caps, tail
        self.ending = Ending.STOPPED
        self.exited = self.pipe_held = self.lost = False
        self.status: os.waitid_result | None = None
        self.swept = 0
        self.stdout = bytearray()
        self.stdout_total = 0
        self.outputs = {launched.stdout: self._keep_stdout, launched.stderr: tail.write}
        self.chunk = CHUNK
        self.poll = launched.poll
        for descriptor in (*self.outputs, launched.pidfd):
            self.poll.register(descriptor, select.EPOLLIN)
        self.unsent = launched.unsent
        self.feeding = bool(self.unsent)
        if self.feeding:
            self.poll.register(launched.stdin, select.EPOLLOUT)
        else:
            launched.descriptors.close(launched.stdin)

    @property
    def over_cap(self) -> bool:
        return self.stdout_total > self.caps.stdout

    async def until_over(self, deadline: float, stop: Stop) -> None:
        """Returns when the leader has exited, said too much, reached its deadline, or was asked to stop."""
        with trio.CancelScope(deadline=deadline) as patience:
            stop.wakes(patience)
            while not (self.exited or self.over_cap):
                await self._step()
        if self.over_cap:
            self.ending = Ending.OUTPUT_LIMIT
        elif self._has_exited():  # also in the moment of the deadline: what was finished counts
            self.ending = Ending.EXITED
        else:
            self.ending = Ending.STOPPED if stop.reason is not None else Ending.TIMED_OUT

    def end_at_once(self) -> bool:
        """`end` where nothing has to be waited for, as after nearly every run; False where something has."""
        if not self.exited or self.over_cap:
            return False
        self._read_what_is_there()
        if not self.outputs:
            self._finish()
        return not self.outputs

    async def end(self, grace: float) -> None:
        """The leader is reaped, its group is dead, and what it said is read. Bounded, whatever the plugin does."""
        if not self._has_exited() and not self.over_cap:
            self._signal(signal.SIGTERM, signal.SIGCONT)
            with trio.move_on_after(grace):
                while not (self.exited or self.over_cap):
                    await self._step()
        if not self._has_exited():
            self._signal(signal.SIGKILL)
            with trio.move_on_after(LOST_SECONDS):
                while not self.exited:
                    await self._step()
        self._stop_feeding()
        await self._drain()
        self._finish()

    async def sweep(self, home: House, instance: str | None) -> None:
        """No descendant of this run is left, not even one that left its session and forgot its environment."""
        with trio.move_on_after(LOST_SECONDS) as patience:
            self.swept = await home.sweep(instance)
        self.lost |= patience.cancelled_caught

    def finished(self, stop: Stop) -> Finished:
        status = self.status
        exited_by_itself = status is not None and status.si_code == os.CLD_EXITED
        return Finished(
            exit_code=status.si_status if status is not None and exited_by_itself else None,
            signal=status.si_status if status is not None and not exited_by_itself else None,
            ending=self.ending,
            stopped=stop.reason if self.ending is Ending.STOPPED else None,
            stdout=bytes(self.stdout),
            stdout_total=self.stdout_total,
            stdout_over_cap=self.over_cap,
            stderr=self.tail.read(),
            stderr_total=self.tail.total,
            pipe_held=self.pipe_held,
            swept=self.swept,
            lost=self.lost,
            started_at=self.process.started_at,
            duration=time.monotonic() - self.process.started_at,
        )

    def close(self) -> None:
        self.poll.close()
        self.process.descriptors.close_all()

    async def _step(self) -> None:
        """Wait until something is ready, then take one piece of it: a flooding plugin shares the loop with others."""
        await trio.lowlevel.wait_readable(self.poll.fileno())
        for descriptor, _ in self.poll.poll(0):
            if descriptor == self.process.pidfd:
                self.exited = True
                self.poll.unregister(descriptor)
            elif descriptor == self.process.stdin:
                self._feed()
            elif descriptor in self.outputs:
                self._read(descriptor)

    async def _drain(self) -> None:
        """Read until nobody holds the pipes any more, or until they are quiet, or for a second."""
        self._read_what_is_there()
        if not self.outputs:
            return
        with trio.move_on_after(DRAIN_SECONDS):
            while self.outputs and not self.over_cap:
                with trio.move_on_after(QUIET_SECONDS) as quiet:
                    await self._step()
                if quiet.cancelled_caught:
                    break
        self.pipe_held = bool(self.outputs)

    def _read_what_is_there(self) -> None:
        for descriptor in list(self.outputs):
            budget = WIDE_PIPE  # a pipe holds no more, and a stray that keeps writing may not keep us here
            while budget > 0 and (taken := self._read(descriptor)):
                budget -= taken

    def _read(self, descriptor: int) -> int:
        """Take one chunk; returns its size, 0 when there is none now or ever."""
        try:
            chunk = os.read(descriptor, self.chunk)
        except BlockingIOError:
            return 0
        if not chunk:
            del self.outputs[descriptor]
            self.poll.unregister(descriptor)
            return 0
        self.outputs[descriptor](chunk)
        if len(chunk) == CHUNK:  # the pipe was full: a plugin with much to say
            self.chunk = WIDE_PIPE
            widen(descriptor, WIDE_PIPE)
        return len(chunk)

    def _keep_stdout(self, chunk: bytes) -> None:
        self.stdout_total += len(chunk)
        self.stdout += chunk[: max(0, self.caps.stdout - len(self.stdout))]

    def _feed(self) -> None:
        try:
            self.unsent = self.unsent[os.write(self.process.stdin, self.unsent[:WIDE_PIPE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # a plugin need not read its request
            self.unsent = memoryview(b"")
        if not self.unsent:
            self._stop_feeding()

    def _stop_feeding(self) -> None:
        if self.feeding:
            self.feeding = False
            self.poll.unregister(self.process.stdin)
            self.process.descriptors.close(self.process.stdin)

    def _finish(self) -> None:
        """Its group is dead and it is reaped."""
        self._stop_feeding()
        self._signal(signal.SIGKILL)  # while the leader is unreaped, its group number cannot mean another group
        self.status = os.waitid(os.P_PIDFD, self.process.pidfd, os.WEXITED | os.WNOHANG)
        self.lost = self.status is None

    def _has_exited(self) -> bool:
        if not self.exited:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            self.exited = os.waitid(os.P_PIDFD, self.process.pidfd, options) is not None
            if self.exited:
                self.poll.unregister(self.process.pidfd)
        return self.exited

    def _signal(self, *signals: signal.Signals) -> None:
        for each in signals:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, each)
