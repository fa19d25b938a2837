"""Files below allowed folders.

The way to a file is walked one folder at a time, from the open allowed folder, following no link. So there is no moment
between the question whether a path is allowed and its use.
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

MOST_PATH = 1000  # a deeper tree is more than many programs can walk, or remove
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def append(folder: int, name: str, full: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINK
    with open(os.open(name, flags, 0o644, dir_fd=folder), "ab") as file:
        if regular(os.fstat(file.fileno()), full).st_nlink > 1:
            raise Final(f"{full} has another name elsewhere (a hard link): it is not appended to")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(folder: int, name: str, full: str, content: bytes, job_id: str, *, may_exist: bool) -> None:
    """Readers see the old content or the new one, never half of it."""
    mode = None
    try:
        mode = regular(os.stat(name, dir_fd=folder, follow_symlinks=False), full).st_mode & 0o777
    except FileNotFoundError:
        pass
    else:
        if not may_exist:
            raise Final(f"{full} exists already (mode: create)")
    # Named after the job: what a killed attempt has left is found and replaced by the next one.
    draft = f".{job_id}.ductile"
    remove(folder, draft)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK
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
    """The open folder that holds `path`, the file's name in it, and the full path. Raises if it is not below a root."""
    if "\0" in path or path != path.encode("utf-8", "ignore").decode():
        raise Final("the path has a NUL or half a character in it")
    if len(path) > MOST_PATH:
        raise Final(f"the path has more than {MOST_PATH} characters")
    parts = path.split("/")
    if ".." in parts:
        raise Final(f"{path!r} contains `..`")
    full = os.path.normpath(path if path.startswith("/") else os.path.join(roots[0], path))
    root = next((root for root in roots if full.startswith(root.rstrip("/") + "/")), None)
    if root is None:
        raise Final(f"{full} is not below an allowed folder: {', '.join(roots)}")
    *folders, name = full[len(root) :].strip("/").split("/")
    descriptor = -1
    try:
        descriptor = os.open(root, FOLDER)
        for folder in folders:
            inner = step(descriptor, folder, make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, name, full
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):  # what O_NOFOLLOW says of a link
            raise Final(f"{full}: there is a symbolic link, or no folder, on the way") from error
        if error.errno in (errno.EISDIR, errno.ENXIO):  # a folder, a fifo that nobody reads
            raise Final(f"{full} is not a regular file") from error
        if error.errno == errno.ENAMETOOLONG:
            raise Final(f"{full[:300]}: {os.strerror(error.errno)}") from error
        raise Failed(f"{full}: {os.strerror(error.errno or 0)}") from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def step(folder: int, name: str, make: bool) -> int:
    try:
        return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # somebody else has made it just now
        os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def regular(status: os.stat_result, full: str) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise Final(f"{full} is not a regular file")
    return status
