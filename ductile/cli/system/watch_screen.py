"""The terminal of `system watch`: alternate screen, keys, polling and redrawing.

An event triggers a poll of the service, at most a few times a second. The terminal is restored on every exit.
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
from ductile.cli.system.watch_view import ServiceState, fetch_state, frame
from ductile.core.errors import ServiceUnreachable

MIN_INTERVAL_SECONDS = 0.25
"""Minimum time between two polls, and between two redraws."""
POLL_INTERVAL_SECONDS = 5.0
POLL_TIMEOUT_SECONDS = 10.0
MAX_EVENTS = 200
QUIT_KEYS = frozenset(b"qQ\x03")


@define(eq=False)
class Signal:
    """A wake-up for one waiting task. Several `set` calls before `wait` count as one."""

    _event: trio.Event = field(factory=trio.Event)

    def set(self) -> None:
        self._event.set()

    async def wait(self, *, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._event.wait()
        self._event = trio.Event()


@define(eq=False, kw_only=True)
class Dashboard:
    """The data on the screen, and the tasks that refresh it."""

    service: Client
    events: deque[Event]
    state: ServiceState | None = None
    lost: str | None = None
    lost_at: datetime | None = None
    _stale: Signal = field(factory=Signal)
    _changed: Signal = field(factory=Signal)

    async def on_row(self, row: list[Event]) -> None:
        self.events.extend(event for event in row if is_at_least(event["event"], "info"))
        self._stale.set()

    def on_connection(self, loss: str | None) -> None:
        self.lost, self.lost_at = loss, None if loss is None else datetime.now(UTC)
        self._stale.set()
        self._changed.set()

    def redraw(self) -> None:
        self._changed.set()

    async def poll(self) -> None:
        """Fetch the state of the service after events, and at least every POLL_INTERVAL_SECONDS."""
        while True:
            if self.lost is None:
                try:
                    with trio.move_on_after(POLL_TIMEOUT_SECONDS):
                        self.state = await trio.to_thread.run_sync(fetch_state, self.service, abandon_on_cancel=True)
                except (ServiceUnreachable, Busy):
                    pass  # the event stream reports the lost connection
                self._changed.set()
            await trio.sleep(MIN_INTERVAL_SECONDS)
            await self._stale.wait(seconds=POLL_INTERVAL_SECONDS)

    async def draw(self, live: Live, refresh_seconds: float) -> None:
        """Redraw after changes, and at least every `refresh_seconds`."""
        while True:
            width, height = live.console.size
            # Elapsed times stop while the service is gone.
            now = self.lost_at or datetime.now(UTC)
            lines = frame(self.state, list(self.events), now=now, lost=self.lost, width=width, height=height)
            live.update(Group(*lines), refresh=True)
            await trio.sleep(min(MIN_INTERVAL_SECONDS, refresh_seconds))
            await self._changed.wait(seconds=refresh_seconds)


async def watch(service: Client, past: Sequence[Event], position: int | None, refresh_seconds: float) -> None:
    """Show the dashboard until q is pressed or the task is cancelled, then restore the terminal."""
    dashboard = Dashboard(service=service, events=deque(maxlen=MAX_EVENTS))
    await dashboard.on_row(list(past))
    follower = Follower(
        service=service, on_row=dashboard.on_row, on_connection=dashboard.on_connection, position=position
    )
    console = Console(file=sys.stdout)
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.follow)
            nursery.start_soon(dashboard.poll)
            nursery.start_soon(dashboard.draw, live, refresh_seconds)
            nursery.start_soon(_redraw_when_resized, dashboard)
            if keys is not None:
                await _wait_for_quit(keys)
                nursery.cancel_scope.cancel()


async def _redraw_when_resized(dashboard: Dashboard) -> None:
    with trio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            dashboard.redraw()


async def _wait_for_quit(keys: int) -> None:
    """Return when a quit key is pressed or stdin is closed."""
    while True:
        await trio.lowlevel.wait_readable(keys)
        pressed = os.read(keys, 100)
        if not pressed or QUIT_KEYS & set(pressed):
            return


@contextmanager
def _keys() -> Iterator[int | None]:
    """Read single keys without echo; None if stdin is not a terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        # Ctrl-Z is disabled: a stopped process could not restore the terminal.
        changed = termios.tcgetattr(keys)
        changed[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(keys, termios.TCSANOW, changed)
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
