"""Identify a database file before it is opened for writing: new, a ledger, or a database of the original Ductile.

The raw bytes come first, because SQLite applies a foreign write-ahead log or rolls back a journal even when it opens a
file for reading. Then a read-only connection compares the tables. A rejected file and its log stay unchanged.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from urllib.parse import quote

from attrs import frozen

from ductile.core.errors import LedgerError
from ductile.ledger.storage.connections import connect_reader
from ductile.ledger.storage.path_checks import require_no_log
from ductile.ledger.storage.sqlite_errors import translating

APPLICATION_ID = 0x44756374  # "Duct"
ORIGINAL_TABLES = frozenset({"job_queue", "job_log", "plugin_state"})
ORIGINAL_COLUMNS = frozenset({"id", "plugin", "command", "payload", "status", "attempt", "submitted_by", "created_at"})
_MAGIC = b"SQLite format 3\x00"
_WAL_MAGICS = (0x377F0682, 0x377F0683)
MAX_CHECKED_BYTES = 8 << 20
MAX_CHECKED_BYTES_AFTER_CRASH = 64 << 20


class DatabaseKind(Enum):
    """What a database file is."""

    NEW = "new"
    OURS = "ours"
    ORIGINAL = "original"


@frozen
class DatabaseInfo:
    """The kind of a database file and the schema version of a ledger."""

    kind: DatabaseKind
    version: int = 0


@frozen
class _Header:
    page_size: int
    pages: int
    version: int
    application_id: int


def identify(path: Path, *, newest: int, tables: frozenset[str], thorough: bool = True) -> DatabaseInfo:
    """Return what is at `path`. Raises LedgerError, with nothing changed, if it cannot be used as a ledger.

    `thorough` also checks the pages and that the log belongs to the file. A writer needs that; a reader next to a
    running service does not.
    """
    wal = path.with_name(path.name + "-wal")
    wal_bytes = wal.stat().st_size if wal.exists() else 0
    if not path.exists() or path.stat().st_size == 0:
        require_no_log(path)
        return DatabaseInfo(DatabaseKind.NEW)
    header = _read_header(path)
    _check_identity(path, header.application_id, header.version, newest)
    if wal_bytes:
        _check_wal(wal, header)
    elif header.pages * header.page_size > path.stat().st_size:
        raise LedgerError(f"truncated, expected {header.pages} pages", path=path, hint="Restore a backup.")
    with _removing_new_files_on_error(path), translating(path), contextlib.closing(connect_reader(path)) as db:
        if thorough:
            _check_log_identity(db, path)
            _check_pages(db, path, crashed=wal_bytes > 0)
        return _read_info(db, path, newest, tables)


def _read_header(path: Path) -> _Header:
    try:
        with path.open("rb") as file:
            raw = file.read(100)
    except OSError as error:
        raise LedgerError(f"cannot be read: {error.strerror}", path=path) from error
    if raw[:16] != _MAGIC or len(raw) < 100:
        raise LedgerError("not a SQLite database", path=path, hint="Move the file away, or set another state.path.")
    word = int.from_bytes(raw[16:18], "big")
    return _Header(
        page_size=65536 if word == 1 else word,
        pages=int.from_bytes(raw[28:32], "big") if raw[24:28] == raw[92:96] else 0,
        version=int.from_bytes(raw[60:64], "big"),
        application_id=int.from_bytes(raw[68:72], "big"),
    )


def _check_identity(path: Path, application_id: int, version: int, newest: int) -> None:
    if application_id not in (0, APPLICATION_ID):
        raise LedgerError(
            f"belongs to another program (application id {application_id:#010x})",
            path=path,
            hint="Set another state.path.",
        )
    if application_id == APPLICATION_ID and version > newest:
        raise LedgerError(
            f"written by a newer Ductile (schema {version}, supported: {newest})",
            path=path,
            hint="Install that version, or restore a backup from before the upgrade.",
        )


def _check_wal(wal: Path, header: _Header) -> None:
    try:
        with wal.open("rb") as file:
            raw = file.read(32)
    except OSError as error:
        raise LedgerError(f"cannot be read: {error.strerror}", path=wal) from error
    magic, page_size = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[8:12], "big")
    if len(raw) == 32 and (magic not in _WAL_MAGICS or page_size != header.page_size):
        raise LedgerError(
            "not the log of this database", path=wal, hint="Restore the right log, or move this one away."
        )


@contextlib.contextmanager
def _removing_new_files_on_error(path: Path) -> Iterator[None]:
    """Remove the files that SQLite created in the block if the block raises LedgerError."""
    shm, wal = (path.with_name(path.name + suffix) for suffix in ("-shm", "-wal"))
    absent = [file for file in (shm, wal) if not file.exists()]
    try:
        yield
    except LedgerError:
        for file in absent:
            with contextlib.suppress(OSError):
                file.unlink()
        raise


def _read_info(db: sqlite3.Connection, path: Path, newest: int, tables: frozenset[str]) -> DatabaseInfo:
    application_id, version = _pragma(db, "application_id"), _pragma(db, "user_version")
    _check_identity(path, application_id & 0xFFFFFFFF, version, newest)
    found = frozenset(name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"))
    if application_id == APPLICATION_ID:
        return _own_info(path, version, newest, missing=tables - found)
    return _unmarked_info(db, path, found)


_IDENTITY = "SELECT seq FROM sqlite_sequence WHERE name = 'ledger'"


def _check_log_identity(db: sqlite3.Connection, path: Path) -> None:
    """Raise LedgerError if the log belongs to another ledger: the identity with it differs from that in the file."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as file_only:
            identity = file_only.execute(_IDENTITY).fetchone()
    except sqlite3.Error:
        return  # the file is incomplete without its log, for instance if its creation is still in the log
    if identity is not None and identity != db.execute(_IDENTITY).fetchone():
        raise LedgerError(
            "the log of another ledger", path=f"{path}-wal", hint="Restore the right log, or move this one away."
        )


def _own_info(path: Path, version: int, newest: int, *, missing: frozenset[str]) -> DatabaseInfo:
    if version == newest and missing:
        raise LedgerError(f"damaged, missing tables: {', '.join(sorted(missing))}", path=path, hint="Restore a backup.")
    return DatabaseInfo(DatabaseKind.OURS, version)


def _unmarked_info(db: sqlite3.Connection, path: Path, found: frozenset[str]) -> DatabaseInfo:
    """Identify a file without our application id: empty or of the original. Raises LedgerError for any other."""
    if not found:
        return DatabaseInfo(DatabaseKind.NEW)
    columns = {row[1] for row in db.execute("PRAGMA table_info(job_queue)")}
    if found >= ORIGINAL_TABLES and columns >= ORIGINAL_COLUMNS:
        return DatabaseInfo(DatabaseKind.ORIGINAL)
    raise LedgerError(
        f"a database of another program (tables: {', '.join(sorted(found)[:5])})",
        path=path,
        hint="Set another state.path.",
    )


def _check_pages(db: sqlite3.Connection, path: Path, *, crashed: bool) -> None:
    """Check all pages of a small file, and of a larger one after a crash. A start must stay quick."""
    size = _pragma(db, "page_count") * _pragma(db, "page_size")
    if size > (MAX_CHECKED_BYTES_AFTER_CRASH if crashed else MAX_CHECKED_BYTES):
        return
    result: str = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if result != "ok":
        raise LedgerError(f"damaged ({result.splitlines()[-1]})", path=path, hint="Restore a backup.")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    value: int = db.execute(f"PRAGMA {name}").fetchone()[0]
    return value
