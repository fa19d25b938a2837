"""Who hangs up while a handler waits for something: one task hears it for every connection of a server.

The kernel tells, whatever the client has sent before and nobody has read yet. A task of its own for each request that
waits would cost more than most of them take. `serve` owns the task; a lane says what its client keeps open.
"""

import select
from collections.abc import Iterator
from contextlib import contextmanager

import trio

HANGS_UP = select.EPOLLRDHUP | select.EPOLLONESHOT
"""Its side is closed. That a connection is broken is told unasked."""


class Hangups:
    """The lines of one server that have kept anything open."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._lines: dict[int, Line] = {}

    @contextmanager
    def line(self, stream: trio.SocketStream) -> Iterator["Line"]:
        """The line of an open connection."""
        line = Line(self, stream.socket.fileno())
        try:
            yield line
        finally:
            line.close()

    async def hear(self) -> None:
        """Every line that goes down is told so, until this is cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for descriptor, _ in self._epoll.poll(0):
                self._lines[descriptor].hang_up()

    def watch(self, line: "Line", descriptor: int) -> None:
        self._epoll.register(descriptor, HANGS_UP)
        self._lines[descriptor] = line

    def forget(self, descriptor: int) -> None:
        del self._lines[descriptor]
        self._epoll.unregister(descriptor)

    def close(self) -> None:
        self._epoll.close()


class Line:
    """The client's end of one connection."""

    def __init__(self, hangups: Hangups, descriptor: int) -> None:
        self._hangups = hangups
        self._descriptor = descriptor
        self._kept_open: trio.CancelScope | None = None
        self._is_watched = self._is_down = False

    def keeps_open(self, scope: trio.CancelScope) -> None:
        """Until it is let go, a hang-up cancels this scope and no other; an earlier one does at once."""
        self._kept_open = scope
        if self._is_down:
            scope.cancel()
        elif not self._is_watched:  # most connections never wait for anything
            self._hangups.watch(self, self._descriptor)
            self._is_watched = True

    def lets_go(self) -> None:
        """From now on a hang-up cancels nothing."""
        self._kept_open = None

    def hang_up(self) -> None:
        self._is_down = True
        if self._kept_open is not None:
            self._kept_open.cancel()

    def close(self) -> None:
        """Nothing is watched any more. Has to come before the socket is closed: its number may be another's at once."""
        if self._is_watched:
            self._is_watched = False
            self._hangups.forget(self._descriptor)
