"""Connections to a ledger file and what holds on them: pragmas, transactions, snapshots.

One connection writes and checkpoints; every other one is read-only and never checkpoints, because a second writer or
checkpointer can damage a write-ahead log. Knows nothing of tables.
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
from ductile.core.statuses import AttemptStatus, JobStatus
from ductile.ledger.storage.sqlite_errors import translating

Synchronous = Literal["full", "normal", "off"]
BUSY_SECONDS = 5.0
WAL_LIMIT_BYTES = 32 << 20
"""A longer log is emptied as soon as it is seen to be; a commit or two may come before that."""
# Small on purpose: pages the kernel has cached cost microseconds, and memory must not grow with history. No memory map
# either: with one, a disk error is not an exception but the end of the process.
WRITER_CACHE_KILOBYTES = 2000
READER_CACHE_KILOBYTES = 500
# What one transaction may change before it is written in pieces: a page that leaves the cache early costs more than one
# that goes with its commit, and the memory is free again when that is done. Enough for two answers.
UNWRITTEN_KILOBYTES = 24_000
# IMMEDIATE: a transaction that reads first and writes later fails if another process wrote between.
BEGIN = "BEGIN IMMEDIATE"
_SYNCHRONOUS = {"off": 0, "normal": 1, "full": 2}


def _as_it_is(value: None) -> None:
    return value


# Values of any other class than int, float and str are first asked whether they can adapt themselves. None of these
# can, and to find that out takes longer than to bind them.
sqlite3.register_adapter(NoneType, _as_it_is)
sqlite3.register_adapter(bool, int)
for _status in (JobStatus, AttemptStatus):
    sqlite3.register_adapter(_status, str.__str__)


def connect_writer(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    with translating(path):
        db = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",
            uri=True,
            isolation_level=None,  # otherwise the module opens transactions behind our back
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
    """The writer's pragmas hold; those that durability stands on are read back."""
    db.execute("PRAGMA foreign_keys = ON")
    db.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KILOBYTES}")
    db.execute(f"PRAGMA cache_spill = -{UNWRITTEN_KILOBYTES}")
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    db.execute("PRAGMA wal_autocheckpoint = 0")  # the writer checkpoints by itself, after it has answered
    db.execute(f"PRAGMA synchronous = {synchronous}")
    write_ahead(db, where)
    if db.execute("PRAGMA synchronous").fetchone()[0] != _SYNCHRONOUS[synchronous]:
        raise LedgerError(f"{where}: SQLite does not give the durability asked for")


def write_ahead(db: sqlite3.Connection, where: object) -> None:
    """Changes go to a write-ahead log. SQLite keeps to its old ways without a word when that fails, so it is asked."""
    journal_mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if journal_mode not in ("wal", "memory"):
        raise LedgerError(f"{where}: SQLite cannot write ahead here (journal mode {journal_mode})")


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Inside, `db` writes in one transaction: committed at the end, rolled back if anything is raised."""
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
    """A connection that can neither write nor checkpoint. It sees every commit, whether or not a service runs.

    While no service runs SQLite may leave an empty `-wal` and `-shm` beside the file; in a directory that cannot be
    written the file is read as it is, which is exact as long as there is no log.
    """
    with translating(path):
        wal = path.with_name(path.name + "-wal")
        frozen_file = not wal.exists() and not os.access(path.parent, os.W_OK)
        db = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro{'&immutable=1' if frozen_file else ''}",
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


class snapshot:  # noqa: N801 (read as what holds inside: `with snapshot(db):`)
    """Inside, all reads of `db` see the same moment."""

    __slots__ = ("_db",)

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN")

    def __exit__(self, *_: object) -> None:
        if self._db.in_transaction:
            self._db.execute("COMMIT")


def wait_when_busy(db: sqlite3.Connection, seconds: float) -> None:
    """Set how long a statement waits for another process."""
    db.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


def checkpoint(db: sqlite3.Connection) -> None:
    """Move the log into the file, as far as no reader needs it. Raises sqlite3.Error."""
    ((_, in_log, moved),) = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    if in_log != moved:
        return
    # The first commit into an emptied log syncs it, whatever `synchronous` says. Make it here, with no change in it, so
    # that the event loop never does.
    ((version,),) = db.execute("PRAGMA user_version").fetchall()
    db.execute(BEGIN)
    try:
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def fold_log(db: sqlite3.Connection) -> None:
    """Move the whole log into the file and empty it."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
