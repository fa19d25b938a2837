"""What an archive says about itself: every file with its place, size and hash, and where all of it came from.

Typed and checked at the door, because it comes from outside: a manifest that names a place twice, or one that leads
elsewhere, refuses its archive before a single file of it is read.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import asdict, field, frozen
from attrs.validators import deep_mapping, ge, in_, instance_of, matches_re, optional

from ductile.core import files
from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json

FILE_NAME = "MANIFEST.json"
FORMAT = 1
MAX_FILES = 200_000
CONFIG, PLUGIN, ENV, LEDGER = KINDS = ("config", "plugin", "env", "ledger")


class BackupScope(StrEnum):
    """How much is taken; each has all that the one before it has."""

    DB = "db"
    CONFIG = "config"
    PLUGINS = "plugins"
    ALL = "all"

    @property
    def kinds(self) -> tuple[str, ...]:
        kinds = (LEDGER, CONFIG, PLUGIN, ENV)
        return kinds[: list(BackupScope).index(self) + 1]


class ArchiveRefused(files.FileRefused):
    """An archive is damaged, changed or not one of ours."""

    code, exit_code = "archive_refused", 1
    hint = "take another archive; `ductile system backup` makes one"


@frozen(kw_only=True)
class ArchivedFile:
    """One file: its name in the archive, what it is, and where it belongs.

    `place` is relative to the directory of the configuration, or absolute for what lay outside of it.
    """

    name: str = field(validator=instance_of(str))
    kind: str = field(validator=in_(KINDS))
    place: str = field(validator=instance_of(str))
    size: int = field(validator=[instance_of(int), ge(0)])
    blake3: str = field(validator=instance_of(str))
    executable: bool = field(default=False, validator=instance_of(bool))

    @property
    def is_outside(self) -> bool:
        return self.place.startswith("/")


@frozen(kw_only=True)
class ArchiveManifest:
    """What an archive holds, where it came from, and what is known of the ledger in it."""

    version: str = field(validator=matches_re(r"[\w.+-]{1,60}"))
    made_at: str = field(validator=matches_re(r"[0-9T:.Z-]{1,40}"))
    scope: str = field(validator=in_(tuple(BackupScope)))
    source: str = field(validator=instance_of(str))
    """The directory of the configuration."""
    root: str = field(validator=matches_re(r"[^/\0]+"))
    """The name of its first file."""
    files: tuple[ArchivedFile, ...] = field(repr=False)
    schema_version: int | None = field(default=None, validator=optional(instance_of(int)))
    rows: Mapping[str, int] = field(factory=dict, validator=deep_mapping(instance_of(str), instance_of(int)))
    excluded: tuple[str, ...] = ()
    """What was left out, and why."""

    @property
    def ledger(self) -> ArchivedFile | None:
        return next((entry for entry in self.files if entry.kind == LEDGER), None)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)

    def written(self) -> bytes:
        return strict_json.dumps({"format": FORMAT, **asdict(self)}).encode()


def read_manifest(path: Path, content: bytes) -> ArchiveManifest:
    """The manifest of the archive at `path`; one that makes no sense refuses the archive."""
    try:
        data: Any = strict_json.loads(content, source=FILE_NAME)
        if data["format"] != FORMAT:
            raise ArchiveRefused(path, f"has format {data['format']!r:.20}, this version knows {FORMAT}")
        entries = tuple(ArchivedFile(**entry) for entry in data["files"])
        rest = {name: value for name, value in data.items() if name not in ("format", "files")}
        manifest = ArchiveManifest(files=entries, **{**rest, "excluded": tuple(rest.get("excluded", ()))})
        _require_sane(path, manifest)
    except (Unreadable, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArchiveRefused(path, f"has a manifest that cannot be read: {error}") from error
    return manifest


def _require_sane(path: Path, manifest: ArchiveManifest) -> None:
    """Every place is a place of its own: below the directory, or absolute and in its plainest form."""
    places: set[str] = set()
    if len(manifest.files) > MAX_FILES:
        raise ArchiveRefused(path, f"has more than {MAX_FILES} files")
    for entry in manifest.files:
        place = entry.place
        shown = files.shown_path(place)
        if "\0" in place or ".." in PurePosixPath(place).parts:
            raise ArchiveRefused(path, f"{shown} would lie elsewhere")
        if not place or os.path.normpath(place) != place or place == "." or place.startswith("//"):
            raise ArchiveRefused(path, f"{shown} is not the name of a file")
        if place in places or any(str(above) in places for above in PurePosixPath(place).parents):
            raise ArchiveRefused(path, f"{shown} is in it twice")
        places.add(place)
    if sum(entry.kind == LEDGER for entry in manifest.files) > 1:
        raise ArchiveRefused(path, "has more than one ledger")
    if manifest.root not in places and any(entry.kind != LEDGER for entry in manifest.files):
        raise ArchiveRefused(path, f"lacks {files.shown_path(manifest.root)}, with which its configuration begins")
