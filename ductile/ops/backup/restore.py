"""Restore an archive of `system backup`: ledger, configuration and plugins.

Files outside the configuration directory are replaced first, each by one rename. The directory itself is replaced last,
by one exchange. Replaced files are saved next to the new ones. A failure restores the previous state.
`restore_config` restores an archive of the configuration alone.
"""

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from attrs import define, field

from ductile.config.checks.examine import examine
from ductile.config.checksums import SEAL_FILE, read_seal, relocate_seal, render_seal
from ductile.config.files.atomic_write import lock_config
from ductile.config.files.ledger_path import find_ledger
from ductile.config.load.load import load
from ductile.core import files
from ductile.core.errors import ConfigInvalid, DuctileError, LedgerError, UsageInvalid, WrongState
from ductile.core.instance.lock import instance_lock, require_unlocked
from ductile.ledger.storage.backup import checkpoint_and_truncate, side_files
from ductile.ledger.storage.path_checks import make_private_directory
from ductile.ops.backup import archive, swap
from ductile.ops.backup.archive import ReportProgress
from ductile.ops.backup.collect import ledger_files, with_side_files
from ductile.ops.backup.manifest import LEDGER, PLUGIN, ArchivedFile, ArchiveManifest, BackupScope
from ductile.ops.backup.restore_config import replace_configuration
from ductile.ops.backup.unpack import UnpackedArchive, unpack
from ductile.plugin.manifest import FILE_NAME as PLUGIN_MANIFEST


class TargetExists(DuctileError):
    """The target of a restore already exists."""

    code, exit_code, status = "place_taken", 1, 409
    hint = "Choose another directory with --config-dir."


@define
class RestoredInstance:
    """The result of a restore, or of a dry run: the target paths and the saved copies of replaced files."""

    directory: Path
    manifest: ArchiveManifest
    ledger: Path | None = None
    outside: list[Path] = field(factory=list)
    saved: list[Path] = field(factory=list)
    warnings: list[str] = field(factory=list)
    dry_run: bool = False

    @property
    def is_whole(self) -> bool:
        """True if the archive has a configuration, not only a ledger."""
        return any(entry.place == self.manifest.root for entry in self.manifest.files)

    @property
    def is_config_only(self) -> bool:
        return self.manifest.scope == BackupScope.ONLY_CONFIG

    def as_data(self) -> dict[str, Any]:
        return {
            "directory": str(self.directory),
            "made_at": self.manifest.made_at,
            "version": self.manifest.version,
            "source": self.manifest.source,
            "files": [entry.place for entry in self.manifest.files],
            "ledger": str(self.ledger) if self.ledger else None,
            "outside": [str(path) for path in self.outside],
            "kept": [str(path) for path in self.saved],
            "warnings": self.warnings,
            "dry_run": self.dry_run,
        }


def restore(
    source: Path,
    directory: Path,
    *,
    now: datetime,
    replace: bool = False,
    outside: bool = False,
    progress: ReportProgress,
    dry_run: bool = False,
) -> RestoredInstance:
    """Restore the archive `source` to `directory`. Changes nothing on failure.

    Raises AlreadyRunning if a service uses the target, TargetExists if the target exists and `replace` is false, and
    WrongState if the archive has files for other directories and `outside` is false.
    """
    directory = Path(os.path.abspath(directory.expanduser()))
    if directory.suffix == ".yaml" and not directory.is_dir():
        directory = directory.parent
    if directory == directory.parent:
        raise UsageInvalid(f"{directory} cannot be replaced", hint="Choose another directory with --config-dir.")
    with unpack(source, _resolve(directory), progress) as unpacked:
        restored = RestoredInstance(directory, unpacked.manifest, dry_run=dry_run)
        restored.ledger = _ledger_place(unpacked, restored)
        _require_no_ledger(unpacked, restored)
        restored.outside = _outside(restored)
        for path in _ledgers_in_use(restored):
            require_unlocked(path.parent, path)
        _require_permitted(restored, replace=replace, outside=outside)
        if restored.is_config_only:
            done = replace_configuration(unpacked, directory, now=now, dry_run=dry_run)
            restored.saved += [done.saved] if done.saved else []
        else:
            _move_seal(unpacked.inside, Path(unpacked.manifest.source), directory)
            if not dry_run:
                with _locked(restored, now):
                    _install(unpacked, restored, now)
    if restored.is_whole and not dry_run:
        restored.warnings += _find_problems(restored)
    return restored


# ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _resolve(directory: Path) -> Path:
    """Resolve links: the target of a link is replaced, not the link."""
    return Path(os.path.realpath(directory))


def _move_seal(inside: Path, old: Path, new: Path) -> None:
    """Adapt the sealed paths to the new directory. Hashes do not change."""
    seal = read_seal(inside / SEAL_FILE)
    if seal is not None and old != new:
        files.write_private(inside / SEAL_FILE, render_seal(relocate_seal(seal, old, new)))


def _ledger_place(unpacked: UnpackedArchive, restored: RestoredInstance) -> Path | None:
    """Return the ledger path of the restored configuration, or of the existing one if only a ledger is restored."""
    if restored.manifest.ledger is None:
        return None
    inside = unpacked.inside
    folder = inside if restored.is_whole else restored.directory
    try:
        place = find_ledger(folder / restored.manifest.root, os.environ)
    except ConfigInvalid:
        # It may include files outside the directory or need environment variables: use the path in the manifest.
        return restored.directory / restored.manifest.ledger.place
    return restored.directory / place.relative_to(inside) if place.is_relative_to(inside) else place


def _require_no_ledger(unpacked: UnpackedArchive, restored: RestoredInstance) -> None:
    """Raise ArchiveRefused if a file would replace the restored ledger or become its log."""
    new = with_side_files(restored.ledger) if restored.ledger else set()
    unpacked.require_no_ledger(restored.directory, new | ledger_files(unpacked.inside / unpacked.manifest.root))


def _outside(restored: RestoredInstance) -> list[Path]:
    """Return the paths outside `directory` that would be written. Identical files are skipped."""
    paths = [
        Path(entry.place)
        for entry in restored.manifest.files
        if entry.is_outside and entry.kind != LEDGER and not _is_identical(Path(entry.place), entry)
    ]
    if restored.ledger and not restored.ledger.is_relative_to(restored.directory):
        paths.append(restored.ledger)
    return paths


def _is_identical(path: Path, entry: ArchivedFile) -> bool:
    try:
        return archive.hash_file(path) == (entry.size, entry.blake3)
    except files.FileRefused:
        return False


def _require_permitted(restored: RestoredInstance, *, replace: bool, outside: bool) -> None:
    """Raise unless the options permit every path that would be written."""
    if restored.outside and not outside:
        examples = ", ".join(str(path) for path in restored.outside[:3])
        raise WrongState(
            f"{len(restored.outside)} files of the archive are outside {restored.directory}: {examples}",
            hint="Restore them too with --outside.",
            context={"outside": [str(path) for path in restored.outside]},
        )
    if restored.is_whole and not restored.is_config_only and os.path.ismount(_resolve(restored.directory)):
        hint = "Restore to a directory below it."
        raise files.FileRefused(restored.directory, "is a mount point and cannot be replaced", hint=hint)
    replaces_directory = restored.is_whole and restored.directory.exists() and any(restored.directory.iterdir())
    directories = [restored.directory] if replaces_directory else []
    targets = [*directories, *restored.outside, *([restored.ledger] if restored.ledger else [])]
    existing = [str(path) for path in dict.fromkeys(targets) if os.path.lexists(path)]
    if existing and not replace:
        hint = "Choose another directory, or use --replace. Replaced files are saved next to the target."
        raise TargetExists(f"{existing[0]} already exists", hint=hint, context={"taken": existing})
    if replaces_directory and restored.manifest.scope not in (BackupScope.ALL, BackupScope.ONLY_CONFIG):
        hint = "Restore to another directory and copy the files that you need."
        message = f"an archive of scope {restored.manifest.scope} cannot replace all of {existing[0]}"
        raise TargetExists(message, hint=hint)


@contextlib.contextmanager
def _locked(restored: RestoredInstance, now: datetime) -> Iterator[None]:
    """Lock the target against services and edits."""
    with contextlib.ExitStack() as locks:
        for path in _ledgers_in_use(restored):
            locks.enter_context(instance_lock(path.parent, path, now=now))
        if restored.directory.is_dir():
            locks.enter_context(lock_config(restored.directory))
        yield


def _ledgers_in_use(restored: RestoredInstance) -> set[Path]:
    """Return the ledgers that a service may be using: the restored one and that of the existing configuration."""
    try:
        present = find_ledger(restored.directory / restored.manifest.root, os.environ)
    except DuctileError:
        present = None
    return {path for path in (restored.ledger, present) if path and path.parent.is_dir()}


# ── replacing files ─────────────────────────────────────────────────────────────────────────────────────────────────


def _install(unpacked: UnpackedArchive, restored: RestoredInstance, now: datetime) -> None:
    """Replace the files outside the directory, then the directory. Rolls back on failure."""
    stamp, inside = f"before-restore-{now:%Y%m%dT%H%M%S%f}", unpacked.inside
    with contextlib.ExitStack() as undo:
        for entry in restored.manifest.files:
            path = Path(entry.place)
            if entry.kind != LEDGER and path in restored.outside:
                aside = _aside(path, entry.kind, restored.manifest, stamp)
                restored.saved += swap.put_file(unpacked.path_of(entry), path, aside)
                undo.callback(swap.roll_back, path, aside)
        if restored.ledger and restored.is_whole and restored.ledger not in restored.outside:
            place = inside / restored.ledger.relative_to(restored.directory)
            make_private_directory(place.parent)
            unpacked.ledger.rename(place)
        elif restored.ledger:
            restored.saved += _install_ledger(unpacked.ledger, restored.ledger, stamp, undo)
        if restored.is_whole:
            place = _resolve(restored.directory)
            swap.match_owner(inside, place)
            restored.saved += swap.put_directory(inside, place, stamp)
        undo.pop_all()


def _aside(path: Path, kind: str, manifest: ArchiveManifest, stamp: str) -> Path:
    """Return where to save the previous file: beside it, but beside its folder for a file of a plugin.

    The seal does not cover a saved file in the folder of a plugin, so `strict_mode` would refuse the plugin.
    """
    if kind != PLUGIN:
        return path.with_name(f"{path.name}.{stamp}")
    folders = {Path(entry.place).parent for entry in manifest.files if Path(entry.place).name == PLUGIN_MANIFEST}
    folder = next((parent for parent in path.parents if parent in folders), path.parent)
    return folder.parent / f".{folder.name}.{'.'.join(path.relative_to(folder).parts)}.{stamp}"


def _install_ledger(staged: Path, place: Path, stamp: str, undo: contextlib.ExitStack) -> list[Path]:
    """Replace the ledger. The old log is checkpointed and moved first: SQLite must not apply it to the new ledger."""
    if place.exists():
        with contextlib.suppress(LedgerError):  # a damaged ledger is saved unchanged
            checkpoint_and_truncate(place)
    saved = []
    aside = place.with_name(f"{place.name}.{stamp}")
    for log, log_aside in zip(side_files(place), side_files(aside), strict=True):
        if moved := swap.set_aside(log, log_aside):
            undo.callback(swap.roll_back, log, log_aside)
            saved += moved
    saved += swap.put_file(staged, place, aside)
    undo.callback(swap.roll_back, place, aside)
    return saved


def _find_problems(restored: RestoredInstance) -> list[str]:
    """Return the errors of the restored configuration and its remaining paths into the source directory."""
    try:
        config = load(restored.directory / restored.manifest.root)
        found = [f"not usable yet: {complaint}" for complaint in examine(config).report.errors]
    except ConfigInvalid as error:
        return [f"not usable yet: {complaint}" for complaint in error.complaints]
    except DuctileError as error:
        return [f"not usable yet: {error}"]
    old, new = Path(restored.manifest.source), restored.directory
    paths = [config.settings.state.path, *config.settings.plugin_roots, *(source.path for source in config.files)]
    left = [path for path in paths if path.is_relative_to(old) and not path.is_relative_to(new)]
    return found + [f"still refers to the source directory: {path}" for path in left]
