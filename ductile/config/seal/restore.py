"""From an archive back to a directory: unpacked beside it, tried out there, then put in place and sealed."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from attrs import evolve, frozen

from ductile.config.checks.doctor import examine
from ductile.config.edit.atomic_write import Replacement, finish, only_editor, replace_and_seal
from ductile.config.edit.staged_edit import Draft
from ductile.config.load.load import load
from ductile.config.load.sources import CONFIG_FILE
from ductile.config.seal import archive
from ductile.config.seal.approve import seal_alone
from ductile.config.seal.archive import ArchiveMember
from ductile.config.seal.checksums import SEAL_FILE
from ductile.core import files
from ductile.core.errors import ConfigInvalid

STAGE_PREFIX = ".ductile-restore-"


@frozen
class RestoredConfig:
    """What was put where, and where the configuration that was there before is kept."""

    directory: Path
    files: tuple[str, ...]
    saved: Path | None
    sealed: tuple[str, ...]


def restore(source: Path, directory: Path, *, now: datetime, dry_run: bool = False) -> RestoredConfig:
    """`directory` has the files of the archive and is sealed. What was there is archived first; other files stay."""
    members = archive.read_archive(source)
    _try_out(source, members, directory)
    if dry_run:
        return RestoredConfig(directory, _changed(members, directory), None, ())
    files.make_private(directory)
    with only_editor(directory):
        finish(directory)
        changed = _changed(members, directory)
        saved = _save(directory, changed, now)
        replacements = [_replacement(directory / name, members[name]) for name in changed]
        for one in replacements:
            files.make_private(one.path.parent)
        sealed: list[str] = []
        replace_and_seal(
            directory,
            replacements,
            directory / SEAL_FILE,
            lambda: sealed.extend(seal_alone(directory / CONFIG_FILE, now=now).changes),
        )
    return RestoredConfig(directory, changed, saved, tuple(sealed))


def _replacement(path: Path, member: ArchiveMember) -> Replacement:
    return evolve(Replacement.of(path, member.content), mode=member.mode)


def _try_out(source: Path, members: Mapping[str, ArchiveMember], directory: Path) -> None:
    """The archive holds a configuration that can be used, and nothing that would take the place of a ledger."""
    with _staging(directory) as stage:
        for name, member in members.items():
            files.make_private((stage / name).parent)
            files.write_private(stage / name, member.content, mode=member.mode)
        archive.require_sealed(stage)
        _require_no_ledger(source, members, directory, stage)
        try:
            report = examine(load(stage / CONFIG_FILE, verify=False)).report
            if report.errors:
                raise ConfigInvalid(report.errors)
        except ConfigInvalid as invalid:
            hint = "the configuration in the archive cannot be used here; nothing was changed"
            raise ConfigInvalid(invalid.complaints, hint=hint) from None


def _require_no_ledger(source: Path, members: Mapping[str, ArchiveMember], directory: Path, stage: Path) -> None:
    """Nothing in the archive would lie where the configuration that is there, or the new one, has its ledger."""
    taken = archive.ledger_files(directory / CONFIG_FILE) | archive.ledger_files(stage / CONFIG_FILE)
    for name in members:
        if not taken.isdisjoint(Path(os.path.realpath(folder / name)) for folder in (directory, stage)):
            reason = f"{files.shown_path(name)} would take the place of the ledger"
            raise files.FileRefused(source, reason, hint="`ductile system restore` puts ledgers in place")


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """A folder beside `directory`, where paths that lead out of it (`../shared.yaml`) lead to the same place.

    Inside of it where nothing can be made beside it.
    """
    beside = next((folder for folder in directory.parents if folder.is_dir()), directory)
    inside = [directory] if directory.is_dir() and not os.access(beside, os.W_OK | os.X_OK) else []
    above = inside[0] if inside else beside
    try:
        stage = Path(tempfile.mkdtemp(prefix=STAGE_PREFIX, dir=above))
    except OSError as error:
        raise files.FileRefused(above, os.strerror(error.errno or 0).lower()) from error
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _changed(members: Mapping[str, ArchiveMember], directory: Path) -> tuple[str, ...]:
    """What is not yet as the archive has it."""
    return tuple(name for name, member in sorted(members.items()) if _differs(directory / name, member))


def _differs(path: Path, member: ArchiveMember) -> bool:
    if path.name == SEAL_FILE:
        return False  # made anew: paths and plugins are those of this place
    try:
        return files.read_regular(path, max_bytes=archive.MAX_FILE).content != member.content
    except files.FileMissing:
        return True


def _save(directory: Path, changed: Iterable[str], now: datetime) -> Path | None:
    """The configuration, and every file that is about to be replaced, whether it belongs to that or not."""
    members: dict[str, ArchiveMember] = {}
    if (directory / CONFIG_FILE).is_file():
        members |= archive.collect(Draft.of(directory / CONFIG_FILE, os.environ)).members
    for name in changed:
        if name not in members and (directory / name).is_file():
            found = files.read_regular(Path(os.path.realpath(directory / name)), max_bytes=archive.MAX_FILE)
            members[name] = ArchiveMember(found.content, bool(found.mode & 0o100))
    if not members:
        return None
    archive.require_limits(members)
    saved = directory / f"before-restore-{now:%Y%m%dT%H%M%S%f}.tar.gz"
    archive.write_archive(saved, members, now=now)
    return saved
