"""The ASGI app of a site: reads the body, calls the handler, sends its response.

A Quart-Trio app serves the API and its WebSockets. POST requests (deliveries, triggers) bypass it and call the same
handlers, which measured over 50 % more requests per second. The site's table is the only router. Does not know
connections: it receives an exchange that is already matched and authorized.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, cast

import trio
from attrs import evolve
from quart import request as quart_request
from quart import websocket as quart_websocket
from quart.wrappers import Response as QuartResponse
from quart_trio import QuartTrio

from ductile.core.errors import DuctileError
from ductile.web.messages import HTTPError, Request, Response, error_response
from ductile.web.routing import Route, WebSocketRoute
from ductile.web.server.connection import EXCHANGE
from ductile.web.server.exchange import Exchange, raw_headers
from ductile.web.server.limits import too_large
from ductile.web.server.site import Site

Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# WebSocket close codes, RFC 6455 7.4.1
POLICY_VIOLATION, INTERNAL_ERROR = 1008, 1011
BODILESS_STATUSES = (204, 304)
NO_BODY: Message = {"type": "http.request", "body": b"", "more_body": False}


class App:
    """The ASGI callable that Hypercorn runs, once per request."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._quart = make_quart(site)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request. An unhandled exception ends this connection and no other."""
        exchange: Exchange = scope["state"][EXCHANGE]
        # Handlers read the headers from the exchange. Quart fails on a Host header that it cannot parse.
        scope["headers"] = []
        if scope.get("method") == "HEAD" and not exchange.is_head:  # Hypercorn changes `head` to upper case
            scope["method"] = "GET"
        try:
            if scope["type"] == "websocket":
                await self._quart(cast(Any, scope), cast(Any, receive), cast(Any, send))
            else:
                await self._handle_http(exchange, scope, receive, send)
        except* Exception as errors:  # Quart opens nurseries, so exceptions arrive in groups
            self._site.on_fault(errors, f"request from {exchange.peer}")
        finally:
            if not exchange.status:  # cancelled or disconnected: Hypercorn would send an empty 500
                exchange.abort()
            exchange.has_ended.set()
            exchange.report()

    async def _handle_http(self, exchange: Exchange, scope: Message, receive: Receive, send: Send) -> None:
        route, request = exchange.route, exchange.request
        try:
            if exchange.refusal is not None or request is None or not isinstance(route, Route):
                raise HTTPError(exchange.refusal or Response(status=500))
            if exchange.has_body:
                body = await read_body(receive, route.max_body)
                exchange.request = request = evolve(request, body=body)
                exchange.received_bytes += len(body)
        except HTTPError as refusal:
            await send_while_discarding(self._site.with_cors_headers(request, refusal.response), receive, send)
        except ClientDisconnected:
            pass
        else:
            if route.method == "POST":
                await self._handle_directly(route, request, receive, send)
            else:
                await self._pass_to_quart(exchange, route, scope, receive, send)

    async def _handle_directly(self, route: Route, request: Request, receive: Receive, send: Send) -> None:
        response: Response | None = None
        if route.waits:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_at_disconnect, nursery.cancel_scope, receive)
                response = await self._site.handle(route, request)
                nursery.cancel_scope.cancel()
        else:
            response = await self._site.handle(route, request)
        if response is not None:
            await send_response(ensure_sendable(self._site, route, response), send)

    async def _pass_to_quart(
        self, exchange: Exchange, route: Route, scope: Message, receive: Receive, send: Send
    ) -> None:
        """Handle the request through Quart, with an empty body: the exchange has the request with its body."""
        is_first = True

        async def receive_rest() -> Message:
            nonlocal is_first
            if is_first:
                is_first = False
                return NO_BODY
            await wait_for_disconnect(receive)
            # Quart cancels its handler at a disconnect message. Hypercorn also sends one when it recycles a connection.
            if exchange.is_complete or not route.waits:
                await trio.sleep_forever()
            return {"type": "http.disconnect"}

        async with trio.open_nursery() as nursery:
            if route.waits:
                nursery.start_soon(abort_when_over, exchange)
            await self._quart(cast(Any, scope), cast(Any, receive_rest), cast(Any, send))
            nursery.cancel_scope.cancel()


class ClientDisconnected(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(receive: Receive, max_body: int) -> bytes:
    """Read the whole body. Raises HTTPError if it is over `max_body`. The guarded stream enforces the time limit."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnected
        body += message["body"]
        if len(body) > max_body:
            raise too_large(max_body)
        if not message["more_body"]:
            return bytes(body)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_at_disconnect(scope: trio.CancelScope, receive: Receive) -> None:
    await wait_for_disconnect(receive)
    scope.cancel()


async def abort_when_over(exchange: Exchange) -> None:
    """Abort the connection when the response must end, even if the client does not read it."""
    await exchange.is_answered.wait()
    if exchange.until is not None:
        await exchange.until()
        exchange.abort()


def ensure_sendable(site: Site, route: Route, response: Response) -> Response:
    """Return the response, or a 500 if one of its headers is invalid."""
    try:
        raw_headers(response.headers)
    except ValueError as error:
        return site.report_fault(error, route)
    return response


async def send_response(response: Response, send: Send) -> None:
    """Send a response whose body is in one piece."""
    body = cast(bytes, response.body)
    headers = raw_headers(response.headers)
    if response.status not in BODILESS_STATUSES:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_while_discarding(response: Response, receive: Receive, send: Send) -> None:
    """Send a response before the body is read. Hypercorn cannot close while its queue of body chunks is full."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(discard, receive)
        await send_response(response, send)
        nursery.cancel_scope.cancel()


async def discard(receive: Receive) -> None:
    while True:
        await receive()


# ── Quart ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_quart(site: Site) -> QuartTrio:
    """Build a Quart-Trio app with one view for every path. The site's table has already matched the request."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False

    async def handle_request(rest: str = "") -> QuartResponse:
        exchange = _exchange(quart_request.scope)
        assert isinstance(exchange.route, Route)
        assert exchange.request is not None
        response = await site.handle(exchange.route, exchange.request)
        exchange.until = response.until
        if exchange.request.method == "HEAD" and not isinstance(response.body, bytes):
            response = evolve(response, body=_empty_stream())  # a stream may be endless
        return _quart_response(app, ensure_sendable(site, exchange.route, response))

    async def handle_websocket(rest: str = "") -> QuartResponse | None:
        exchange = _exchange(quart_websocket.scope)
        assert isinstance(exchange.route, WebSocketRoute)
        assert exchange.request is not None
        websocket = QuartWebSocket(exchange.abort)
        try:
            await exchange.route.handler(exchange.request, websocket)
        except (DuctileError, HTTPError) as error:
            if not websocket.is_accepted:
                return _quart_response(app, error.response if isinstance(error, HTTPError) else error_response(error))
            await websocket.close(POLICY_VIOLATION, "refused" if isinstance(error, HTTPError) else error.code)
        except Exception as error:
            site.report_fault(error, exchange.route)
            await websocket.close(INTERNAL_ERROR, "internal_error")
        return None

    for rule in ("/", "/<path:rest>"):
        app.add_url_rule(rule, "handle_request", handle_request, methods=list(METHODS))
        app.add_websocket(rule, "handle_websocket", handle_websocket)
    return app


class QuartWebSocket:
    """Quart's WebSocket of the current task, as a `WebSocket`."""

    def __init__(self, cut: Callable[[], None]) -> None:
        self.abort = cut
        self.is_accepted = False
        self._is_closed = False

    async def accept(self) -> None:
        await quart_websocket.accept()
        self.is_accepted = True

    async def send(self, message: str | bytes) -> None:
        await quart_websocket.send(message)
        # After a disconnect, Hypercorn's send returns immediately: a handler that only sends would not be cancelled.
        await trio.lowlevel.checkpoint()

    async def receive(self) -> str | bytes:
        return await quart_websocket.receive()

    async def close(self, code: int, reason: str = "") -> None:
        if not self._is_closed:
            self._is_closed = True
            await quart_websocket.close(code, reason)


def _quart_response(app: QuartTrio, response: Response) -> QuartResponse:
    quart_response: QuartResponse = app.response_class(
        cast(Any, response.body), status=response.status, headers=cast(Any, list(response.headers))
    )
    quart_response.timeout = None  # Quart ends a stream after a minute by default
    return quart_response


async def _empty_stream() -> AsyncIterator[bytes]:
    no_chunks: tuple[bytes, ...] = ()
    for chunk in no_chunks:
        yield chunk


def _exchange(scope: Any) -> Exchange:
    return cast(Exchange, scope["state"][EXCHANGE])
