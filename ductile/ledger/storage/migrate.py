"""Migrate an older database to the newest schema: a backup first, then all migrations in one transaction.

A process killed at any point leaves the old schema or the new one, nothing in between.
"""

import contextlib
import importlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from ductile.core.errors import LedgerError
from ductile.ledger import migrations
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.identify import APPLICATION_ID, DatabaseInfo, DatabaseKind
from ductile.ledger.storage.sqlite_errors import breaks_ledger, translating

ADOPT_ORIGINAL = 1
Migration = Callable[[sqlite3.Connection, str], Iterator[str]]


def migrate(
    db: sqlite3.Connection,
    path: Path,
    info: DatabaseInfo,
    *,
    newest: int,
    schema: str,
    now: datetime,
    on_step: Callable[[str], None] = lambda part: None,
) -> None:
    """Migrate `db` to the newest schema, if it has an older one, after a backup next to the file.

    Calls `on_step` with the name of each step before the step.
    """
    steps = _pending_migrations(info, newest)
    if not steps:
        return
    on_step("backup")
    backup = backup_path(path, info.version, now)
    back_up(db, backup)
    try:
        _upgrade(db, path, info, steps, newest=newest, schema=schema, on_step=on_step)
    except LedgerError as error:
        # Nothing has changed, unless the disk failed. Repeated starts would fill the disk with identical backups.
        if not breaks_ledger(error.__cause__ or error):
            with contextlib.suppress(OSError):
                backup.unlink()
        raise


def _upgrade(
    db: sqlite3.Connection,
    path: Path,
    info: DatabaseInfo,
    steps: list[int],
    *,
    newest: int,
    schema: str,
    on_step: Callable[[str], None],
) -> None:
    if info.kind is DatabaseKind.ORIGINAL:
        on_step("auto_vacuum")
        _enable_incremental_vacuum(db, path)
    # Otherwise renaming tables would rewrite or violate the foreign keys of the old schema.
    db.execute("PRAGMA foreign_keys = OFF")
    with transaction(db):
        for number in steps:
            for part in load_migration(number)(db, schema):
                on_step(part)
        on_step("version")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {newest}")
        on_step("commit")
    db.execute("PRAGMA foreign_keys = ON")


def _pending_migrations(info: DatabaseInfo, newest: int) -> list[int]:
    if info.kind is DatabaseKind.NEW:
        return []
    if info.kind is DatabaseKind.ORIGINAL:
        return [ADOPT_ORIGINAL]
    return list(range(info.version + 1, newest + 1))


def load_migration(number: int) -> Migration:
    """Return the function of the migration to schema `number`. Raises LedgerError if there is none."""
    import pkgutil

    for module in pkgutil.iter_modules(migrations.__path__):
        if module.name.startswith(f"v{number:03d}_"):
            upgrade: Migration = importlib.import_module(f"{migrations.__name__}.{module.name}").upgrade
            return upgrade
    raise LedgerError(f"there is no migration to schema {number}")


def backup_path(path: Path, version: int, now: datetime) -> Path:
    return path.with_name(f"{path.name}.backup-v{version}-{now:%Y%m%dT%H%M%SZ}")


def back_up(db: sqlite3.Connection, target: Path) -> None:
    """Copy `db` with its write-ahead log to `target`, mode 0600, synced to disk."""
    partial = target.with_name(target.name + ".partial")
    with _removing_on_error(partial):
        _copy(db, partial, target)


@contextlib.contextmanager
def _removing_on_error(partial: Path) -> Iterator[None]:
    """Remove an incomplete copy if the block raises. `ductile system doctor` finds one that a killed process left."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _copy(db: sqlite3.Connection, partial: Path, target: Path) -> None:
    try:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        partial.chmod(0o600)
        with translating(target), contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as copy:
            db.backup(copy)
        _sync(partial)
        partial.replace(target)
        _sync(target.parent)
    except OSError as error:
        raise LedgerError(f"cannot write the backup: {error.strerror}", path=target) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _enable_incremental_vacuum(db: sqlite3.Connection, path: Path) -> None:
    """Let the file release free pages later. This needs a rewrite of the whole file; its content does not change."""
    with translating(path):
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("VACUUM")
