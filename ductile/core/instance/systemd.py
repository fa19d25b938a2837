"""Tells systemd how the service is: ready, stopping, alive. Does nothing without a NOTIFY_SOCKET."""

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

import trio
from attrs import frozen

STUCK_SECONDS = 10.0


@frozen
class Notifier:
    """The socket to tell, and how often it wants a sign of life."""

    address: str | None = None
    watchdog_seconds: float | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Notifier":
        address, micros = environ.get("NOTIFY_SOCKET"), environ.get("WATCHDOG_USEC", "")
        if not address or address[0] not in "/@":
            return cls()
        is_number = micros.isascii() and micros.isdigit() and int(micros) > 0
        return cls(
            address.replace("@", "\0", 1) if address[0] == "@" else address, int(micros) / 2e6 if is_number else None
        )

    def send(self, state: str) -> None:
        """Best effort: a service manager that does not listen is not our problem."""
        if self.address is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
            channel.sendto(state.encode(), self.address)

    async def keep_alive(self, stuck_seconds: Callable[[], float]) -> None:
        """A sign of life twice per watchdog interval, as long as the ledger takes what is written."""
        if self.watchdog_seconds is None:
            return
        while True:
            if stuck_seconds() < STUCK_SECONDS:
                self.send("WATCHDOG=1")
            await trio.sleep(self.watchdog_seconds)
