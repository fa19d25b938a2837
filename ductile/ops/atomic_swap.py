"""A file or a whole directory takes the place of another one in a single step, and the other one is kept.

The kernel exchanges two directories at once (`renameat2`), so that at every moment the place holds the old or the new.
"""

import ctypes
import errno
import os
from pathlib import Path

from ductile.core import files

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def put_directory(fresh: Path, place: Path, stamp: str) -> list[Path]:
    """`place` is `fresh`; what was there stands beside it with `stamp` in its name."""
    aside = place.with_name(f"{place.name}.{stamp}")
    try:
        files.make_private(place.parent)
        if not place.exists() or not any(place.iterdir()):
            os.rename(fresh, place)
            files.sync_directory(place.parent)
            return []
        os.rename(fresh, aside)
        try:
            _exchange(aside, place)
        except OSError:
            os.rename(aside, fresh)
            raise
        files.sync_directory(place.parent)
    except OSError as error:
        is_mount = error.errno in (errno.EBUSY, errno.EXDEV)
        hint = "it is a mount point; restore into a directory below it" if is_mount else None
        raise files.FileRefused(place, f"cannot be replaced: {error.strerror}", hint=hint) from error
    return [aside]


def put_file(fresh: Path, place: Path, aside: Path) -> list[Path]:
    """`place` is a copy of `fresh`, which may lie on another disk; what was there is kept as `aside`, in its folder."""
    temporary = place.with_name(f".{place.name}.{os.urandom(6).hex()}.tmp")
    try:
        files.make_private(place.parent)
        _copy(fresh, temporary)
        give(temporary, place)
        kept = [aside] if os.path.lexists(place) else []
        if kept:
            os.link(place, aside, follow_symlinks=False)
        os.rename(temporary, place)
        files.sync_directory(place.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise files.FileRefused(place, f"cannot be replaced: {error.strerror}") from error
    return kept


def set_aside(path: Path, aside: Path) -> list[Path]:
    """`path` is gone; if it was there it is called `aside` now."""
    if not os.path.lexists(path):
        return []
    os.rename(path, aside)
    return [aside]


def take_back(place: Path, aside: Path) -> None:
    """`place` is what it was before it was put or set aside."""
    if os.path.lexists(aside):
        os.rename(aside, place)
    else:
        place.unlink(missing_ok=True)


def give(fresh: Path, place: Path) -> None:
    """As root: `fresh`, with all below it, belongs to the owner of what it is to replace, or of the folder it is in."""
    if os.geteuid() != 0:
        return
    like = os.stat(next(path for path in (place, *place.parents) if path.exists()))
    for folder, _, names in os.walk(fresh):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, like.st_uid, like.st_gid, follow_symlinks=False)
    os.chown(fresh, like.st_uid, like.st_gid, follow_symlinks=False)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as content:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, source.stat().st_mode & 0o777)
            while chunk := content.read(1 << 20):
                file.write(chunk)
            file.flush()
            os.fsync(descriptor)


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fspath(other))
