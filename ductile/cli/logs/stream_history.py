"""The latest events of a service whose ledger is not here: as much of its stream as it takes to find them.

For one question, not for following: a service that does not answer is an error.
"""

from collections import deque
from collections.abc import Callable

import trio

from ductile.cli.base.client import Client
from ductile.cli.base.run_until_interrupted import lone
from ductile.cli.base.stream_client import Event, Follower
from ductile.core.errors import ServiceUnreachable

FURTHER = 8
MOST_ROWS = 100_000
"""How far back it is looked for events that are rare."""


class _Enough(Exception):
    """Everything that was wanted is heard."""


def recall(service: Client, count: int, fits: Callable[[Event], bool]) -> tuple[list[Event], int]:
    """The newest `count` events that fit, oldest first, and the position after them."""
    try:
        return trio.run(_recall, service, count, fits)
    except BaseExceptionGroup as group:
        raise lone(group) from None


async def _recall(service: Client, count: int, fits: Callable[[Event], bool]) -> tuple[list[Event], int]:
    found: deque[Event] = deque(maxlen=count)
    end, rows = await _hear(service, None, 0, found, fits), count
    while end and count:
        found.clear()
        since = max(0, end - rows)
        await _hear(service, since, end, found, fits)
        if len(found) == count or since == 0 or rows >= MOST_ROWS:
            break
        rows = min(rows * FURTHER, MOST_ROWS)
    return list(found), end


async def _hear(
    service: Client, since: int | None, end: int, found: "deque[Event]", fits: Callable[[Event], bool]
) -> int:
    """What fits of the rows after `since` up to `end` is found; the position at which the stream began."""
    began = 0

    async def hear(row: list[Event]) -> None:
        found.extend(filter(fits, row))
        if row[-1]["seq"] >= end:
            raise _Enough

    def notice(loss: str | None) -> None:
        nonlocal began
        if loss is not None:
            raise ServiceUnreachable(loss, hint="is it running? start it with `ductile system start`")
        began = follower.place or 0
        if since is None or began >= end:
            raise _Enough

    follower = Follower(service=service, hear=hear, notice=notice, place=since)
    try:
        await follower.follow()
    except _Enough:
        return began
