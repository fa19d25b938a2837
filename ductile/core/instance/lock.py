"""The single-instance lock: a kernel lock on `<state_dir>/ductile.lock` and on the pid file of the original Ductile.

Only the kernel lock counts; the pid in the file is informational. The kernel releases the lock when the process exits,
so it is never stale. The files are never removed: a file that is recreated could be locked twice.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from ductile.core.clock import to_text
from ductile.core.errors import AlreadyRunning, LedgerError

LOCK_NAME = "ductile.lock"
RETRY_DELAYS = (0.01, 0.02, 0.04)


@contextlib.contextmanager
def instance_lock(state_dir: Path, db_path: Path, *, now: datetime) -> Iterator[None]:
    """Hold the lock for the duration of the block. Raises AlreadyRunning, naming the holder, if it is taken."""
    with contextlib.ExitStack() as locks:
        for path in dict.fromkeys(lock_paths(state_dir, db_path)):
            locks.callback(os.close, _acquire(path, now=now))
        yield


def require_unlocked(state_dir: Path, db_path: Path) -> None:
    """Raise AlreadyRunning, naming the holder, if the lock is taken. Changes nothing."""
    for path in lock_paths(state_dir, db_path):
        if is_locked(path):
            raise _conflict(path)


def lock_paths(state_dir: Path, db_path: Path) -> tuple[Path, Path]:
    """Return the paths of our lock file and of the original's: the database path with the suffix `.pid`."""
    return state_dir / LOCK_NAME, db_path.with_suffix(".pid")


def _acquire(path: Path, *, now: datetime) -> int:
    """Lock `path`, write pid and time into it, and return the open descriptor."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise LedgerError(f"the lock file cannot be opened: {error.strerror}", path=path) from error
    try:
        _lock(descriptor)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise BlockingIOError  # a restore replaced the directory after the file was opened
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{to_text(now)}\n".encode(), 0)
    except (BlockingIOError, FileNotFoundError) as error:
        os.close(descriptor)
        raise _conflict(path) from error
    except OSError as error:
        os.close(descriptor)
        raise LedgerError(f"the file cannot be locked: {error.strerror}", path=path) from error
    return descriptor


def _lock(descriptor: int) -> None:
    """Lock exclusively. Retries a few times, because `is_locked` in another process takes the lock briefly."""
    for delay in RETRY_DELAYS:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(delay)
    return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _conflict(path: Path) -> AlreadyRunning:
    pid, since = read_holder(path)
    owner = f"process {pid}" if pid else "another process"
    return AlreadyRunning(
        f"{path}: held by {owner}{f' since {since}' if since else ''}",
        hint="Stop it first, or use another state directory.",
        context={"lock": str(path), "pid": pid},
    )


def read_holder(path: Path) -> tuple[int | None, str | None]:
    """Return the pid and start time from a lock file. They are current only while `is_locked`."""
    try:
        with path.open("rb") as file:
            lines = file.read(200).decode("ascii", "replace").split()
    except OSError:
        return None, None
    pid = int(lines[0]) if lines and lines[0].isascii() and lines[0].isdigit() and len(lines[0]) < 10 else None
    return pid, lines[1] if pid and len(lines) > 1 else None


def is_locked(path: Path) -> bool:
    """True while a process holds the lock on `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
