"""Hypercorn's connection and HTTP/1.1 protocol, as Ductile uses them.

Hypercorn runs each connection: h11, streams, WebSockets, one task per request. This module adds strict framing,
routing and authorization from the head alone, JSON error responses, and no HTTP/2. Depends on internals of Hypercorn
0.18; a test pins the version.
"""

import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any, cast

import h11
import trio
from attrs import frozen
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, Data, EndBody, Response
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import H11Protocol, H11WSConnection
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from ductile.web.messages import HTTPError
from ductile.web.messages import Response as SiteResponse
from ductile.web.routing import MIB, WebSocketRoute
from ductile.web.server.exchange import Exchange, clean_handshake, raw_headers, strip_upgrade
from ductile.web.server.framing import StrictConnection
from ductile.web.server.limits import WRITE_BYTES, ConnectionStage, GuardedStream
from ductile.web.server.site import Site

EXCHANGE = "exchange"
"""The key of the exchange in the state of the ASGI scope."""
PING_INTERVAL = 20.0
CLOSE_FRAME = b"\x88"
COMPLETE_STATES = (h11.DONE, h11.MIGHT_SWITCH_PROTOCOL)  # type: ignore[attr-defined]


@frozen
class ServerContext:
    """The objects that all connections of a server share."""

    site: Site
    app: ASGIWrapper
    config: Config
    context: WorkerContext


class HttpConnection(TCPServer):
    """An accepted connection."""

    def __init__(self, hosting: ServerContext, stream: GuardedStream) -> None:
        super().__init__(hosting.app, hosting.config, hosting.context, cast(Any, {}), cast(Any, stream))
        self._site = hosting.site
        self._guarded = stream

    async def run(self) -> None:
        """Serve requests one at a time until either side closes."""
        try:
            async with TaskGroup() as task_group:
                self._task_group = task_group
                protocol = HttpProtocol(self, self._site, self._guarded)
                self.protocol = cast(Any, protocol)
                await self._read_data()
                if protocol.is_websocket and task_group._nursery is not None:
                    task_group._nursery.cancel_scope.cancel()  # Hypercorn would sleep until its next ping
        finally:
            await self._close()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):  # the guarded stream enforces the idle timeout
            return
        if isinstance(event, RawData) and not self.send_lock.locked():
            # Usually sends all data, without a task switch between a handler's result and its response.
            rest = self._guarded.send_now(event.data)
            if not rest:
                return
            event = RawData(rest)
        await super().protocol_send(event)
        if self._guarded.is_broken:
            await cast(
                HttpProtocol, self.protocol
            ).can_read.set()  # the reader may be waiting for the end of this response

    async def _read_data(self) -> None:
        protocol = cast(HttpProtocol, self.protocol)
        try:
            while not protocol.has_sent_close and (data := await self._guarded.receive_some()):
                await protocol.handle(RawData(data))
        except HTTPError as refusal:
            await protocol.refuse(refusal.response)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        await protocol.handle(Closed())


class HttpProtocol(H11Protocol):
    """HTTP/1.1 and WebSocket on one connection."""

    connection: StrictConnection | H11WSConnection

    def __init__(self, server: HttpConnection, site: Site, stream: GuardedStream) -> None:
        super().__init__(
            server.app,
            server.config,
            server.context,
            server._task_group,
            ConnectionState(cast(Any, {})),
            False,
            None,
            None,
            server.protocol_send,
        )
        self.connection = StrictConnection(stream.limits, stream.enter)
        self.can_read = cast(Any, _NextRequest(self, stream))
        self.has_sent_close = False
        self._site = site
        self._guarded = stream
        self.exchange = self._new_exchange()
        self._head = b""

    @property
    def is_websocket(self) -> bool:
        return isinstance(self.connection, H11WSConnection)

    async def refuse(self, response: SiteResponse) -> None:
        """Send an error response to an incomplete or invalid request, unless its response has started. Then close."""
        if self.connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        exchange = self.exchange if self.stream is not None else self._new_exchange()
        exchange.is_refused = True
        response = self._site.with_cors_headers(exchange.request, response)
        body = cast(bytes, response.body)
        framing = [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        headers = [*raw_headers(response.headers), *framing, *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=response.status, headers=headers))
        if not exchange.is_head:
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())
        exchange.status, exchange.sent_bytes, exchange.is_complete = response.status, len(body), True
        exchange.report()

    async def stream_send(self, event: StreamEvent) -> None:
        exchange = self.exchange
        if exchange.is_refused and isinstance(event, (Response, Body, EndBody)):
            return
        if isinstance(event, Response):
            exchange.status = event.status_code
            await super().stream_send(self._closing(event) if self._is_last(event) else event)
            exchange.is_answered.set()
        elif isinstance(event, Body):
            for part in _split_body(event):
                exchange.sent_bytes += len(part.data)
                await super().stream_send(part)
        elif isinstance(event, EndBody):
            await super().stream_send(event)
            exchange.is_complete = True
            exchange.report()
        else:
            if isinstance(event, Data) and event.data.startswith(CLOSE_FRAME):  # Hypercorn sends each frame separately
                self.has_sent_close = True
            await super().stream_send(event)

    async def _create_stream(self, request: h11.Request) -> None:
        exchange = self.exchange = self._new_exchange()
        exchange.decide(request)
        self.connection_state = ConnectionState(cast(Any, {EXCHANGE: exchange}))
        if exchange.refusal is not None and isinstance(self.connection, StrictConnection):
            self.connection.client_is_waiting_for_100_continue = False  # the body is not read
        if isinstance(exchange.route, WebSocketRoute) and exchange.refusal is None:
            await super()._create_stream(clean_handshake(request))
            await self._wait_until_answered(exchange)
        else:
            await super()._create_stream(strip_upgrade(request))

    async def _wait_until_answered(self, exchange: Exchange) -> None:
        """Buffer what the client sends before its upgrade is accepted: Hypercorn fails on it."""
        self._guarded.enter(ConnectionStage.HANDLING)
        if await self._guarded.disconnects_before(exchange.is_answered):
            raise trio.ClosedResourceError

    async def _maybe_recycle(self) -> None:
        """Read no further request from a disconnected client, including pipelined ones."""
        if self._guarded.is_broken:
            await self._close_stream()
            await self.can_read.set()
            await self.send(Closed())
        else:
            await super()._maybe_recycle()

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore every HTTP/2 upgrade."""

    async def _send_error_response(self, status_code: int) -> None:
        if isinstance(self.connection, StrictConnection):
            await self.refuse(self.connection.refusal.response)

    async def _send_h11_event(self, event: Any) -> None:
        """Send the head of a response together with the first chunk of its body."""
        try:
            data = self._head + (self.connection.send(event) or b"")
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        self._head = data if isinstance(event, h11.Response) else b""
        if data and not self._head:
            await self.send(RawData(data=data))

    def _is_last(self, response: Response) -> bool:
        """True if the connection cannot carry another request after this response."""
        is_unread = self.connection.their_state not in COMPLETE_STATES
        return response.status_code >= 200 and (is_unread or self.context.terminated.is_set())

    @staticmethod
    def _closing(response: Response) -> Response:
        headers = list(chain(response.headers, [(b"connection", b"close")]))
        return Response(stream_id=response.stream_id, headers=headers, status_code=response.status_code)

    def _new_exchange(self) -> Exchange:
        guarded = self._guarded
        return Exchange(site=self._site, peer=guarded.peer, uid=guarded.uid, abort=guarded.abort)


class _NextRequest:
    """The event that holds a pipelined request until the previous one is answered.

    Replaces Hypercorn's event, which does not detect a client that disconnects meanwhile.
    """

    def __init__(self, protocol: HttpProtocol, stream: GuardedStream) -> None:
        self._protocol = protocol
        self._stream = stream
        self._event = trio.Event()

    async def wait(self) -> None:
        if self._stream.is_broken:
            raise trio.ClosedResourceError
        if not self._event.is_set() and await self._stream.disconnects_before(self._event):
            await self._protocol.handle(Closed())
            await self._protocol.exchange.has_ended.wait()
        connection = self._protocol.connection
        is_ready = isinstance(connection, StrictConnection) and connection.their_state is h11.IDLE
        if not self._event.is_set() or not is_ready:  # cancelled or draining: drop the next request
            raise trio.ClosedResourceError

    async def set(self) -> None:
        self._event.set()

    async def clear(self) -> None:
        self._event = trio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()


def _split_body(body: Body) -> Iterator[Body]:
    """Split a large body, so that a client that does not read costs no second copy of it."""
    if len(body.data) <= WRITE_BYTES:
        yield body
        return
    view = memoryview(body.data)
    for start in range(0, len(view), WRITE_BYTES):
        yield Body(stream_id=body.stream_id, data=bytes(view[start : start + WRITE_BYTES]))


def make_hypercorn_config() -> Config:
    config = Config()
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.keep_alive_max_requests = sys.maxsize
    config.websocket_ping_interval = PING_INTERVAL
    config.websocket_max_message_size = MIB
    return config
