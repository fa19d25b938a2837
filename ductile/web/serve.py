"""The HTTP server: our accept loop over open doors, how many may come in, and how it stops.

Owns the nursery of connections; one bad connection never takes another or the listener down. Knows nothing of paths
and handlers (the site does) or of parsing (the lane does). The runtime starts one per site.
"""

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import trio

from ductile.values import frozen
from ductile.web.hangups import Hangups
from ductile.web.host import LateHost
from ductile.web.http1 import Limits
from ductile.web.lane import Lane
from ductile.web.listen import Door
from ductile.web.message import refusal_response
from ductile.web.site import Site
from ductile.web.wire import ClientGone, Reply, Wire

GRACE_SECONDS = 10.0
# accept() reports these when the process or the host has run out of something; it will have it again.
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
RETRY_ACCEPT_SECONDS = 0.1
TURN_AWAY_SECONDS = 0.1
LEISURE_SECONDS, BUSY_SHARE = 3.0, 0.05
"""A process that used less than this share of a processor for so long has nothing better to do."""


async def serve(
    site: Site,
    doors: Sequence[Door],
    *,
    stopping: trio.Event,
    limits: Limits | None = None,
    grace_seconds: float = GRACE_SECONDS,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `site` at every door until `stopping`; then nobody comes in, idle clients leave at once, and requests in
    progress have `grace_seconds`. Afterwards the doors are closed. Reports the addresses once it accepts.
    """
    limits = limits or Limits()
    room = _Room(site, LateHost(site, limits), limits, Hangups())
    entrances = [_Entrance(door, _Doorman(limits)) for door in doors]
    try:
        async with trio.open_nursery() as hearing:
            hearing.start_soon(room.hangups.hear)
            await _serve(room, entrances, stopping, grace_seconds, task_status)
            hearing.cancel_scope.cancel()
    finally:
        room.hangups.close()
        for door in doors:
            door.close()


async def _serve(
    room: "_Room",
    entrances: Sequence["_Entrance"],
    stopping: trio.Event,
    grace_seconds: float,
    task_status: trio.TaskStatus[tuple[str, ...]],
) -> None:
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            for entrance in entrances:
                accepting.start_soon(_accept, entrance, room, connections)
            task_status.started(tuple(entrance.door.address for entrance in entrances))
            if room.site.table.needs_host:
                accepting.start_soon(_make_at_leisure, room.host, room.site)
            await stopping.wait()
            accepting.cancel_scope.cancel()
        for entrance in entrances:
            entrance.door.close()
            entrance.doorman.close()
        await room.host.stop()
        connections.cancel_scope.deadline = trio.current_time() + grace_seconds


async def _make_at_leisure(host: LateHost, site: Site) -> None:
    """The host is there before anybody needs it, unless somebody does at once or there is always something to do. If it
    cannot be made now, whoever needs it tries again; hot routes and jobs never do."""
    used, is_busy = time.process_time(), True
    while is_busy:
        await trio.sleep(LEISURE_SECONDS)
        before, used = used, time.process_time()
        is_busy = used - before > LEISURE_SECONDS * BUSY_SHARE
    try:
        await host.ready()
    except Exception as error:
        site.on_fault(error, "loading the rest of the API")


class _Doorman:
    """Who is inside one door: how many per peer, and who of them is waiting without having asked for anything."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._inside: dict[str, int] = {}
        self._total = 0
        self._waiting: dict[trio.CancelScope, tuple[str, float]] = {}
        self.is_closing = False

    @contextmanager
    def admit(self, peer: str) -> Iterator[bool]:
        """Whether there is room for one more of this peer; whoever has been idle longest may have to make it."""
        inside = self._inside.get(peer, 0)
        over_peer_limit = peer != "unix" and inside >= self._limits.connections_per_peer
        full = over_peer_limit or self._total >= self._limits.connections
        if full and not self._send_away(peer if over_peer_limit else None):
            yield False
            return
        self._inside[peer] = inside + 1
        self._total += 1
        try:
            yield True
        finally:
            self._total -= 1
            self._inside[peer] -= 1
            if not self._inside[peer]:
                del self._inside[peer]

    def begin_waiting(self, peer: str, scope: trio.CancelScope) -> None:
        """From now on `scope` may be cancelled to make room or to stop."""
        self._waiting[scope] = (peer, trio.current_time())

    def end_waiting(self, scope: trio.CancelScope) -> None:
        self._waiting.pop(scope, None)

    def close(self) -> None:
        """Everyone who waits leaves; nobody starts to wait again."""
        self.is_closing = True
        for scope in self._waiting:
            scope.cancel()

    def _send_away(self, peer: str | None) -> bool:
        patient_until = trio.current_time() - self._limits.yield_after_seconds
        for scope, (waiting_peer, since) in self._waiting.items():
            if since > patient_until:
                return False  # in order of arrival: the rest came later
            if peer in (None, waiting_peer):
                del self._waiting[scope]
                scope.cancel()
                return True
        return False


@frozen
class _Room:
    """What all connections of a server share."""

    site: Site
    host: LateHost
    limits: Limits
    hangups: Hangups


@frozen
class _Entrance:
    door: Door
    doorman: _Doorman


@frozen
class _Place:
    """One connection's view of its doorman."""

    doorman: _Doorman
    peer: str

    @property
    def is_closing(self) -> bool:
        return self.doorman.is_closing

    def begin(self, scope: trio.CancelScope) -> None:
        self.doorman.begin_waiting(self.peer, scope)

    def end(self, scope: trio.CancelScope) -> None:
        self.doorman.end_waiting(scope)


async def _accept(entrance: _Entrance, room: _Room, connections: trio.Nursery) -> None:
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(entrance.door.sock))
    while True:
        try:
            stream = await listener.accept()
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES:
                raise
            room.site.on_fault(error, f"accepting at {entrance.door.address}")
            await trio.sleep(RETRY_ACCEPT_SECONDS)
        else:
            connections.start_soon(_connection, stream, entrance, room)


async def _connection(stream: trio.SocketStream, entrance: _Entrance, room: _Room) -> None:
    """One connection from accepted to closed. Whatever goes wrong in it is reported and goes no further."""
    peer = _peer_of(stream, entrance.door)
    try:
        with entrance.doorman.admit(peer) as admitted, room.hangups.line(stream) as line:
            if admitted:
                await Lane(
                    wire=Wire(stream, room.limits),
                    peer=peer,
                    site=room.site,
                    host=room.host,
                    limits=room.limits,
                    waiting=_Place(entrance.doorman, peer),
                    line=line,
                ).run()
            else:
                await _turn_away(stream, room.limits)
    except* Exception as errors:  # Hypercorn and Quart run nurseries of their own, so errors come in groups
        room.site.on_fault(errors, f"connection from {peer}")
    finally:
        stream.socket.close()


async def _turn_away(stream: trio.SocketStream, limits: Limits) -> None:
    """A best effort 503: whoever is over the limit is worth one answer and hardly any waiting."""
    refusal = refusal_response(503, "too_many_connections", "too many connections", hint="close some, or try later")
    with trio.move_on_after(TURN_AWAY_SECONDS), suppress(ClientGone):
        wire = Wire(stream, limits)
        await Reply(wire, None).send(refusal.status, refusal.headers, refusal.body)
        await wire.linger()


def _peer_of(stream: trio.SocketStream, door: Door) -> str:
    if door.path is not None:
        return "unix"
    try:
        return str(stream.socket.getpeername()[0]).removeprefix("::ffff:")
    except OSError:  # it has left already; the first read will say so
        return "unknown"
