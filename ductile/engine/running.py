"""One live plugin process as its pipes show it: what it says, when it exits, and how it is brought to its end.

Waits for nothing by itself: `spawn` does that on an event loop, `ask` in a thread. What a run amounts to is a value
(`Finished`); what that means is for `judge`. Knows nothing of jobs, retries or JSON.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum

from ductile.engine.launch import CHUNK, WIDE_PIPE, Launched, widen
from ductile.secret import Mask
from ductile.values import define, field, frozen

ROOMY_PIPE = 256 << 10
# After the leader's exit: how long its pipes may stay quiet, and how long they may go on at all.
QUIET_SECONDS = 0.25
DRAIN_SECONDS = 1.0
# Nothing survives SIGKILL this long, unless the kernel itself is stuck on its behalf.
LOST_SECONDS = 5.0
_IF_IT_IS_THERE = suppress(ProcessLookupError, PermissionError)


@frozen
class Caps:
    """How many bytes of each stream are kept: more on stdout ends the run, more on stderr pushes out the oldest."""

    stdout: int = 10 << 20
    stderr: int = 64 << 10


@define
class Beginning:
    """The first bytes of a stream, and how many there were in all."""

    cap: int
    total: int = 0
    _pieces: list[bytes | bytearray] = field(factory=list)
    """Large ones as they came: to grow one block by each of them would copy all that is there again and again."""
    _few: bytearray = field(factory=bytearray)
    """Small ones, one behind the other."""

    def write(self, chunk: bytes) -> None:
        room = self.cap - self.total
        self.total += len(chunk)
        if len(chunk) > room:
            chunk = chunk[: max(0, room)]
        if len(chunk) < CHUNK:
            self._few += chunk
        else:
            self._pieces += (self._few, chunk) if self._few else (chunk,)
            self._few = bytearray()

    def read(self) -> bytes:
        """What is kept now."""
        return b"".join((*self._pieces, self._few)) if self._pieces else bytes(self._few)


@define
class Tail:
    """The last bytes of a stream, readable while it is still being written."""

    cap: int = Caps().stderr
    total: int = 0
    _kept: bytearray = field(factory=bytearray)

    def write(self, chunk: bytes) -> None:
        self._kept += chunk
        self.total += len(chunk)
        if len(self._kept) > 2 * self.cap:
            del self._kept[: -self.cap]

    def read(self) -> bytes:
        """What is kept now: everything, or the last `cap` bytes of it, from the first whole character on."""
        kept = bytes(self._kept[-self.cap :])
        return kept[_inside_a_character(kept) :] if self.total > len(kept) else kept


def _inside_a_character(cut: bytes) -> int:
    """How many bytes of UTF-8 at the beginning are the rest of a character."""
    return next((at for at, byte in enumerate(cut[:4]) if byte & 0xC0 != 0x80), 0)


class Cause(StrEnum):
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
    cause: Cause
    stopped: str | None
    stdout: bytes = field(repr=False)
    stdout_total: int
    stdout_over_cap: bool
    stderr: bytes = field(repr=False)
    stderr_total: int
    pipe_held: bool
    swept: int
    lost: bool
    duration: float

    @property
    def timed_out(self) -> bool:
        return self.cause is Cause.TIMED_OUT

    @property
    def interrupted(self) -> bool:
        return self.cause is Cause.STOPPED

    @property
    def stderr_truncated(self) -> bool:
        return self.stderr_total > len(self.stderr)

    def words(self, mask: Mask) -> str:
        """What is kept of stderr, with nothing secret in it."""
        text = self.stderr.decode("utf-8", "backslashreplace")
        return mask.of_tail(text) if self.stderr_truncated else mask(text)


class Running:
    """A live process and its three pipes behind one epoll, so that whoever waits for it waits for one thing.

    The epoll knows them only once somebody `take`s: a process that soon exits is not worth the trouble.
    """

    def __init__(self, launched: Launched, caps: Caps, tail: Tail, now: Callable[[], float]) -> None:
        self.process, self.caps, self.tail, self.now = launched, caps, tail, now
        self.cause = Cause.STOPPED
        self.exited = self.pipe_held = self.lost = self.is_buried = False
        self.status: os.waitid_result | None = None
        self.swept = self.taken = 0
        self.stdout = Beginning(caps.stdout)
        self.outputs: dict[int, Beginning | Tail] = {launched.stdout: self.stdout, launched.stderr: tail}
        self.chunk = CHUNK
        self.poll = launched.poll
        self.is_watched = False
        self.unsent = launched.unsent
        self.feeding = bool(self.unsent)
        if not self.feeding:
            launched.descriptors.close(launched.stdin)

    @property
    def over_cap(self) -> bool:
        return self.stdout.total > self.caps.stdout

    @property
    def is_over(self) -> bool:
        """Whether the leader has exited or said too much."""
        return self.exited or self.over_cap

    def watch(self) -> None:
        """From now on the epoll tells when the process says something, takes something, or exits."""
        if self.is_watched:
            return
        self.is_watched = True
        for descriptor in self.outputs:
            self.poll.register(descriptor, select.EPOLLIN)
        if not self.exited:
            self.poll.register(self.process.pidfd, select.EPOLLIN)
        if self.feeding:
            self.poll.register(self.process.stdin, select.EPOLLOUT)

    def take(self, seconds: float = 0) -> None:
        """One piece of everything that is ready, or will be within `seconds`: a flooding plugin shares with others."""
        self.watch()
        for descriptor, _ in self.poll.poll(seconds):
            self.taken += 1
            if descriptor == self.process.pidfd:
                self.exited = True
                self._unwatch(descriptor)
            elif descriptor == self.process.stdin:
                self._feed()
            elif descriptor in self.outputs:
                self._read(descriptor)

    def settle(self, reason: str | None) -> None:
        """Nobody waits for the leader any longer: why it ends is decided. `reason` is why it was asked to stop."""
        if self.over_cap:
            self.cause = Cause.OUTPUT_LIMIT
        elif self.has_exited():  # also in the moment of the deadline: what was finished counts
            self.cause = Cause.EXITED
        else:
            self.cause = Cause.STOPPED if reason is not None else Cause.TIMED_OUT

    def end(self, grace: float) -> Iterator[float]:
        """The leader is reaped, its group is dead, and what it said is read. Bounded, whatever the plugin does.

        Whoever goes through this takes what is ready each time, and waits for it until the given moment at the latest.
        """
        if self.is_buried:
            return
        if not self.has_exited() and not self.over_cap:
            self._signal(signal.SIGTERM, signal.SIGCONT)
            until = self.now() + grace
            while not self.is_over and self.now() < until:
                yield until
        if not self.has_exited():
            self._signal(signal.SIGKILL)
            until = self.now() + LOST_SECONDS
            while not self.exited and self.now() < until:
                yield until
        self._stop_feeding()
        yield from self._drain()
        self.bury()

    def bury(self) -> None:
        """The leader is reaped, and its group is dead."""
        self._signal(signal.SIGKILL)  # while the leader is unreaped, its group number cannot mean another group
        self.status = os.waitid(os.P_PIDFD, self.process.pidfd, os.WEXITED | os.WNOHANG)
        self.lost = self.status is None
        self.is_buried = True

    def finished(self, reason: str | None) -> Finished:
        status = self.status
        exited_by_itself = status is not None and status.si_code == os.CLD_EXITED
        return Finished(
            exit_code=status.si_status if status is not None and exited_by_itself else None,
            signal=status.si_status if status is not None and not exited_by_itself else None,
            cause=self.cause,
            stopped=reason if self.cause is Cause.STOPPED else None,
            stdout=self.stdout.read(),
            stdout_total=self.stdout.total,
            stdout_over_cap=self.over_cap,
            stderr=self.tail.read(),
            stderr_total=self.tail.total,
            pipe_held=self.pipe_held,
            swept=self.swept,
            lost=self.lost,
            duration=time.monotonic() - self.process.began,
        )

    def close(self) -> None:
        self.poll.close()
        self.process.descriptors.close_all()

    def _drain(self) -> Iterator[float]:
        """Read until nobody holds the pipes any more, or until they are quiet, or for a second."""
        self.read_what_is_there()
        if not self.outputs:
            return
        until = self.now() + DRAIN_SECONDS
        while self.outputs and not self.over_cap and self.now() < until:
            before = self.taken
            yield min(until, self.now() + QUIET_SECONDS)
            if self.taken == before:
                break
        self.pipe_held = bool(self.outputs)

    def is_silent(self) -> bool:
        """Whether the process has said nothing so far; what it has said is taken."""
        self.read_what_is_there()
        return not self.stdout.total and not self.tail.total and len(self.outputs) == 2

    def make_room(self) -> None:
        """What the process says can wait for a while without holding it up."""
        for output in (self.process.stdout, self.process.stderr):
            widen(output, ROOMY_PIPE)

    def read_what_is_there(self) -> None:
        """What has been said by now is taken, as much as a pipe can hold."""
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
            self._unwatch(descriptor)
            return 0
        self.outputs[descriptor].write(chunk)
        if len(chunk) == CHUNK:  # the pipe was full: a plugin with much to say
            self.chunk = WIDE_PIPE
            widen(descriptor, WIDE_PIPE)
        return len(chunk)

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
            self._unwatch(self.process.stdin)
            self.process.descriptors.close(self.process.stdin)

    def has_exited(self) -> bool:
        """Whether the leader has exited, as the kernel says."""
        if not self.exited:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            self.exited = os.waitid(os.P_PIDFD, self.process.pidfd, options) is not None
            if self.exited:
                self._unwatch(self.process.pidfd)
        return self.exited

    def _unwatch(self, descriptor: int) -> None:
        if self.is_watched:
            self.poll.unregister(descriptor)

    def _signal(self, *signals: signal.Signals) -> None:
        for each in signals:
            with _IF_IT_IS_THERE:
                os.killpg(self.process.pid, each)
