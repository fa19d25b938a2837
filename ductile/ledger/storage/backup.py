"""A whole copy of a ledger, taken while a service may be writing, and whether a copy is sound.

The copy is one moment of the ledger: a read transaction is open for its length, which in WAL mode holds up nobody. It
is one file without a log. Knows nothing of archives; backup and restore call it.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from attrs import frozen

from ductile.core.errors import LedgerError
from ductile.ledger.reports.integrity import pages_in_order, references_kept
from ductile.ledger.storage import connections, path_checks
from ductile.ledger.storage.connections import connect_reader, connect_writer, snapshot, transaction
from ductile.ledger.storage.identify import APPLICATION_ID, DatabaseKind, examine
from ductile.ledger.storage.open_file import SCHEMA_VERSION, open_writer, tables
from ductile.ledger.storage.sqlite_errors import translating

PAGES_PER_STEP = 2_000
SOUND_ONE = "restore a backup that is sound"
Progress = Callable[[int, int], None]
"""Pages that are copied, and all of them."""


@frozen
class LedgerFacts:
    """What a ledger is, for those who have only a copy of it."""

    schema_version: int
    rows: dict[str, int]


def require_copyable(path: Path) -> Path:
    """The file that `path` leads to; LedgerError unless it is a ledger that this version can use."""
    source = path_checks.resolve_readable(path)
    if examine(source, newest=SCHEMA_VERSION, tables=tables(), thorough=False).kind is not DatabaseKind.OURS:
        raise LedgerError(f"{path}: not a ledger yet", hint="start the service once; it makes or migrates the file")
    return source


def copy_ledger(path: Path, target: Path, progress: Progress) -> None:
    """The new file `target` is the ledger at `path` as it is now, on disk, mode 0600."""
    source = require_copyable(path)
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with (
            translating(path),
            contextlib.closing(connect_reader(source)) as db,
            contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy,
            snapshot(db),
        ):
            db.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()  # the moment of the copy is now
            copy.execute("PRAGMA synchronous = OFF")
            db.backup(copy, pages=PAGES_PER_STEP, progress=lambda _, left, total: progress(total - left, total))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def facts_of_copy(path: Path, *, name: str | None = None) -> LedgerFacts:
    """What is in a copy that lies alone; LedgerError unless it is a sound ledger that this version can use.

    Errors call it by `name`.
    """
    name = name or path.name
    with _alone(path, name) as db:
        mark, version = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        if mark != APPLICATION_ID or version > SCHEMA_VERSION:
            known = f"schema {version}, this one knows {SCHEMA_VERSION}"
            raise LedgerError(f"{name}: not a ledger of this version of Ductile ({known})")
        if db.execute(TRIGGERS).fetchone():
            raise LedgerError(f"{name}: has triggers, which no ledger has", hint=SOUND_ONE)
        for problem in (*pages_in_order(db), *references_kept(db)):
            raise LedgerError(f"{name}: damaged ({problem})", hint=SOUND_ONE)
        found = [table for (table,) in db.execute(TABLES)]
        rows = {table: db.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0] for table in found}
        return LedgerFacts(version, rows)


TRIGGERS = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger'"
TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND sql NOT LIKE '%VIRTUAL%'"


@contextlib.contextmanager
def _alone(path: Path, name: str) -> Iterator[sqlite3.Connection]:
    """A file that nobody else has open, read without leaving anything beside it."""
    with (
        translating(name),
        contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as db,
    ):
        db.execute("PRAGMA trusted_schema = OFF")
        yield db


def beside(path: Path) -> tuple[Path, Path]:
    """The files that SQLite keeps beside a ledger: its log and the index of that. They belong to it alone."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def fold_log(path: Path) -> None:
    """The ledger at `path` has no log beside it any more; the caller holds the instance lock."""
    with contextlib.closing(open_writer(path)) as db, translating(path):
        connections.fold_log(db)


NEW_IDENTITY = "UPDATE sqlite_sequence SET seq = abs(random()) WHERE name = 'ledger'"
FORGET_PROCESSES = "UPDATE job_queue SET pid = NULL, pid_started = NULL, boot_id = NULL WHERE pid IS NOT NULL"


def make_its_own(path: Path) -> None:
    """The copy at `path` is a ledger of its own: a log of the first one is not its log.

    Nor are processes of the first one its processes: whoever starts on the copy must not end them.
    """
    with contextlib.closing(connect_writer(path, "full")) as db, translating(path), transaction(db):
        db.execute(NEW_IDENTITY)
        db.execute(FORGET_PROCESSES)
