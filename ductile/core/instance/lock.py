"""The single-instance lock: a kernel lock on `<state_dir>/ductile.lock` and on the original's pid file.

The lock is the truth; the pid written into the file is only for people. The kernel releases it with the process, so it
is never stale, and the files are never removed: a name that comes and goes cannot be locked.
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
PAUSES = (0.01, 0.02, 0.04)


@contextlib.contextmanager
def instance_lock(state_dir: Path, db_path: Path, *, now: datetime) -> Iterator[None]:
    """For the length of the block this process is the only Ductile, old or new, on this state.

    Raises AlreadyRunning, naming the holder, if it is not.
    """
    with contextlib.ExitStack() as held:
        for path in dict.fromkeys(lock_paths(state_dir, db_path)):
            held.callback(os.close, _locked(path, now=now))
        yield


def require_free(state_dir: Path, db_path: Path) -> None:
    """Raises AlreadyRunning, naming the holder, if a Ductile runs on this state; changes nothing."""
    for path in lock_paths(state_dir, db_path):
        if is_held(path):
            raise _conflict(path)


def lock_paths(state_dir: Path, db_path: Path) -> tuple[Path, Path]:
    """Our lock, and the one the original takes: the database's name with `.pid`."""
    return state_dir / LOCK_NAME, db_path.with_suffix(".pid")


def _locked(path: Path, *, now: datetime) -> int:
    """An open descriptor that holds the lock on `path`; the file says who has it and since when."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise LedgerError(f"{path}: the lock file cannot be opened: {error.strerror}") from error
    try:
        _take(descriptor)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise BlockingIOError  # a restore has put another directory in the place of the one that was opened
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{to_text(now)}\n".encode(), 0)
    except (BlockingIOError, FileNotFoundError) as error:
        os.close(descriptor)
        raise _conflict(path) from error
    except OSError as error:
        os.close(descriptor)
        raise LedgerError(f"{path}: the lock cannot be taken: {error.strerror}") from error
    return descriptor


def _take(descriptor: int) -> None:
    """Holds the lock. Tried a few times, because somebody who asks `is_held` has it for a moment."""
    for pause in PAUSES:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(pause)
    return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _conflict(path: Path) -> AlreadyRunning:
    pid, since = holder(path)
    who = f"process {pid}" if pid else "another process"
    return AlreadyRunning(
        f"{path}: held by {who}{f' since {since}' if since else ''}",
        hint="stop it first, or use another state directory",
        context={"lock": str(path), "pid": pid},
    )


def holder(path: Path) -> tuple[int | None, str | None]:
    """The pid and start time written into a lock file; only the lock itself says whether they are still true."""
    try:
        with path.open("rb") as file:
            lines = file.read(200).decode("ascii", "replace").split()
    except OSError:
        return None, None
    pid = int(lines[0]) if lines and lines[0].isascii() and lines[0].isdigit() and len(lines[0]) < 10 else None
    return pid, lines[1] if pid and len(lines) > 1 else None


def is_held(path: Path) -> bool:
    """True while some process holds the lock on `path`."""
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
