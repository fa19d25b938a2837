"""The ASGI app of a site: reads the body, calls the handler, sends its response.

A Quart-Trio app serves the API and its WebSockets. Requests that submit work (POST: deliveries, triggers) are answered
in front of it by the same handlers: measured, that is more than half as much again per second. The site's table is
the only router. Does not know connections; it is given an exchange whose head has been matched and authorized.
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
from ductile.web.routes import ChannelRoute, Route
from ductile.web.server.connection import EXCHANGE
from ductile.web.server.exchange import Exchange, raw_headers
from ductile.web.server.limits import too_large
from ductile.web.site import Site

Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# WebSocket close codes, RFC 6455 7.4.1
POLICY_VIOLATION, INTERNAL_ERROR = 1008, 1011
WITHOUT_BODY = (204, 304)
NO_BODY: Message = {"type": "http.request", "body": b"", "more_body": False}


class App:
    """The ASGI callable that Hypercorn runs, once per request."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._quart = make_quart(site)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. An error that no handler caught ends this connection and no other."""
        exchange: Exchange = scope["state"][EXCHANGE]
        # Handlers have the headers in the exchange. Quart would fail on a Host that it cannot parse.
        scope["headers"] = []
        if scope.get("method") == "HEAD" and not exchange.is_head:  # Hypercorn changes `head` to upper case
            scope["method"] = "GET"
        try:
            if scope["type"] == "websocket":
                await self._quart(cast(Any, scope), cast(Any, receive), cast(Any, send))
            else:
                await self._answer(exchange, scope, receive, send)
        except* Exception as errors:  # Quart runs nurseries of its own, so errors come in groups
            self._site.on_fault(errors, f"request from {exchange.peer}")
        finally:
            if not exchange.status:  # cancelled, or the client is gone: Hypercorn would answer with an empty 500
                exchange.abort()
            exchange.has_ended.set()
            exchange.report()

    async def _answer(self, exchange: Exchange, scope: Message, receive: Receive, send: Send) -> None:
        route, request = exchange.route, exchange.request
        try:
            if exchange.refusal is not None or request is None or not isinstance(route, Route):
                raise HTTPError(exchange.refusal or Response(status=500))
            if exchange.has_body:
                body = await read_body(receive, route.max_body)
                exchange.request = request = evolve(request, body=body)
                exchange.received_bytes += len(body)
        except HTTPError as refusal:
            await send_while_discarding(self._site.dressed(request, refusal.response), receive, send)
        except ClientGone:
            pass
        else:
            if route.method == "POST":
                await self._handle(route, request, receive, send)
            else:
                await self._pass_to_quart(exchange, route, scope, receive, send)

    async def _handle(self, route: Route, request: Request, receive: Receive, send: Send) -> None:
        response: Response | None = None
        if route.waits:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_at_disconnect, nursery.cancel_scope, receive)
                response = await self._site.answer(route, request)
                nursery.cancel_scope.cancel()
        else:
            response = await self._site.answer(route, request)
        if response is not None:
            await send_response(sendable(self._site, route, response), send)

    async def _pass_to_quart(
        self, exchange: Exchange, route: Route, scope: Message, receive: Receive, send: Send
    ) -> None:
        """Let Quart answer. Its body is empty: the handler has the request with its body in the exchange."""
        is_first = True

        async def receive_rest() -> Message:
            nonlocal is_first
            if is_first:
                is_first = False
                return NO_BODY
            await disconnected(receive)
            # Quart cancels its handler at a disconnect. Hypercorn also sends one while it recycles the connection.
            if exchange.is_complete or not route.waits:
                await trio.sleep_forever()
            return {"type": "http.disconnect"}

        async with trio.open_nursery() as nursery:
            if route.waits:
                nursery.start_soon(cut_when_over, exchange)
            await self._quart(cast(Any, scope), cast(Any, receive_rest), cast(Any, send))
            nursery.cancel_scope.cancel()


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(receive: Receive, max_body: int) -> bytes:
    """Return the whole body. Raises Refusal if it is over `max_body`; the guarded stream has the time limit."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        body += message["body"]
        if len(body) > max_body:
            raise too_large(max_body)
        if not message["more_body"]:
            return bytes(body)


async def disconnected(receive: Receive) -> None:
    """Wait until the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_at_disconnect(scope: trio.CancelScope, receive: Receive) -> None:
    await disconnected(receive)
    scope.cancel()


async def cut_when_over(exchange: Exchange) -> None:
    """Close the connection when the response must not be continued, even if the client does not read it."""
    await exchange.is_answered.wait()
    if exchange.until is not None:
        await exchange.until()
        exchange.abort()


def sendable(site: Site, route: Route, response: Response) -> Response:
    """Return the response, or a fault if one of its headers cannot be sent."""
    try:
        raw_headers(response.headers)
    except ValueError as error:
        return site.fault(error, route)
    return response


async def send_response(response: Response, send: Send) -> None:
    """Send a response whose body is in one piece."""
    body = cast(bytes, response.body)
    headers = raw_headers(response.headers)
    if response.status not in WITHOUT_BODY:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_while_discarding(response: Response, receive: Receive, send: Send) -> None:
    """Send a response before the body is read. Hypercorn cannot close while its queue of body parts is full."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(discard, receive)
        await send_response(response, send)
        nursery.cancel_scope.cancel()


async def discard(receive: Receive) -> None:
    while True:
        await receive()


# ── Quart ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_quart(site: Site) -> QuartTrio:
    """Build a Quart-Trio app with one view for every path: the site's table has matched the request before."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False

    async def answer(rest: str = "") -> QuartResponse:
        exchange = _exchange(quart_request.scope)
        assert isinstance(exchange.route, Route)
        assert exchange.request is not None
        response = await site.answer(exchange.route, exchange.request)
        exchange.until = response.until
        if exchange.request.method == "HEAD" and not isinstance(response.body, bytes):
            response = evolve(response, body=_nothing())  # a stream may have no end
        return _quart_response(app, sendable(site, exchange.route, response))

    async def converse(rest: str = "") -> QuartResponse | None:
        exchange = _exchange(quart_websocket.scope)
        assert isinstance(exchange.route, ChannelRoute)
        assert exchange.request is not None
        channel = QuartChannel(exchange.abort)
        try:
            await exchange.route.handler(exchange.request, channel)
        except (DuctileError, HTTPError) as error:
            if not channel.is_accepted:
                return _quart_response(app, error.response if isinstance(error, HTTPError) else error_response(error))
            await channel.close(POLICY_VIOLATION, "refused" if isinstance(error, HTTPError) else error.code)
        except Exception as error:
            site.fault(error, exchange.route)
            await channel.close(INTERNAL_ERROR, "internal_error")
        return None

    for rule in ("/", "/<path:rest>"):
        app.add_url_rule(rule, "answer", answer, methods=list(METHODS))
        app.add_websocket(rule, "converse", converse)
    return app


class QuartChannel:
    """Quart's WebSocket of the current task as a `Channel`."""

    def __init__(self, cut: Callable[[], None]) -> None:
        self.cut = cut
        self.is_accepted = False
        self._is_closed = False

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
        if not self._is_closed:
            self._is_closed = True
            await quart_websocket.close(code, reason)


def _quart_response(app: QuartTrio, response: Response) -> QuartResponse:
    made: QuartResponse = app.response_class(
        cast(Any, response.body), status=response.status, headers=cast(Any, list(response.headers))
    )
    made.timeout = None  # Quart would cut a stream after a minute
    return made


async def _nothing() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for piece in nothing:
        yield piece


def _exchange(scope: Any) -> Exchange:
    return cast(Exchange, scope["state"][EXCHANGE])
