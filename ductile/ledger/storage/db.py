"""The part of a database connection that ledger functions use, and savepoints on it.

`sqlite3.Connection` satisfies `Db`. Transactions are begun and ended by the caller.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from ductile.ledger.storage.sqlite_errors import is_of_one_row, told

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


class RowFault(NamedTuple):
    """Why something could not be written because of the row it was about."""

    reason: str


def written_or_fault(db: Db, work: Callable[[], T]) -> T | RowFault:
    """Run `work()` in a savepoint and return its result.

    An error that one row explains undoes the savepoint only and is returned as a RowFault. Every other error is raised.
    """
    db.execute("SAVEPOINT attempted")
    try:
        result = work()
    except Exception as error:
        if not is_of_one_row(error):
            raise
        db.execute("ROLLBACK TO attempted")
        db.execute("RELEASE attempted")
        return RowFault(told(error))
    db.execute("RELEASE attempted")
    return result
