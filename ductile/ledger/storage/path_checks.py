"""Checks of the path of a ledger: kind of file, access, file system.

Only `make_private_directory` and `sync_directory` write. Knows nothing of the content of the file.
"""

import os
import stat
from pathlib import Path

from ductile.core.errors import LedgerError

_NETWORK = "nfs nfs4 cifs smb smb2 smb3 smbfs afs afpfs 9p ceph glusterfs lustre gfs2 ocfs2 beegfs davfs webdav coda"
_FUSE = "sshfs glusterfs ceph s3fs rclone davfs2 nfs smbnetfs"
NETWORK_FILE_SYSTEMS = frozenset(_NETWORK.split()) | {f"fuse.{name}" for name in _FUSE.split()}
SIDE_FILE_SUFFIXES = ("-journal", "-wal", "-shm")
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def resolve_writable(path: Path) -> Path:
    """Resolve `path`, which may be missing. Raises LedgerError if it cannot be a ledger that this user can write."""
    try:
        target = path.resolve(strict=False)
        if path.is_symlink() and not target.exists():
            raise LedgerError(f"a symbolic link to {target}, which does not exist", path=path, hint="Remove the link.")
        require_regular_file(target)
        require_writable(target)
    except (OSError, RuntimeError, ValueError) as error:
        raise LedgerError(str(getattr(error, "strerror", None) or error), path=path) from error
    reject_network_file_system(target)
    return target


def resolve_readable(path: Path) -> Path:
    """Resolve `path` to an existing regular file, which may be read-only. Raises LedgerError otherwise."""
    try:
        target = path.resolve(strict=True)
        require_regular_file(target)
    except (OSError, RuntimeError, ValueError) as error:
        raise LedgerError(str(getattr(error, "strerror", None) or error), path=path) from error
    if not os.access(target, os.R_OK):
        raise LedgerError("cannot be read by this user", path=path, hint="Check its owner and mode.")
    return target


def ledger_exists(path: Path) -> bool:
    """True if the file exists. Raises LedgerError if only its log exists."""
    if path.exists():
        return True
    require_no_log(path)
    return False


def require_no_log(path: Path) -> None:
    """Raise LedgerError if a missing ledger has a log: it contains the newest commits of a lost file."""
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise LedgerError(
            f"missing or empty, but its log {log.name} has data",
            path=path,
            hint="Restore the database file, or move the log away if you do not need it.",
        )


def require_regular_file(path: Path) -> None:
    """Raise LedgerError if the ledger, or a file that SQLite opens next to it, is not a regular file.

    Opens nothing: opening a FIFO would block the process.
    """
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise LedgerError("a directory; the ledger must be a file", path=path, hint="Set state.path to a file in it.")
    if mode is not None and not stat.S_ISREG(mode):
        raise LedgerError("not a regular file", path=path, hint="Set state.path to a regular file.")
    for side_file in (path.with_name(path.name + suffix) for suffix in SIDE_FILE_SUFFIXES):
        if not stat.S_ISREG(_mode(side_file) or stat.S_IFREG):
            raise LedgerError("not a regular file, and SQLite would open it", path=side_file, hint="Remove it.")


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def require_writable(path: Path) -> None:
    """Raise LedgerError unless file and directory are writable. SQLite creates files next to the ledger."""
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise LedgerError("cannot be read and written by this user", path=path, hint="Check its owner and mode.")
    directory = nearest_directory(path)
    if not directory.is_dir():
        raise LedgerError("not a directory", path=directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise LedgerError("this directory cannot be written", path=directory, hint="Check its owner, mode and mount.")


def nearest_directory(path: Path) -> Path:
    """Return the closest ancestor of `path` that exists."""
    return next(parent for parent in path.parents if parent.exists())


def reject_network_file_system(path: Path) -> None:
    """Raise LedgerError on a network file system: locks and shared memory of SQLite do not work there."""
    kind = file_system_of(nearest_directory(path), _mounts())
    if kind in NETWORK_FILE_SYSTEMS:
        raise LedgerError(
            f"on a network file system ({kind}), where SQLite's locks are not reliable",
            path=path,
            hint="Set state.path to a local disk.",
        )


def file_system_of(directory: Path, mounts: str) -> str | None:
    """Return the type of the file system of `directory` from the text of mountinfo; None if unknown."""
    best, kind = "", None
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        mount_point = _unescaped(fields.split(" ")[4]) if fields.count(" ") >= 4 else ""
        # Of two mounts on the same point the later one is visible.
        if mount_point and directory.is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, kind = mount_point, rest.split(" ")[0]
    return kind


def _mounts() -> str:
    try:
        return _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return ""


def _unescaped(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text


def make_private_directory(directory: Path) -> None:
    """Create `directory` and its missing parents, durable, with mode 0700 whatever the umask is."""
    if directory.is_dir():
        return
    make_private_directory(directory.parent)
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        directory.chmod(0o700)
        sync_directory(directory.parent)
    except OSError as error:
        raise LedgerError(f"cannot be created: {error.strerror}", path=directory) from error


def sync_directory(directory: Path) -> None:
    """Make the file names in the directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
