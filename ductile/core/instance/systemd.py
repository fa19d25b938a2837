"""systemd notifications: ready, stopping, watchdog. Does nothing without NOTIFY_SOCKET."""

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

import trio
from attrs import frozen

MAX_STUCK_SECONDS = 10.0


@frozen
class Notifier:
    """The notification socket and half of the watchdog interval."""

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
        """Send a state. Best effort: errors are ignored."""
        if self.address is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
            channel.sendto(state.encode(), self.address)

    async def run_watchdog(self, stuck_seconds: Callable[[], float]) -> None:
        """Notify the watchdog twice per interval, except while ledger writes have been stuck too long."""
        if self.watchdog_seconds is None:
            return
        while True:
            if stuck_seconds() < MAX_STUCK_SECONDS:
                self.send("WATCHDOG=1")
            await trio.sleep(self.watchdog_seconds)
