"""The archive format of `system backup`: a tar.gz file whose first member is the manifest of all others.

Writes and reads archives as streams, within hard limits. Rejects an archive whose files differ from its manifest in
name, type, size or hash. Knows nothing of configurations and ledgers.
"""

import contextlib
import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, cast

from attrs import define
from blake3 import blake3

from ductile.config.seal.archive import CHUNK, UNREADABLE, Unzipped, chunks_of
from ductile.core import files
from ductile.core.errors import UsageInvalid
from ductile.ops.archive_manifest import MANIFEST_FILE, ArchivedFile, ArchiveManifest, ArchiveRefused, read_manifest

MAX_MANIFEST_BYTES = 64 << 20
COMPRESSION_LEVEL = 4

ReportProgress = Callable[[str, int, int], None]
"""Called with the name of the step, the bytes done and the bytes in total."""
HandleFile = Callable[[ArchivedFile, Iterator[bytes]], None]
"""Called with each file of an archive and its content. Must consume the content."""


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
            with _create_private(temporary) as file, _open_tar(file) as archive:
                content = manifest.to_json()
                archive.addfile(_header(MANIFEST_FILE, len(content)), io.BytesIO(content))
                for entry in manifest.files:
                    _add(archive, entry, sources[entry.name], packed)
            if read(temporary, lambda _, chunks: _discard(chunks), progress) != manifest:
                raise ArchiveRefused(path, "does not contain the data that was written", hint="Check the disk.")
            _publish(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, tarfile.TarError) as error:
        raise files.FileRefused(path, f"cannot be written: {getattr(error, 'strerror', None) or error}") from error
    return path.stat().st_size


@contextlib.contextmanager
def _create_private(path: Path) -> Iterator[IO[bytes]]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
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


def _header(name: str, size: int, *, executable: bool = False) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o700 if executable else 0o600
    return header


def _add(archive: tarfile.TarFile, entry: ArchivedFile, source: Path | bytes, packed: _Meter) -> None:
    header = _header(entry.name, entry.size, executable=entry.executable)
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
    return UsageInvalid(f"{path} already exists", hint="Choose another file with --to.")


def _discard(chunks: Iterable[bytes]) -> None:
    for _ in chunks:
        pass


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(path: Path, handle_file: HandleFile, progress: ReportProgress) -> ArchiveManifest:
    """Pass each file to `handle_file` in order, verify it, and return the manifest.

    Raises ArchiveRefused at the first difference from the manifest. Files passed until then must be discarded.
    """
    try:
        with _open_gzip(path) as unzipped, tarfile.open(fileobj=unzipped, mode="r:") as archive:
            return _read(path, archive, unzipped, handle_file, progress)
    except files.FileMissing as error:
        raise UsageInvalid(str(error), hint="Create archives with `ductile system backup`.") from error
    except UNREADABLE as error:
        raise ArchiveRefused(path, f"is not a readable tar.gz archive: {error}") from error


@contextlib.contextmanager
def _open_gzip(path: Path) -> Iterator[Unzipped]:
    with files.open_regular(path, follow_symlinks=True) as opened:
        raw = os.fdopen(opened.descriptor, "rb", closefd=False)
        with Unzipped(fileobj=raw, mode="rb") as unzipped:
            yield unzipped


def _read(
    path: Path, archive: tarfile.TarFile, unzipped: gzip.GzipFile, handle_file: HandleFile, progress: ReportProgress
) -> ArchiveManifest:
    first = archive.next()
    if first is None or first.name != MANIFEST_FILE or not _is_regular(first) or first.size > MAX_MANIFEST_BYTES:
        raise ArchiveRefused(path, "has no manifest", hint="Create archives with `ductile system backup`.")
    manifest = read_manifest(path, b"".join(chunks_of(archive, first)))
    verified = _Meter("verifying", manifest.size, progress)
    for entry in manifest.files:
        found = archive.next()
        if found is None:
            raise ArchiveRefused(path, f"{files.display_path(entry.name)} is missing")
        if found.name != entry.name or not _is_regular(found) or found.size != entry.size:
            raise ArchiveRefused(path, f"{files.display_path(found.name)} does not match the manifest")
        handle_file(entry, _verify_hash(path, entry, chunks_of(archive, found), verified))
    if archive.next() is not None:
        raise ArchiveRefused(path, "contains files that are not in its manifest")
    if any(unzipped.read(CHUNK).strip(b"\0") for _ in range(8)):
        raise ArchiveRefused(path, "contains data after its end")
    return manifest


def _is_regular(entry: tarfile.TarInfo) -> bool:
    return entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()


def _verify_hash(path: Path, entry: ArchivedFile, chunks: Iterator[bytes], verified: _Meter) -> Iterator[bytes]:
    hasher = blake3()
    for chunk in chunks:
        hasher.update(chunk)
        verified.count(len(chunk))
        yield chunk
    if hasher.hexdigest() != entry.blake3:
        reason = f"{files.display_path(entry.name)} does not match its hash in the manifest"
        raise ArchiveRefused(path, reason, hint="The archive was modified or is damaged. Use another backup.")
