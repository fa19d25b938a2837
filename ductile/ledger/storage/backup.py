"""Copy a ledger while a service may be writing, and verify a copy.

A read transaction is open during the copy, so that it is consistent; in WAL mode this blocks no writer. The copy is
one file without a log. Knows nothing of archives.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from attrs import frozen

from ductile.core.errors import LedgerError
from ductile.ledger.storage import connections, path_checks
from ductile.ledger.storage.connections import connect_reader, connect_writer, snapshot, transaction
from ductile.ledger.storage.identify import APPLICATION_ID, DatabaseKind, identify
from ductile.ledger.storage.integrity import check_pages, check_references
from ductile.ledger.storage.open_file import SCHEMA_VERSION, open_writer, tables, triggers
from ductile.ledger.storage.sqlite_errors import translating

PAGES_PER_STEP = 2_000
RESTORE_HINT = "Restore an intact backup."
Progress = Callable[[int, int], None]
"""Called with the number of copied pages and of all pages."""


@frozen
class CopyInfo:
    """The schema version of a copy and its rows per table."""

    schema_version: int
    rows: dict[str, int]


def require_copyable(path: Path) -> Path:
    """Return the resolved path. Raises LedgerError unless it is a ledger that this version can use."""
    source = path_checks.resolve_readable(path)
    if identify(source, newest=SCHEMA_VERSION, tables=tables(), thorough=False).kind is not DatabaseKind.OURS:
        raise LedgerError(
            "not a ledger yet", path=path, hint="Start the service once. It creates or migrates the file."
        )
    return source


def copy_ledger(path: Path, target: Path, progress: Progress) -> None:
    """Copy the ledger at `path` to the new file `target`, mode 0600, synced to disk."""
    source = require_copyable(path)
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with (
            translating(path),
            contextlib.closing(connect_reader(source)) as db,
            contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy,
            snapshot(db),
        ):
            db.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()  # the read transaction begins here
            copy.execute("PRAGMA synchronous = OFF")
            db.backup(copy, pages=PAGES_PER_STEP, progress=lambda _, left, total: progress(total - left, total))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify_copy(path: Path, *, name: str | None = None) -> CopyInfo:
    """Return what a copy without a log contains. Raises LedgerError unless it is intact and of a known version.

    Errors show `name` instead of the file name.
    """
    name = name or path.name
    with _open_immutable(path, name) as db:
        mark, version = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        if mark != APPLICATION_ID or version > SCHEMA_VERSION:
            known = f"schema {version}, supported: {SCHEMA_VERSION}"
            raise LedgerError(f"not a ledger of this version of Ductile ({known})", path=name)
        if {" ".join(sql.split()) for (sql,) in db.execute(TRIGGERS)} - triggers():
            raise LedgerError("contains triggers that no ledger has", path=name, hint=RESTORE_HINT)
        for problem in (*check_pages(db), *check_references(db)):
            raise LedgerError(f"damaged ({problem})", path=name, hint=RESTORE_HINT)
        found = [table for (table,) in db.execute(TABLES)]
        rows = {table: db.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0] for table in found}
        return CopyInfo(version, rows)


TRIGGERS = "SELECT sql FROM sqlite_schema WHERE type = 'trigger'"
TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND sql NOT LIKE '%VIRTUAL%'"


@contextlib.contextmanager
def _open_immutable(path: Path, name: str) -> Iterator[sqlite3.Connection]:
    """Open a file that no other process has open, without creating files next to it."""
    with (
        translating(name),
        contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as db,
    ):
        db.execute("PRAGMA trusted_schema = OFF")
        yield db


def side_files(path: Path) -> tuple[Path, Path]:
    """Return the paths of the log and the shared-memory index that SQLite keeps next to a ledger."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def checkpoint_and_truncate(path: Path) -> None:
    """Copy the log into the ledger at `path` and truncate it. The caller holds the instance lock."""
    with contextlib.closing(open_writer(path)) as db, translating(path):
        connections.checkpoint_and_truncate(db)


SET_NEW_IDENTITY = "UPDATE sqlite_sequence SET seq = abs(random()) WHERE name = 'ledger'"
CLEAR_PROCESSES = "UPDATE job_queue SET pid = NULL, pid_started = NULL, boot_id = NULL WHERE pid IS NOT NULL"


def detach_copy(path: Path) -> None:
    """Give the copy at `path` an identity of its own, so that a log of the original is not applied to it.

    Also clear the recorded processes: a service started on the copy must not end processes of the original.
    """
    with contextlib.closing(connect_writer(path, "full")) as db, translating(path), transaction(db):
        db.execute(SET_NEW_IDENTITY)
        db.execute(CLEAR_PROCESSES)
