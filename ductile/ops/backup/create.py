"""Back up the ledger, configuration, plugins and `.env` files to one archive, also while the service runs.

`collect` decides which files belong to which scope, `ledger.storage.backup` copies the ledger.
"""

import os
from datetime import datetime
from pathlib import Path

from attrs import frozen

from ductile.config.files.atomic_write import lock_config
from ductile.config.files.ledger_path import find_ledger
from ductile.config.files.sources import find_config
from ductile.core import files
from ductile.core.errors import ConfigInvalid, LedgerFull, UsageInvalid
from ductile.ledger.storage.backup import CopyInfo, copy_ledger, require_copyable, verify_copy
from ductile.ledger.storage.path_checks import ledger_exists
from ductile.ops.backup import archive
from ductile.ops.backup.archive import ReportProgress, no_progress
from ductile.ops.backup.collect import FileCollection, ledger_files, load_readable
from ductile.ops.backup.manifest import LEDGER, ArchiveManifest, BackupScope


@frozen
class BackedUp:
    """The result of a backup. `bytes` is None in a dry run."""

    path: Path
    manifest: ArchiveManifest
    bytes: int | None
    outside: tuple[Path, ...] = ()
    """Excluded paths outside the directory, if the scope is `only-config`."""


def back_up(
    explicit: Path | None,
    target: Path,
    scope: BackupScope,
    *,
    now: datetime,
    progress: ReportProgress = no_progress,
    dry_run: bool = False,
) -> BackedUp:
    """Write a verified archive of everything in `scope` to `target`. With `dry_run`, only list the files."""
    target = Path(os.path.abspath(target))
    if os.path.lexists(target):
        raise archive.already_exists(target)
    if not target.parent.is_dir():
        raise UsageInvalid(f"{target.parent} is not a directory", hint="Create it, or choose another file.")
    files.require_writable(target.parent)
    root = find_config(explicit, os.environ).path
    copy = target.with_name(f".{target.name}.{os.urandom(6).hex()}.ledger")
    collection = FileCollection(root, scope, reserved={Path(os.path.realpath(copy)), *ledger_files(root)})
    try:
        info = _add_ledger(collection, copy, progress, dry_run=dry_run) if LEDGER in scope.kinds else None
        if scope is not BackupScope.DB:
            _add_configuration(collection)
        manifest = collection.to_manifest(now, info)
        size = None if dry_run else archive.write(target, manifest, collection.sources, progress)
        return BackedUp(target, manifest, size, tuple(dict.fromkeys(collection.outside)))
    finally:
        copy.unlink(missing_ok=True)


def _add_ledger(collection: FileCollection, copy: Path, progress: ReportProgress, *, dry_run: bool) -> CopyInfo | None:
    """Add a verified copy of the ledger at the temporary path `copy`. In a dry run, only check the ledger."""
    ledger = find_ledger(collection.root, os.environ)
    if not ledger_exists(ledger):
        collection.excluded.append(f"{ledger}: the ledger does not exist yet")
        return None
    if dry_run:
        require_copyable(ledger)
        collection.add_ledger(ledger, None)
        return None
    try:
        copy_ledger(ledger, copy, lambda done, total: progress("copying the ledger", done, total))
    except LedgerFull as error:
        raise LedgerFull("no space left on the disk", path=copy.parent, hint=error.hint) from error
    except OSError as error:
        raise files.FileRefused(copy.parent, f"cannot be written: {error.strerror}") from error
    progress("verifying the copy", 0, 1)
    info = verify_copy(copy, name=str(ledger))
    collection.add_ledger(ledger, copy)
    return info


def _add_configuration(collection: FileCollection) -> None:
    config = load_readable(collection)
    with lock_config(collection.root.parent):
        sources = collection.add_configuration(config)
    if sources.errors and collection.scope is BackupScope.ONLY_CONFIG:
        raise ConfigInvalid(sources.errors)
