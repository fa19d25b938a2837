"""Restore a configuration in place: replace the files that differ, through the edit journal, and seal the result.

The ledger and other files in the directory are unchanged. The replaced files are saved in another archive first.
"""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from attrs import evolve, frozen
from blake3 import blake3

from ductile.config.checks.examine import examine
from ductile.config.checksums import SEAL_FILE, read_seal
from ductile.config.edit.approve import seal_locked
from ductile.config.files.atomic_write import Replacement, finish_pending, lock_config, replace_and_seal
from ductile.config.files.sources import CONFIG_FILE
from ductile.config.load.load import load
from ductile.core import files
from ductile.core.errors import Complaint, ConfigInvalid, IntegrityBroken, Mark
from ductile.ops.backup import archive
from ductile.ops.backup.archive import no_progress
from ductile.ops.backup.collect import FileCollection, ledger_files, load_readable
from ductile.ops.backup.manifest import CONFIG, MAX_CONFIG_FILE_BYTES, ArchivedFile, ArchiveRefused, BackupScope
from ductile.ops.backup.unpack import UnpackedArchive, unpack


@frozen
class RestoredConfig:
    """The restored files, and the archive of the previous configuration."""

    directory: Path
    files: tuple[str, ...]
    saved: Path | None
    sealed: tuple[str, ...]


def restore_configuration(source: Path, directory: Path, *, now: datetime, dry_run: bool = False) -> RestoredConfig:
    """Restore the configuration in the archive `source` to `directory`. Changes nothing on failure."""
    try:
        with unpack(source, directory, no_progress, only_config=True) as unpacked:
            return replace_configuration(unpacked, directory, now=now, dry_run=dry_run)
    except ArchiveRefused as refused:  # `config restore` has the error code of a file that cannot be used
        raise files.FileRefused(refused.path, refused.reason, hint=refused.hint) from refused


def replace_configuration(
    unpacked: UnpackedArchive, directory: Path, *, now: datetime, dry_run: bool = False
) -> RestoredConfig:
    """Replace the files in `directory` with the unpacked ones and seal them. Archives the previous files first."""
    root = directory / unpacked.manifest.root
    _require_sealed(unpacked)
    in_use = ledger_files(root, directory / CONFIG_FILE, unpacked.inside / root.name)
    unpacked.require_no_ledger(directory, in_use)
    _require_valid(unpacked)
    if dry_run:
        return RestoredConfig(directory, tuple(entry.place for entry in _changed(unpacked, directory)), None, ())
    files.make_private_folder(directory)
    with lock_config(directory):
        finish_pending(directory)
        changed = _changed(unpacked, directory)
        names = tuple(entry.place for entry in changed)
        saved = _save(root, names, now)
        replacements = [_replacement(directory, entry, unpacked.path_of(entry)) for entry in changed]
        for one in replacements:
            files.make_private_folder(one.path.parent)
        sealed: list[str] = []
        replace_and_seal(
            directory,
            replacements,
            directory / SEAL_FILE,
            lambda: sealed.extend(seal_locked(root, now=now).changes),
        )
    return RestoredConfig(directory, names, saved, tuple(sealed))


def _replacement(directory: Path, entry: ArchivedFile, staged: Path) -> Replacement:
    return evolve(Replacement.of(directory / entry.place, staged.read_bytes()), mode=entry.mode)


def _require_sealed(unpacked: UnpackedArchive) -> None:
    """Raise IntegrityBroken unless the unpacked files match the seal of the archive."""
    folder, root = unpacked.inside, unpacked.manifest.root
    seal = read_seal(folder / SEAL_FILE)
    if seal is None:
        return
    home = next((Path(path).parent for path in seal.hashes if Path(path).name == root), folder)
    complaints = []
    for path, sealed in seal.hashes.items():
        place = folder / Path(path).relative_to(home) if Path(path).is_relative_to(home) else None
        if place is not None and (not place.is_file() or blake3(place.read_bytes()).hexdigest() != sealed):
            message = "does not match the seal of the archive"
            complaints.append(Complaint(message, mark=Mark(str(place.relative_to(folder)), 1), category="integrity"))
    if complaints:
        hint = "The archive was modified, or it was created from an unsealed configuration."
        raise IntegrityBroken(complaints, hint=hint)


def _require_valid(unpacked: UnpackedArchive) -> None:
    """Raise ConfigInvalid unless the unpacked configuration is valid on this host."""
    try:
        report = examine(load(unpacked.inside / unpacked.manifest.root, verify=False)).report
        if report.errors:
            raise ConfigInvalid(report.errors)
    except ConfigInvalid as invalid:
        hint = "The configuration in the archive is not valid here. Nothing was changed."
        raise ConfigInvalid(invalid.complaints, hint=hint) from None


def _changed(unpacked: UnpackedArchive, directory: Path) -> list[ArchivedFile]:
    """Return the files that differ from the archive."""
    entries = sorted(unpacked.manifest.files, key=lambda entry: entry.place)
    return [entry for entry in entries if _differs(directory / entry.place, entry)]


def _differs(path: Path, entry: ArchivedFile) -> bool:
    if path.name == SEAL_FILE:
        return False  # recreated with the local paths and plugins
    try:
        found = files.read_regular(path, max_bytes=MAX_CONFIG_FILE_BYTES).content
    except files.FileMissing:
        return True
    return blake3(found).hexdigest() != entry.blake3


def _save(root: Path, changed: Iterable[str], now: datetime) -> Path | None:
    """Archive the configuration and every file that will be replaced. The caller holds the edit lock."""
    directory = root.parent
    collection = FileCollection(root, BackupScope.ONLY_CONFIG, reserved=ledger_files(root))
    if root.is_file():
        collection.add_configuration(load_readable(collection, alone=True))
    for name in changed:
        if (directory / name).is_file():
            collection.add_file(directory / name, CONFIG)
    if not collection.entries:
        return None
    saved = directory / f"before-restore-{now:%Y%m%dT%H%M%S%f}.tar.gz"
    archive.write(saved, collection.to_manifest(now), collection.sources, no_progress)
    return saved
