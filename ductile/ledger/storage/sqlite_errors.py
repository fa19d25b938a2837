"""Classification of SQLite errors: busy, full, broken, or the fault of one row.

Errors are translated where `sqlite3` raises them, so that no other package sees a `sqlite3.Error`.
"""

import sqlite3
from pathlib import Path

from ductile.core.errors import LedgerBusy, LedgerError, LedgerFull
from ductile.ledger.storage.lock_holder import find_lock_holder

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_BREAKING = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_ONE_ROW = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE}
MAX_ERROR_CHARACTERS = 500
"""Of an error text that is stored in a row."""


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 if Python raised the error."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def breaks_ledger(error: BaseException) -> bool:
    """True after an error that makes later writes unsafe: a failed write or fsync, a damaged page."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in _BREAKING


def is_busy(error: sqlite3.Error) -> bool:
    """True while another process writes."""
    return primary_code(error) in _BUSY


def is_row_fault(error: Exception) -> bool:
    """True if the data of one row caused the error, so that other rows can still be written.

    False for a disk that is full, busy or failing: no job may end because of it.
    """
    if isinstance(error, sqlite3.Error):
        code = primary_code(error)
        return code in _ONE_ROW or code == 0
    return not isinstance(error, OSError | MemoryError | LedgerError)


def error_text(error: Exception) -> str:
    """Return the error as text that can be stored in any row."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_ERROR_CHARACTERS]


def translate(error: sqlite3.Error, where: object) -> LedgerError:
    """Return the error as a LedgerError. Raise it `from` the original."""
    code = primary_code(error)
    if is_busy(error):
        holder = find_lock_holder(where) if isinstance(where, Path) else None
        return LedgerBusy(
            f"{holder or 'another process'} is writing",
            path=where,
            hint="Only one service may use a ledger. End the other process, or try again.",
            context={"pid": holder.pid, "command": holder.command} if holder else None,
        )
    if code == sqlite3.SQLITE_FULL:
        return LedgerFull("no space left on the disk", path=where, hint="Free some disk space. No data was lost.")
    if code in _DAMAGED:
        return LedgerError(f"damaged ({error})", path=where, hint="Restore a backup. The file was not changed.")
    if code == sqlite3.SQLITE_READONLY:
        return LedgerError(
            f"cannot be written ({error})", path=where, hint="Check the owner and mode of the file and its directory."
        )
    return LedgerError(str(error), path=where)


class translating:  # noqa: N801 (read as a verb: `with translating(path):`)
    """Context manager that translates a `sqlite3.Error` raised in its block."""

    # A class, because a generator costs a few more calls.
    __slots__ = ("_where",)

    def __init__(self, where: object) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise translate(error, self._where) from error
