"""Identify processes, find them by their markers and kill them: procfs, pidfds and the child subreaper.

Knows process ids and the two markers in a plugin's environment, not jobs or pipes. The runtime calls `harden_self`
once at start.
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

HAS_CHILDREN_LIST = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # optional in the kernel

KILL_ROUND_SECONDS, KILL_RECHECK_SECONDS = 0.5, 0.02
_MAX_COMPLETE_READ_BYTES = 2048  # the kernel ends a read early only when a page is full
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


@frozen
class ProcessId:
    """The identity of a process. A pid can be reused; together with its start time and the boot it is unique."""

    pid: int
    start_ticks: int
    boot_id: str


@frozen
class ProcessStat:
    """The state of a process as procfs reported it."""

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
        """Process id and start time, unique until the next boot."""
        return self.pid, self.start_ticks


@frozen
class Leftovers:
    """The processes of an earlier run: those that were killed, and those that survived the timeout."""

    killed: tuple[ProcessId, ...]
    survivors: tuple[ProcessId, ...]


# --- this process -----------------------------------------------------------------------------------------------------


def harden_self() -> tuple[str, ...]:
    """Prepare this process to run plugins. Returns a message for each step that the host did not allow.

    Afterwards: no core dumps here or in plugins; other processes of the user cannot read the memory or environment;
    orphaned descendants become children; plugins inherit no unintended descriptor; freed memory returns to the system.
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
    restore_sigchld()
    return tuple(refused)


def restore_sigchld() -> None:
    """Reset SIGCHLD to its default. If it were ignored, the kernel would reap plugins before their exit is read."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def become_subreaper(adopt: bool = True) -> None:
    """Make orphaned descendants children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def is_subreaper() -> bool:
    """True if orphaned descendants become children of this process."""
    import ctypes

    answer = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(answer))
    return bool(answer.value)


def _forbid_core_dumps() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _hide_from_ptrace() -> None:
    _prctl(_PR_SET_DUMPABLE, 0)


def _keep_standard_descriptors() -> None:
    # If 0, 1 or 2 is closed, the next pipe would get that number, and a plugin's stdout could become its stdin.
    while (lowest := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        os.set_inheritable(lowest, True)
    os.close(lowest)


def _seal_descriptors() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the descriptor of the listing is closed already
                os.set_inheritable(int(name), False)


def _return_freed_memory() -> None:
    """Fix the thresholds of glibc. By default they grow with freed blocks, which the heap then never releases."""
    import ctypes

    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other C libraries have none
        for option, value in ((_M_MMAP_THRESHOLD, 128 << 10), (_M_TRIM_THRESHOLD, 1 << 20), (_M_ARENA_MAX, 2)):
            mallopt(option, value)


def _prctl(option: int, value: int) -> None:
    import ctypes  # only the service needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


# --- any process ------------------------------------------------------------------------------------------------------


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a process, which may be a zombie; None if it does not exist."""
    stat = read_stat(pid)
    return None if stat is None else ProcessId(pid, stat.start_ticks, boot_id())


def is_alive(process: ProcessId) -> bool:
    """True if this process is alive. A zombie, or another process with the same pid, is not."""
    stat = read_stat(process.pid)
    return (
        stat is not None
        and not stat.is_zombie
        and stat.start_ticks == process.start_ticks
        and process.boot_id == boot_id()
    )


@cache
def boot_id() -> str:
    """Return the kernel's id of the current boot."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def read_stat(pid: int) -> ProcessStat | None:
    """Read the state of a process from procfs; None if it does not exist."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    # The command name can contain spaces and parentheses, so the fields begin after the last parenthesis.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return ProcessStat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def instance_of(ledger: Path) -> str:
    """Return the id of this installation, the same for every start. Plugin processes have it in their environment."""
    status = ledger.stat()
    return blake3(f"{ledger}|{status.st_dev}|{status.st_ino}".encode()).hexdigest()[:32]


def find_marked(instance: str, job_id: str | None = None) -> list[ProcessId]:
    """Return every other live process with the marker of this instance, and of this job if given."""
    wanted = {_entry(INSTANCE_MARKER, instance)} | ({_entry(JOB_MARKER, job_id)} if job_id is not None else set())
    found = []
    for pid in _all_pids():
        if pid == os.getpid():
            continue
        before = identify(pid)
        if wanted <= set(_read(f"/proc/{pid}/environ").split(b"\0")) and before is not None and is_alive(before):
            found.append(before)
    return found


async def kill_marked(instance: str, stored: Iterable[ProcessId] = (), *, timeout_seconds: float = 10.0) -> Leftovers:
    """Kill the processes of a dead instance: all with its marker, and the sessions of the stored leaders.

    A stored process counts only if its start time and boot match. Returns when none is left, or after
    `timeout_seconds`.
    """
    import trio

    targets = [*find_marked(instance), *_sessions_of(stored)]
    killed: set[ProcessId] = set()
    with trio.move_on_after(timeout_seconds):
        while targets:
            killed.update(targets)
            # In parallel and with a timeout, so that an unkillable process does not protect the others.
            with trio.move_on_after(KILL_ROUND_SECONDS):
                async with trio.open_nursery() as nursery:
                    for process in targets:
                        nursery.start_soon(_kill_and_wait, process)
            # Processes that they forked meanwhile, and those that are not dead yet.
            targets = list({*find_marked(instance), *filter(is_alive, killed)})
            if targets:
                await trio.sleep(KILL_RECHECK_SECONDS)
    survivors = tuple(process for process in {*targets, *killed} if is_alive(process))
    return Leftovers(tuple(killed - set(survivors)), survivors)


def _sessions_of(leaders: Iterable[ProcessId]) -> list[ProcessId]:
    sessions = {leader.pid for leader in leaders if is_alive(leader)} - {os.getpid()}
    if not sessions:
        return []
    found = (read_stat(pid) for pid in _all_pids())
    return [ProcessId(stat.pid, stat.start_ticks, boot_id()) for stat in found if stat and stat.session in sessions]


async def _kill_and_wait(process: ProcessId) -> None:
    import trio

    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        # Checked after the pidfd is open, which always refers to the same process.
        if is_alive(process):
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


# --- adopted children -------------------------------------------------------------------------------------------------


def has_no_children() -> bool:
    """True if this process has no children, including adopted ones and zombies."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def adopted_children(known: Collection[int]) -> list[ProcessStat]:
    """Return the orphans that plugins left: children that are not `known` and not in the session of this process."""
    unknown = [pid for pid in _children() if pid not in known]
    if not unknown:
        return []
    # A child in this session is not from a plugin: descendants of a plugin cannot join it.
    own_session = os.getsid(0)
    children = (read_stat(pid) for pid in unknown)
    return [child for child in children if child is not None and child.session != own_session]


def reap(pid: int) -> bool:
    """Reap a child if it is dead. True if it died from SIGKILL."""
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return False
    return status is not None and status.si_code != os.CLD_EXITED and status.si_status == signal.SIGKILL


def _children() -> Iterable[int]:
    if not HAS_CHILDREN_LIST:
        return _children_from_proc()
    # Orphans become children of the main thread, so its list is complete.
    listing = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(listing, 65536)
        if len(content) > _MAX_COMPLETE_READ_BYTES:
            content += b"".join(iter(lambda: os.read(listing, 65536), b""))
    finally:
        os.close(listing)
    return map(int, content.split())


def _children_from_proc() -> list[int]:
    parent = os.getpid()
    return [pid for pid in _all_pids() if (stat := read_stat(pid)) is not None and stat.parent == parent]


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _entry(name: str, value: str) -> bytes:
    return os.fsencode(f"{name}={value}")


def _read(path: str) -> bytes:
    """Return the content of a procfs file; empty if the process is gone or access is denied."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
    except OSError as error:
        if error.errno == errno.EIO:  # the process exited while its environment was read
            return b""
        raise
