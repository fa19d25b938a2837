"""The file that `system backup` writes: a tar.gz whose first member is a manifest of all the others.

Written as a stream and read as one, with hard limits: an archive holds exactly the regular files that its manifest
names, with the sizes and hashes named there, or it is refused whole. Knows nothing of configurations and ledgers.
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
from ductile.ops.archive_manifest import FILE_NAME, ArchivedFile, ArchiveManifest, ArchiveRefused, read_manifest

MAX_MANIFEST = 64 << 20
COMPRESSION = 4

Tell = Callable[[str, int, int], None]
"""What is being done, and how much of how much is done."""
Take = Callable[[ArchivedFile, Iterator[bytes]], None]


def hash_of(path: Path) -> tuple[int, str]:
    """Size and BLAKE3 of a regular file."""
    hasher, size = blake3(), 0
    with files.open_regular(path) as opened:
        for chunk in opened.chunks():
            hasher.update(chunk)
            size += len(chunk)
    return size, hasher.hexdigest()


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(path: Path, manifest: ArchiveManifest, sources: Mapping[str, Path | bytes], tell: Tell) -> int:
    """`path` is a new private archive, read back and found whole; its size. `sources` has the content by name."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    packed = _Meter("packing", manifest.size, tell)
    try:
        try:
            with _created(temporary) as file, _packing(file) as archive:
                content = manifest.written()
                archive.addfile(_header(FILE_NAME, len(content)), io.BytesIO(content))
                for entry in manifest.files:
                    _add(archive, entry, sources[entry.name], packed)
            if read(temporary, lambda _, chunks: _drain(chunks), tell) != manifest:
                raise ArchiveRefused(path, "does not hold what was written into it", hint="check the disk")
            _put(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, tarfile.TarError) as error:
        raise files.FileRefused(path, f"cannot be written: {getattr(error, 'strerror', None) or error}") from error
    return path.stat().st_size


@contextlib.contextmanager
def _created(path: Path) -> Iterator[IO[bytes]]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(descriptor)


@contextlib.contextmanager
def _packing(file: IO[bytes]) -> Iterator[tarfile.TarFile]:
    with (
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=COMPRESSION) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        yield archive


@define
class _Meter:
    """Tells how far something is."""

    what: str
    total: int
    tell: Tell
    done: int = 0

    def count(self, size: int) -> None:
        self.done += size
        self.tell(self.what, self.done, self.total)


@define
class _Told:
    """A file that is read through a meter."""

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
        archive.addfile(header, cast(IO[bytes], _Told(io.BytesIO(source), packed)))
        return
    with files.open_regular(source) as opened, os.fdopen(os.dup(opened.descriptor), "rb") as content:
        if opened.status.st_size != entry.size:
            raise files.FileRefused(source, "changed while it was read", hint="try again when nobody writes to it")
        archive.addfile(header, cast(IO[bytes], _Told(content, packed)))


def _put(temporary: Path, path: Path) -> None:
    """The one moment at which the archive exists; what is there already is not replaced."""
    try:
        os.link(temporary, path)
        temporary.unlink()
    except FileExistsError:
        raise taken(path) from None
    except PermissionError:  # a file system without links
        if os.path.lexists(path):
            raise taken(path) from None
        os.rename(temporary, path)
    files.sync_directory(path.parent)


def taken(path: Path) -> UsageInvalid:
    return UsageInvalid(f"{path} is there already", hint="name another file with --to")


def _drain(chunks: Iterable[bytes]) -> None:
    for _ in chunks:
        pass


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(path: Path, take: Take, tell: Tell) -> ArchiveManifest:
    """Every file is given to `take` in order, and is what the manifest says once all is read.

    ArchiveRefused as soon as anything is not: `take` must not have done anything that cannot be thrown away.
    """
    try:
        with _opened(path) as unzipped, tarfile.open(fileobj=unzipped, mode="r:") as archive:
            return _read(path, archive, unzipped, take, tell)
    except files.FileMissing as error:
        raise UsageInvalid(str(error), hint="make archives with `ductile system backup`") from error
    except UNREADABLE as error:
        raise ArchiveRefused(path, f"is not an archive that can be read: {error}") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Unzipped]:
    with files.open_regular(path, follow_symlinks=True) as opened:
        raw = os.fdopen(opened.descriptor, "rb", closefd=False)
        with Unzipped(fileobj=raw, mode="rb") as unzipped:
            yield unzipped


def _read(path: Path, archive: tarfile.TarFile, unzipped: gzip.GzipFile, take: Take, tell: Tell) -> ArchiveManifest:
    first = archive.next()
    if first is None or first.name != FILE_NAME or not _is_plain(first) or first.size > MAX_MANIFEST:
        raise ArchiveRefused(path, "has no manifest", hint="it is not an archive of `ductile system backup`")
    manifest = read_manifest(path, b"".join(chunks_of(archive, first)))
    verified = _Meter("verifying", manifest.size, tell)
    for entry in manifest.files:
        found = archive.next()
        if found is None:
            raise ArchiveRefused(path, f"lacks {files.shown_path(entry.name)}")
        if found.name != entry.name or not _is_plain(found) or found.size != entry.size:
            raise ArchiveRefused(path, f"has {files.shown_path(found.name)}, which is not what its manifest says")
        take(entry, _hashed(path, entry, chunks_of(archive, found), verified))
    if archive.next() is not None:
        raise ArchiveRefused(path, "holds more than its manifest says")
    if any(unzipped.read(CHUNK).strip(b"\0") for _ in range(8)):
        raise ArchiveRefused(path, "goes on after its end")
    return manifest


def _is_plain(entry: tarfile.TarInfo) -> bool:
    return entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()


def _hashed(path: Path, entry: ArchivedFile, chunks: Iterator[bytes], verified: _Meter) -> Iterator[bytes]:
    hasher = blake3()
    for chunk in chunks:
        hasher.update(chunk)
        verified.count(len(chunk))
        yield chunk
    if hasher.hexdigest() != entry.blake3:
        problem = f"{files.shown_path(entry.name)} is not what the manifest says"
        raise ArchiveRefused(path, problem, hint="it was changed or damaged; use another backup")
