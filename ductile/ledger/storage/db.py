"""The part of a database connection that ledger functions use, and savepoints on it.

`sqlite3.Connection` satisfies `Db`. The caller begins and ends transactions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from attrs import frozen

from ductile.ledger.storage.sqlite_errors import error_text, is_row_fault

T = TypeVar("T")
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    @property
    def description(self) -> Any: ...

    def fetchone(self) -> Any: ...

    def fetchmany(self, size: int = ..., /) -> list[Any]: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Db(Protocol):
    """A connection inside a transaction."""

    def execute(self, sql: str, parameters: Parameters = ..., /) -> Cursor: ...

    def executemany(self, sql: str, parameters: Iterable[Parameters], /) -> Cursor: ...


@frozen
class RowFault:
    """The reason why one row could not be written."""

    reason: str


def try_in_savepoint(db: Db, work: Callable[[], T]) -> T | RowFault:
    """Run `work()` in a savepoint and return its result.

    An error that the data of one row caused rolls back the savepoint and is returned as a RowFault. Other errors are
    raised.
    """
    db.execute("SAVEPOINT attempted")
    try:
        result = work()
    except Exception as error:
        if not is_row_fault(error):
            raise
        db.execute("ROLLBACK TO attempted")
        db.execute("RELEASE attempted")
        return RowFault(error_text(error))
    db.execute("RELEASE attempted")
    return result
