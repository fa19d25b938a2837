"""Read a ledger in a test, without waiting."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_reader_beside_writer

P = ParamSpec("P")
T = TypeVar("T")


def read_now(ledger: Ledger, function: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `function(db, …)` on a separate read-only connection."""
    with open_reader_beside_writer(ledger.path) as db:
        return function(db, *args, **kwargs)
