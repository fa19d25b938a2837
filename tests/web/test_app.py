"""Quart-Trio and Hypercorn: the versions we know, and WebSockets through them."""

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import trio
from attrs import evolve
from trio_websocket import open_websocket_url

from ductile.errors import NotAllowed
from ductile.web.http1 import Limits
from ductile.web.message import Channel, Request, Response, refusal_response
from ductile.web.routes import AnyRoute, ChannelRoute

if TYPE_CHECKING:
    from tests.web.conftest import StartServer

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize(
    ("package", "known"),
    [("hypercorn", "0.18.0"), ("quart-trio", "0.12.0"), ("quart", "0.22."), ("h11", "0.16."), ("wsproto", "1.3.")],
)
def test_the_hosts_are_the_ones_whose_inner_workings_we_use(package: str, known: str) -> None:
    """`web/app.py` builds on internals: before a pin moves, that file is read against the new version."""
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
    async with open_websocket_url(f"ws://127.0.0.1:{server.door.port}/tree/7/ws?kind=a") as websocket:
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
    async with open_websocket_url(f"ws://127.0.0.1:{server.door.port}/ws"):
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

    server = await start_server(ChannelRoute(path="/ws", handler=shout), limits=Limits(write_stall_seconds=0.1))
    client = await server.connect(receive_buffer=4096)
    await client.send(UPGRADE)
    await ended.wait()
    await server.has_served(1)
    assert sent < 100
    assert await server.is_healthy()


async def _accept_and_end(request: Request, channel: Channel) -> None:
    await channel.accept()
