"""Run one plugin process to its end: pipes, deadline, SIGTERM, grace, SIGKILL, sweep.

Misbehaviour of a plugin is a value (`Finished`, `SpawnFailed`), never an exception. Does not know jobs, retries or
JSON.
"""

import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

import trio
from attrs import define, field, frozen

from ductile.core.secret import Mask
from ductile.engine.process.descendants import KILL_TIMEOUT_SECONDS, ProcessTable, SweepResult
from ductile.engine.process.start import Process, ProcessSpec, SpawnFailed, start_process
from ductile.engine.process.streams import HeadBuffer, TailBuffer

PIPE_DRAIN_SECONDS = 1.0
"""Time to read the pipes to their end after the sweep. A process that survived it can keep them open."""
MAX_PIPE_BYTES = 1 << 20
"""The largest pipe buffer that a plugin can set without privileges."""
LONG_RUN_SECONDS = 0.5
BUSY_FILE_TRIES, BUSY_FILE_SECONDS = 5, 0.02
"""A file that was just written can still be open for writing."""


class Cause(StrEnum):
    """Why a run ended."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    OUTPUT_LIMIT = "output_limit"


@frozen(kw_only=True)
class Finished:
    """The result of a process run, after its descendants were swept."""

    exit_code: int | None
    signal: int | None
    cause: Cause
    stopped: str | None
    stdout: bytes = field(repr=False)
    stdout_total: int
    stdout_over_cap: bool
    stderr: bytes = field(repr=False)
    stderr_total: int
    pipe_left_open: bool
    """A process that survived the sweep holds a pipe open."""
    swept: int
    """The number of descendants that were killed."""
    lost: bool
    """A process of this run may still be alive."""
    duration: float

    @property
    def timed_out(self) -> bool:
        return self.cause is Cause.TIMED_OUT

    @property
    def stderr_truncated(self) -> bool:
        return self.stderr_total > len(self.stderr)

    def stderr_text(self, mask: Mask) -> str:
        """Return the stored part of stderr, with known secrets masked."""
        text = self.stderr.decode("utf-8", "backslashreplace")
        return mask.mask_tail(text) if self.stderr_truncated else mask(text)


@define(eq=False)
class StopRequest:
    """A request to stop one attempt. The first reason counts."""

    reason: str | None = None
    _scope: trio.CancelScope | None = None

    def request(self, reason: str) -> None:
        """Cancel the scope of the attempt: SIGTERM, grace period, SIGKILL. A later request has no effect."""
        if self.reason is None:
            self.reason = reason
            if self._scope is not None:
                self._scope.cancel()

    @contextmanager
    def cancels(self, scope: trio.CancelScope) -> Iterator[None]:
        """Make a request cancel `scope` within the block. An earlier request cancels it immediately."""
        self._scope = scope
        if self.reason is not None:
            scope.cancel()
        try:
            yield
        finally:
            self._scope = None


async def _ignore(_: Process) -> None:
    """Do nothing."""


@define(eq=False)
class ProcessControl:
    """The handle of a running process: how to stop it, its stderr so far, and callbacks."""

    stop: StopRequest = field(factory=StopRequest)
    stderr: TailBuffer = field(factory=TailBuffer)
    deadline: trio.CancelScope | None = None
    """The scope that drives the escalation. Set until the process is reaped."""
    on_start: Callable[[Process], None] = lambda _: None
    on_long_run: Callable[[Process], Awaitable[None]] = _ignore
    """Called once after LONG_RUN_SECONDS. Cancelled when the process exits."""

    @contextmanager
    def running(self, deadline: trio.CancelScope) -> Iterator[None]:
        self.deadline = deadline
        try:
            with self.stop.cancels(deadline):
                yield
        finally:
            self.deadline = None


async def run_process(spec: ProcessSpec, control: ProcessControl, table: ProcessTable) -> Finished | SpawnFailed:
    """Run one process to its end. Leaves no process, zombie or descriptor behind.

    The deadline, a stop request and too much output cancel the same scope, so there is one escalation. Cancelling
    the caller terminates the process in the same way.
    """
    process = await _start_when_ready(spec, table)
    if isinstance(process, SpawnFailed):
        return process
    # No checkpoint from here to the `try`, so the process always has an owner.
    stdout, control.stderr.cap = HeadBuffer(spec.caps.stdout), spec.caps.stderr
    deadline = trio.CancelScope(deadline=trio.current_time() + spec.timeout_seconds)
    try:
        async with trio.open_nursery() as pipes:
            if process.unsent:
                pipes.start_soon(feed_stdin, process, name="stdin")
            else:
                process.stdin.close()
            pipes.start_soon(read_stdout, process.stdout, stdout, deadline, name="stdout")
            pipes.start_soon(read_stderr, process.stderr, control.stderr, name="stderr")
            with control.running(deadline):
                try:
                    with deadline:
                        control.on_start(process)
                        await _wait(process, control)
                    cause = _cause(process, control.stop)
                finally:
                    swept = await terminate(process, table, 0 if stdout.is_over_cap else spec.grace_seconds)
            pipes.cancel_scope.deadline = trio.current_time() + PIPE_DRAIN_SECONDS
        read_rest(process.stdout, stdout)
        read_rest(process.stderr, control.stderr)
    finally:
        process.close()
    if stdout.is_over_cap:  # known only after the pipe is read to its end
        cause = Cause.OUTPUT_LIMIT
    return Finished(
        exit_code=process.exit_code,
        signal=process.signal_number,
        cause=cause,
        stopped=control.stop.reason if cause is Cause.STOPPED else None,
        stdout=stdout.read(),
        stdout_total=stdout.total,
        stdout_over_cap=stdout.is_over_cap,
        stderr=control.stderr.read(),
        stderr_total=control.stderr.total,
        pipe_left_open=not (stdout.is_complete and control.stderr.is_complete),
        swept=swept.killed,
        lost=swept.incomplete,
        duration=time.monotonic() - process.started,
    )


async def terminate(process: Process, table: ProcessTable, grace_seconds: float) -> SweepResult:
    """Terminate the process group, reap the leader and sweep its descendants. Bounded and shielded.

    If the leader has exited, the rest of the group gets SIGKILL without a grace period.
    """
    with trio.CancelScope(shield=True):
        if not process.has_exited() and grace_seconds:
            process.signal_group(signal.SIGTERM, signal.SIGCONT)
            with trio.move_on_after(grace_seconds):
                await process.wait()
        process.signal_group(signal.SIGKILL)
        if not process.has_exited():
            with trio.move_on_after(KILL_TIMEOUT_SECONDS):
                await process.wait()
        is_reaped = process.reap()
        del table.leaders[process.pid]
        swept = await table.sweep(process.tag)
    return swept if is_reaped else SweepResult(swept.killed, incomplete=True)


async def feed_stdin(process: Process) -> None:
    """Write the rest of the request and close stdin. A plugin may close it unread."""
    async with process.stdin:
        with suppress(trio.BrokenResourceError):
            await process.stdin.send_all(process.unsent)


async def read_stdout(stream: trio.lowlevel.FdStream, buffer: HeadBuffer, deadline: trio.CancelScope) -> None:
    """Read stdout to its end. Cancels `deadline` if it exceeds the cap."""
    async for chunk in stream:
        buffer.write(chunk)
        if buffer.is_over_cap:
            deadline.cancel()
    buffer.is_complete = True


async def read_stderr(stream: trio.lowlevel.FdStream, buffer: TailBuffer) -> None:
    """Read stderr to its end."""
    async for chunk in stream:
        buffer.write(chunk)
    buffer.is_complete = True


def read_rest(stream: trio.lowlevel.FdStream, buffer: HeadBuffer | TailBuffer) -> None:
    """Read what is left in the pipe without waiting. A stalled event loop can end the readers too early."""
    reads = 0 if buffer.is_complete else 2  # content, then end of file; bounded, as a survivor may write forever
    with suppress(BlockingIOError):
        for _ in range(reads):
            chunk = os.read(stream.fileno(), MAX_PIPE_BYTES)
            buffer.write(chunk)
            buffer.is_complete = not chunk


async def _start_when_ready(spec: ProcessSpec, table: ProcessTable) -> Process | SpawnFailed:
    """Start the process. Retries a few times if the file is still open for writing."""
    await trio.lowlevel.checkpoint_if_cancelled()
    for _ in range(BUSY_FILE_TRIES):
        process = start_process(spec, table.new_tag())
        if isinstance(process, Process):
            table.leaders[process.pid] = process.tag
            return process
        if not process.is_busy_file:
            break
        await trio.sleep(BUSY_FILE_SECONDS)
    return process


async def _wait(process: Process, control: ProcessControl) -> None:
    """Wait for the process to exit. Calls `on_long_run` once if that takes long."""
    with trio.move_on_after(LONG_RUN_SECONDS):
        await process.wait()
    if not process.has_exited():
        async with trio.open_nursery() as report:
            report.start_soon(control.on_long_run, process, name="long run")
            await process.wait()
            report.cancel_scope.cancel()


def _cause(process: Process, stop: StopRequest) -> Cause:
    if process.has_exited():  # even if the deadline has expired meanwhile
        return Cause.EXITED
    return Cause.TIMED_OUT if stop.reason is None else Cause.STOPPED
