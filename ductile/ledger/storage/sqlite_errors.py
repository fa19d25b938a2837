"""What SQLite's errors mean for the ledger: busy, full, broken, or a request that cannot be done.

Called next to every place where `sqlite3` may raise; the rest of the project never sees a `sqlite3.Error`.
"""

import sqlite3

from ductile.core.errors import LedgerBusy, LedgerError, LedgerFull

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_BREAKING = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_ONE_ROW = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE}
MOST_TOLD = 500
"""How many characters of a foreign error a row repeats."""


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 where Python itself raised."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def breaks_the_ledger(error: BaseException) -> bool:
    """True when nothing written after this error could be trusted: a failed write or fsync, a damaged page."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in _BREAKING


def is_busy(error: sqlite3.Error) -> bool:
    """True while another process writes."""
    return primary_code(error) in _BUSY


def is_of_one_row(error: Exception) -> bool:
    """True when odd data of one row explains the error, so that another row may well go through.

    Never for a disk that is full, busy or failing: that is everybody's, and no reason to give up a job.
    """
    if isinstance(error, sqlite3.Error):
        code = primary_code(error)
        return code in _ONE_ROW or code == 0
    return not isinstance(error, OSError | MemoryError | LedgerError)


def told(error: Exception) -> str:
    """What the error says, in text that any row can hold."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()[:MOST_TOLD]


def translated(error: sqlite3.Error, where: object) -> LedgerError:
    """The same error in the words of the error family; raise it `from` the original."""
    code = primary_code(error)
    if is_busy(error):
        return LedgerBusy(f"{where}: another process is writing", hint="only one service may use a ledger; try again")
    if code == sqlite3.SQLITE_FULL:
        return LedgerFull(f"{where}: no space left on the disk", hint="free some space; nothing was lost")
    if code in _DAMAGED:
        return LedgerError(f"{where}: damaged ({error})", hint="restore a backup; the file was left as it is")
    if code == sqlite3.SQLITE_READONLY:
        return LedgerError(f"{where}: cannot be written ({error})", hint="check owner and mode of file and directory")
    return LedgerError(f"{where}: {error}")


class translating:  # noqa: N801 (read as a verb: `with translating(path):`)
    """Inside, a `sqlite3.Error` becomes one of the family."""

    # A class and no generator, which is a few calls less.
    __slots__ = ("_where",)

    def __init__(self, where: object) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise translated(error, self._where) from error
