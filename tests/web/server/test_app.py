"""Quart-Trio and Hypercorn: the versions we know, and WebSockets through them."""

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import trio
from attrs import evolve
from trio_websocket import open_websocket_url

from ductile.core.errors import NotAllowed
from ductile.web.messages import Channel, Request, Response, refusal_response
from ductile.web.routes import MIB, AnyRoute, ChannelRoute
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
def test_the_hosts_are_the_ones_whose_inner_workings_we_use(package: str, known: str) -> None:
    """`web/connection.py` builds on internals: before a pin moves, that file is read against the new version."""
    assert version(package).startswith(known)


async def test_a_websocket_is_served_by_its_route(start_server: "StartServer") -> None:
    """Path parameters, query and principal arrive; messages go both ways."""
    seen: list[Request] = []

    async def converse(request: Request, channel: Channel) -> None:
        seen.append(request)
        await channel.accept()
        while True:
            await channel.send(await channel.receive())

    server = await start_server(
        ChannelRoute(path="/tree/{id}/ws", handler=converse),
        authorize=lambda _, request: evolve(request, principal="me"),
    )
    async with open_websocket_url(f"ws://127.0.0.1:{server.listener.port}/tree/7/ws?kind=a") as websocket:
        await websocket.send_message("text")
        assert await websocket.get_message() == "text"
        await websocket.send_message(b"bytes")
        assert await websocket.get_message() == b"bytes"

    assert (seen[0].params, seen[0].query, seen[0].principal) == ({"id": "7"}, {"kind": ("a",)}, "me")
    await server.has_served(1)
    assert (server.served[0].status, server.served[0].path) == (101, "/tree/7/ws")
    assert not server.faults
    assert await server.is_healthy()


async def test_a_websocket_without_the_right_is_refused_as_plain_http(start_server: "StartServer") -> None:
    """The refusal comes before the upgrade, with its own status."""

    def nobody(route: AnyRoute, request: Request) -> Request | Response:
        return refusal_response(401, "unauthorized", "no", hint="knock") if isinstance(route, ChannelRoute) else request

    server = await start_server(ChannelRoute(path="/ws", handler=_accept_and_end), authorize=nobody)
    client = await server.connect()
    await client.send(UPGRADE)

    answer = await client.answer()
    assert (answer.status, answer.json["code"]) == (401, "unauthorized")
    assert await server.is_healthy()


@pytest.mark.parametrize(
    ("error", "code"), [(None, 1001), (NotAllowed("no"), 1008), (ValueError("hunter2"), 1011)], ids=str
)
async def test_a_conversation_is_closed_with_a_code(
    start_server: "StartServer", error: Exception | None, code: int
) -> None:
    """The handler's own, or policy for a known error; our own mistake is reported here and closed without a word."""

    async def converse(request: Request, channel: Channel) -> None:
        await channel.accept()
        if error is not None:
            raise error
        await channel.close(1001, "going")

    server = await start_server(ChannelRoute(path="/ws", handler=converse))
    client = await server.connect()
    await client.send(UPGRADE)
    assert (await client.answer()).status == 101
    while b"\x88" not in client.seen:  # the close frame; a ping may come first
        client.seen += await client.stream.receive_some()
    _, _, close = client.seen.partition(b"\x88")

    assert int.from_bytes(close[1:3], "big") == code
    assert b"hunter2" not in close
    assert len(server.faults) == (code == 1011)
    assert await server.is_healthy()


async def test_a_conversation_ends_when_its_client_leaves(start_server: "StartServer") -> None:
    """The handler is cancelled, wherever it waits."""
    cancelled = trio.Event()

    async def converse(request: Request, channel: Channel) -> None:
        await channel.accept()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    server = await start_server(ChannelRoute(path="/ws", handler=converse))
    async with open_websocket_url(f"ws://127.0.0.1:{server.listener.port}/ws"):
        pass
    await cancelled.wait()
    assert await server.is_healthy()


async def test_a_listener_that_does_not_read_is_given_up(start_server: "StartServer") -> None:
    """A stalled WebSocket ends like any stalled answer, though Hypercorn shields its writes and then ignores them."""
    ended, sent = trio.Event(), 0

    async def shout(request: Request, channel: Channel) -> None:
        nonlocal sent
        await channel.accept()
        try:
            while True:
                await channel.send(bytes(1024 * 1024))
                sent += 1
        finally:
            ended.set()

    server = await start_server(
        ChannelRoute(path="/ws", handler=shout), limits=ConnectionLimits(write_stall_seconds=0.1)
    )
    client = await server.connect(receive_buffer=4096)
    await client.send(UPGRADE)
    await ended.wait()
    await server.has_served(1)
    assert sent < 100
    assert await server.is_healthy()


@pytest.mark.parametrize(
    "asked",
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
async def test_what_else_a_handshake_offers_is_not_taken_up(start_server: "StartServer", asked: bytes) -> None:
    """A WebSocket and nothing more, whatever else Hypercorn would read into the head: no HTTP/2, and no compression,
    with which a few bytes of a client become as many megabytes here as it likes."""
    server = await start_server(ChannelRoute(path="/ws", handler=_accept_and_end))
    client = await server.connect()
    await client.send(
        b"GET /ws HTTP/1.1\r\nHost: here\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + asked + b"\r\n"
    )

    answer = await client.answer()
    assert (answer.status, answer.headers["upgrade"].lower()) == (101, "websocket")
    assert answer.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert not answer.headers.keys() & {"sec-websocket-extensions", "sec-websocket-protocol"}
    assert not server.faults


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        (b"Sec-WebSocket-Version: 13\r\n", 400, "bad_handshake"),
        (b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: \xff\r\n", 400, "bad_handshake"),
        (b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YQ==\r\nSec-WebSocket-Key: YQ==\r\n", 400, "bad_handshake"),
        (b"Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: YQ==\r\n", 426, "websocket_version_unknown"),
        (b"Sec-WebSocket-Key: YQ==\r\n", 426, "websocket_version_unknown"),
    ],
)
async def test_a_handshake_that_is_none_is_refused_as_plain_http(
    start_server: "StartServer", asked: bytes, status: int, code: str
) -> None:
    """At once, in the shape of every error, and the connection is as good as before."""
    server = await start_server(ChannelRoute(path="/ws", handler=_accept_and_end))
    client = await server.connect()
    await client.send(
        b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + asked + b"\r\n"
    )

    answer = await client.answer()
    assert (answer.status, answer.json["code"]) == (status, code)
    assert answer.headers.get("sec-websocket-version") == ("13" if status == 426 else None)
    assert (await client.post("/echo", b"again")).body == b"again"


async def test_a_connection_whose_websocket_was_refused_carries_nothing_else(start_server: "StartServer") -> None:
    """What would follow it would be read by Hypercorn, past our limits, and answered under the rights of the first."""

    async def refuse(request: Request, channel: Channel) -> None:
        raise NotAllowed("no")

    server = await start_server(ChannelRoute(path="/ws", handler=refuse))
    client = await server.connect()
    await client.send(UPGRADE + b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")

    assert (await client.answer()).status == 403
    assert await client.is_closed()


async def test_a_client_that_speaks_no_websocket_is_no_fault_of_ours(start_server: "StartServer") -> None:
    """Its conversation ends, also in the middle of what we say; tried often, since it may end between two."""

    async def talk(request: Request, channel: Channel) -> None:
        await channel.accept()
        while True:
            await channel.send("x" * 90)

    server = await start_server(ChannelRoute(path="/ws", handler=talk), limits=SHORT_LINGER)
    for count in range(1, 21):
        client = await server.connect()
        await client.send(UPGRADE + b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n")
        assert (await client.answer()).status == 101
        await server.has_served(count)
    assert not server.faults


async def test_a_message_that_never_ends_is_not_kept(start_server: "StartServer") -> None:
    """Who sends more than the limit is told so and cut off, though it neither ends the message nor says goodbye."""
    server = await start_server(ChannelRoute(path="/ws", handler=_accept_and_listen), limits=SHORT_LINGER)
    client = await server.connect()
    await client.send(UPGRADE)
    assert (await client.answer()).status == 101

    for first_byte in (b"\x01", b"\x00"):
        await client.send(first_byte + b"\xff" + MIB.to_bytes(8, "big") + bytes(4 + MIB))
    while CLOSED_AS_TOO_BIG not in client.seen:
        client.seen += await client.stream.receive_some()
    client.seen = b""
    assert await client.is_closed()
    await server.has_served(1)
    assert await server.is_healthy()


async def _accept_and_end(request: Request, channel: Channel) -> None:
    await channel.accept()


async def _accept_and_listen(request: Request, channel: Channel) -> None:
    await channel.accept()
    while True:
        await channel.receive()
