"""Find the process that has locked a ledger, in the lock table of the kernel.

Opens neither the ledger nor its side files: closing them would drop the locks of the current process.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

LOCK_TABLE = Path("/proc/locks")


@frozen
class LockHolder:
    """A process that keeps others from writing."""

    pid: int
    command: str
    """The name of its program; `?` if it cannot be read."""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def find_lock_holder(ledger: Path) -> LockHolder | None:
    """Return the other process that has a write lock on the ledger; None if the system does not show one."""
    files = {inode for path in (ledger, ledger.with_name(f"{ledger.name}-shm")) if (inode := _inode(path)) is not None}
    pid = next((pid for pid, inode in _write_locks() if inode in files and pid != os.getpid()), None)
    return None if pid is None else LockHolder(pid, _command(pid))


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _write_locks() -> Iterator[tuple[int, int]]:
    """Yield process and inode of each write lock. A line is `1: POSIX ADVISORY WRITE 123 08:01:4711 120 120`."""
    try:
        lines = LOCK_TABLE.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if fields[1] == "POSIX" and fields[3] == "WRITE" and int(fields[4]) > 0:
            yield int(fields[4]), int(fields[5].rpartition(":")[2])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"
