"""Identify processes, find them by their markers and end them: procfs, pidfds and the child subreaper.

Knows pids and the two markers in a plugin's environment, not jobs or pipes. `descendants` and `recover` use it; the
runtime calls `harden_self` once at start.
"""

import errno
import os
import resource
import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from attrs import frozen
from blake3 import blake3

JOB_MARKER = "DUCTILE_JOB_ID"
INSTANCE_MARKER = "DUCTILE_INSTANCE"

HAS_CHILDREN_LIST = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # a kernel may be built without it

LOOK_AGAIN_SECONDS, PAUSE_SECONDS = 0.5, 0.02
_SURELY_ALL = 2048  # bytes: the kernel ends a list early only when a page of it is full
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


@frozen
class ProcessId:
    """One process for all time: a pid is reused, its start time within one boot of the host is not."""

    pid: int
    start_ticks: int
    boot_id: str


@frozen
class Glance:
    """What procfs said about one process at one moment."""

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int

    @property
    def is_zombie(self) -> bool:
        return self.state == "Z"

    @property
    def identity(self) -> tuple[int, int]:
        """Process id and start time: no other process has both until the next boot."""
        return self.pid, self.start_ticks


@frozen
class Leftovers:
    """What a sweep for leftovers did; survivors could not be ended in time."""

    killed: tuple[ProcessId, ...]
    survivors: tuple[ProcessId, ...]


# --- this process -----------------------------------------------------------------------------------------------------


def harden_self() -> tuple[str, ...]:
    """Fit this process to run plugins for a long time. Returns, in words, what the host did not allow.

    Afterwards: no core dumps here or in plugins, other processes of this user cannot read our memory or environment,
    orphaned descendants come to us, a plugin inherits no descriptor by accident, and large blocks that are freed
    return to the system.
    """
    refused = []
    for step in (
        _forbid_core_dumps,
        _hide_from_ptrace,
        become_subreaper,
        _keep_standard_descriptors,
        _seal_descriptors,
        _return_freed_memory,
    ):
        try:
            step()
        except OSError as error:
            refused.append(f"{step.__name__.strip('_').replace('_', ' ')}: {error.strerror}")
    heed_children()
    return tuple(refused)


def heed_children() -> None:
    """Undo an inherited "ignore" of SIGCHLD, with which the kernel would reap plugins before their end is seen."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def become_subreaper(adopt: bool = True) -> None:
    """From now on a descendant whose parent dies becomes our child, wherever it hid."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def is_subreaper() -> bool:
    """True if orphaned descendants come to this process."""
    import ctypes

    answer = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(answer))
    return bool(answer.value)


def _forbid_core_dumps() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _hide_from_ptrace() -> None:
    _prctl(_PR_SET_DUMPABLE, 0)


def _keep_standard_descriptors() -> None:
    # Without 0, 1 and 2 the next pipe would get one of these numbers, and a plugin's stdout could become its stdin.
    while (lowest := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        os.set_inheritable(lowest, True)
    os.close(lowest)


def _seal_descriptors() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the listing's own descriptor is closed by now
                os.set_inheritable(int(name), False)


def _return_freed_memory() -> None:
    """Fix glibc's thresholds. By default they grow with the blocks that are freed, and the heap keeps those blocks."""
    import ctypes

    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other C libraries have none and need none
        for option, value in ((_M_MMAP_THRESHOLD, 128 << 10), (_M_TRIM_THRESHOLD, 1 << 20), (_M_ARENA_MAX, 2)):
            mallopt(option, value)


def _prctl(option: int, value: int) -> None:
    import ctypes  # only the service needs it, and only once

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


# --- any process ------------------------------------------------------------------------------------------------------


def identify(pid: int) -> ProcessId | None:
    """The lasting identity of a process that exists now (a zombie does), or None."""
    seen = glance(pid)
    return None if seen is None else ProcessId(pid, seen.start_ticks, boot_id())


def is_same(process: ProcessId) -> bool:
    """True if that very process, not a later one with its pid, is still alive."""
    seen = glance(process.pid)
    return (
        seen is not None
        and not seen.is_zombie
        and seen.start_ticks == process.start_ticks
        and process.boot_id == boot_id()
    )


@cache
def boot_id() -> str:
    """The name the kernel gave to this boot of the host."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def glance(pid: int) -> Glance | None:
    """What procfs says about a process, or None if there is none."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    # The command name may contain blanks and brackets: the fields begin after the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Glance(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def instance_of(ledger: Path) -> str:
    """A name for this installation that every start has in common: plugin processes carry it."""
    status = ledger.stat()
    return blake3(f"{ledger}|{status.st_dev}|{status.st_ino}".encode()).hexdigest()[:32]


def find_marked(instance: str, job_id: str | None = None) -> list[ProcessId]:
    """Every living process, but not this one, that carries the marker of an instance (and of a job)."""
    wanted = {_entry(INSTANCE_MARKER, instance)} | ({_entry(JOB_MARKER, job_id)} if job_id is not None else set())
    found = []
    for pid in _all_pids():
        if pid == os.getpid():
            continue
        before = identify(pid)
        if wanted <= set(_read(f"/proc/{pid}/environ").split(b"\0")) and before is not None and is_same(before):
            found.append(before)
    return found


async def kill_marked(instance: str, stored: Iterable[ProcessId] = (), *, patience: float = 10.0) -> Leftovers:
    """End what a dead instance left running: all its marked processes and the sessions of the stored leaders.

    Never touches a stranger: a stored pid counts only while its start time and boot id fit. Returns when nothing is
    left, or after `patience` seconds.
    """
    import trio

    targets = [*find_marked(instance), *_sessions_of(stored)]
    killed: set[ProcessId] = set()
    with trio.move_on_after(patience):
        while targets:
            killed.update(targets)
            # All at once, and not for ever: one that cannot be killed keeps nobody else alive.
            with trio.move_on_after(LOOK_AGAIN_SECONDS):
                async with trio.open_nursery() as nursery:
                    for process in targets:
                        nursery.start_soon(_kill_and_wait, process)
            # What they forked in the meantime, and who takes longer to die.
            targets = list({*find_marked(instance), *filter(is_same, killed)})
            if targets:
                await trio.sleep(PAUSE_SECONDS)
    survivors = tuple(process for process in {*targets, *killed} if is_same(process))
    return Leftovers(tuple(killed - set(survivors)), survivors)


def _sessions_of(leaders: Iterable[ProcessId]) -> list[ProcessId]:
    sessions = {leader.pid for leader in leaders if is_same(leader)} - {os.getpid()}
    if not sessions:
        return []
    everyone = (glance(pid) for pid in _all_pids())
    return [ProcessId(one.pid, one.start_ticks, boot_id()) for one in everyone if one and one.session in sessions]


async def _kill_and_wait(process: ProcessId) -> None:
    import trio

    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        # Checked after the pidfd is open: from here on it cannot come to mean another process.
        if is_same(process):
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


# --- children that are not ours by birth ------------------------------------------------------------------------------


def has_no_children() -> bool:
    """Whether this process has no child at all, neither born nor adopted, neither dead nor alive."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def adopted_children(known: Collection[int]) -> list[Glance]:
    """Our children except the `known` ones and those of our own session: what plugins left to us, dead or alive."""
    unknown = [pid for pid in _children() if pid not in known]
    if not unknown:
        return []
    # Who starts a process here without a new session keeps it; a plugin's descendants can never enter our session.
    home = os.getsid(0)
    seen = (glance(pid) for pid in unknown)
    return [child for child in seen if child is not None and child.session != home]


def reap(pid: int) -> bool:
    """A dead child is no zombie any more; True if SIGKILL ended it."""
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return False
    return status is not None and status.si_code != os.CLD_EXITED and status.si_status == signal.SIGKILL


def _children() -> Iterable[int]:
    if not HAS_CHILDREN_LIST:
        return _children_by_walking()
    # Orphans are given to the main thread, so its list is enough.
    listing = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(listing, 65536)
        if len(content) > _SURELY_ALL:
            content += b"".join(iter(lambda: os.read(listing, 65536), b""))
    finally:
        os.close(listing)
    return map(int, content.split())


def _children_by_walking() -> list[int]:
    us = os.getpid()
    return [pid for pid in _all_pids() if (seen := glance(pid)) is not None and seen.parent == us]


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _entry(name: str, value: str) -> bytes:
    return os.fsencode(f"{name}={value}")


def _read(path: str) -> bytes:
    """The content of a procfs file, or nothing if the process is gone or does not let us look."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
    except OSError as error:
        if error.errno == errno.EIO:  # an environment that vanishes while it is read
            return b""
        raise
