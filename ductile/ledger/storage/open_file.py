"""Open a ledger file: check it first, then create or migrate it.

`open_writer` needs the instance lock; `open_reader` does not. Imports no Trio, so that the CLI reads a ledger with
`sqlite3` alone.
"""

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ductile.core.errors import LedgerError, NotFound
from ductile.ledger.storage import migrate, path_checks
from ductile.ledger.storage.connections import (
    BEGIN,
    Synchronous,
    checkpoint_and_truncate,
    connect_reader,
    connect_writer,
    enable_wal,
    snapshot,
)
from ductile.ledger.storage.identify import APPLICATION_ID, DatabaseKind, identify
from ductile.ledger.storage.sqlite_errors import translating

SCHEMA_VERSION = 4
PAGE_BYTES = 2048
"""A job changes a few bytes in about twenty pages, and whole pages are written to the log and the file. With smaller
pages its rows would span several; larger pages are better only for large payloads."""


def schema() -> str:
    return (Path(__file__).parents[1] / "schema.sql").read_text(encoding="utf-8")


def tables() -> frozenset[str]:
    """Return the tables that every ledger of this version has."""
    return frozenset(re.findall(r"^CREATE TABLE (\w+)", schema(), re.MULTILINE))


def triggers() -> frozenset[str]:
    """Return the statements of the triggers that a ledger has, with single spaces."""
    found = re.findall(r"^CREATE TRIGGER .*?END(?=;$)", schema(), re.MULTILINE | re.DOTALL)
    return frozenset(" ".join(statement.split()) for statement in found)


def open_writer(path: Path, *, synchronous: Synchronous = "full") -> sqlite3.Connection:
    """Open the only writing connection to the ledger at `path`. Create, adopt or migrate the file first if needed.

    The caller holds the instance lock. Raises LedgerError or LedgerBusy, with nothing changed, if the file cannot be
    used.
    """
    target = path_checks.resolve_writable(path)
    info = identify(target, newest=SCHEMA_VERSION, tables=tables())
    empty = not target.exists() or target.stat().st_size == 0
    if info.kind is DatabaseKind.NEW and empty:
        create(target)
    db = connect_writer(target, synchronous)
    try:
        if info.kind is DatabaseKind.NEW and not empty:
            initialise(db)
        migrate.migrate(db, target, info, newest=SCHEMA_VERSION, schema=schema(), now=datetime.now(UTC))
        # SQLite also does this when it first syncs the log, but ignores an error.
        path_checks.sync_directory(target.parent)
    except OSError as error:
        db.close()
        raise LedgerError(error.strerror, path=target.parent) from error
    except BaseException:
        db.close()
        raise
    return db


def create(path: Path) -> None:
    """Create an empty ledger at `path`, mode 0600, in a directory with mode 0700. A crash leaves no file there."""
    path_checks.make_private_directory(path.parent)
    fresh = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        fresh.chmod(0o600)
        with translating(path), contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as db:
            initialise(db)
            # Closing does this too but ignores an error: the file would be renamed without its log.
            checkpoint_and_truncate(db)
        fresh.replace(path)
        path_checks.sync_directory(path.parent)
    except OSError as error:
        raise LedgerError(f"cannot be created: {error.strerror}", path=path) from error
    finally:
        for leftover in (fresh, *(fresh.with_name(fresh.name + end) for end in ("-wal", "-shm", "-journal"))):
            with contextlib.suppress(OSError):
                leftover.unlink()


def initialise(db: sqlite3.Connection) -> None:
    """Create the tables of the newest version in the empty database `db`."""
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    enable_wal(db, "a new ledger")
    db.executescript(
        f"{BEGIN};\n{schema()}\n"
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


@contextlib.contextmanager
def open_reader(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a consistent, read-only view of the ledger at `path`. Raises NotFound if there is no ledger."""
    if not path_checks.ledger_exists(path):
        raise NotFound(f"{path}: no ledger yet", hint="Start the service once. It creates the file.")
    target = path_checks.resolve_readable(path)
    info = identify(target, newest=SCHEMA_VERSION, tables=tables(), thorough=False)
    if info.kind is not DatabaseKind.OURS or info.version != SCHEMA_VERSION:
        raise LedgerError(
            "not yet a ledger of this version",
            path=path,
            hint="Start the service once. It backs up and migrates the file.",
        )
    with contextlib.closing(connect_reader(target)) as db, translating(path), snapshot(db):
        yield db


@contextlib.contextmanager
def open_reader_beside_writer(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a reader as `open_reader` does, in a process that already has the ledger open.

    Only SQLite may open the file in such a process: closing any other descriptor drops all POSIX locks of the process
    on it. Another process that closes the ledger would then take itself for the last user and remove the log.
    """
    target = path_checks.resolve_readable(path)
    with contextlib.closing(connect_reader(target)) as db, translating(path), snapshot(db):
        yield db
