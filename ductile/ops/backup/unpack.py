"""Unpack an archive to a temporary directory next to the target and verify it, before anything is replaced."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attrs import evolve, frozen

from ductile.config.files.atomic_write import PENDING_FILE
from ductile.core import files
from ductile.ledger.storage.backup import detach_copy, verify_copy
from ductile.ledger.storage.path_checks import make_private_directory
from ductile.ops.backup.archive import ArchivedContent, ReportProgress, create_private, open_archive
from ductile.ops.backup.manifest import (
    LEDGER,
    ArchivedFile,
    ArchiveManifest,
    ArchiveRefused,
    BackupScope,
    exceeded_limit,
)

STAGE_PREFIX = ".ductile-restore-"
SPARE_BYTES = 16 << 20


@frozen
class UnpackedArchive:
    """A verified archive. `inside` has the new content of the configuration directory."""

    source: Path
    manifest: ArchiveManifest
    """Lists the unpacked files, which are not always all files of the archive."""
    inside: Path
    aside: Path
    """Has the ledger and the files outside the configuration directory."""

    @property
    def ledger(self) -> Path:
        return self.aside / "ledger.db"

    def path_of(self, entry: ArchivedFile) -> Path:
        """Return the path of an unpacked file."""
        if entry.kind == LEDGER:
            return self.ledger
        return self.aside / f"outside{entry.place}" if entry.is_outside else self.inside / entry.place

    def require_no_ledger(self, directory: Path, ledger_files: set[Path]) -> None:
        """Raise ArchiveRefused if a file would become a ledger, or a log that SQLite would apply to one."""
        for entry in self.manifest.files:
            paths = {Path(os.path.realpath(folder / entry.place)) for folder in (directory, self.inside)}
            if entry.kind != LEDGER and not ledger_files.isdisjoint(paths):
                reason = f"{files.display_path(entry.place)} would replace the ledger"
                raise ArchiveRefused(self.source, reason, hint="Use `ductile system restore` to restore a ledger.")


@contextlib.contextmanager
def unpack(
    source: Path, directory: Path, progress: ReportProgress, *, only_config: bool = False
) -> Iterator[UnpackedArchive]:
    """Unpack and verify the archive `source` next to `directory`, and remove the files at the end.

    With `only_config`, unpack only the files that an archive of scope `only-config` has.
    """
    with open_archive(source, progress) as (manifest, contents):
        only_config = only_config or manifest.scope == BackupScope.ONLY_CONFIG
        manifest = _selected(source, manifest) if only_config else manifest
        _require_root(source, manifest)
        parent = _staging_parent(directory, may_be_inside=only_config)
        try:
            inside = Path(os.path.realpath(tempfile.mkdtemp(prefix=STAGE_PREFIX, dir=parent)))
        except OSError as error:
            raise files.FileRefused(parent, os.strerror(error.errno or 0).lower()) from error
        unpacked = UnpackedArchive(source, manifest, inside, inside.with_name(f"{inside.name}_aside"))
        try:
            _write_files(unpacked, contents)
            yield unpacked
        except OSError as error:
            raise files.FileRefused(parent, f"cannot be written: {error.strerror}") from error
        finally:
            shutil.rmtree(inside, ignore_errors=True)
            shutil.rmtree(unpacked.aside, ignore_errors=True)


def _selected(source: Path, manifest: ArchiveManifest) -> ArchiveManifest:
    """Return the manifest without the ledger and the files outside the directory."""
    if manifest.scope not in (BackupScope.ALL, BackupScope.ONLY_CONFIG):
        reason = f"has scope {manifest.scope}, which is not a complete configuration"
        raise ArchiveRefused(source, reason, hint="Use `ductile system restore`, or an archive of `config backup`.")
    entries = tuple(entry for entry in manifest.files if entry.kind != LEDGER and not entry.is_outside)
    if excess := exceeded_limit(entries):
        is_full = manifest.scope == BackupScope.ALL
        hint = "`ductile system restore` of this archive has no such limit." if is_full else None
        raise ArchiveRefused(source, excess, hint=hint)
    return evolve(manifest, files=entries)


def _require_root(source: Path, manifest: ArchiveManifest) -> None:
    has_root = any(entry.place == manifest.root for entry in manifest.files)
    if not has_root and (manifest.scope != BackupScope.DB or any(entry.kind != LEDGER for entry in manifest.files)):
        raise ArchiveRefused(source, f"has no {files.display_path(manifest.root)}")


def _staging_parent(directory: Path, *, may_be_inside: bool) -> Path:
    """Return a directory for the temporary files: the parent, where `../shared.yaml` has the same meaning.

    If the parent is not writable and `may_be_inside` is true, return `directory`.
    """
    parent = next(folder for folder in directory.parents if folder.is_dir())
    if may_be_inside and directory.is_dir() and not os.access(parent, os.W_OK | os.X_OK):
        return directory
    return parent


def _write_files(unpacked: UnpackedArchive, contents: ArchivedContent) -> None:
    selected = {entry.place for entry in unpacked.manifest.files}
    for entry, chunks in contents:
        if entry.place not in selected:
            continue
        if entry.place == PENDING_FILE:  # the next load would execute it, with any paths
            raise ArchiveRefused(unpacked.source, f"{PENDING_FILE} is not allowed in an archive")
        _require_disk_space(unpacked.inside.parent, entry)
        path = unpacked.path_of(entry)
        make_private_directory(path.parent)
        with create_private(path, entry.mode) as file:
            file.writelines(chunks)
    if unpacked.manifest.ledger:
        verify_copy(unpacked.ledger)
        detach_copy(unpacked.ledger)


def _require_disk_space(folder: Path, entry: ArchivedFile) -> None:
    disk = os.statvfs(folder)
    if entry.size + SPARE_BYTES > disk.f_bavail * disk.f_frsize:
        needed = f"{entry.size} bytes plus a reserve of {SPARE_BYTES >> 20} MiB"
        raise files.FileRefused(folder, f"not enough disk space for {needed}", hint="Free some disk space.")
