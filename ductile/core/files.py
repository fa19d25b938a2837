"""Safe file access: read regular files, replace files atomically, check owners and permissions.

Reading never blocks and follows symlinks only on request. Permission checks return findings; the caller decides what
a refusal means. Knows nothing of YAML, plugins or seals.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from attrs import frozen

from ductile.core.errors import DuctileError

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 18
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symlink",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class FileRefused(DuctileError):
    """A file cannot be used."""

    code: ClassVar[str] = "file_refused"
    exit_code: ClassVar[int] = 78
    hint = "Fix the file, or its owner and permissions."

    def __init__(self, path: Path, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{display_path(path)}: {reason}", hint=hint, context={"file": display_path(path)})
        self.path, self.reason = path, reason


class FileMissing(FileRefused):
    """A file does not exist."""

    code: ClassVar[str] = "file_missing"
    hint = "Check the path, or create the file."


@frozen
class FileBytes:
    """The content and metadata of a file. `resolved` is the real path of the opened file, without symlinks."""

    path: Path
    resolved: Path
    content: bytes
    mode: int
    uid: int
    gid: int

    def __repr__(self) -> str:
        return f"FileBytes({display_path(self.path)})"


@frozen
class OpenFile:
    """An open regular file. `status` was read when it was opened."""

    path: Path
    resolved: Path
    descriptor: int
    status: os.stat_result

    def chunks(self) -> Iterator[bytes]:
        """Yield the rest of the content. Raises FileRefused at the end if the file was changed meanwhile."""
        while chunk := self._read():
            yield chunk
        after = os.fstat(self.descriptor)
        if (after.st_size, after.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns):
            hint = "Try again when no other process writes to it."
            raise FileRefused(self.path, "changed while it was read", hint=hint)

    def _read(self) -> bytes:
        try:
            return os.read(self.descriptor, _CHUNK)
        except OSError as error:
            raise _refusal(self.path, error) from error


class Level(StrEnum):
    """The severity of a finding: a refused file is not used, a warning is reported."""

    REFUSED = "refused"
    WARNING = "warning"


@frozen
class FileFinding:
    """A problem with the owner, permissions or links of a path."""

    level: Level
    path: Path
    message: str

    @property
    def is_refusal(self) -> bool:
        return self.level is Level.REFUSED

    def __str__(self) -> str:
        return f"{display_path(self.path)}: {self.message}"


def display_path(path: Path | str) -> str:
    """Format a path for a message: bytes that are not UTF-8 and control characters are escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def read_regular(path: Path, *, max_bytes: int, follow_symlinks: bool = False) -> FileBytes:
    """Read a regular file of at most `max_bytes`. Raises FileRefused for anything else, without blocking.

    `follow_symlinks` applies to the last path component only; use `find_symlinks` to check the others.
    """
    content = bytearray()
    with open_regular(path, follow_symlinks=follow_symlinks) as opened:
        for chunk in opened.chunks():
            content += chunk
            if len(content) > max_bytes:
                raise FileRefused(path, f"larger than the {max_bytes} bytes allowed here")
    status = opened.status
    return FileBytes(path, opened.resolved, bytes(content), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


@contextlib.contextmanager
def open_regular(path: Path, *, follow_symlinks: bool = False) -> Iterator[OpenFile]:
    """Open a regular file for reading in chunks. Raises FileRefused for anything else, without blocking."""
    descriptor = _open(path, follow_symlinks=follow_symlinks)
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status)
        yield OpenFile(path, _real_path(path, descriptor), descriptor, status)
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes, *, mode: int = 0o600, follow_symlinks: bool = False) -> None:
    """Replace the file atomically and durably. An existing file keeps its owner."""
    if follow_symlinks:
        path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        before = _lstat_or_none(path)
        if before is not None:
            _require_regular(path, before)
        try:
            _write_new(temporary, content, mode=mode, owner=before)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        sync_directory(path.parent)
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from error


def make_private_folder(folder: Path) -> None:
    """Create `folder` and its missing parents with mode 0700, regardless of the umask."""
    try:
        if not folder.parent.is_dir():
            make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _refusal(folder, error) from error


def require_writable(folder: Path) -> None:
    """Raise FileRefused unless a file can be created in `folder`. Leaves no file behind."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder):  # unnamed (O_TMPFILE) where the file system supports it
            pass
    except (OSError, ValueError) as error:
        raise FileRefused(folder, f"cannot be written to: {getattr(error, 'strerror', None) or error}") from error


def list_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of `folder`, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (OSError, ValueError) as error:
        raise _refusal(folder, error) from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """True for a folder, False for a symlink to one."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def find_symlinks(path: Path) -> list[Path]:
    """Return the components of `path` that are symlinks, outermost first. Stops at a missing component."""
    found = []
    for component in reversed(_with_parents(path)):
        status = _lstat_or_none(component)
        if status is None:
            break
        if stat.S_ISLNK(status.st_mode):
            found.append(component)
    return found


def read_link(link: Path) -> str:
    """Return the target of a symlink, unresolved."""
    try:
        return os.readlink(link)
    except OSError as error:
        raise _refusal(link, error) from error


def check_symlinks(path: Path, *, allow: bool) -> list[FileFinding]:
    """Return a finding for each symlink in `path`: a refusal, or a warning if `allow`.

    A symlink directly below `/` (`/home` or `/tmp` on some systems) is always a warning.
    """
    findings = []
    for link in find_symlinks(path):
        if allow or link.parent == link.parent.parent:
            findings.append(FileFinding(Level.WARNING, link, f"is a symlink to {display_path(read_link(link))}"))
        else:
            reason = f"is a symlink to {display_path(read_link(link))}; set service.allow_symlinks: true to permit this"
            findings.append(FileFinding(Level.REFUSED, link, reason))
    return findings


def check_path(path: Path, *, private: bool = False) -> list[FileFinding]:
    """Check the owner and permissions of `path` and of every folder above it.

    `private` is for files with secrets and their folders: other users should not be able to read them.
    """
    findings = check_permissions(path, private=private)
    for folder in _folders_above(path):
        findings += check_parent_folder(folder)
    return findings


def check_permissions(path: Path, *, private: bool = False) -> list[FileFinding]:
    """Check the owner and permissions of one file or folder. Symlinks are followed: their own mode has no effect."""
    status = _stat(path)
    kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
    findings = []
    if status.st_uid not in (0, os.geteuid()):
        reason = f"{kind} belongs to {_owner(status.st_uid)}; it must belong to root or {_owner(os.geteuid())}"
        findings.append(FileFinding(Level.REFUSED, path, reason))
    if status.st_mode & stat.S_IWOTH:
        reason = f"{kind} is world-writable (mode {_mode(status)}); run chmod o-w {display_path(path)}"
        findings.append(FileFinding(Level.REFUSED, path, reason))
    elif status.st_mode & stat.S_IWGRP and _is_shared(status.st_gid):
        reason = f"{kind} is group-writable (mode {_mode(status)}); run chmod g-w {display_path(path)}"
        findings.append(FileFinding(Level.WARNING, path, reason))
    elif private and status.st_mode & 0o077:
        wanted = "700" if kind == "folder" else "600"
        reason = f"{kind} is open to other users (mode {_mode(status)}); run chmod {wanted} {display_path(path)}"
        findings.append(FileFinding(Level.WARNING, path, reason))
    return findings


def check_parent_folder(folder: Path) -> list[FileFinding]:
    """Check whether another user could replace an entry of `folder`, which is a parent of a file in use."""
    status = _stat(folder)
    findings = []
    if status.st_uid not in (0, os.geteuid()):
        reason = f"folder belongs to {_owner(status.st_uid)}, who can replace its entries"
        findings.append(FileFinding(Level.WARNING, folder, reason))
    if status.st_mode & stat.S_ISVTX:
        return findings
    if status.st_mode & stat.S_IWOTH:
        advice = f"run chmod o-w {display_path(folder)}"
        reason = f"folder is world-writable (mode {_mode(status)}) without the sticky bit; {advice}"
        findings.append(FileFinding(Level.REFUSED, folder, reason))
    elif status.st_mode & stat.S_IWGRP and _is_shared(status.st_gid):
        reason = f"folder is group-writable (mode {_mode(status)}); run chmod g-w {display_path(folder)}"
        findings.append(FileFinding(Level.WARNING, folder, reason))
    return findings


def _open(path: Path, *, follow_symlinks: bool) -> int:
    try:
        # Checked before opening: opening a device can have side effects.
        _require_regular(path, os.stat(path, follow_symlinks=follow_symlinks))
        return os.open(path, _OPEN if follow_symlinks else _OPEN | os.O_NOFOLLOW)
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from error


def _real_path(path: Path, descriptor: int) -> Path:
    # The path of the open descriptor: resolving `path` again could find another file by now.
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return Path(os.path.realpath(path))


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise FileRefused(path, f"is {kind}, not a regular file")


def _write_new(path: Path, content: bytes, *, mode: int, owner: os.stat_result | None) -> None:
    descriptor = os.open(path, _CREATE, 0o600)
    try:
        # Only root can change the owner, and a service that runs as another user must still be able to read the file.
        if owner is not None and os.geteuid() == 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        os.fchmod(descriptor, mode)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(folder: Path) -> None:
    """Flush the entries of `folder` to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refusal(path: Path, error: OSError | ValueError) -> FileRefused:
    if isinstance(error, ValueError):
        return FileRefused(path, f"is not a valid path: {error}")
    if error.errno == errno.ENOENT:
        return FileMissing(path, "does not exist")
    if error.errno == errno.ELOOP:
        return FileRefused(path, "is a symlink, not a regular file")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FileRefused(path, os.strerror(error.errno).lower(), hint="Free disk space, then try again.")
    return FileRefused(path, os.strerror(error.errno).lower() if error.errno else str(error))


def _with_parents(path: Path) -> list[Path]:
    absolute = path.absolute()
    return [absolute, *absolute.parents]


def _folders_above(path: Path) -> Iterator[Path]:
    """Yield the parents of `path`, both as given and resolved, innermost first, each once."""
    given = _with_parents(path)[1:]
    resolved = Path(os.path.realpath(path)).parents
    yield from dict.fromkeys([*given, *resolved])


def _lstat_or_none(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from error


def _stat(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from error


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"


def _owner(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _is_shared(gid: int) -> bool:
    """False for root's group and for the per-user group that many systems create."""
    import grp
    import pwd

    if gid == 0:
        return False
    try:
        user = pwd.getpwuid(os.geteuid())
        return gid != user.pw_gid or grp.getgrgid(gid).gr_name != user.pw_name
    except KeyError:
        return True
