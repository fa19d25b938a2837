"""Restore a configuration from an archive: unpack it to a temporary directory, check it, replace the files and seal."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from attrs import evolve, frozen

from ductile.config.checks.examine import examine
from ductile.config.checksums import SEAL_FILE
from ductile.config.edit.approve import seal_locked
from ductile.config.edit.staged_edit import Draft
from ductile.config.files.atomic_write import Replacement, finish_pending, lock_config, replace_and_seal
from ductile.config.files.sources import CONFIG_FILE
from ductile.config.load.load import load
from ductile.config.seal import archive
from ductile.config.seal.archive import ArchiveMember
from ductile.core import files
from ductile.core.errors import ConfigInvalid

STAGE_PREFIX = ".ductile-restore-"


@frozen
class RestoredConfig:
    """The restored files, and the archive of the previous configuration."""

    directory: Path
    files: tuple[str, ...]
    saved: Path | None
    sealed: tuple[str, ...]


def restore(source: Path, directory: Path, *, now: datetime, dry_run: bool = False) -> RestoredConfig:
    """Replace the files in `directory` with those of the archive and seal them. Archives the previous files first."""
    members = archive.read_archive(source)
    _try_out(source, members, directory)
    if dry_run:
        return RestoredConfig(directory, _changed(members, directory), None, ())
    files.make_private_folder(directory)
    with lock_config(directory):
        finish_pending(directory)
        changed = _changed(members, directory)
        saved = _save(directory, changed, now)
        replacements = [_replacement(directory / name, members[name]) for name in changed]
        for one in replacements:
            files.make_private_folder(one.path.parent)
        sealed: list[str] = []
        replace_and_seal(
            directory,
            replacements,
            directory / SEAL_FILE,
            lambda: sealed.extend(seal_locked(directory / CONFIG_FILE, now=now).changes),
        )
    return RestoredConfig(directory, changed, saved, tuple(sealed))


def _replacement(path: Path, member: ArchiveMember) -> Replacement:
    return evolve(Replacement.of(path, member.content), mode=member.mode)


def _try_out(source: Path, members: Mapping[str, ArchiveMember], directory: Path) -> None:
    """Check that the archive contains a valid configuration and does not replace a ledger."""
    with _staging(directory) as stage:
        for name, member in members.items():
            files.make_private_folder((stage / name).parent)
            files.write_private(stage / name, member.content, mode=member.mode)
        archive.require_sealed(stage)
        _require_no_ledger(source, members, directory, stage)
        try:
            report = examine(load(stage / CONFIG_FILE, verify=False)).report
            if report.errors:
                raise ConfigInvalid(report.errors)
        except ConfigInvalid as invalid:
            hint = "The configuration in the archive is not valid here. Nothing was changed."
            raise ConfigInvalid(invalid.complaints, hint=hint) from None


def _require_no_ledger(source: Path, members: Mapping[str, ArchiveMember], directory: Path, stage: Path) -> None:
    """Raise FileRefused if a file of the archive would replace a ledger."""
    taken = archive.ledger_files(directory / CONFIG_FILE) | archive.ledger_files(stage / CONFIG_FILE)
    for name in members:
        if not taken.isdisjoint(Path(os.path.realpath(folder / name)) for folder in (directory, stage)):
            reason = f"{files.display_path(name)} would replace the ledger"
            raise files.FileRefused(source, reason, hint="Use `ductile system restore` to restore a ledger.")


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """Create a temporary directory next to `directory`, so that `../shared.yaml` resolves to the same file.

    If the parent is not writable, create it inside `directory`.
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
    """Return the files that differ from the archive."""
    return tuple(name for name, member in sorted(members.items()) if _differs(directory / name, member))


def _differs(path: Path, member: ArchiveMember) -> bool:
    if path.name == SEAL_FILE:
        return False  # recreated with the local paths and plugins
    try:
        return files.read_regular(path, max_bytes=archive.MAX_FILE).content != member.content
    except files.FileMissing:
        return True


def _save(directory: Path, changed: Iterable[str], now: datetime) -> Path | None:
    """Archive the configuration and every file that will be replaced."""
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
