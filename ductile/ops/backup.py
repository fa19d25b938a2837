"""Back up the ledger, configuration, plugins and `.env` files to one archive, also while the service runs.

Decides which files belong to which scope. `archive` has the file format, `ledger.storage.backup` copies the ledger.
"""

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from attrs import define, field, frozen
from blake3 import blake3

from ductile import __version__
from ductile.config.checksums import SEAL_FILE
from ductile.config.edit.staged_edit import Draft
from ductile.config.files.atomic_write import lock_config
from ductile.config.files.interpolate import is_utf8
from ductile.config.files.ledger_path import find_ledger
from ductile.config.files.sources import SourceFile, find_config
from ductile.config.load.load import load
from ductile.config.scaffold import PLUGINS_FOLDER, SCHEMA_FILE
from ductile.config.seal.archive import SKIPPED, files_below
from ductile.core import files
from ductile.core.clock import to_text
from ductile.core.errors import ConfigInvalid, LedgerFull, UsageInvalid
from ductile.ledger.storage.backup import CopyInfo, copy_ledger, require_copyable, side_files, verify_copy
from ductile.ledger.storage.path_checks import ledger_exists
from ductile.ops import archive
from ductile.ops.archive import ReportProgress
from ductile.ops.archive_manifest import CONFIG, ENV, LEDGER, PLUGIN, ArchivedFile, ArchiveManifest, BackupScope

LEDGER_NAME = "ledger.db"


@frozen
class BackedUp:
    """The result of a backup. `bytes` is None in a dry run."""

    path: Path
    manifest: ArchiveManifest
    bytes: int | None


@define
class _Collection:
    """The files to archive: their manifest entries by path, and their content by name in the archive."""

    directory: Path
    ledger: Path
    copy: Path
    """The temporary copy of the ledger."""
    entries: dict[str, ArchivedFile] = field(factory=dict)
    sources: dict[str, Path | bytes] = field(factory=dict)
    excluded: list[str] = field(factory=list)

    def add_bytes(self, path: Path, kind: str, content: bytes) -> None:
        self._add(path, kind, content, len(content), blake3(content).hexdigest())

    def add_file(self, path: Path, kind: str) -> None:
        if path in (self.copy, *side_files(self.ledger)):
            return
        if not is_utf8(str(path)):
            self.excluded.append(f"{files.display_path(path)}: the name is not UTF-8")
            return
        size, digest = archive.hash_file(path)
        self._add(path, kind, path, size, digest, executable=os.access(path, os.X_OK))

    def add_ledger(self) -> None:
        """Add the copy of the ledger. In a dry run there is no copy; the entry then has no hash."""
        is_copied = self.copy.exists()
        size, digest = archive.hash_file(self.copy) if is_copied else (self.ledger.stat().st_size, "")
        place = _relative_place(self.ledger, self.directory)
        self.entries[place] = ArchivedFile(name=LEDGER_NAME, kind=LEDGER, place=place, size=size, blake3=digest)
        self.sources[LEDGER_NAME] = self.copy if is_copied else self.ledger

    def _add(
        self, path: Path, kind: str, content: Path | bytes, size: int, digest: str, *, executable: bool = False
    ) -> None:
        place = _relative_place(path, self.directory)
        name = f"outside{place}" if place.startswith("/") else f"config/{place}"
        if place not in self.entries:
            entry = ArchivedFile(name=name, kind=kind, place=place, size=size, blake3=digest, executable=executable)
            self.entries[place], self.sources[name] = entry, content


def _relative_place(path: Path, directory: Path) -> str:
    """Return `path` relative to the directory or its resolved path, or absolute if it is outside."""
    for base in (directory, Path(os.path.realpath(directory))):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.as_posix()


def back_up(
    explicit: Path | None,
    target: Path,
    scope: BackupScope,
    *,
    now: datetime,
    progress: ReportProgress,
    dry_run: bool = False,
) -> BackedUp:
    """Write a verified archive of everything in `scope` to `target`. With `dry_run`, only list the files."""
    target = Path(os.path.abspath(target))
    if os.path.lexists(target):
        raise archive.already_exists(target)
    if not target.parent.is_dir():
        raise UsageInvalid(f"{target.parent} is not a directory", hint="Create it, or choose another file with --to.")
    files.require_writable(target.parent)
    root = find_config(explicit, os.environ).path
    ledger = find_ledger(root, os.environ)
    copy = target.with_name(f".{target.name}.{os.urandom(6).hex()}.ledger")
    collection = _Collection(root.parent, ledger, copy)
    try:
        info = None
        if not ledger_exists(ledger):
            collection.excluded.append(f"{ledger}: the ledger does not exist yet")
        else:
            if dry_run:
                require_copyable(ledger)
            else:
                info = _copy_ledger(ledger, copy, progress)
            collection.add_ledger()
        _collect(collection, root, scope)
        manifest = ArchiveManifest(
            version=__version__,
            made_at=to_text(now),
            scope=scope,
            source=str(root.parent),
            root=root.name,
            files=tuple(collection.entries.values()),
            schema_version=info.schema_version if info else None,
            rows=info.rows if info else {},
            excluded=tuple(dict.fromkeys(collection.excluded)),
        )
        if dry_run:
            return BackedUp(target, manifest, None)
        return BackedUp(target, manifest, archive.write(target, manifest, collection.sources, progress))
    finally:
        copy.unlink(missing_ok=True)


def _copy_ledger(ledger: Path, copy: Path, progress: ReportProgress) -> CopyInfo:
    """Copy the ledger to `copy` and verify the copy."""
    try:
        copy_ledger(ledger, copy, lambda done, total: progress("copying the ledger", done, total))
    except LedgerFull as error:
        raise LedgerFull(f"{copy.parent}: no space left on the disk", hint=error.hint) from error
    except OSError as error:
        raise files.FileRefused(copy.parent, f"cannot be written: {error.strerror}") from error
    progress("verifying the copy", 0, 1)
    return verify_copy(copy, name=str(ledger))


def _collect(collection: _Collection, root: Path, scope: BackupScope) -> None:
    """Collect the files in `scope` except the ledger. Of an invalid configuration, collect the readable files."""
    if scope is BackupScope.DB:
        return
    directory, roots = root.parent, [root.parent / PLUGINS_FOLDER]
    loaded: tuple[SourceFile, ...] = ()
    try:
        config = load(root, verify=False)
        roots, loaded = list(config.settings.plugin_roots), config.files
    except ConfigInvalid as error:
        collection.excluded += [f"files affected by an error: {complaint}" for complaint in error.complaints]
    with lock_config(directory):
        sources = Draft.of(root, os.environ).sources
        documents = {path for path, _ in sources.documents}
        from_environment = {source.path for source in sources.files} - documents - {root}
        for source in (*sources.files, *loaded):
            kind = ENV if source.path in from_environment else CONFIG
            if kind in scope.kinds:
                collection.add_bytes(source.path, kind, source.content)
            else:
                collection.excluded.append(f"{source.path}: not in scope {scope}")
        for path in (directory / SEAL_FILE, directory / SCHEMA_FILE, *files_below(directory / "scopes")):
            if path.is_file():
                collection.add_file(path, CONFIG)
    if PLUGIN in scope.kinds:
        for folder in roots:
            _collect_plugins(collection, Path(os.path.normpath(folder)))
    else:
        collection.excluded += [f"{folder}: not in scope {scope}" for folder in roots]


def _collect_plugins(collection: _Collection, folder: Path) -> None:
    for path in files_below(folder):
        collection.add_file(path, PLUGIN)
    collection.excluded += [f"{link}: a link to {files.read_link(link)}" for link in _links_below(folder)]


def _links_below(folder: Path) -> Iterable[Path]:
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent) / name for name in (*folders, *names) if os.path.islink(Path(parent) / name))
        folders[:] = [name for name in folders if name not in SKIPPED]
