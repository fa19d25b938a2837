"""Everything that a service stands on, in one archive, taken while it runs: ledger, configuration, plugins, `.env`.

Decides what belongs into which scope; how it is packed is `archive`'s work, how the ledger is copied the ledger's.
Called by `system backup`; `restore` is the way back.
"""

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from attrs import define, field, frozen
from blake3 import blake3

from ductile import __version__
from ductile.config.edit.atomic_write import only_editor
from ductile.config.edit.staged_edit import Draft
from ductile.config.load.interpolate import is_unicode
from ductile.config.load.ledger_path import ledger_of
from ductile.config.load.load import load
from ductile.config.load.sources import SourceFile, find
from ductile.config.scaffold import PLUGINS, SCHEMA_FILE
from ductile.config.seal.archive import SKIPPED, files_below
from ductile.config.seal.checksums import SEAL_FILE
from ductile.core import files
from ductile.core.clock import to_text
from ductile.core.errors import ConfigInvalid, LedgerFull, UsageInvalid
from ductile.ledger.storage.backup import LedgerFacts, beside, copy_ledger, facts_of_copy, require_copyable
from ductile.ledger.storage.path_checks import is_made
from ductile.ops import archive
from ductile.ops.archive import Tell
from ductile.ops.archive_manifest import CONFIG, ENV, LEDGER, PLUGIN, ArchivedFile, ArchiveManifest, BackupScope

LEDGER_NAME = "ledger.db"


@frozen
class BackedUp:
    """What was written, or would be."""

    path: Path
    manifest: ArchiveManifest
    bytes: int | None


@define
class _Collection:
    """What was found so far."""

    directory: Path
    ledger: Path
    copy: Path
    """Of the ledger: our own, wherever it lies for the moment."""
    entries: dict[str, ArchivedFile] = field(factory=dict)
    sources: dict[str, Path | bytes] = field(factory=dict)
    excluded: list[str] = field(factory=list)

    def take_bytes(self, path: Path, kind: str, content: bytes) -> None:
        self._take(path, kind, content, len(content), blake3(content).hexdigest())

    def take_file(self, path: Path, kind: str) -> None:
        if path in (self.copy, *beside(self.ledger)):
            return
        if not is_unicode(str(path)):
            self.excluded.append(f"{files.shown_path(path)}: its name is not UTF-8")
            return
        size, digest = archive.hash_of(path)
        self._take(path, kind, path, size, digest, executable=os.access(path, os.X_OK))

    def take_ledger(self) -> None:
        """The ledger from its copy; without one only its name and its size."""
        is_copied = self.copy.exists()
        size, digest = archive.hash_of(self.copy) if is_copied else (self.ledger.stat().st_size, "")
        place = _place(self.ledger, self.directory)
        self.entries[place] = ArchivedFile(name=LEDGER_NAME, kind=LEDGER, place=place, size=size, blake3=digest)
        self.sources[LEDGER_NAME] = self.copy if is_copied else self.ledger

    def _take(
        self, path: Path, kind: str, content: Path | bytes, size: int, digest: str, *, executable: bool = False
    ) -> None:
        place = _place(path, self.directory)
        name = f"outside{place}" if place.startswith("/") else f"config/{place}"
        if place not in self.entries:
            entry = ArchivedFile(name=name, kind=kind, place=place, size=size, blake3=digest, executable=executable)
            self.entries[place], self.sources[name] = entry, content


def _place(path: Path, directory: Path) -> str:
    """Relative to the directory, as it is written or as it is resolved, or else absolute."""
    for base in (directory, Path(os.path.realpath(directory))):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.as_posix()


def back_up(
    explicit: Path | None, target: Path, scope: BackupScope, *, now: datetime, tell: Tell, dry_run: bool = False
) -> BackedUp:
    """`target` is a verified archive of everything in `scope`; with `dry_run` it is only said what that would be."""
    target = Path(os.path.abspath(target))
    if os.path.lexists(target):
        raise archive.taken(target)
    if not target.parent.is_dir():
        raise UsageInvalid(f"{target.parent} is not a directory", hint="make it first, or name another file with --to")
    files.require_writable(target.parent)
    root = find(explicit, os.environ).path
    ledger = ledger_of(root, os.environ)
    copy = target.with_name(f".{target.name}.{os.urandom(6).hex()}.ledger")
    collection = _Collection(root.parent, ledger, copy)
    try:
        facts = None
        if not is_made(ledger):
            collection.excluded.append(f"{ledger}: there is no ledger yet")
        else:
            if dry_run:
                require_copyable(ledger)
            else:
                facts = _copied(ledger, copy, tell)
            collection.take_ledger()
        _collect(collection, root, scope)
        manifest = ArchiveManifest(
            version=__version__,
            made_at=to_text(now),
            scope=scope,
            source=str(root.parent),
            root=root.name,
            files=tuple(collection.entries.values()),
            schema_version=facts.schema_version if facts else None,
            rows=facts.rows if facts else {},
            excluded=tuple(dict.fromkeys(collection.excluded)),
        )
        if dry_run:
            return BackedUp(target, manifest, None)
        return BackedUp(target, manifest, archive.write(target, manifest, collection.sources, tell))
    finally:
        copy.unlink(missing_ok=True)


def _copied(ledger: Path, copy: Path, tell: Tell) -> LedgerFacts:
    """The copy is there and sound; what is in it."""
    try:
        copy_ledger(ledger, copy, lambda done, total: tell("copying the ledger", done, total))
    except LedgerFull as error:
        raise LedgerFull(f"{copy.parent}: no space left on the disk", hint=error.hint) from error
    except OSError as error:
        raise files.FileRefused(copy.parent, f"cannot be written: {error.strerror}") from error
    tell("checking the copy", 0, 1)
    return facts_of_copy(copy, name=str(ledger))


def _collect(collection: _Collection, root: Path, scope: BackupScope) -> None:
    """Everything in `scope` but the ledger. A broken configuration is taken as far as it can be read."""
    if scope is BackupScope.DB:
        return
    directory, roots = root.parent, [root.parent / PLUGINS]
    granted: tuple[SourceFile, ...] = ()
    try:
        config = load(root, verify=False)
        roots, granted = list(config.settings.plugin_roots), config.files
    except ConfigInvalid as error:
        collection.excluded += [f"what hangs on a mistake: {complaint}" for complaint in error.complaints]
    with only_editor(directory):
        sources = Draft.of(root, os.environ).sources
        written = {path for path, _ in sources.documents}
        from_environment = {source.path for source in sources.files} - written - {root}
        for source in (*sources.files, *granted):
            kind = ENV if source.path in from_environment else CONFIG
            if kind in scope.kinds:
                collection.take_bytes(source.path, kind, source.content)
            else:
                collection.excluded.append(f"{source.path}: not in scope {scope}")
        for path in (directory / SEAL_FILE, directory / SCHEMA_FILE, *files_below(directory / "scopes")):
            if path.is_file():
                collection.take_file(path, CONFIG)
    if PLUGIN in scope.kinds:
        for folder in roots:
            _collect_plugins(collection, Path(os.path.normpath(folder)))
    else:
        collection.excluded += [f"{folder}: not in scope {scope}" for folder in roots]


def _collect_plugins(collection: _Collection, folder: Path) -> None:
    for path in files_below(folder):
        collection.take_file(path, PLUGIN)
    collection.excluded += [f"{link}: a link to {files.target_of(link)}" for link in _links_below(folder)]


def _links_below(folder: Path) -> Iterable[Path]:
    for place, folders, names in os.walk(folder):
        yield from (Path(place) / name for name in (*folders, *names) if os.path.islink(Path(place) / name))
        folders[:] = [name for name in folders if name not in SKIPPED]
