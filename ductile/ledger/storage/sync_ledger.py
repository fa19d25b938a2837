"""A ledger without an event loop: the coroutines of `Ledger` on one plain connection. They never wait.

For commands and simulations that run engine code on a file of their own, with `run_sync`.
"""

import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from attrs import frozen

from ductile.ledger.storage.connections import Synchronous, transaction
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.storage.sqlite_errors import translating

P = ParamSpec("P")
T = TypeVar("T")


class AnyLedger(Protocol):
    """The interface that `Ledger` and `SyncLedger` share."""

    async def write(self, function: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def transact(self, work: Callable[[Db], T], *, wait: bool = True, in_thread: bool = False) -> T: ...

    async def read(self, function: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def until_durable(self) -> None: ...


@frozen(eq=False)
class SyncLedger:
    """A ledger with one caller. Its coroutines never wait."""

    path: Path
    _db: sqlite3.Connection

    async def write(self, function: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(db, …)` in one transaction and return its result once that is committed."""
        return await self.transact(lambda db: function(db, *args, **kwargs))

    async def transact(self, work: Callable[[Db], T], *, wait: bool = True, in_thread: bool = False) -> T:
        """Run `work(db)` as `write` does. The options have no meaning here."""
        with transaction(self._db) as db:
            return work(db)

    async def read(self, function: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(db, …)`."""
        with translating(self.path):
            return function(self._db, *args, **kwargs)

    async def until_durable(self) -> None:
        """Do nothing: every commit waits for the disk as `synchronous` requires."""


@contextmanager
def open_sync_ledger(path: Path, *, synchronous: Synchronous = "full") -> Iterator[SyncLedger]:
    """Open the ledger at `path` for the length of the block."""
    with closing(open_writer(path, synchronous=synchronous)) as db:
        yield SyncLedger(path, db)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, and return its result. Raises RuntimeError if it does wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine waits, but there is no event loop")
