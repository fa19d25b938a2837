"""Decide which files belong to a backup, and add them to its manifest.

The caller holds the edit lock of the configuration. `archive` has the file format.
"""

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from attrs import define, field
from blake3 import blake3

from ductile import __version__
from ductile.config.checksums import SEAL_FILE
from ductile.config.edit.staged_edit import Draft
from ductile.config.files.interpolate import is_utf8
from ductile.config.files.ledger_path import find_ledger
from ductile.config.files.sources import Sources
from ductile.config.load.load import Config, load
from ductile.config.scaffold import PLUGINS_FOLDER, SCHEMA_FILE
from ductile.core import files
from ductile.core.clock import to_text
from ductile.core.errors import ConfigMissing, DuctileError, UsageInvalid
from ductile.ledger.storage.backup import CopyInfo
from ductile.ledger.storage.path_checks import SIDE_FILE_SUFFIXES
from ductile.ops.backup import archive
from ductile.ops.backup.manifest import (
    CONFIG,
    ENV,
    LEDGER,
    MAX_CONFIG_FILE_BYTES,
    PLUGIN,
    ArchivedFile,
    ArchiveManifest,
    BackupScope,
    exceeded_limit,
)

LEDGER_NAME = "ledger.db"
SKIPPED = frozenset((".git", "node_modules", ".venv", "venv", "__pycache__", ".DS_Store"))


@define
class FileCollection:
    """The files to archive: their manifest entries by path, and their content by name in the archive."""

    root: Path
    """The main configuration file."""
    scope: BackupScope
    entries: dict[str, ArchivedFile] = field(factory=dict)
    sources: dict[str, Path | bytes] = field(factory=dict)
    excluded: list[str] = field(factory=list)
    """Excluded files, each with the reason."""
    outside: list[Path] = field(factory=list)
    """Paths outside the directory. Only an archive of scope `only-config` excludes them."""
    reserved: set[Path] = field(factory=set)
    """The ledger, its side files and its temporary copy, which are not archived as other files."""

    def add_ledger(self, ledger: Path, copy: Path | None) -> None:
        """Add the copy of the ledger. In a dry run there is no copy; the entry then has no hash."""
        size, digest = archive.hash_file(copy) if copy else (ledger.stat().st_size, "")
        place = _relative_place(ledger, self.root.parent)
        self.entries[place] = ArchivedFile(name=LEDGER_NAME, kind=LEDGER, place=place, size=size, blake3=digest)
        self.sources[LEDGER_NAME] = copy or ledger

    def add_file(self, path: Path, kind: str, content: bytes | None = None) -> None:
        """Add a file, with `content` if it was already read."""
        directory = self.root.parent
        place = _relative_place(path, directory)
        if place in self.entries or Path(os.path.realpath(path)) in self.reserved:
            return
        if not is_utf8(str(path)):
            self.excluded.append(f"{files.display_path(path)}: the name is not UTF-8")
            return
        if place.startswith("/") and self._excludes_outside(path):
            return
        if content is None:
            size, digest = archive.hash_file(path)
        else:
            size, digest = len(content), blake3(content).hexdigest()
        if self.scope is BackupScope.ONLY_CONFIG and size > MAX_CONFIG_FILE_BYTES:
            raise files.FileRefused(path, f"larger than the {MAX_CONFIG_FILE_BYTES} bytes allowed here")
        name = f"outside{place}" if place.startswith("/") else f"config/{place}"
        executable = os.access(path, os.X_OK)
        self.entries[place] = ArchivedFile(
            name=name, kind=kind, place=place, size=size, blake3=digest, executable=executable
        )
        self.sources[name] = path if content is None else content

    def add_configuration(self, config: Config | None) -> Sources:
        """Add the files in the scope except the ledger, and return what was read.

        `config` is None if the configuration is invalid. Then the readable files are added.
        """
        directory = self.root.parent
        sources = Draft.of(self.root, os.environ).sources
        documents = {path for path, _ in sources.documents}
        from_environment = {source.path for source in sources.files} - documents - {self.root}
        for source in (*sources.files, *(config.files if config else ())):
            kind = ENV if source.path in from_environment else CONFIG
            if kind in self.scope.kinds:
                self.add_file(source.path, kind, source.content)
            else:
                self.excluded.append(f"{source.path}: not in scope {self.scope}")
        for path in (directory / SEAL_FILE, directory / SCHEMA_FILE):
            if path.is_file():
                found = files.read_regular(path, max_bytes=MAX_CONFIG_FILE_BYTES, follow_symlinks=True)
                self.add_file(path, CONFIG, found.content)
        for path in _files_below(directory / "scopes"):
            self.add_file(path, CONFIG)
        roots = list(config.settings.plugin_roots) if config else _written_plugin_roots(sources)
        if config is None or self.scope is BackupScope.ONLY_CONFIG:
            roots.insert(0, directory / PLUGINS_FOLDER)
        for folder in dict.fromkeys(Path(os.path.normpath(root)) for root in roots):
            self._add_plugins(folder)
        return sources

    def _add_plugins(self, folder: Path) -> None:
        if PLUGIN not in self.scope.kinds:
            self.excluded.append(f"{folder}: not in scope {self.scope}")
        elif folder.is_relative_to(self.root.parent) or not self._excludes_outside(folder):
            for path in _files_below(folder):
                self.add_file(path, PLUGIN)
            self.excluded += [f"{link}: a link to {files.read_link(link)}" for link in _links_below(folder)]

    def _excludes_outside(self, path: Path) -> bool:
        """Record `path`, which is outside the directory, as excluded if the scope excludes such files."""
        if self.scope is not BackupScope.ONLY_CONFIG:
            return False
        self.outside.append(path)
        self.excluded.append(f"{path}: outside the configuration directory")
        return True

    def to_manifest(self, now: datetime, info: CopyInfo | None = None) -> ArchiveManifest:
        """Return the manifest. Raises UsageInvalid if the files exceed the limits of the scope."""
        entries = tuple(self.entries.values())
        if self.scope is BackupScope.ONLY_CONFIG and (excess := exceeded_limit(entries)):
            raise UsageInvalid(f"the archive {excess}", hint="`ductile system backup` has no such limit.")
        return ArchiveManifest(
            version=__version__,
            made_at=to_text(now),
            scope=self.scope,
            source=str(self.root.parent),
            root=self.root.name,
            files=entries,
            schema_version=info.schema_version if info else None,
            rows=info.rows if info else {},
            excluded=tuple(dict.fromkeys(self.excluded)),
        )


def load_readable(collection: FileCollection, *, alone: bool = False) -> Config | None:
    """Load the configuration. Of an invalid one, record the errors and return None."""
    try:
        return load(collection.root, verify=False, alone=alone)
    except ConfigMissing:
        raise
    except DuctileError as error:
        collection.excluded += [f"files affected by an error: {line}" for line in str(error).splitlines()]
        return None


def ledger_files(*roots: Path) -> set[Path]:
    """Return the resolved paths of the ledgers of these configurations, with their side files.

    A ledger whose path cannot be determined is skipped.
    """
    found: set[Path] = set()
    for root in roots:
        try:
            found |= with_side_files(find_ledger(root, os.environ))
        except DuctileError:
            continue
    return found


def with_side_files(ledger: Path) -> set[Path]:
    """Return the resolved paths of a ledger and of the files that SQLite keeps next to it."""
    ledger = Path(os.path.realpath(ledger))
    return {ledger.with_name(ledger.name + suffix) for suffix in ("", *SIDE_FILE_SUFFIXES)}


def _relative_place(path: Path, directory: Path) -> str:
    """Return `path` relative to the directory or its resolved path, or absolute if it is outside."""
    for base in (directory, Path(os.path.realpath(directory))):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.as_posix()


def _written_plugin_roots(sources: Sources) -> list[Path]:
    """Return the plugin directories of an invalid configuration as they are written, without interpolation."""
    members = sources.root.value if isinstance(sources.root.value, dict) else {}
    written = members["plugin_roots"].value if "plugin_roots" in members else ()
    items = written if isinstance(written, tuple) else ()
    return [Path(item.mark.source).parent / Path(str(item.value)).expanduser() for item in items]


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield every regular file below `folder`, except caches and version control. Does not follow links."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            path = Path(parent) / name
            if name not in SKIPPED and not name.endswith((".pyc", ".pyo")) and path.is_file() and not path.is_symlink():
                yield path


def _links_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent) / name for name in (*folders, *names) if os.path.islink(Path(parent) / name))
        folders[:] = [name for name in folders if name not in SKIPPED]
