"""The archive format of `system backup` and `config backup`: a tar.gz file whose first member is the manifest.

Writes and reads archives as streams, within hard limits. Rejects an archive whose files differ from its manifest in
name, type, size or hash. Does not depend on configurations and ledgers.
"""

import contextlib
import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, cast

from attrs import define, evolve
from blake3 import blake3

from ductile.config.files.sources import CONFIG_FILE
from ductile.core import files
from ductile.core.clock import to_text
from ductile.core.errors import UsageInvalid
from ductile.ops.backup.manifest import (
    CONFIG,
    MANIFEST_FILE,
    MAX_CONFIG_FILES,
    ArchivedFile,
    ArchiveManifest,
    ArchiveRefused,
    BackupScope,
    exceeded_limit,
    read_manifest,
    require_safe_place,
)

MAX_MANIFEST_BYTES = 64 << 20
MAX_HEADER_BYTES = CHUNK_BYTES = 1 << 16
COMPRESSION_LEVEL = 4
UNREADABLE = (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, RecursionError)
"""Exceptions of damaged or malicious archives. Nested headers can raise RecursionError."""

ReportProgress = Callable[[str, int, int], None]
"""Called with the name of the step, the bytes done and the bytes in total."""
ArchivedContent = Iterator[tuple[ArchivedFile, Iterator[bytes]]]
"""The files of an archive in order, each with its content in chunks. Content that is not consumed is skipped."""


def no_progress(step: str, done: int, total: int) -> None:
    """Report no progress."""


def hash_file(path: Path) -> tuple[int, str]:
    """Return the size and the BLAKE3 hash of a regular file."""
    hasher, size = blake3(), 0
    with files.open_regular(path) as opened:
        for chunk in opened.chunks():
            hasher.update(chunk)
            size += len(chunk)
    return size, hasher.hexdigest()


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(path: Path, manifest: ArchiveManifest, sources: Mapping[str, Path | bytes], progress: ReportProgress) -> int:
    """Write a private archive to the new file `path`, read it back to verify it, and return its size.

    `sources` has the content of each file by its name in the archive.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    packed = _Meter("packing", manifest.size, progress)
    try:
        try:
            with create_private(temporary) as file, _open_tar(file) as archive:
                content = manifest.to_json()
                archive.addfile(_header(MANIFEST_FILE, len(content)), io.BytesIO(content))
                for entry in manifest.files:
                    _add(archive, entry, sources[entry.name], packed)
            with open_archive(temporary, progress) as (found, contents):
                is_equal = found == manifest and all(True for _ in contents)
            if not is_equal:
                raise ArchiveRefused(path, "does not contain the data that was written", hint="Check the disk.")
            _publish(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, tarfile.TarError) as error:
        raise files.FileRefused(path, f"cannot be written: {getattr(error, 'strerror', None) or error}") from error
    return path.stat().st_size


@contextlib.contextmanager
def create_private(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Create the new file `path` for writing, and sync it to disk at the end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        yield file
        file.flush()
        os.fsync(descriptor)


@contextlib.contextmanager
def _open_tar(file: IO[bytes]) -> Iterator[tarfile.TarFile]:
    with (
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=COMPRESSION_LEVEL) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        yield archive


@define
class _Meter:
    """Progress of one step, in bytes."""

    step: str
    total: int
    progress: ReportProgress
    done: int = 0

    def count(self, size: int) -> None:
        self.done += size
        self.progress(self.step, self.done, self.total)


@define
class _MeteredFile:
    """A file that reports the progress of reading it."""

    file: IO[bytes]
    meter: _Meter

    def read(self, size: int = -1) -> bytes:
        chunk = self.file.read(size)
        self.meter.count(len(chunk))
        return chunk


def _header(name: str, size: int, mode: int = 0o600) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, mode
    return header


def _add(archive: tarfile.TarFile, entry: ArchivedFile, source: Path | bytes, packed: _Meter) -> None:
    header = _header(entry.name, entry.size, entry.mode)
    if isinstance(source, bytes):
        archive.addfile(header, cast(IO[bytes], _MeteredFile(io.BytesIO(source), packed)))
        return
    with files.open_regular(source) as opened, os.fdopen(os.dup(opened.descriptor), "rb") as content:
        if opened.status.st_size != entry.size:
            hint = "Try again when no other process writes to it."
            raise files.FileRefused(source, "changed while it was read", hint=hint)
        archive.addfile(header, cast(IO[bytes], _MeteredFile(content, packed)))


def _publish(temporary: Path, path: Path) -> None:
    """Rename the finished file to `path`. Never replaces an existing file."""
    try:
        os.link(temporary, path)
        temporary.unlink()
    except FileExistsError:
        raise already_exists(path) from None
    except PermissionError:  # the file system has no hard links
        if os.path.lexists(path):
            raise already_exists(path) from None
        os.rename(temporary, path)
    files.sync_directory(path.parent)


def already_exists(path: Path) -> UsageInvalid:
    return UsageInvalid(f"{path} already exists", hint="Choose another file.")


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def open_archive(path: Path, progress: ReportProgress) -> Iterator[tuple[ArchiveManifest, ArchivedContent]]:
    """Yield the manifest of the archive and its files. Each file is verified while it is read.

    Raises ArchiveRefused at the first difference from the manifest. Files read until then must be discarded.
    """
    with contextlib.ExitStack() as stack:
        with _reading(path):
            opened = stack.enter_context(files.open_regular(path, follow_symlinks=True))
            raw = os.fdopen(opened.descriptor, "rb", closefd=False)
            unzipped = stack.enter_context(_Unzipped(fileobj=raw, mode="rb"))
            archive = stack.enter_context(tarfile.open(fileobj=unzipped, mode="r:"))
            first = archive.next()
            if first is not None and first.name == MANIFEST_FILE:
                if not _is_regular(first) or first.size > MAX_MANIFEST_BYTES:
                    raise ArchiveRefused(path, "has no valid manifest")
                manifest = read_manifest(path, b"".join(_chunks_of(archive, first)))
                contents = _contents(path, manifest, archive, unzipped, progress)
            else:
                manifest, contents = _read_plain(path, archive)
                _require_end(path, unzipped)
        yield manifest, contents


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise the errors of reading a damaged archive as ArchiveRefused."""
    try:
        yield
    except files.FileMissing as error:
        hint = "Create archives with `ductile system backup` or `ductile config backup`."
        raise UsageInvalid(str(error), hint=hint) from error
    except UNREADABLE as error:
        raise ArchiveRefused(path, f"is not a readable tar.gz archive: {error}") from error


class _Unzipped(gzip.GzipFile):
    """A gzip stream that refuses reads larger than a header, so that sizes in an archive cannot exhaust memory."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError("a header is too large")
        return super().read(size)


def _contents(
    path: Path, manifest: ArchiveManifest, archive: tarfile.TarFile, unzipped: gzip.GzipFile, progress: ReportProgress
) -> ArchivedContent:
    meter = _Meter("verifying", manifest.size, progress)
    for entry in manifest.files:
        with _reading(path):
            found = archive.next()
        if found is None:
            raise ArchiveRefused(path, f"{files.display_path(entry.name)} is missing")
        if found.name != entry.name or not _is_regular(found) or found.size != entry.size:
            raise ArchiveRefused(path, f"{files.display_path(found.name)} does not match the manifest")
        content = _verified(path, entry, _chunks_of(archive, found), meter)
        yield entry, content
        for _ in content:  # a skipped file is also verified
            pass
    with _reading(path):
        if archive.next() is not None:
            raise ArchiveRefused(path, "contains files that are not in its manifest")
        _require_end(path, unzipped)


def _require_end(path: Path, unzipped: gzip.GzipFile) -> None:
    """Read the padding, so that gzip verifies its checksum. Raises ArchiveRefused if there is other data."""
    if any(unzipped.read(CHUNK_BYTES).strip(b"\0") for _ in range(8)):
        raise ArchiveRefused(path, "contains data after its end")


def _is_regular(header: tarfile.TarInfo) -> bool:
    """True for a file that is neither a link, nor a device, nor sparse."""
    return header.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not header.issparse()


def _verified(path: Path, entry: ArchivedFile, chunks: Iterator[bytes], meter: _Meter) -> Iterator[bytes]:
    hasher = blake3()
    with _reading(path):
        for chunk in chunks:
            hasher.update(chunk)
            meter.count(len(chunk))
            yield chunk
    if hasher.hexdigest() != entry.blake3:
        reason = f"{files.display_path(entry.name)} does not match its hash in the manifest"
        raise ArchiveRefused(path, reason, hint="The archive was modified or is damaged. Use another backup.")


def _chunks_of(archive: tarfile.TarFile, header: tarfile.TarInfo) -> Iterator[bytes]:
    stored = archive.extractfile(header)
    assert stored is not None
    left = header.size
    while left:
        chunk = stored.read(min(CHUNK_BYTES, left))
        if not chunk:
            raise tarfile.ReadError("unexpected end of file")
        left -= len(chunk)
        yield chunk


# ── archives without a manifest ─────────────────────────────────────────────────────────────────────────────────────


def _read_plain(path: Path, archive: tarfile.TarFile) -> tuple[ArchiveManifest, ArchivedContent]:
    """Read an archive of an older `config backup`, a plain tar.gz of the directory, and build a manifest for it.

    The files are held in memory, within the limits of an archive of the configuration alone.
    """
    contents: dict[str, bytes] = {}
    entries: list[ArchivedFile] = []
    for number, header in enumerate(archive):
        if number >= MAX_CONFIG_FILES:
            raise ArchiveRefused(path, f"has more than {MAX_CONFIG_FILES} entries")
        if header.isdir():
            continue
        name, shown = PurePosixPath(header.name).as_posix(), files.display_path(header.name)
        if not _is_regular(header):
            raise ArchiveRefused(path, f"{shown} is a link or a device; only regular files can be restored")
        if header.name.startswith("/"):
            raise ArchiveRefused(path, f"{shown} is outside the configuration directory")
        require_safe_place(path, name, contents)
        executable = bool(header.mode & 0o100)
        entry = ArchivedFile(name=name, kind=CONFIG, place=name, size=header.size, blake3="", executable=executable)
        if excess := exceeded_limit([*entries, entry]):  # checked before the content is read
            raise ArchiveRefused(path, excess)
        contents[name] = b"".join(_chunks_of(archive, header))
        entries.append(evolve(entry, blake3=blake3(contents[name]).hexdigest()))
    manifest = ArchiveManifest(
        version="unknown",
        made_at=to_text(datetime.fromtimestamp(path.stat().st_mtime, UTC)),
        scope=BackupScope.ONLY_CONFIG,
        source="",
        root=CONFIG_FILE,
        files=tuple(entries),
    )
    return manifest, ((entry, iter([contents[entry.name]])) for entry in entries)
