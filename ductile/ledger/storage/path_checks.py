"""Whether a path can hold a ledger: kind of file, access, file system.

Looks only, but for `make_private_directory` and `sync`. Knows nothing of what is in the file.
"""

import os
import stat
from pathlib import Path

from ductile.core.errors import LedgerError

_NETWORK = "nfs nfs4 cifs smb smb2 smb3 smbfs afs afpfs 9p ceph glusterfs lustre gfs2 ocfs2 beegfs davfs webdav coda"
_FUSE = "sshfs glusterfs ceph s3fs rclone davfs2 nfs smbnetfs"
NETWORK_FILE_SYSTEMS = frozenset(_NETWORK.split()) | {f"fuse.{name}" for name in _FUSE.split()}
BESIDE = ("-journal", "-wal", "-shm")
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def resolve(path: Path) -> Path:
    """The file behind `path`, which may be missing; raises LedgerError when it can never be a ledger."""
    try:
        target = path.resolve(strict=False)
        if path.is_symlink() and not target.exists():
            raise LedgerError(f"{path}: a symbolic link to {target}, which does not exist", hint="remove the link")
        check_kind(target)
        check_access(target)
    except (OSError, RuntimeError, ValueError) as error:
        raise LedgerError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    refuse_network(target)
    return target


def resolve_readable(path: Path) -> Path:
    """The regular file behind `path`, which may be read-only."""
    try:
        target = path.resolve(strict=True)
        check_kind(target)
    except (OSError, RuntimeError, ValueError) as error:
        raise LedgerError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not os.access(target, os.R_OK):
        raise LedgerError(f"{path}: cannot be read by this user", hint="check its owner and mode")
    return target


def is_made(path: Path) -> bool:
    """Whether there is a ledger, or at least its file; LedgerError where only the log of one is left."""
    if path.exists():
        return True
    require_no_log(path)
    return False


def require_no_log(path: Path) -> None:
    """Nothing lies beside a ledger that is not there: it would be the newest part of one that is lost."""
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise LedgerError(
            f"{path}: missing or empty, but its log {log.name} has data",
            hint="put the database file back, or move the log away if it is not needed",
        )


def check_kind(path: Path) -> None:
    """A ledger is a regular file in a directory; everything else is refused without being opened.

    So are the files that SQLite would open beside it: a FIFO there would hold the process until somebody writes to it.
    """
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise LedgerError(f"{path}: a directory; the ledger must be a file", hint="set state.path to a file in it")
    if mode is not None and not stat.S_ISREG(mode):
        raise LedgerError(f"{path}: not a regular file", hint="set state.path to an ordinary file")
    for beside in (path.with_name(path.name + ending) for ending in BESIDE):
        if not stat.S_ISREG(_mode(beside) or stat.S_IFREG):
            raise LedgerError(f"{beside}: not a regular file, and SQLite would open it", hint="remove it")


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def check_access(path: Path) -> None:
    """File and directory can be written; SQLite also needs files of its own next to the ledger."""
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise LedgerError(f"{path}: cannot be read and written by this user", hint="check its owner and mode")
    directory = nearest_directory(path)
    if not directory.is_dir():
        raise LedgerError(f"{directory}: not a directory")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise LedgerError(f"{directory}: this directory cannot be written", hint="check its owner, mode and mount")


def nearest_directory(path: Path) -> Path:
    """The closest ancestor of `path` that exists."""
    return next(parent for parent in path.parents if parent.exists())


def refuse_network(path: Path) -> None:
    """Locks and shared memory of SQLite do not work over a network."""
    kind = file_system_of(nearest_directory(path), _mounts())
    if kind in NETWORK_FILE_SYSTEMS:
        raise LedgerError(
            f"{path}: on a network file system ({kind}), where SQLite's locks cannot be trusted",
            hint="set state.path to a local disk",
        )


def file_system_of(directory: Path, mounts: str) -> str | None:
    """The type of the file system `directory` is on, by the text of mountinfo; None if unknown."""
    best, kind = "", None
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        mount_point = _unescaped(fields.split(" ")[4]) if fields.count(" ") >= 4 else ""
        # Of two mounts on the same point the later one is on top.
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
    """`directory` exists, also after a power cut; what had to be made is 0700, whatever the umask."""
    if directory.is_dir():
        return
    make_private_directory(directory.parent)
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        directory.chmod(0o700)
        sync(directory.parent)
    except OSError as error:
        raise LedgerError(f"{directory}: cannot be made: {error.strerror}") from error


def sync(directory: Path) -> None:
    """The names in it are durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
