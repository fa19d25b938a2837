"""The stream client against services that disconnect, refuse or send invalid messages."""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

from ductile.cli.base.client import Client
from ductile.cli.base.stream_client import Event, Follower, Lost
from ductile.core.errors import DuctileError, NotAllowed, ServiceUnreachable

Serve = Callable[[WebSocketRequest], Awaitable[None]]
ROWS = {1: ["job.enqueued"], 2: ["job.started"], 3: ["job.preflight", "plugin.spawned", "job.completed"], 4: ["gap"]}


def messages(since: int) -> list[str]:
    """Return the rows after a position as the stream sends them: only the last event of a row has its position."""
    return [
        message(name, seq if name == names[-1] else seq - 1, {} if name == "gap" else {"seq": seq})
        for seq, names in ROWS.items()
        for name in names
        if seq > since
    ]


def message(name: str, seq: int, data: dict[str, Any]) -> str:
    return json.dumps({"seq": seq, "at": "2026-02-08T09:30:00.000000Z", "event": name, "data": data})


def since_of(request: WebSocketRequest) -> int:
    return int(parse_qs(urlsplit(request.path).query)["since"][0])


async def opened(request: WebSocketRequest) -> WebSocketConnection:
    socket = await request.accept()
    await socket.send_message(message("stream.opened", since_of(request), {"position": since_of(request)}))
    return socket


async def follow(serve: Serve, hear: Callable[[list[Event]], Awaitable[None]] | None = None) -> list[str | None]:
    """Follow what `serve` sends until row 4, and return the connection states."""
    noticed: list[str | None] = []

    async def take(row: list[Event]) -> None:
        if hear is not None:
            await hear(row)
        if row[-1]["seq"] == max(ROWS):
            nursery.cancel_scope.cancel()

    async def answer(request: WebSocketRequest) -> None:
        with suppress(ConnectionClosed):  # the client may leave in the middle of it
            await serve(request)

    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve_websocket, answer, "127.0.0.1", 0, None))
        service = Client(url=f"http://127.0.0.1:{server.port}", key="a-token")
        nursery.start_soon(Follower(service=service, on_row=take, on_connection=noticed.append, position=0).follow)
    return noticed


async def test_a_row_is_delivered_once_and_whole_across_reconnects() -> None:
    heard: list[list[str]] = []
    connections = 0

    async def serve(request: WebSocketRequest) -> None:
        nonlocal connections
        connections += 1
        socket = await opened(request)
        for text in messages(since_of(request))[:connections]:
            await socket.send_message(text)
        if len(heard) < len(ROWS):
            await socket.aclose(1001, "the service is stopping")

    async def hear(row: list[Event]) -> None:
        heard.append([event["event"] for event in row])

    noticed = await follow(serve, hear)

    assert heard == list(ROWS.values())
    assert connections >= 3
    assert noticed[:3] == [None, "the service is stopping", None]


async def test_a_row_is_delivered_again_after_lost() -> None:
    """The callback may lose the connection while it handles a row."""
    tries: list[int] = []

    async def serve(request: WebSocketRequest) -> None:
        socket = await opened(request)
        for text in messages(since_of(request)):
            await socket.send_message(text)
        await socket.get_message()

    async def hear(row: list[Event]) -> None:
        tries.append(row[-1]["seq"])
        if tries.count(2) == 1 and tries[-1] == 2:
            raise Lost("gone meanwhile")

    noticed = await follow(serve, hear)

    assert tries == [1, 2, 2, 3, 4]
    assert noticed == [None, "gone meanwhile", None]


async def test_a_busy_service_is_retried() -> None:
    """It is reported once."""
    answers = iter([503, 503])

    async def serve(request: WebSocketRequest) -> None:
        status = next(answers, None)
        if status is not None:
            await request.reject(status, body=b'{"error": "too many readers"}')
            return
        socket = await opened(request)
        for text in messages(0):
            await socket.send_message(text)
        await socket.get_message()

    assert await follow(serve) == ["too many readers", None]


async def reject(request: WebSocketRequest) -> None:
    await request.reject(401, body=b'{"error": "invalid token", "code": "unauthorized"}')


async def close_for_policy(request: WebSocketRequest) -> None:
    await (await opened(request)).aclose(1008, "the token no longer has access")


async def send_garbage(request: WebSocketRequest) -> None:
    socket = await request.accept()
    await socket.send_message("hello?")
    await socket.get_message()


@pytest.mark.parametrize(
    ("serve", "kind", "words"),
    [
        (reject, NotAllowed, "invalid token"),
        (close_for_policy, NotAllowed, "the token no longer has access"),
        (send_garbage, ServiceUnreachable, "not the event stream"),
    ],
)
async def test_permanent_failures_are_errors(serve: Serve, kind: type[DuctileError], words: str) -> None:
    """A refusal, a revoked token, a server that is not Ductile."""
    with pytest.RaisesGroup(pytest.RaisesExc(kind, match=words), flatten_subgroups=True):
        await follow(serve)
