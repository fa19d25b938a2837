"""Connection limits: the number of connections, the time for each part of a request, and the bytes read.

Owns the limits, the guarded stream that applies them to one socket, and the eviction of connections when a listener is
full. Does not know HTTP: the protocol reports the stage of each request.
"""

import os
import resource
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto

import trio
from attrs import frozen

from ductile.web.messages import HTTPError, refusal_response
from ductile.web.routing import MIB

READ_BYTES = 64 * 1024
WRITE_BYTES = 64 * 1024
LOCAL_PEER = "unix"


@frozen(kw_only=True)
class ConnectionLimits:
    """The limits of one listener."""

    connections: int = 256
    connections_per_peer: int = 64
    request_line_bytes: int = 8 * 1024
    header_fields: int = 64
    header_bytes: int = 32 * 1024
    header_seconds: float = 5.0
    body_seconds: float = 10.0
    body_seconds_per_mib: float = 1.0
    idle_seconds: float = 30.0
    write_stall_seconds: float = 30.0
    # At the connection limit, connections that were idle for this long are evicted first.
    idle_yields_after_seconds: float = 1.0
    # At the connection limit, the lag of a client is measured against this rate, for sending and for reading.
    expected_bytes_per_second: int = 64 * 1024
    # A client that is still sending at the close needs time to read the response before the reset.
    linger_seconds: float = 1.0
    linger_bytes: int = MIB
    # The same for an evicted connection.
    rejected_linger_seconds: float = 0.1

    def body_timeout(self, received: int) -> float:
        """Return the seconds in which a body must be complete, given the bytes received."""
        return self.body_seconds + self.body_seconds_per_mib * received / MIB


MAX_LOCAL_CONNECTIONS = 2_048
"""Of the unix socket, whose clients are programs of the operator, such as workers that wait for messages."""
LOCAL_SHARE_OF_FILES = 2
"""They may have one in this many of the files that the process may open."""


def max_local_connections() -> int:
    """Return how many connections the unix socket accepts: as many as other listeners, or more if the host allows."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = MAX_LOCAL_CONNECTIONS if files == resource.RLIM_INFINITY else files // LOCAL_SHARE_OF_FILES
    return max(ConnectionLimits().connections, min(share, MAX_LOCAL_CONNECTIONS))


class ConnectionStage(Enum):
    """The stage of a connection."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    HANDLING = auto()
    CLOSING = auto()


class GuardedStream:
    """An accepted socket with timeouts for every read and write. Can be evicted while it waits for its client.

    Implements the part of `trio.SocketStream` that Hypercorn's connection uses.
    """

    def __init__(self, stream: trio.SocketStream, peer: str, limits: ConnectionLimits, uid: int | None = None) -> None:
        self.socket = stream.socket
        self.peer = peer
        self.uid = uid
        """The user id of the client's process, for a client of the unix socket."""
        self.limits = limits
        self.stage = ConnectionStage.IDLE
        self.since = trio.current_time()
        self.received = 0
        """Bytes received in the current stage."""
        self._stream = stream
        self._ahead = bytearray()
        self._waiting: trio.CancelScope | None = None
        self._writing_since: float | None = None
        self.is_evicted = False
        self.is_broken = False
        """A write has failed: no response can reach this client."""
        self._is_reading = self._is_rejected = self._sends_more = False

    @property
    def is_closing(self) -> bool:
        return self.stage is ConnectionStage.CLOSING

    def enter(self, stage: ConnectionStage) -> None:
        self.stage, self.since, self.received = stage, trio.current_time(), 0
        if self._waiting is not None:  # a pending read gets the timeout of the new stage
            self._waiting.deadline = self._deadline()

    def lag(self, now: float) -> float:
        """Return the seconds by which the client is behind the expected rate."""
        if self._writing_since is not None:
            return now - self._writing_since - WRITE_BYTES / self.limits.expected_bytes_per_second
        return now - self.since - self.received / self.limits.expected_bytes_per_second

    def is_stalled(self, now: float) -> bool:
        """True if the client reads its response more slowly than the expected rate."""
        return self._writing_since is not None and self.lag(now) > 0

    def evict(self, *, is_rejected: bool = False) -> None:
        """Stop waiting for this client. With `is_rejected`, an incomplete request gets a 503."""
        self.is_evicted, self._is_rejected = True, is_rejected
        is_writing = self._writing_since is not None
        if is_writing and (is_rejected or self.is_stalled(trio.current_time())):
            self.abort()  # its slot is taken: it must not stay open until the write timeout
        elif self._waiting is not None:
            self._waiting.deadline = self._deadline()

    def reject(self) -> None:
        """Send a 503 without reading a request: there is no free slot for this connection."""
        self.enter(ConnectionStage.HEAD)
        self.evict(is_rejected=True)

    def abort(self) -> None:
        """Close the socket immediately, even during a blocked write: Hypercorn shields writes from cancellation."""
        self.socket.close()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next bytes, or b"" if the client has closed, was idle for too long or was evicted.

        Raises HTTPError if an incomplete request takes too long or is rejected.
        """
        if self.is_closing:
            return b""
        if self._ahead:
            data = bytes(self._ahead)
            self._ahead.clear()
            return self._counted(data)
        with trio.CancelScope(deadline=self._deadline()) as self._waiting:
            return self._counted(await self._read())
        if self.stage in (ConnectionStage.IDLE, ConnectionStage.CLOSING) or (self.is_evicted and not self._is_rejected):
            return b""
        raise too_many_connections() if self._is_rejected else too_slow(self.stage)

    async def disconnects_before(self, event: trio.Event) -> bool:
        """Wait for `event`. Returns True as soon as the client closes its side. Reads ahead up to READ_BYTES."""
        disconnected, self._sends_more = False, True

        async def watch() -> None:
            nonlocal disconnected
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while len(self._ahead) < READ_BYTES and (data := await self._read()):
                    self._ahead += data
            if len(self._ahead) < READ_BYTES:
                disconnected = True
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await event.wait()
            nursery.cancel_scope.cancel()
        return disconnected

    def send_now(self, data: bytes) -> bytes:
        """Write without blocking and return the unwritten rest; all of it if the connection is broken."""
        try:
            return data[os.write(self.socket.fileno(), data) :]
        except OSError:
            return data

    async def send_all(self, data: bytes) -> None:
        """Write all data. Raises BrokenResourceError if the client does not read in time."""
        view = memoryview(data)
        try:
            for start in range(0, len(data), WRITE_BYTES):
                await self._send_chunk(view[start : start + WRITE_BYTES])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.is_broken = True
            raise

    async def _send_chunk(self, chunk: memoryview) -> None:
        # The slot of an evicted connection is taken: it must end soon.
        seconds = self.limits.linger_seconds if self.is_evicted else self.limits.write_stall_seconds
        self._writing_since = trio.current_time()
        try:
            with trio.move_on_after(seconds) as timeout:
                await self._stream.send_all(chunk)
        except trio.BusyResourceError as error:  # the socket is being closed
            raise trio.ClosedResourceError from error
        finally:
            self._writing_since = None
        if timeout.cancelled_caught:
            self.abort()
            raise trio.BrokenResourceError("the client does not read")

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the socket. A client that may still be sending first gets time to read the response."""
        if self.stage is ConnectionStage.CLOSING:
            return
        is_unread = self._sends_more or self.stage in (ConnectionStage.HEAD, ConnectionStage.BODY)
        self.enter(ConnectionStage.CLOSING)
        try:
            if is_unread:
                await self._linger()
        finally:
            self.socket.close()

    async def _linger(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        seconds = self.limits.rejected_linger_seconds if self._is_rejected else self.limits.linger_seconds
        with (
            trio.move_on_after(seconds) as self._waiting,
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            while self._is_reading:  # the cancelled read ends in its own task
                await trio.lowlevel.checkpoint()
            left = self.limits.linger_bytes
            while left > 0 and (data := await self._read()):
                left -= len(data)
            if left <= 0:
                await trio.sleep_forever()

    async def _read(self) -> bytes:
        self._is_reading = True
        try:
            return bytes(await self._stream.receive_some(READ_BYTES))
        finally:
            self._is_reading = False

    def _counted(self, data: bytes) -> bytes:
        if self.is_closing:
            return b""
        if self.stage is ConnectionStage.IDLE and data:
            self.enter(ConnectionStage.HEAD)
        self.received += len(data)
        return data

    def _deadline(self) -> float:
        if self.is_evicted and self.stage is not ConnectionStage.HANDLING:  # complete requests get their response
            return float("-inf")
        match self.stage:
            case ConnectionStage.IDLE:
                return self.since + self.limits.idle_seconds
            case ConnectionStage.HEAD:
                return self.since + self.limits.header_seconds
            case ConnectionStage.BODY:
                return self.since + self.limits.body_timeout(self.received)
            case _:
                return float("inf")


class ConnectionLimiter:
    """The open connections of one listener."""

    def __init__(self, limits: ConnectionLimits, is_trusted_proxy: Callable[[str], bool] = lambda _: False) -> None:
        self.limits = limits
        self._is_trusted_proxy = is_trusted_proxy
        self._open: set[GuardedStream] = set()
        self._per_peer: Counter[str] = Counter()

    def admit(self, stream: GuardedStream) -> bool:
        """Count this connection, evicting another if necessary. Returns False if none can be evicted."""
        peer, limits = stream.peer, self.limits
        is_over_peer_limit = self._per_peer[peer] >= limits.connections_per_peer and not self._is_exempt(peer)
        if is_over_peer_limit or len(self._open) >= limits.connections:
            candidates = (other for other in self._open if other.peer == peer) if is_over_peer_limit else self._open
            evicted = min(filter(is_evictable, candidates), key=self._eviction_order, default=None)
            if evicted is None:
                return False
            self.release(evicted)
            evicted.evict(is_rejected=True)
        self._open.add(stream)
        self._per_peer[peer] += 1
        return True

    def release(self, stream: GuardedStream) -> None:
        """Free the slot of this connection, if it has one."""
        if stream in self._open:
            self._open.remove(stream)
            self._per_peer -= Counter({stream.peer: 1})

    def close_idle(self) -> None:
        """Close every connection without a complete request head."""
        for stream in self._open:
            if stream.stage in (ConnectionStage.IDLE, ConnectionStage.HEAD):
                stream.evict()

    def abort(self) -> None:
        """Close every socket."""
        for stream in self._open:
            stream.abort()

    def _is_exempt(self, peer: str) -> bool:
        return peer == LOCAL_PEER or self._is_trusted_proxy(peer)

    def _eviction_order(self, stream: GuardedStream) -> tuple[bool, float]:
        """Sort idle connections first, then by lag, the slowest first."""
        lag = stream.lag(trio.current_time())
        is_unused = (
            stream.stage in (ConnectionStage.IDLE, ConnectionStage.CLOSING)
            and lag >= self.limits.idle_yields_after_seconds
        )
        return not is_unused, -lag


def is_evictable(stream: GuardedStream) -> bool:
    """True unless a complete request is being handled and its client reads the response in time."""
    return stream.stage is not ConnectionStage.HANDLING or stream.is_stalled(trio.current_time())


def too_slow(stage: ConnectionStage) -> HTTPError:
    part = "header" if stage is ConnectionStage.HEAD else "body"
    message = f"the {part} did not arrive in time"
    return HTTPError(refusal_response(408, "too_slow", message, hint="Send the request again without pauses."))


def too_many_connections() -> HTTPError:
    hint = "Close some connections, or try again later."
    return HTTPError(refusal_response(503, "too_many_connections", "too many connections", hint=hint))


def too_large(max_body: int) -> HTTPError:
    hint = "Send a smaller body, or raise max_body_size."
    return HTTPError(refusal_response(413, "body_too_large", f"the body is over {max_body} bytes", hint=hint))
