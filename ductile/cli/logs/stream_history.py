"""Past events of a remote service, read from its event stream.

Searches backwards in growing ranges. A service that does not respond is an error.
"""

from collections import deque
from collections.abc import Callable

import trio

from ductile.cli.base.client import Client
from ductile.cli.base.run_until_interrupted import unwrap
from ductile.cli.base.stream_client import Event, Follower
from ductile.core.errors import ServiceUnreachable

GROWTH = 8
MAX_ROWS = 100_000
"""Maximum number of journal rows that are searched."""


class _Done(Exception):
    """The requested range is read."""


def read_history(service: Client, count: int, matches: Callable[[Event], bool]) -> tuple[list[Event], int]:
    """Return the newest `count` matching events, oldest first, and the journal position after them."""
    try:
        return trio.run(_read_history, service, count, matches)
    except BaseExceptionGroup as group:
        raise unwrap(group) from None


async def _read_history(service: Client, count: int, matches: Callable[[Event], bool]) -> tuple[list[Event], int]:
    found: deque[Event] = deque(maxlen=count)
    end, rows = await _read_range(service, None, 0, found, matches), count
    while end and count:
        found.clear()
        since = max(0, end - rows)
        await _read_range(service, since, end, found, matches)
        if len(found) == count or since == 0 or rows >= MAX_ROWS:
            break
        rows = min(rows * GROWTH, MAX_ROWS)
    return list(found), end


async def _read_range(
    service: Client, since: int | None, end: int, found: "deque[Event]", matches: Callable[[Event], bool]
) -> int:
    """Add the matching events after `since` up to `end` to `found`; return the position at which the stream began."""
    start = 0

    async def on_row(row: list[Event]) -> None:
        found.extend(filter(matches, row))
        if row[-1]["seq"] >= end:
            raise _Done

    def on_connection(loss: str | None) -> None:
        nonlocal start
        if loss is not None:
            raise ServiceUnreachable(loss, hint="Start the service with `ductile system start`.")
        start = follower.position or 0
        if since is None or start >= end:
            raise _Done

    follower = Follower(service=service, on_row=on_row, on_connection=on_connection, position=since)
    try:
        await follower.follow()
    except _Done:
        return start
