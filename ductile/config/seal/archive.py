"""Archives of a configuration: its loaded files, scope files, seal and plugins, but not the ledger.

Writes archives and reads them within hard limits. Rejects unsafe names, links, and content that does not match the seal
in the archive.
"""

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath

from attrs import field, frozen
from blake3 import blake3

from ductile.config.checksums import SEAL_FILE, read_seal
from ductile.config.edit.staged_edit import Draft
from ductile.config.files.atomic_write import PENDING_FILE
from ductile.config.files.ledger_path import find_ledger
from ductile.config.files.sources import CONFIG_FILE
from ductile.config.scaffold import PLUGINS_FOLDER, SCHEMA_FILE
from ductile.core import files
from ductile.core.errors import Complaint, DuctileError, IntegrityBroken, Mark, UsageInvalid

MAX_ENTRIES, MAX_TOTAL, MAX_FILE = 2048, 50 << 20, 10 << 20
MAX_HEADER = CHUNK = 1 << 16
UNREADABLE = (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, RecursionError)
"""Exceptions of damaged or malicious archives. Nested headers can raise RecursionError."""
SKIPPED = frozenset((".git", "node_modules", ".venv", "venv", "__pycache__", ".DS_Store"))


@frozen
class ArchiveMember:
    """A file in an archive."""

    content: bytes = field(repr=False)
    executable: bool = False

    @property
    def mode(self) -> int:
        return 0o700 if self.executable else 0o600


@frozen
class Collected:
    """The files to archive, by relative path, and the files outside the directory, which are excluded."""

    members: Mapping[str, ArchiveMember]
    excluded: tuple[Path, ...]


def collect(draft: Draft) -> Collected:
    """Collect the files of the configuration. An invalid configuration is collected as far as it is readable."""
    directory, apart = draft.root.parent, ledger_files(draft.root)
    inside: dict[str, ArchiveMember] = {}
    excluded: list[Path] = []
    for path in dict.fromkeys(_paths(draft, directory)):
        if Path(os.path.realpath(path)) in apart:
            continue
        if not path.is_relative_to(directory):
            excluded.append(path)
            continue
        found = files.read_regular(Path(os.path.realpath(path)), max_bytes=MAX_FILE)
        inside[path.relative_to(directory).as_posix()] = ArchiveMember(found.content, bool(found.mode & 0o100))
    require_limits(inside)
    return Collected(inside, tuple(excluded))


def ledger_files(root: Path) -> frozenset[Path]:
    """Return the ledger and its SQLite side files; empty if the ledger path cannot be determined."""
    try:
        ledger = find_ledger(root, os.environ)
    except DuctileError:
        return frozenset()
    return frozenset(ledger.with_name(ledger.name + ending) for ending in ("", "-wal", "-shm", "-journal"))


def _paths(draft: Draft, directory: Path) -> Iterator[Path]:
    yield from (source.path for source in draft.sources.files)
    yield from (path for path in (directory / SEAL_FILE, directory / SCHEMA_FILE) if path.is_file())
    roots = draft.sources.root.value
    written = roots.get("plugin_roots") if isinstance(roots, dict) else None
    folders = [directory / "scopes", directory / PLUGINS_FOLDER]
    for item in written.value if written is not None and isinstance(written.value, tuple) else ():
        folder = Path(os.path.normpath(Path(item.mark.source).parent / Path(str(item.value)).expanduser()))
        if not folder.is_relative_to(directory):
            yield folder  # reported as excluded
        folders.append(folder)
    for folder in dict.fromkeys(folders):
        if folder.is_relative_to(directory):
            yield from files_below(folder)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every regular file below `folder`, except caches and version control. Does not follow links."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            path = Path(place) / name
            if name not in SKIPPED and not name.endswith((".pyc", ".pyo")) and path.is_file() and not path.is_symlink():
                yield path


class ArchiveTooLarge(ValueError):
    """An archive requests more data than a header may contain."""


class Unzipped(gzip.GzipFile):
    """A gzip stream that refuses reads larger than a header, so that sizes in an archive cannot exhaust memory."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_HEADER:
            raise ArchiveTooLarge("a header is too large")
        return super().read(size)


def chunks_of(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> Iterator[bytes]:
    """Yield the content of an archived file in chunks."""
    stored = archive.extractfile(entry)
    assert stored is not None
    left = entry.size
    while left:
        chunk = stored.read(min(CHUNK, left))
        if not chunk:
            raise tarfile.ReadError("unexpected end of file")
        left -= len(chunk)
        yield chunk


def require_limits(members: Mapping[str, ArchiveMember]) -> None:
    total = sum(len(member.content) for member in members.values())
    if len(members) > MAX_ENTRIES or total > MAX_TOTAL:
        most = f"{MAX_ENTRIES} files and {MAX_TOTAL >> 20} MiB"
        raise UsageInvalid(
            f"{len(members)} files with {total} bytes exceed the limits of an archive: {most}",
            hint="`ductile system backup` has no such limit.",
        )


def write_archive(path: Path, members: Mapping[str, ArchiveMember], *, now: datetime) -> int:
    """Write `members` to a private tar.gz file, read it back to verify it, and return its size."""
    if os.path.lexists(path):
        raise UsageInvalid(f"{path} already exists", hint="Choose another file with --output.")
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=int(now.timestamp())) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name, member in sorted(members.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(member.content), member.mode, int(now.timestamp())
            archive.addfile(entry, io.BytesIO(member.content))
    files.write_private(path, packed.getvalue())
    if _members_of(path) != dict(members):
        raise files.FileRefused(path, "does not contain the data that was written", hint="Check the disk.")
    return len(packed.getvalue())


def read_archive(path: Path) -> dict[str, ArchiveMember]:
    """Read the files of an archive. Raises FileRefused if it is too large, damaged or unsafe."""
    members = _members_of(path)
    if CONFIG_FILE not in members:
        raise files.FileRefused(path, f"has no {CONFIG_FILE}", hint="Create archives with `ductile config backup`.")
    return members


def _members_of(path: Path) -> dict[str, ArchiveMember]:
    try:
        content = files.read_regular(path, max_bytes=MAX_TOTAL * 2, follow_symlinks=True).content
    except files.FileMissing as error:
        raise UsageInvalid(str(error), hint="Create archives with `ductile config backup`.") from error
    members: dict[str, ArchiveMember] = {}
    try:
        with (
            Unzipped(fileobj=io.BytesIO(content), mode="rb") as unzipped,
            tarfile.open(fileobj=unzipped, mode="r:") as archive,
        ):
            for number, entry in enumerate(archive):
                if number >= MAX_ENTRIES:
                    raise files.FileRefused(path, f"has more than {MAX_ENTRIES} entries")
                if entry.isdir():
                    continue
                name = _safe_name(path, entry, known=members)
                members[name] = ArchiveMember(b"".join(chunks_of(archive, entry)), bool(entry.mode & 0o100))
                if sum(len(member.content) for member in members.values()) > MAX_TOTAL:
                    raise files.FileRefused(path, f"contains more than {MAX_TOTAL} bytes")
    except UNREADABLE as error:
        raise files.FileRefused(path, f"is not a readable tar.gz archive: {error}") from error
    return members


def _safe_name(path: Path, entry: tarfile.TarInfo, *, known: Mapping[str, ArchiveMember]) -> str:
    shown = files.display_path(entry.name)
    parts = PurePosixPath(entry.name).parts
    if not entry.isreg():
        raise files.FileRefused(path, f"{shown} is a link or a device; only regular files can be restored")
    if entry.size > MAX_FILE:
        raise files.FileRefused(path, f"{shown} has more than {MAX_FILE} bytes")
    if entry.name.startswith("/") or ".." in parts or not parts or "\0" in entry.name:
        raise files.FileRefused(path, f"{shown} is outside the configuration directory")
    name = PurePosixPath(entry.name).as_posix()
    if name == PENDING_FILE:  # the next load would execute it, with any paths
        raise files.FileRefused(path, f"{shown} is not allowed in an archive")
    if name in known:
        raise files.FileRefused(path, f"{shown} occurs twice")
    return name


def require_sealed(folder: Path) -> None:
    """Raise IntegrityBroken unless the files unpacked into `folder` match the seal of the archive."""
    seal = read_seal(folder / SEAL_FILE)
    if seal is None:
        return
    home = next((Path(path).parent for path in seal.hashes if Path(path).name == CONFIG_FILE), folder)
    complaints = []
    for path, sealed in seal.hashes.items():
        place = folder / Path(path).relative_to(home) if Path(path).is_relative_to(home) else None
        if place is not None and (not place.is_file() or blake3(place.read_bytes()).hexdigest() != sealed):
            message = "does not match the seal of the archive"
            complaints.append(Complaint(message, mark=Mark(str(place.relative_to(folder)), 1), category="integrity"))
    if complaints:
        raise IntegrityBroken(
            complaints, hint="The archive was modified, or it was created from an unsealed configuration."
        )
