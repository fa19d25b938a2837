"""From an archive back to a directory: unpacked beside it, tried out there, then put in place and sealed."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ductile import files
from ductile.config import archive
from ductile.config.archive import Member
from ductile.config.check import examine
from ductile.config.draft import Draft
from ductile.config.load import load
from ductile.config.lock import seal_configuration
from ductile.config.pending import Replacement, only_editor, put_back, replace_together
from ductile.config.seal import SEAL_FILE
from ductile.config.sources import CONFIG_FILE
from ductile.errors import ConfigInvalid
from ductile.values import changed, frozen


@frozen
class Restored:
    """What was put where, and where the configuration that was there before is kept."""

    directory: Path
    files: tuple[str, ...]
    saved: Path | None
    sealed: tuple[str, ...]


def restore(source: Path, directory: Path, *, now: datetime, dry_run: bool = False) -> Restored:
    """`directory` has the files of the archive and is sealed. What was there is archived first; other files stay."""
    members = archive.read_archive(source)
    _try_out(members, directory)
    changed = tuple(name for name, member in sorted(members.items()) if _differs(directory / name, member))
    if dry_run:
        return Restored(directory, changed, None, ())
    _make(directory)
    with only_editor(directory):
        saved = _save(directory, now)
        replacements = [_replacement(directory / name, members[name]) for name in changed]
        for one in replacements:
            _make(one.path.parent)
        replace_together(directory, replacements)
        try:
            sealed = seal_configuration(directory / CONFIG_FILE, now=now)
        except BaseException:
            put_back(replacements)
            raise
    return Restored(directory, changed, saved, tuple(sealed.changes))


def _replacement(path: Path, member: Member) -> Replacement:
    return changed(Replacement.of(path, member.content), mode=member.mode)


def _try_out(members: Mapping[str, Member], directory: Path) -> None:
    """The archive holds a configuration that can be used."""
    with _staging(directory) as stage:
        for name, member in members.items():
            _make((stage / name).parent)
            files.write_private(stage / name, member.content, mode=member.mode)
        archive.require_sealed(stage)
        try:
            report = examine(load(stage / CONFIG_FILE, verify=False)).report
            if report.errors:
                raise ConfigInvalid(report.errors)
        except ConfigInvalid as invalid:
            hint = "the configuration in the archive cannot be used here; nothing was changed"
            raise ConfigInvalid(invalid.complaints, hint=hint) from None


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    above = next(folder for folder in (directory, *directory.parents) if folder.is_dir())
    try:
        stage = Path(tempfile.mkdtemp(prefix=".restore-", dir=above))
    except OSError as error:
        raise files.FileRefused(above, os.strerror(error.errno or 0).lower()) from error
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _differs(path: Path, member: Member) -> bool:
    if path.name == SEAL_FILE:
        return False  # made anew: paths and plugins are those of this place
    try:
        return files.read_regular(path, max_bytes=archive.MAX_FILE).content != member.content
    except files.FileMissing:
        return True


def _save(directory: Path, now: datetime) -> Path | None:
    if not (directory / CONFIG_FILE).is_file():
        return None
    saved = directory / f"before-restore-{now:%Y%m%dT%H%M%S%f}.tar.gz"
    collected = archive.collect(Draft.of(directory / CONFIG_FILE, os.environ))
    archive.write_archive(saved, collected.members, now=now)
    return saved


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise files.FileRefused(folder, os.strerror(error.errno or 0).lower()) from error
