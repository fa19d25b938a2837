"""Connections that are held open: streams, and requests that wait for a job or a message.

Their number is limited per address and per caller, so that other requests always find a connection.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field

from ductile.core.errors import DuctileError
from ductile.web.messages import Request
from ductile.web.server.limits import LOCAL_PEER, max_local_connections

MAX_HELD, MAX_HELD_PER_PEER = 128, 48
"""Lower than the connection limits of a listener: the rest is a reserve for requests that do not wait."""
LOCAL_SHARE = 0.75
"""The part of the connections of the unix socket that may be held."""


class TooManyWaits(DuctileError):
    """The limit of requests that wait is reached."""

    code, exit_code, status = "too_many_waits", 75, 429
    hint = "Wait with fewer requests at once, or read without waiting."


@define(eq=False)
class HeldConnections:
    """The number of held connections by address, and of waiting requests by caller."""

    max_local: int = field(factory=lambda: int(max_local_connections() * LOCAL_SHARE))
    _by_peer: Counter[str] = field(factory=Counter)
    _waits: Counter[str] = field(factory=Counter)

    def is_full(self, peer: str) -> bool:
        """True if no more connections, in total or of this address, may be held. The local socket has its own limit."""
        if peer == LOCAL_PEER:
            return self._by_peer[peer] >= self.max_local
        total = self._by_peer.total() - self._by_peer[LOCAL_PEER]
        return self._by_peer[peer] >= MAX_HELD_PER_PEER or total >= MAX_HELD

    @contextmanager
    def hold(self, peer: str) -> Iterator[None]:
        """Count one connection of the address."""
        with _counted(self._by_peer, peer):
            yield

    @contextmanager
    def wait(self, request: Request, limit: int) -> Iterator[None]:
        """Count one waiting request of its caller. Raises TooManyWaits at the limit. A local caller has none."""
        caller = request.principal.actor
        if not request.principal.is_local and self._waits[caller] >= limit:
            raise TooManyWaits(f"{limit} requests of this token are already waiting (api.max_concurrent_waits)")
        if self.is_full(request.peer):
            raise TooManyWaits("too many requests and streams of this address, or in total, are already waiting")
        with _counted(self._waits, caller), self.hold(request.peer):
            yield


@contextmanager
def _counted(counts: Counter[str], key: str) -> Iterator[None]:
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
