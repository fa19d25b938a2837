"""WebSockets through Quart-Trio and Hypercorn, and the pinned versions of both."""

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import trio
from attrs import evolve
from trio_websocket import open_websocket_url

from ductile.core.errors import NotAllowed
from ductile.web.messages import Request, Response, WebSocket, refusal_response
from ductile.web.routing import MIB, AnyRoute, WebSocketRoute
from ductile.web.server.limits import ConnectionLimits

if TYPE_CHECKING:
    from tests.web.conftest import StartServer

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SHORT_LINGER = ConnectionLimits(linger_seconds=0.05)
CLOSED_AS_TOO_BIG = b"\x88\x02\x03\xf1"


@pytest.mark.parametrize(
    ("package", "known"),
    [("hypercorn", "0.18.0"), ("quart-trio", "0.12.0"), ("quart", "0.22."), ("h11", "0.16."), ("wsproto", "1.3.")],
)
def test_the_server_libraries_have_the_versions_whose_internals_are_used(package: str, known: str) -> None:
    """`web/server/connection.py` depends on internals: review it before changing a pinned version."""
    assert version(package).startswith(known)


async def test_a_websocket_is_served_by_its_route(start_server: "StartServer") -> None:
    """The handler gets path parameters, query and principal; messages are sent both ways."""
    seen: list[Request] = []

    async def echo_messages(request: Request, websocket: WebSocket) -> None:
        seen.append(request)
        await websocket.accept()
        while True:
            await websocket.send(await websocket.receive())

    server = await start_server(
        WebSocketRoute(path="/tree/{id}/ws", handler=echo_messages),
        authorize=lambda _, request: evolve(request, principal="me"),
    )
    async with open_websocket_url(f"ws://127.0.0.1:{server.listener.port}/tree/7/ws?kind=a") as websocket:
        await websocket.send_message("text")
        assert await websocket.get_message() == "text"
        await websocket.send_message(b"bytes")
        assert await websocket.get_message() == b"bytes"

    assert (seen[0].params, seen[0].query, seen[0].principal) == ({"id": "7"}, {"kind": ("a",)}, "me")
    await server.wait_for_requests(1)
    assert (server.served[0].status, server.served[0].path) == (101, "/tree/7/ws")
    assert not server.faults
    assert await server.is_healthy()


async def test_an_unauthorized_websocket_is_refused_as_plain_http(start_server: "StartServer") -> None:
    """The error response comes before the upgrade."""

    def deny_websockets(route: AnyRoute, request: Request) -> Request | Response:
        return refusal_response(401, "unauthorized", "no", hint="-") if isinstance(route, WebSocketRoute) else request

    server = await start_server(WebSocketRoute(path="/ws", handler=_accept_and_end), authorize=deny_websockets)
    client = await server.connect()
    await client.send(UPGRADE)

    response = await client.read_response()
    assert (response.status, response.json["code"]) == (401, "unauthorized")
    assert await server.is_healthy()


@pytest.mark.parametrize(
    ("error", "code"), [(None, 1001), (NotAllowed("no"), 1008), (ValueError("hunter2"), 1011)], ids=str
)
async def test_a_websocket_is_closed_with_a_code(
    start_server: "StartServer", error: Exception | None, code: int
) -> None:
    """The code of the handler, 1008 for a known error, 1011 without details for an unexpected one."""

    async def serve(request: Request, websocket: WebSocket) -> None:
        await websocket.accept()
        if error is not None:
            raise error
        await websocket.close(1001, "going")

    server = await start_server(WebSocketRoute(path="/ws", handler=serve))
    client = await server.connect()
    await client.send(UPGRADE)
    assert (await client.read_response()).status == 101
    while b"\x88" not in client.buffer:  # the close frame; a ping may come first
        client.buffer += await client.stream.receive_some()
    _, _, close = client.buffer.partition(b"\x88")

    assert int.from_bytes(close[1:3], "big") == code
    assert b"hunter2" not in close
    assert len(server.faults) == (code == 1011)
    assert await server.is_healthy()


async def test_a_websocket_handler_is_cancelled_when_its_client_disconnects(start_server: "StartServer") -> None:
    cancelled = trio.Event()

    async def serve(request: Request, websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    server = await start_server(WebSocketRoute(path="/ws", handler=serve))
    async with open_websocket_url(f"ws://127.0.0.1:{server.listener.port}/ws"):
        pass
    await cancelled.wait()
    assert await server.is_healthy()


async def test_a_websocket_client_that_does_not_read_is_disconnected(start_server: "StartServer") -> None:
    """The write timeout applies, although Hypercorn shields its writes and ignores their errors."""
    ended, sent = trio.Event(), 0

    async def send_endlessly(request: Request, websocket: WebSocket) -> None:
        nonlocal sent
        await websocket.accept()
        try:
            while True:
                await websocket.send(bytes(1024 * 1024))
                sent += 1
        finally:
            ended.set()

    server = await start_server(
        WebSocketRoute(path="/ws", handler=send_endlessly), limits=ConnectionLimits(write_stall_seconds=0.1)
    )
    client = await server.connect(receive_buffer=4096)
    await client.send(UPGRADE)
    await ended.wait()
    await server.wait_for_requests(1)
    assert sent < 100
    assert await server.is_healthy()


@pytest.mark.parametrize(
    "headers",
    [
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n",
        b"Connection: Upgrade\r\nConnection: keep-alive\r\nUpgrade: websocket\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate; "
        b"client_max_window_bits=x\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: \xff\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nCookie: \xff\r\n",
    ],
)
async def test_extensions_and_protocols_of_a_handshake_are_ignored(start_server: "StartServer", headers: bytes) -> None:
    """No HTTP/2, and no compression, with which a few bytes could expand to many megabytes."""
    server = await start_server(WebSocketRoute(path="/ws", handler=_accept_and_end))
    client = await server.connect()
    await client.send(
        b"GET /ws HTTP/1.1\r\nHost: here\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + headers + b"\r\n"
    )

    response = await client.read_response()
    assert (response.status, response.headers["upgrade"].lower()) == (101, "websocket")
    assert response.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert not response.headers.keys() & {"sec-websocket-extensions", "sec-websocket-protocol"}
    assert not server.faults


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        (b"Sec-WebSocket-Version: 13\r\n", 400, "bad_handshake"),
        (b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: \xff\r\n", 400, "bad_handshake"),
        (b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YQ==\r\n", 400, "bad_handshake"),
        (b"Sec-WebSocket-Version: 13\r\n" + 2 * (b"Sec-WebSocket-Key: " + b"A" * 22 + b"==\r\n"), 400, "bad_handshake"),
        (b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"A" * 24 + b"\r\n", 400, "bad_handshake"),
        (b"Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: YQ==\r\n", 426, "websocket_version_unknown"),
        (b"Sec-WebSocket-Key: YQ==\r\n", 426, "websocket_version_unknown"),
    ],
)
async def test_an_invalid_handshake_is_refused_as_plain_http(
    start_server: "StartServer", headers: bytes, status: int, code: str
) -> None:
    """With a JSON error; the connection stays usable."""
    server = await start_server(WebSocketRoute(path="/ws", handler=_accept_and_end))
    client = await server.connect()
    await client.send(
        b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + headers + b"\r\n"
    )

    response = await client.read_response()
    assert (response.status, response.json["code"]) == (status, code)
    assert response.headers.get("sec-websocket-version") == ("13" if status == 426 else None)
    assert (await client.post("/echo", b"again")).body == b"again"


async def test_a_connection_is_closed_after_a_handler_refused_its_websocket(start_server: "StartServer") -> None:
    """Hypercorn would read the next request without limits, and with the principal of the first."""

    async def refuse(request: Request, websocket: WebSocket) -> None:
        raise NotAllowed("no")

    server = await start_server(WebSocketRoute(path="/ws", handler=refuse))
    client = await server.connect()
    await client.send(UPGRADE + b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")

    assert (await client.read_response()).status == 403
    assert await client.is_closed()


async def test_invalid_websocket_frames_are_not_reported_as_a_fault(start_server: "StartServer") -> None:
    """The WebSocket ends, also during a write. Repeated, because the timing varies."""

    async def send_endlessly(request: Request, websocket: WebSocket) -> None:
        await websocket.accept()
        while True:
            await websocket.send("x" * 90)

    server = await start_server(WebSocketRoute(path="/ws", handler=send_endlessly), limits=SHORT_LINGER)
    for count in range(1, 21):
        client = await server.connect()
        await client.send(UPGRADE + b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n")
        assert (await client.read_response()).status == 101
        await server.wait_for_requests(count)
    assert not server.faults


async def test_a_websocket_message_over_the_limit_is_refused(start_server: "StartServer") -> None:
    """The client gets a close frame and is disconnected, although it ends neither the message nor the connection."""
    server = await start_server(WebSocketRoute(path="/ws", handler=_accept_and_listen), limits=SHORT_LINGER)
    client = await server.connect()
    await client.send(UPGRADE)
    assert (await client.read_response()).status == 101

    for first_byte in (b"\x01", b"\x00"):
        await client.send(first_byte + b"\xff" + MIB.to_bytes(8, "big") + bytes(4 + MIB))
    while CLOSED_AS_TOO_BIG not in client.buffer:
        client.buffer += await client.stream.receive_some()
    client.buffer = b""
    assert await client.is_closed()
    await server.wait_for_requests(1)
    assert await server.is_healthy()


async def _accept_and_end(request: Request, websocket: WebSocket) -> None:
    await websocket.accept()


async def _accept_and_listen(request: Request, websocket: WebSocket) -> None:
    await websocket.accept()
    while True:
        await websocket.receive()
