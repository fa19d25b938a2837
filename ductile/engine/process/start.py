"""Start one plugin process: three pipes, `posix_spawn`, and a pidfd to wait for its exit.

The process leads its own session and process group, and inherits nothing but its three streams. Does not know
deadlines.
"""

import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import trio
from attrs import define, field, frozen

from ductile.engine.process.descendants import tag_children
from ductile.engine.process.exec_errors import explain_exec_error, predict_exec_error
from ductile.engine.process.limits import ResourceLimits, with_limits
from ductile.engine.process.streams import Caps

# Ignored signals are inherited: Python ignores SIGPIPE and SIGXFSZ, `nohup` and `&` of a shell ignore others.
_DEFAULT_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


@frozen(kw_only=True)
class ProcessSpec:
    """The inputs and limits of a plugin process. `argv[0]` is a path; the working directory is that of the service."""

    argv: Sequence[str]
    request: bytes = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    timeout_seconds: float
    grace_seconds: float = 5.0
    caps: Caps = field(factory=Caps)
    limits: ResourceLimits | None = None


@frozen
class SpawnFailed:
    """A process that could not be started: the reason as text and as errno."""

    reason: str
    errno: int
    stdout: bytes = b""

    @property
    def is_busy_file(self) -> bool:
        """True if the file was open for writing, which usually ends soon."""
        return self.errno == errno.ETXTBSY


@define(eq=False)
class Process:
    """A live plugin process and the service's ends of its pipes. Owned by the task that started it."""

    pid: int
    tag: int
    """The number that descendants of this process inherit; see `descendants`."""
    pidfd: int
    stdin: trio.lowlevel.FdStream
    stdout: trio.lowlevel.FdStream
    stderr: trio.lowlevel.FdStream
    unsent: memoryview = field(repr=False)
    """The part of the request that did not fit into the pipe before the process started."""
    started: float = field(factory=time.monotonic)
    is_reaped: bool = False
    _has_exited: bool = False
    _status: os.waitid_result | None = None

    def has_exited(self) -> bool:
        """True if the process has exited. Does not reap it."""
        if not self._has_exited:
            self._has_exited = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self._has_exited

    async def wait(self) -> None:
        """Wait for the process to exit. Does not reap it."""
        while not self.has_exited():
            await trio.lowlevel.wait_readable(self.pidfd)

    def signal_group(self, *signals: signal.Signals) -> None:
        """Send signals to the process group. Does nothing once the leader is reaped, as its id can then be reused."""
        if not self.is_reaped:
            for each in signals:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, each)

    def reap(self) -> bool:
        """Collect the exit status. False if the process has not exited; it then remains a child."""
        self._status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        self.is_reaped = True
        return self._status is not None

    @property
    def exit_code(self) -> int | None:
        status = self._status
        return status.si_status if status is not None and status.si_code == os.CLD_EXITED else None

    @property
    def signal_number(self) -> int | None:
        status = self._status
        return status.si_status if status is not None and status.si_code != os.CLD_EXITED else None

    def close(self) -> None:
        """Close the pipes and the pidfd."""
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        os.close(self.pidfd)


def start_process(spec: ProcessSpec, tag: int) -> Process | SpawnFailed:
    """Start the process with exactly the given environment. Blocks until it has called exec."""
    # The shell that sets limits would report a bad entrypoint as its own exit code.
    if spec.limits is not None and (code := predict_exec_error(spec.argv[0])) is not None:
        return SpawnFailed(explain_exec_error(spec.argv[0], code), code)
    try:
        return _start(with_limits(spec.argv, spec.limits), spec.request, spec.environment, tag)
    except ValueError as error:  # a NUL or a lone surrogate in an argument or in the environment
        return SpawnFailed(f"{spec.argv[0]}: invalid arguments or environment: {error}", errno.EINVAL)
    except OSError as error:
        code = error.errno or errno.EIO
        return SpawnFailed(explain_exec_error(spec.argv[0], code), code)


def _start(argv: list[str], request: bytes, environment: Mapping[str, str], tag: int) -> Process:
    """Start the process. Raises OSError or ValueError and leaves no descriptor open."""
    with ExitStack() as on_error, ExitStack() as theirs:

        def pipe(*, child_reads: bool) -> tuple[int, int]:
            """Return the child's end and the service's end."""
            reading, writing = os.pipe2(os.O_CLOEXEC)
            child, ours = (reading, writing) if child_reads else (writing, reading)
            theirs.callback(os.close, child)
            on_error.callback(os.close, ours)
            return child, ours

        pipes = [pipe(child_reads=True), pipe(child_reads=False), pipe(child_reads=False)]
        # A request that fits into the pipe is complete before the process starts, even if the service then dies.
        unsent = _fill(pipes[0][1], request)
        tag_children(tag)
        pid = os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, child, stream) for stream, (child, _) in enumerate(pipes)],
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
        pidfd = _pidfd_or_kill(pid)
        on_error.pop_all()
        stdin, stdout, stderr = (trio.lowlevel.FdStream(ours) for _, ours in pipes)
        return Process(pid, tag, pidfd, stdin, stdout, stderr, unsent)


def _fill(pipe: int, request: bytes) -> memoryview:
    """Write as much as the pipe accepts; return the rest."""
    os.set_blocking(pipe, False)
    view = memoryview(request)
    return view[os.write(pipe, view) :] if view else view


def _pidfd_or_kill(pid: int) -> int:
    """Open the pidfd. Kills the process and raises OSError if that fails."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.killpg(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED)
        raise
