"""The terminal of `system watch`: the alternate screen, the keys, and when to look and to draw.

Events say that something has changed; then the service is asked how everything is, a few times a second at most. The
terminal is as it was before, however this ends.
"""

import os
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import trio
from attrs import define, field
from rich.console import Console, Group
from rich.live import Live

from ductile.cli.base.client import Busy, Client
from ductile.cli.base.stream_client import Event, Follower
from ductile.cli.logs.event_format import is_at_least
from ductile.cli.system.watch_view import Picture, frame, look
from ductile.core.errors import ServiceUnreachable

SHORTEST_SECONDS = 0.25
"""Between two looks, and between two drawings."""
LOOK_AGAIN_SECONDS = 5.0
LONGEST_LOOK_SECONDS = 10.0
MOST_EVENTS = 200
LEAVING = frozenset(b"qQ\x03")


@define(eq=False)
class Bell:
    """Rung by whoever changed something, waited for by one; several rings before that are one."""

    _rung: trio.Event = field(factory=trio.Event)

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, *, at_most: float) -> None:
        with trio.move_on_after(at_most):
            await self._rung.wait()
        self._rung = trio.Event()


@define(eq=False, kw_only=True)
class Board:
    """What is known, and who wants to know more."""

    service: Client
    events: deque[Event]
    picture: Picture | None = None
    lost: str | None = None
    lost_at: datetime | None = None
    _stale: Bell = field(factory=Bell)
    _changed: Bell = field(factory=Bell)

    async def hear(self, row: list[Event]) -> None:
        self.events.extend(event for event in row if is_at_least(event["event"], "info"))
        self._stale.ring()

    def notice(self, loss: str | None) -> None:
        self.lost, self.lost_at = loss, None if loss is None else datetime.now(UTC)
        self._stale.ring()
        self._changed.ring()

    def redraw(self) -> None:
        self._changed.ring()

    async def keep_looking(self) -> None:
        """The picture is never much older than the last event."""
        while True:
            if self.lost is None:
                try:
                    with trio.move_on_after(LONGEST_LOOK_SECONDS):
                        self.picture = await trio.to_thread.run_sync(look, self.service, abandon_on_cancel=True)
                except (ServiceUnreachable, Busy):
                    pass  # it is going away; the event stream will say so
                self._changed.ring()
            await trio.sleep(SHORTEST_SECONDS)
            await self._stale.wait(at_most=LOOK_AGAIN_SECONDS)

    async def keep_drawing(self, live: Live, refresh_seconds: float) -> None:
        while True:
            width, height = live.console.size
            # What is known of a service that is gone stands still.
            now = self.lost_at or datetime.now(UTC)
            lines = frame(self.picture, list(self.events), now=now, lost=self.lost, width=width, height=height)
            live.update(Group(*lines), refresh=True)
            await trio.sleep(min(SHORTEST_SECONDS, refresh_seconds))
            await self._changed.wait(at_most=refresh_seconds)


async def watch(service: Client, past: Sequence[Event], place: int | None, refresh_seconds: float) -> None:
    """Shows the dashboard until somebody presses q; whoever cancels it gets the terminal back, too."""
    board = Board(service=service, events=deque(maxlen=MOST_EVENTS))
    await board.hear(list(past))
    follower = Follower(service=service, hear=board.hear, notice=board.notice, place=place)
    console = Console(file=sys.stdout)
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.follow)
            nursery.start_soon(board.keep_looking)
            nursery.start_soon(board.keep_drawing, live, refresh_seconds)
            nursery.start_soon(_redraw_when_resized, board)
            if keys is not None:
                await _leaving(keys)
                nursery.cancel_scope.cancel()


async def _redraw_when_resized(board: Board) -> None:
    with trio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            board.redraw()


async def _leaving(keys: int) -> None:
    """Returns when a key was pressed that means so, or nobody can press one any more."""
    while True:
        await trio.lowlevel.wait_readable(keys)
        pressed = os.read(keys, 100)
        if not pressed or LEAVING & set(pressed):
            return


@contextmanager
def _keys() -> Iterator[int | None]:
    """Keys come one by one and are not shown; None if nobody can press one."""
    if not sys.stdin.isatty():
        yield None
        return
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        # A stopped program could not give the terminal back.
        changed = termios.tcgetattr(keys)
        changed[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(keys, termios.TCSANOW, changed)
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
