"""Opens the ledger: checks first, changes after.

`open_writer` is for whoever holds the instance lock (the service, through `writer`, or an offline command);
`open_reader` is for everybody. Imports no Trio, so that the CLI reads a ledger at the price of `sqlite3` alone.
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
    connect_reader,
    connect_writer,
    fold_log,
    snapshot,
    write_ahead,
)
from ductile.ledger.storage.identify import APPLICATION_ID, DatabaseKind, examine
from ductile.ledger.storage.sqlite_errors import translating

SCHEMA_VERSION = 1
PAGE_BYTES = 2048
"""A job changes a little in each of some twenty pages, and each goes to the log and to the file as a whole. In smaller
ones its rows would be torn apart; larger ones are better for large payloads alone."""


def schema() -> str:
    return (Path(__file__).parents[1] / "schema.sql").read_text(encoding="utf-8")


def tables() -> frozenset[str]:
    """The tables every ledger of this version has."""
    return frozenset(re.findall(r"^CREATE TABLE (\w+)", schema(), re.MULTILINE))


def open_writer(path: Path, *, synchronous: Synchronous = "full") -> sqlite3.Connection:
    """The one writing connection to the ledger at `path`, which is created, adopted or migrated first if need be.

    The caller holds the instance lock. Raises LedgerError (or LedgerBusy) with nothing changed if the file is not ours.
    """
    target = path_checks.resolve(path)
    condition = examine(target, newest=SCHEMA_VERSION, tables=tables())
    empty = not target.exists() or target.stat().st_size == 0
    if condition.kind is DatabaseKind.NEW and empty:
        create(target)
    db = connect_writer(target, synchronous)
    try:
        if condition.kind is DatabaseKind.NEW and not empty:
            fill(db)
        migrate.bring_up_to_date(db, target, condition, newest=SCHEMA_VERSION, schema=schema(), now=datetime.now(UTC))
        # SQLite does this too when it first syncs the log, but does not mind if it fails.
        path_checks.sync(target.parent)
    except OSError as error:
        db.close()
        raise LedgerError(f"{target.parent}: {error.strerror}") from error
    except BaseException:
        db.close()
        raise
    return db


def create(path: Path) -> None:
    """A complete, empty ledger stands at `path`, 0600 in a 0700 directory; a crash on the way leaves none at all."""
    path_checks.make_private_directory(path.parent)
    fresh = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        fresh.chmod(0o600)
        with translating(path), contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as db:
            fill(db)
            # Closing does this as well, but without a word if it fails; the file would then go on without its log.
            fold_log(db)
        fresh.replace(path)
        path_checks.sync(path.parent)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be created: {error.strerror}") from error
    finally:
        for leftover in (fresh, *(fresh.with_name(fresh.name + end) for end in ("-wal", "-shm", "-journal"))):
            with contextlib.suppress(OSError):
                leftover.unlink()


def fill(db: sqlite3.Connection) -> None:
    """The empty database `db` is a ledger of the newest version."""
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    write_ahead(db, "a new ledger")
    db.executescript(
        f"{BEGIN};\n{schema()}\n"
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


@contextlib.contextmanager
def open_reader(path: Path) -> Iterator[sqlite3.Connection]:
    """One consistent view of the ledger at `path` for the length of the block. Raises NotFound if there is none."""
    if not path_checks.is_made(path):
        raise NotFound(f"{path}: there is no ledger yet", hint="start the service once; it makes the file")
    target = path_checks.resolve_readable(path)
    condition = examine(target, newest=SCHEMA_VERSION, tables=tables(), thorough=False)
    if condition.kind is not DatabaseKind.OURS or condition.version != SCHEMA_VERSION:
        raise LedgerError(
            f"{path}: not yet a ledger of this version",
            hint="start the service once; it backs the file up and migrates",
        )
    with contextlib.closing(connect_reader(target)) as db, translating(path), snapshot(db):
        yield db


@contextlib.contextmanager
def open_another_reader(path: Path) -> Iterator[sqlite3.Connection]:
    """`open_reader` for a process that has the ledger open.

    Only SQLite may touch the file there: whoever opens a file and closes it gives up all locks that the process has on
    it, and the next outsider to leave would take itself for the last one and remove the log.
    """
    target = path_checks.resolve_readable(path)
    with contextlib.closing(connect_reader(target)) as db, translating(path), snapshot(db):
        yield db
