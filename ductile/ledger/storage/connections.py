"""Connections to a ledger file: pragmas, transactions, snapshots, checkpoints.

One connection writes and checkpoints. All others are read-only, because a second writer or checkpointer can damage the
write-ahead log. Knows nothing of tables.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Literal
from urllib.parse import quote

from ductile.core.errors import LedgerError
from ductile.core.statuses import AttemptStatus, JobStatus, OutcomeCode
from ductile.ledger.storage.sqlite_errors import translating

Synchronous = Literal["full", "normal", "off"]
BUSY_SECONDS = 5.0
MAX_WAL_BYTES = 32 << 20
"""A checkpoint is due when the log is longer. It may grow by one or two more commits before that."""
# Small: reading a page from the kernel's cache costs microseconds, and memory must not grow with history. No memory
# map: with one, a disk error kills the process instead of raising an exception.
WRITER_CACHE_KILOBYTES = 2000
READER_CACHE_KILOBYTES = 500
# How much one transaction may change before SQLite writes pages ahead of the commit, which costs more. The commit frees
# the memory. Enough for two plugin responses.
CACHE_SPILL_KILOBYTES = 24_000
# IMMEDIATE: a deferred transaction that reads first fails to write if another process wrote in between.
BEGIN = "BEGIN IMMEDIATE"
_SYNCHRONOUS = {"off": 0, "normal": 1, "full": 2}


def _identity(value: None) -> None:
    return value


# For any class but int, float and str, `sqlite3` first looks for an adapter. Without one registered, the failed lookup
# takes longer than binding the value.
sqlite3.register_adapter(NoneType, _identity)
sqlite3.register_adapter(bool, int)
for _status in (JobStatus, AttemptStatus, OutcomeCode):
    sqlite3.register_adapter(_status, str.__str__)


def connect_writer(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    with translating(path):
        db = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",
            uri=True,
            isolation_level=None,  # otherwise `sqlite3` opens transactions implicitly
            timeout=BUSY_SECONDS,
            cached_statements=256,
            check_same_thread=False,
        )
        try:
            configure(db, path, synchronous)
        except BaseException:
            db.close()
            raise
        return db


def configure(db: sqlite3.Connection, where: object, synchronous: Synchronous) -> None:
    """Set the writer's pragmas and verify those that durability depends on. Raises LedgerError."""
    db.execute("PRAGMA foreign_keys = ON")
    db.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KILOBYTES}")
    db.execute(f"PRAGMA cache_spill = -{CACHE_SPILL_KILOBYTES}")
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
    db.execute("PRAGMA wal_autocheckpoint = 0")  # the writer checkpoints explicitly, after it has answered
    db.execute(f"PRAGMA synchronous = {synchronous}")
    enable_wal(db, where)
    if db.execute("PRAGMA synchronous").fetchone()[0] != _SYNCHRONOUS[synchronous]:
        raise LedgerError("SQLite does not provide the configured durability", path=where)


def enable_wal(db: sqlite3.Connection, where: object) -> None:
    """Switch to a write-ahead log. Raises LedgerError: SQLite itself reports no error if it cannot."""
    journal_mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if journal_mode not in ("wal", "memory"):
        raise LedgerError(f"SQLite cannot use a write-ahead log here (journal mode {journal_mode})", path=where)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run the block in one transaction: commit at its end, roll back if it raises."""
    with translating("ledger"):
        db.execute(BEGIN)
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that can neither write nor checkpoint. It sees every commit, whether or not a service runs.

    While no service runs, SQLite may leave an empty `-wal` and `-shm` file. In a read-only directory without a log the
    file is opened as immutable.
    """
    with translating(path):
        wal = path.with_name(path.name + "-wal")
        is_immutable = not wal.exists() and not os.access(path.parent, os.W_OK)
        db = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro{'&immutable=1' if is_immutable else ''}",
            uri=True,
            isolation_level=None,
            timeout=BUSY_SECONDS,
            check_same_thread=False,
        )
        try:
            db.execute("PRAGMA query_only = ON")
            db.execute(f"PRAGMA cache_size = -{READER_CACHE_KILOBYTES}")
            db.execute("PRAGMA temp_store = MEMORY")
        except BaseException:
            db.close()
            raise
        return db


class snapshot:  # noqa: N801 (used like a function: `with snapshot(db):`)
    """Context manager in which all reads of `db` see the same commit."""

    __slots__ = ("_db",)

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN")

    def __exit__(self, *_: object) -> None:
        if self._db.in_transaction:
            self._db.execute("COMMIT")


def set_busy_timeout(db: sqlite3.Connection, seconds: float) -> None:
    """Set how long a statement waits for another process that writes."""
    db.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


def checkpoint(db: sqlite3.Connection) -> None:
    """Copy the log into the file, except for pages that a reader still needs. Raises sqlite3.Error."""
    ((_, in_log, moved),) = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    if in_log != moved:
        return
    # The first commit into an empty log always syncs, whatever `synchronous` is. Make that commit here, without a
    # change, so that it never happens on the event loop.
    ((version,),) = db.execute("PRAGMA user_version").fetchall()
    db.execute(BEGIN)
    try:
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def checkpoint_and_truncate(db: sqlite3.Connection) -> None:
    """Copy the whole log into the file and truncate it."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
