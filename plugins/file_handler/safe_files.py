"""Open, append to and replace files inside allowed folders, without following symbolic links.

Paths are opened one folder at a time with `dir_fd`, starting at the allowed folder. A link cannot be created between
the check of a path and its use.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
from contextlib import contextmanager, suppress

from ductile_plugin import Failed, Final

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PATH_CHARS = 1000  # many programs cannot list or delete deeper trees
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NO_LINK_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def append(folder: int, name: str, full: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINK_FLAGS
    with open(os.open(name, flags, 0o644, dir_fd=folder), "ab") as file:
        if require_regular(os.fstat(file.fileno()), full).st_nlink > 1:
            raise Final(f"{full} has several hard links, so it cannot be appended to")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(folder: int, name: str, full: str, content: bytes, job_id: str, *, may_exist: bool) -> None:
    """Replace a file atomically: readers see the old or the new content."""
    mode = None
    try:
        mode = require_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), full).st_mode & 0o777
    except FileNotFoundError:
        pass
    else:
        if not may_exist:
            raise Final(f"{full} already exists (mode: create)")
    # Named after the job, so that a retry replaces the file of an attempt that was killed.
    draft = f".{job_id}.ductile"
    remove(folder, draft)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK_FLAGS
    try:
        with open(os.open(draft, flags, 0o644 if mode is None else 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        if may_exist:
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        remove(folder, draft)


def remove(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


@contextmanager
def parent_of(path: str, roots: list[str], *, make: bool = False) -> Iterator[tuple[int, str, str]]:
    """Open the folder of `path`, which must be below a root. Yield its descriptor, the file name and the full path."""
    if "\0" in path or path != path.encode("utf-8", "ignore").decode():
        raise Final("the path contains a NUL or a lone surrogate")
    if len(path) > MAX_PATH_CHARS:
        raise Final(f"the path is longer than {MAX_PATH_CHARS} characters")
    parts = path.split("/")
    if ".." in parts:
        raise Final(f"{path!r} contains `..`")
    full = os.path.normpath(path if path.startswith("/") else os.path.join(roots[0], path))
    root = next((root for root in roots if full.startswith(root.rstrip("/") + "/")), None)
    if root is None:
        raise Final(f"{full} is not in an allowed folder: {', '.join(roots)}")
    *folders, name = full[len(root) :].strip("/").split("/")
    descriptor = -1
    try:
        descriptor = os.open(root, FOLDER_FLAGS)
        for folder in folders:
            inner = open_folder(descriptor, folder, make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, name, full
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):  # O_NOFOLLOW fails with these on a link
            raise Final(f"{full}: part of the path is a symbolic link or not a folder") from error
        if error.errno in (errno.EISDIR, errno.ENXIO):  # a folder, or a FIFO without a reader
            raise Final(f"{full} is not a regular file") from error
        if error.errno == errno.ENAMETOOLONG:
            raise Final(f"{full[:300]}: {os.strerror(error.errno)}") from error
        raise Failed(f"{full}: {os.strerror(error.errno or 0)}") from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def open_folder(folder: int, name: str, make: bool) -> int:
    try:
        return os.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # created concurrently
        os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)


def require_regular(status: os.stat_result, full: str) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise Final(f"{full} is not a regular file")
    return status
