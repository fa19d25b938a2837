"""Brings an older database to the newest schema: backup first, then every step in one transaction.

Killed at any moment it leaves the old schema or the new one, never something between. Called by `store.open_writer`.
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
from ductile.ledger.storage.identify import APPLICATION_ID, Condition, DatabaseKind
from ductile.ledger.storage.sqlite_errors import breaks_the_ledger, translating

ADOPTION = 1
Upgrade = Callable[[sqlite3.Connection, str], Iterator[str]]


def bring_up_to_date(
    db: sqlite3.Connection,
    path: Path,
    condition: Condition,
    *,
    newest: int,
    schema: str,
    now: datetime,
    about_to: Callable[[str], None] = lambda part: None,
) -> None:
    """`db` has the newest schema; if it had an older one, a backup of that stands beside it.

    `about_to` hears the name of each part before it is done.
    """
    steps = _steps(condition, newest)
    if not steps:
        return
    about_to("backup")
    backup = backup_path(path, condition.version, now)
    back_up(db, backup)
    try:
        _upgrade(db, path, condition, steps, newest=newest, schema=schema, about_to=about_to)
    except LedgerError as error:
        # The ledger is as it was, unless the disk fails. Whoever starts it again and again would fill that with copies.
        if not breaks_the_ledger(error.__cause__ or error):
            with contextlib.suppress(OSError):
                backup.unlink()
        raise


def _upgrade(
    db: sqlite3.Connection,
    path: Path,
    condition: Condition,
    steps: list[int],
    *,
    newest: int,
    schema: str,
    about_to: Callable[[str], None],
) -> None:
    if condition.kind is DatabaseKind.ORIGINAL:
        about_to("auto_vacuum")
        _enable_incremental_vacuum(db, path)
    # Moving tables aside would otherwise drag along or trip over references of the old schema.
    db.execute("PRAGMA foreign_keys = OFF")
    with transaction(db):
        for number in steps:
            for part in load(number)(db, schema):
                about_to(part)
        about_to("version")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {newest}")
        about_to("commit")
    db.execute("PRAGMA foreign_keys = ON")


def _steps(condition: Condition, newest: int) -> list[int]:
    if condition.kind is DatabaseKind.NEW:
        return []
    if condition.kind is DatabaseKind.ORIGINAL:
        return [ADOPTION]
    return list(range(condition.version + 1, newest + 1))


def load(number: int) -> Upgrade:
    """The upgrade function of one numbered step."""
    import pkgutil

    for module in pkgutil.iter_modules(migrations.__path__):
        if module.name.startswith(f"v{number:03d}_"):
            upgrade: Upgrade = importlib.import_module(f"{migrations.__name__}.{module.name}").upgrade
            return upgrade
    raise LedgerError(f"there is no migration to schema {number}")


def backup_path(path: Path, version: int, now: datetime) -> Path:
    return path.with_name(f"{path.name}.backup-v{version}-{now:%Y%m%dT%H%M%SZ}")


def back_up(db: sqlite3.Connection, target: Path) -> None:
    """A complete copy of `db`, write-ahead log included, is on disk at `target` with mode 0600."""
    partial = target.with_name(target.name + ".partial")
    with _nothing_left_of(partial):
        _copy(db, partial, target)


@contextlib.contextmanager
def _nothing_left_of(partial: Path) -> Iterator[None]:
    """A copy that fails takes no room; one that is killed does, until the doctor finds it."""
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
        raise LedgerError(f"{target}: the backup cannot be written: {error.strerror}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _enable_incremental_vacuum(db: sqlite3.Connection, path: Path) -> None:
    """The file can give pages back later. Only a rewrite of the whole file changes this, and it keeps the content."""
    with translating(path):
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("VACUUM")
