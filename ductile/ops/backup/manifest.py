"""The manifest of a backup archive: the path, size and hash of every file, and the source of the backup.

A manifest is untrusted input. Duplicate and unsafe paths are rejected before any file of the archive is read.
"""

import os
from collections.abc import Collection, Container, Mapping
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import asdict, field, frozen
from attrs.validators import deep_mapping, ge, in_, instance_of, matches_re, optional

from ductile.core import files
from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json

MANIFEST_FILE = "MANIFEST.json"
FORMAT = 1
MAX_FILES = 200_000
MAX_CONFIG_FILES, MAX_CONFIG_BYTES, MAX_CONFIG_FILE_BYTES = 2048, 50 << 20, 10 << 20
"""Limits of an archive of the configuration alone. It is restored through the edit journal, which is held in memory."""
CONFIG, PLUGIN, ENV, LEDGER = KINDS = ("config", "plugin", "env", "ledger")


class BackupScope(StrEnum):
    """The content of a backup. Each scope from `db` to `all` includes the previous ones.

    `only-config` has every file of the configuration that is inside its directory, but no ledger.
    """

    DB = "db"
    CONFIG = "config"
    PLUGINS = "plugins"
    ALL = "all"
    ONLY_CONFIG = "only-config"

    @property
    def kinds(self) -> tuple[str, ...]:
        kinds = (LEDGER, CONFIG, PLUGIN, ENV)
        return kinds[1:] if self is BackupScope.ONLY_CONFIG else kinds[: list(BackupScope).index(self) + 1]


class ArchiveRefused(files.FileRefused):
    """An archive is damaged, modified or not a backup of Ductile."""

    code, exit_code = "archive_refused", 1
    hint = "Use another archive. Create archives with `ductile system backup`."


@frozen(kw_only=True)
class ArchivedFile:
    """A file in an archive: its name there, its kind and its path.

    `place` is relative to the configuration directory, or absolute for a file outside it.
    """

    name: str = field(validator=instance_of(str))
    kind: str = field(validator=in_(KINDS))
    place: str = field(validator=instance_of(str))
    size: int = field(validator=[instance_of(int), ge(0)])
    blake3: str = field(validator=instance_of(str))
    executable: bool = field(default=False, validator=instance_of(bool))

    @property
    def mode(self) -> int:
        return 0o700 if self.executable else 0o600

    @property
    def is_outside(self) -> bool:
        return self.place.startswith("/")


@frozen(kw_only=True)
class ArchiveManifest:
    """The files and the source of an archive, and the schema version and row counts of its ledger."""

    version: str = field(validator=matches_re(r"[\w.+-]{1,60}"))
    made_at: str = field(validator=matches_re(r"[0-9T:.Z-]{1,40}"))
    scope: str = field(validator=in_(tuple(BackupScope)))
    source: str = field(validator=instance_of(str))
    """The configuration directory."""
    root: str = field(validator=matches_re(r"[^/\0]+"))
    """The name of the main configuration file."""
    files: tuple[ArchivedFile, ...] = field(repr=False)
    schema_version: int | None = field(default=None, validator=optional(instance_of(int)))
    rows: Mapping[str, int] = field(factory=dict, validator=deep_mapping(instance_of(str), instance_of(int)))
    excluded: tuple[str, ...] = ()
    """Excluded files, each with the reason."""

    @property
    def ledger(self) -> ArchivedFile | None:
        return next((entry for entry in self.files if entry.kind == LEDGER), None)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)

    def to_json(self) -> bytes:
        return strict_json.dumps({"format": FORMAT, **asdict(self)}).encode()


def read_manifest(path: Path, content: bytes) -> ArchiveManifest:
    """Parse the manifest of the archive at `path`. Raises ArchiveRefused if it is invalid."""
    try:
        data: Any = strict_json.loads(content, source=MANIFEST_FILE)
        if data["format"] != FORMAT:
            raise ArchiveRefused(path, f"has format {data['format']!r:.20}; this version supports format {FORMAT}")
        entries = tuple(ArchivedFile(**entry) for entry in data["files"])
        fields = {name: value for name, value in data.items() if name not in ("format", "files")}
        manifest = ArchiveManifest(files=entries, **{**fields, "excluded": tuple(fields.get("excluded", ()))})
        _require_safe_places(path, manifest)
    except (Unreadable, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArchiveRefused(path, f"has an invalid manifest: {error.args[0] if error.args else error}") from error
    return manifest


def _require_safe_places(path: Path, manifest: ArchiveManifest) -> None:
    if len(manifest.files) > MAX_FILES:
        raise ArchiveRefused(path, f"has more than {MAX_FILES} files")
    places: set[str] = set()
    for entry in manifest.files:
        require_safe_place(path, entry.place, places)
        places.add(entry.place)
    if sum(entry.kind == LEDGER for entry in manifest.files) > 1:
        raise ArchiveRefused(path, "has more than one ledger")


def require_safe_place(path: Path, place: str, places: Container[str]) -> None:
    """Raise ArchiveRefused unless `place` is normalised, not above the directory and not in or below `places`."""
    shown = files.display_path(place)
    if "\0" in place or ".." in PurePosixPath(place).parts:
        raise ArchiveRefused(path, f"{shown} is outside the configuration directory")
    if not place or os.path.normpath(place) != place or place == "." or place.startswith("//"):
        raise ArchiveRefused(path, f"{shown} is not a valid file path")
    if place in places or any(str(parent) in places for parent in PurePosixPath(place).parents):
        raise ArchiveRefused(path, f"{shown} occurs twice")


def exceeded_limit(entries: Collection[ArchivedFile]) -> str | None:
    """Return which limit of an archive of the configuration alone these files exceed."""
    for entry in entries:
        if entry.size > MAX_CONFIG_FILE_BYTES:
            return f"{files.display_path(entry.place)} has more than {MAX_CONFIG_FILE_BYTES} bytes"
    if len(entries) > MAX_CONFIG_FILES:
        return f"has more than {MAX_CONFIG_FILES} entries"
    if sum(entry.size for entry in entries) > MAX_CONFIG_BYTES:
        return f"contains more than {MAX_CONFIG_BYTES} bytes"
    return None
