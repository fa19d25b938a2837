"""A waiting handler is cancelled when its own client disconnects, and only then."""

from typing import TYPE_CHECKING

import trio
import trio.testing
from attrs import define, field

from ductile.web.messages import Request, Response, WebSocket
from ductile.web.routing import Route, WebSocketRoute
from tests.web.server.test_server import UPGRADE

if TYPE_CHECKING:
    from tests.web.conftest import StartServer

REQUEST = "GET /wait/{} HTTP/1.1\r\nHost: here\r\n\r\n"


@define
class WaitingHandler:
    """A handler that waits until it may respond, and the names of its requests in progress."""

    active: set[str] = field(factory=set)
    may_respond: trio.Event = field(factory=trio.Event)

    @property
    def route(self) -> Route:
        return Route(method="GET", path="/wait/{name}", handler=self.wait, waits=True)

    async def wait(self, request: Request) -> Response:
        name = request.params["name"]
        self.active.add(name)
        try:
            await self.may_respond.wait()
        finally:
            self.active.remove(name)
        return Response(body=name.encode())

    async def until_active(self, *names: str) -> None:
        with trio.fail_after(5):
            while self.active != set(names):
                await trio.testing.wait_all_tasks_blocked()


async def test_a_disconnect_cancels_only_the_handler_of_its_client(start_server: "StartServer") -> None:
    """Other handlers continue and respond."""
    waiting = WaitingHandler()
    server = await start_server(waiting.route)
    clients = {name: await server.connect() for name in ("a", "b", "c")}
    for name, client in clients.items():
        await client.send(REQUEST.format(name).encode())
    await waiting.until_active("a", "b", "c")

    await clients["b"].aclose()
    await waiting.until_active("a", "c")
    waiting.may_respond.set()

    assert [(await clients[name].read_response()).body for name in ("a", "c")] == [b"a", b"c"]


async def test_a_disconnect_is_detected_in_every_request_of_a_connection(start_server: "StartServer") -> None:
    """Also if a later connection reuses the file descriptor."""
    for _ in range(3):  # the next connection gets the same file descriptor
        waiting = WaitingHandler()
        server = await start_server(waiting.route)
        client = await server.connect()
        waiting.may_respond.set()
        assert (await client.get("/wait/first")).body == b"first"
        waiting.may_respond = trio.Event()
        await client.send(REQUEST.format("second").encode())
        await waiting.until_active("second")
        await client.aclose()
        await waiting.until_active()
        assert not server.faults


async def test_a_request_pipelined_after_an_abandoned_one_is_not_answered(
    start_server: "StartServer",
) -> None:
    """A client that closes only its sending side would take the second response for the first."""

    async def hello(request: Request) -> Response:
        return Response(body=b"second")

    waiting = WaitingHandler()
    server = await start_server(waiting.route, Route(method="GET", path="/hello", handler=hello))
    client = await server.connect()
    await client.send((REQUEST.format("first") + "GET /hello HTTP/1.1\r\nHost: here\r\n\r\n").encode())
    await waiting.until_active("first")

    await client.stream.send_eof()
    received = b""
    with trio.fail_after(5):
        while data := await client.stream.receive_some():
            received += data

    assert received == b""
    assert [served.status for served in server.served] == [0]


async def test_a_connection_can_be_upgraded_after_a_waiting_request(start_server: "StartServer") -> None:
    """The disconnect watcher must not interfere with the WebSocket."""

    async def greet(request: Request, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send("hello")

    waiting = WaitingHandler()
    waiting.may_respond.set()
    server = await start_server(waiting.route, WebSocketRoute(path="/ws", handler=greet))
    client = await server.connect()
    assert (await client.get("/wait/first")).body == b"first"
    await client.send(UPGRADE)
    assert (await client.read_response()).status == 101
    while b"hello" not in client.buffer:
        client.buffer += await client.stream.receive_some()
    await client.aclose()
    with trio.fail_after(5):
        await server.wait_for_requests(2)

    assert not server.faults
    assert await server.is_healthy()
