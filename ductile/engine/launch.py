"""The start of one plugin process: three pipes, a spawn, and the descriptors to watch it with.

Blocks until the child has exec'd: a fraction of a millisecond, but several where others keep every core busy, so it
can run in a thread as well. Knows nothing of what the process then does; `spawn` and `ask` call it.
"""

import errno
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from ductile.engine.executable import explain_refusal, predict_refusal
from ductile.engine.limits import Limits, limited
from ductile.engine.posix_spawn import spawn, spawn_unlocked
from ductile.values import define, field, frozen

Start: TypeAlias = Callable[[list[str], Mapping[str, str], tuple[int, int, int]], int]

CHUNK = 65_536  # what a pipe holds unless it is widened
WIDE_PIPE = 1 << 20
# A file that somebody has only just written may still be open in a process of theirs.
BUSY_FILE_TRIES, BUSY_FILE_SECONDS = 5, 0.02


@frozen
class SpawnFailed:
    """The process never existed: why, in words and as errno."""

    reason: str
    errno: int

    @property
    def is_busy_file(self) -> bool:
        """True if the file was open for writing, which passes in a moment."""
        return self.errno == errno.ETXTBSY


@define
class Descriptors:
    """The open descriptors of one run. A number is in the set exactly while it is ours, so none is closed twice."""

    _open: set[int] = field(factory=set)

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self._open.update(ends)
        return ends

    def pidfd(self, pid: int) -> int:
        descriptor = os.pidfd_open(pid)
        self._open.add(descriptor)
        return descriptor

    def close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            self._open.remove(descriptor)
            os.close(descriptor)

    def close_all(self) -> None:
        self.close(*self._open)


@frozen
class Launched:
    """A process that runs, our ends of its pipes, and the part of its request that did not fit into stdin yet."""

    descriptors: Descriptors
    poll: select.epoll
    """For whoever has to watch more than one of the descriptors; empty."""
    pid: int
    pidfd: int
    stdin: int
    stdout: int
    stderr: int
    unsent: memoryview
    began: float


def launch(
    argv: Sequence[str],
    request: bytes,
    env: Mapping[str, str],
    limits: Limits | None,
    *,
    is_alone: bool = False,
) -> Launched | SpawnFailed:
    """The process runs in its own session with exactly this environment, or nothing of it exists.

    `is_alone`: no other thread has much to do meanwhile, so all of them may be held up until the exec.
    """
    # A shell that sets limits would report a bad entrypoint as an exit code of its own.
    if limits is not None and (code := predict_refusal(argv[0])) is not None:
        return SpawnFailed(explain_refusal(argv[0], code), code)
    try:
        return _launch(limited(argv, limits), request, env, spawn if is_alone else spawn_unlocked)
    except ValueError as error:  # a NUL or a lone surrogate in a name or value
        return SpawnFailed(f"{argv[0]}: cannot be given its arguments or environment: {error}", errno.EINVAL)
    except OSError as error:
        code = error.errno or errno.EIO
        return SpawnFailed(explain_refusal(argv[0], code), code)


def widen(pipe: int, size: int) -> None:
    """The pipe holds up to `size` bytes, if the host allows it: a matter of speed only."""
    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, min(WIDE_PIPE, size))


def _launch(argv: list[str], request: bytes, env: Mapping[str, str], start: Start) -> Launched:
    """Raises OSError or ValueError with nothing left open."""
    descriptors = Descriptors()
    try:
        poll = select.epoll()
        theirs_in, ours_in = descriptors.pipe()
        ours_out, theirs_out = descriptors.pipe()
        ours_err, theirs_err = descriptors.pipe()
        for end in (ours_out, ours_err):
            os.set_blocking(end, False)  # ours only: a plugin expects ordinary, blocking streams
        unsent = _prefill(ours_in, request)
        began = time.monotonic()
        pid = start(argv, env, (theirs_in, theirs_out, theirs_err))
        descriptors.close(theirs_in, theirs_out, theirs_err)
        pidfd = _pidfd_or_kill(descriptors, pid)
    except BaseException:
        descriptors.close_all()
        raise
    return Launched(descriptors, poll, pid, pidfd, ours_in, ours_out, ours_err, unsent, began)


def _prefill(stdin: int, request: bytes) -> memoryview:
    """Put what fits into the pipe before anybody reads it; returns the rest. Most requests need no feeding at all."""
    if len(request) > select.PIPE_BUF:  # less fits into the smallest pipe there is, and never blocks
        os.set_blocking(stdin, False)
    if len(request) > CHUNK:
        widen(stdin, len(request))
    rest = memoryview(request)
    return rest[os.write(stdin, rest) :] if rest else rest


def _pidfd_or_kill(descriptors: Descriptors, pid: int) -> int:
    """A process that cannot be watched may not live."""
    try:
        return descriptors.pidfd(pid)
    except OSError:
        os.killpg(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED)
        raise
