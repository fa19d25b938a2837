"""Quart-Trio hosting of a site, and Hypercorn's connection class for its WebSockets.

The only room that knows Quart and Hypercorn, internals included: their versions are pinned and a test says so. Decides
nothing: the lane has matched, authorized and read the request before it comes here, and the answer goes back over the
lane's wire. So one reading of HTTP and one set of limits hold for every route.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from quart import request as quart_request
from quart import websocket as quart_websocket
from quart.wrappers import Response as QuartResponse
from quart_trio import QuartTrio

from ductile.errors import DuctileError
from ductile.values import frozen
from ductile.web.http1 import Head, Limits
from ductile.web.message import Refusal, Request, Response, error_response
from ductile.web.routes import MIB, ChannelRoute, Route
from ductile.web.site import Site
from ductile.web.wire import ClientGone, Reply, Wire

Message = dict[str, Any]

STATE_KEY = "ductile"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
PING_SECONDS = 20.0
# WebSocket close codes, RFC 6455 7.4.1
POLICY_VIOLATION, INTERNAL_ERROR = 1008, 1011
CLOSE_FRAME = b"\x88"


@frozen
class Admitted:
    """What the lane decided; travels to the view inside the ASGI scope."""

    route: Route | ChannelRoute
    request: Request
    cut: Callable[[], None] = lambda: None


class QuartHost:
    """Serves what the lane hands over. One per server; holds no request state."""

    def __init__(self, site: Site, limits: Limits) -> None:
        self._app = make_app(site)
        self._config = _hypercorn_config(limits)
        self._context = WorkerContext(None)

    async def http(self, route: Route, request: Request, head: Head, wire: Wire, reply: Reply) -> None:
        """The request is answered by the Quart app, or its handler was cancelled because the client hung up."""
        exchange = _Exchange(wire, reply)
        scope = _http_scope(Admitted(route, request), head)
        await self._app(cast(Any, scope), cast(Any, exchange.receive), cast(Any, exchange.send))
        if exchange.client_gone or not exchange.complete:
            reply.keeps_alive = False

    async def websocket(self, route: ChannelRoute, request: Request, own_head: bytes, wire: Wire) -> None:
        """Hypercorn has served this connection to its end; whatever it raised stays with this connection."""
        stream = _Replayed(wire, own_head)
        async with trio.open_nursery() as nursery:
            state = ConnectionState({STATE_KEY: Admitted(route, request, nursery.cancel_scope.cancel)})
            server = _Conversation(
                ASGIWrapper(cast(ASGIFramework, self._app)), self._config, self._context, state, cast(Any, stream)
            )
            nursery.start_soon(_close_when_cancelled, wire.stream)
            await server.run()
            nursery.cancel_scope.cancel()

    async def stop(self) -> None:
        """Idle Hypercorn connections close now."""
        await self._context.terminated.set()


def make_app(site: Site) -> QuartTrio:
    """A Quart-Trio app with one view for every path: the site's table has the only say in routing."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False

    async def answer(rest: str = "") -> QuartResponse:
        admitted = _admitted(quart_request.scope)
        assert isinstance(admitted.route, Route)
        response = await site.answer(admitted.route, admitted.request)
        try:
            return _hosted(app, response)
        except ValueError as error:  # a header that is not one
            return _hosted(app, site.fault(error, admitted.route))

    async def converse(rest: str = "") -> QuartResponse | None:
        admitted = _admitted(quart_websocket.scope)
        assert isinstance(admitted.route, ChannelRoute)
        channel = _QuartChannel(admitted.cut)
        try:
            await admitted.route.handler(admitted.request, channel)
        except (DuctileError, Refusal) as error:
            if not channel.is_accepted:
                return _hosted(app, error.response if isinstance(error, Refusal) else error_response(error))
            await channel.close(POLICY_VIOLATION, "refused" if isinstance(error, Refusal) else error.code)
        except Exception as error:
            site.fault(error, admitted.route)
            await channel.close(INTERNAL_ERROR, "internal_error")
        return None

    for rule in ("/", "/<path:rest>"):
        app.add_url_rule(rule, "answer", answer, methods=list(METHODS))
        app.add_websocket(rule, "converse", converse)
    return app


def _hosted(app: QuartTrio, response: Response) -> QuartResponse:
    hosted: QuartResponse = app.response_class(
        cast(Any, response.body), status=response.status, headers=cast(Any, list(response.headers))
    )
    hosted.timeout = None  # Quart would cut a stream after a minute
    return hosted


class _Exchange:
    """One request as ASGI messages. Its body was read before, so the app is told that it is empty."""

    def __init__(self, wire: Wire, reply: Reply) -> None:
        self._wire = wire
        self._reply = reply
        self._start: Message | None = None
        self._body_taken = False
        self.client_gone = False
        self.complete = False

    async def receive(self) -> Message:
        if not self._body_taken:
            self._body_taken = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._wire.hung_up()
        self.client_gone = True
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.client_gone:
            return
        try:
            if message["type"] == "http.response.start":
                await self._begin(message)
            elif message["type"] == "http.response.body":
                await self._reply.piece(message.get("body", b""))
                if not message.get("more_body", False):
                    await self._reply.end()
                    self.complete = True
        except ClientGone:
            self.client_gone = True

    async def _begin(self, message: Message) -> None:
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in message["headers"]]
        lengths = [int(value) for name, value in headers if name == "content-length"]
        kept = tuple((name, value) for name, value in headers if name not in ("content-length", "transfer-encoding"))
        self._reply.begin(message["status"], kept, lengths[0] if lengths else None)
        if not lengths:
            await self._reply.flush()


class _QuartChannel:
    """Quart's websocket of the current task as our `Channel`."""

    def __init__(self, cut: Callable[[], None]) -> None:
        self.cut = cut
        self.is_accepted = False
        self._closed = False

    async def accept(self) -> None:
        await quart_websocket.accept()
        self.is_accepted = True

    async def send(self, message: str | bytes) -> None:
        await quart_websocket.send(message)
        # Once the client is gone Hypercorn's send returns at once: a handler that only sends would never be cancelled.
        await trio.lowlevel.checkpoint()

    async def receive(self) -> str | bytes:
        return await quart_websocket.receive()

    async def close(self, code: int, reason: str = "") -> None:
        if not self._closed:
            self._closed = True
            await quart_websocket.close(code, reason)


class _Conversation(TCPServer):
    """Hypercorn's connection, which ends with its client: Hypercorn would first sleep until its next ping."""

    async def _read_data(self) -> None:
        await super()._read_data()
        if self._task_group._nursery is not None:
            self._task_group._nursery.cancel_scope.cancel()


class _Replayed:
    """The lane's wire as the stream of a new connection: the head in the lane's words, then whatever follows it.

    What the client sends before its upgrade is answered waits until then: Hypercorn fails on it. A write gives up on a
    client that does not read: Hypercorn shields its sends, so a deadline around them would never fire. And after our
    goodbye nothing is read: Hypercorn would keep all that still comes of a message that was too long.
    """

    def __init__(self, wire: Wire, own_head: bytes) -> None:
        self.socket = wire.stream.socket
        self._wire = wire
        self._stream = wire.stream
        self._own_head = own_head
        self._answered = trio.Event()
        self._ended = trio.Event()
        self._reading = self._said_goodbye = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return b"" if self._said_goodbye else await self._read(max_bytes)

    async def _read(self, max_bytes: int | None = None) -> bytes:
        data, self._reading = b"", True
        try:
            data = await self._receive(max_bytes)
        finally:
            self._reading = False
            if not data:
                self._ended.set()
        return data

    async def _receive(self, max_bytes: int | None) -> bytes:
        if self._own_head:
            own_head, self._own_head = self._own_head, b""
            return own_head
        if not self._answered.is_set() and await self._left_unanswered():
            return b""
        if self._wire.inbox:
            early = bytes(self._wire.inbox)
            self._wire.inbox.clear()
            return early
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_all(self, data: bytes) -> None:
        self._answered.set()
        self._said_goodbye = self._said_goodbye or data.startswith(CLOSE_FRAME)  # Hypercorn sends each on its own
        with trio.move_on_after(self._wire.limits.write_stall_seconds) as patience:
            try:
                await self._stream.send_all(data)
            except trio.BusyResourceError as error:  # our end is being closed at this moment
                raise trio.ClosedResourceError from error
        if patience.cancelled_caught:
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError("the client does not read")

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Closed, after the client had a moment to say goodbye: its last frame would otherwise meet a reset."""
        self._answered.set()
        with (
            trio.move_on_after(self._wire.limits.linger_seconds),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            while not self._ended.is_set():
                await (self._ended.wait() if self._reading else self._read())
        await self._stream.aclose()

    async def _left_unanswered(self) -> bool:
        """Whether the client hung up before its upgrade was answered."""
        left = False

        async def watch() -> None:
            nonlocal left
            await self._wire.hung_up()
            left = True
            self._answered.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await self._answered.wait()
            nursery.cancel_scope.cancel()
        return left


async def _close_when_cancelled(stream: trio.SocketStream) -> None:
    """A shielded send ends as soon as its socket is closed under it; nothing else ends it."""
    try:
        await trio.sleep_forever()
    finally:
        stream.socket.close()


def _http_scope(admitted: Admitted, head: Head) -> Message:
    request = admitted.request
    path, _, query = head.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.0" if head.is_http_10 else "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": [
            (name.encode("ascii"), value.encode("latin-1")) for name, values in head.headers.items() for value in values
        ],
        "client": (request.peer, 0),
        "server": None,
        "extensions": {},
        "state": {STATE_KEY: admitted},
    }


def _admitted(scope: Any) -> Admitted:
    return cast(Admitted, scope["state"][STATE_KEY])


def _hypercorn_config(limits: Limits) -> Config:
    config = Config()
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = limits.idle_seconds
    config.read_timeout = None
    config.websocket_ping_interval = PING_SECONDS
    config.websocket_max_message_size = MIB
    config.h11_max_incomplete_size = limits.request_line_bytes + limits.header_bytes
    return config
