"""Reading a ledger in the middle of a test, without waiting."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_another_reader
from ductile.ledger.storage.writer import Ledger

P = ParamSpec("P")
T = TypeVar("T")


def look(ledger: Ledger, function: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `function(db, …)` finds now, on a connection of its own."""
    with open_another_reader(ledger.path) as db:
        return function(db, *args, **kwargs)
