"""Replace a file or a directory atomically and save the previous one next to it.

Directories are exchanged with `renameat2`, so that the path always has either the old or the new content.
"""

import ctypes
import errno
import os
import shutil
from pathlib import Path

from ductile.core import files
from ductile.ops.backup.archive import create_private

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def put_directory(fresh: Path, place: Path, stamp: str) -> list[Path]:
    """Move `fresh` to `place`. Returns the path of the previous directory, which gets the suffix `stamp`."""
    aside = place.with_name(f"{place.name}.{stamp}")
    try:
        files.make_private_folder(place.parent)
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
        hint = "It is a mount point. Restore to a directory below it." if is_mount else None
        raise files.FileRefused(place, f"cannot be replaced: {error.strerror}", hint=hint) from error
    return [aside]


def put_file(fresh: Path, place: Path, aside: Path) -> list[Path]:
    """Copy `fresh`, also from another disk, to `place`. Saves the previous file as `aside`, on the same disk."""
    temporary = place.with_name(f".{place.name}.{os.urandom(6).hex()}.tmp")
    try:
        files.make_private_folder(place.parent)
        with fresh.open("rb") as content, create_private(temporary, fresh.stat().st_mode & 0o777) as file:
            shutil.copyfileobj(content, file)
        match_owner(temporary, place)
        saved = [aside] if os.path.lexists(place) else []
        if saved:
            os.link(place, aside, follow_symlinks=False)
        os.rename(temporary, place)
        files.sync_directory(place.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise files.FileRefused(place, f"cannot be replaced: {error.strerror}") from error
    return saved


def set_aside(path: Path, aside: Path) -> list[Path]:
    """Rename `path` to `aside` if it exists."""
    if not os.path.lexists(path):
        return []
    os.rename(path, aside)
    return [aside]


def roll_back(place: Path, aside: Path) -> None:
    """Restore the state of `place` before `put_file` or `set_aside`."""
    if os.path.lexists(aside):
        os.rename(aside, place)
    else:
        place.unlink(missing_ok=True)


def match_owner(fresh: Path, place: Path) -> None:
    """Give `fresh`, recursively, the owner of `place`, or of its nearest existing parent. Does nothing unless root."""
    if os.geteuid() != 0:
        return
    owner = os.stat(next(path for path in (place, *place.parents) if path.exists()))
    for folder, _, names in os.walk(fresh):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    os.chown(fresh, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _exchange(first: Path, second: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    status = libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fspath(second))
