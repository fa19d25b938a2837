"""Whether a file is a ledger, decided before anything opens it for writing.

The raw bytes are looked at first, because SQLite itself would replay a strange write-ahead log or roll back a journal
while "only reading". Then a read-only connection compares the tables. Refusing leaves database and log as they were.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from ductile.core.errors import LedgerError
from ductile.ledger.storage.connections import connect_reader
from ductile.ledger.storage.path_checks import require_no_log
from ductile.ledger.storage.sqlite_errors import translating

APPLICATION_ID = 0x44756374  # "Duct"
ORIGINAL_TABLES = frozenset({"job_queue", "job_log", "plugin_state"})
ORIGINAL_COLUMNS = frozenset({"id", "plugin", "command", "payload", "status", "attempt", "submitted_by", "created_at"})
_MAGIC = b"SQLite format 3\x00"
_WAL_MAGICS = (0x377F0682, 0x377F0683)
CHECKED_WHOLE = 8 << 20
CHECKED_WHOLE_AFTER_A_CRASH = 64 << 20


class DatabaseKind(Enum):
    NEW = "new"
    OURS = "ours"
    ORIGINAL = "original"


class Condition(NamedTuple):
    """What stands at a path: nothing yet, a ledger of some version, or a database of the original."""

    kind: DatabaseKind
    version: int = 0


class _Header(NamedTuple):
    page_size: int
    pages: int
    version: int
    application_id: int


def examine(path: Path, *, newest: int, tables: frozenset[str], thorough: bool = True) -> Condition:
    """What is at `path`; raises LedgerError, with everything left as it was, if it cannot be used as a ledger.

    A `thorough` look, before the file is written, also checks its pages and whose log that is; a reader beside a
    running service has no need and no time for it.
    """
    wal = path.with_name(path.name + "-wal")
    wal_bytes = wal.stat().st_size if wal.exists() else 0
    if not path.exists() or path.stat().st_size == 0:
        require_no_log(path)
        return Condition(DatabaseKind.NEW)
    header = _read_header(path)
    _check_identity(path, header.application_id, header.version, newest)
    if wal_bytes:
        _check_wal(wal, header)
    elif header.pages * header.page_size > path.stat().st_size:
        raise LedgerError(f"{path}: cut short, it should have {header.pages} pages", hint="restore a backup")
    with _leaving_no_trace(path), translating(path), contextlib.closing(connect_reader(path)) as db:
        if thorough:
            _check_identity_of_log(db, path)
            _check_whole(db, path, crashed=wal_bytes > 0)
        return _look_inside(db, path, newest, tables)


def _read_header(path: Path) -> _Header:
    try:
        with path.open("rb") as file:
            raw = file.read(100)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    if raw[:16] != _MAGIC or len(raw) < 100:
        raise LedgerError(f"{path}: not a SQLite database", hint="move it away, or set another state.path")
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
            f"{path}: belongs to another program (application id {application_id:#010x})",
            hint="set another state.path",
        )
    if application_id == APPLICATION_ID and version > newest:
        raise LedgerError(
            f"{path}: written by a newer Ductile (schema {version}, this one knows {newest})",
            hint="install that version, or restore a backup from before the upgrade",
        )


def _check_wal(wal: Path, header: _Header) -> None:
    try:
        with wal.open("rb") as file:
            raw = file.read(32)
    except OSError as error:
        raise LedgerError(f"{wal}: cannot be read: {error.strerror}") from error
    magic, page_size = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[8:12], "big")
    if len(raw) == 32 and (magic not in _WAL_MAGICS or page_size != header.page_size):
        raise LedgerError(f"{wal}: not the log of this database", hint="put the right log back, or move this one away")


@contextlib.contextmanager
def _leaving_no_trace(path: Path) -> Iterator[None]:
    """Removes the shared-memory file that a refused look has made."""
    shm, wal = (path.with_name(path.name + suffix) for suffix in ("-shm", "-wal"))
    made = [file for file in (shm, wal) if not file.exists()]
    try:
        yield
    except LedgerError:
        for file in made:
            with contextlib.suppress(OSError):
                file.unlink()
        raise


def _look_inside(db: sqlite3.Connection, path: Path, newest: int, tables: frozenset[str]) -> Condition:
    application_id, version = _pragma(db, "application_id"), _pragma(db, "user_version")
    _check_identity(path, application_id & 0xFFFFFFFF, version, newest)
    found = frozenset(name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"))
    if application_id == APPLICATION_ID:
        return _ours(path, version, newest, missing=tables - found)
    return _strange(db, path, found)


_IDENTITY = "SELECT seq FROM sqlite_sequence WHERE name = 'ledger'"


def _check_identity_of_log(db: sqlite3.Connection, path: Path) -> None:
    """The ledger read with its write-ahead log is the ledger in the file alone."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as alone:
            identity = alone.execute(_IDENTITY).fetchone()
    except sqlite3.Error:
        return  # a file that needs its log to be whole, such as one whose creation is still in the log
    if identity is not None and identity != db.execute(_IDENTITY).fetchone():
        raise LedgerError(
            f"{path}-wal: the log of another ledger", hint="put the right log back, or move this one away"
        )


def _ours(path: Path, version: int, newest: int, *, missing: frozenset[str]) -> Condition:
    if version == newest and missing:
        raise LedgerError(f"{path}: damaged, tables are missing: {', '.join(sorted(missing))}", hint="restore a backup")
    return Condition(DatabaseKind.OURS, version)


def _strange(db: sqlite3.Connection, path: Path, found: frozenset[str]) -> Condition:
    """A file without our mark: nothing in it yet, a database of the original, or somebody else's."""
    if not found:
        return Condition(DatabaseKind.NEW)
    columns = {row[1] for row in db.execute("PRAGMA table_info(job_queue)")}
    if found >= ORIGINAL_TABLES and columns >= ORIGINAL_COLUMNS:
        return Condition(DatabaseKind.ORIGINAL)
    raise LedgerError(
        f"{path}: a database of another program (tables: {', '.join(sorted(found)[:5])})", hint="set another state.path"
    )


def _check_whole(db: sqlite3.Connection, path: Path, *, crashed: bool) -> None:
    """A small file is checked page by page; a large one only after a crash, so that a start stays quick."""
    size = _pragma(db, "page_count") * _pragma(db, "page_size")
    if size > (CHECKED_WHOLE_AFTER_A_CRASH if crashed else CHECKED_WHOLE):
        return
    verdict: str = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise LedgerError(f"{path}: damaged ({verdict.splitlines()[-1]})", hint="restore a backup")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    value: int = db.execute(f"PRAGMA {name}").fetchone()[0]
    return value
