"""The ledger for whoever is alone with it: what is asked for is done at once, each request in a transaction of its own.

Looks like the ledger of a service to code that works with either. Nothing here ever waits, so that `run_alone` can run
such code without an event loop.
"""

import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ductile.ledger.connections import Synchronous, transaction
from ductile.ledger.faults import translating
from ductile.ledger.store import open_writer
from ductile.values import frozen

P = ParamSpec("P")
T = TypeVar("T")


class AnyLedger(Protocol):
    """What the ledger of a service and one of one's own have in common."""

    async def write(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    def read(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    def look_up(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...


@frozen(eq=False)
class LoneLedger:
    """A ledger that nobody else uses."""

    path: Path
    _db: sqlite3.Connection

    async def write(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What `function(db, …)` returned inside a transaction that is now committed."""
        with transaction(self._db) as db:
            return function(db, *args, **kwargs)

    def read(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with translating(self.path):
            return function(self._db, *args, **kwargs)

    look_up = read


@contextmanager
def open_alone(path: Path, *, synchronous: Synchronous = "full") -> Iterator[LoneLedger]:
    """The ledger at `path` for as long as the block lasts."""
    with closing(open_writer(path, synchronous=synchronous)) as db:
        yield LoneLedger(path, db)


def run_alone(story: Coroutine[Any, Any, T]) -> T:
    """What the story returns, which waits for nobody: not for a loop, a thread or a clock."""
    try:
        story.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    story.close()
    raise RuntimeError("it waits, and nobody is there to wake it")
