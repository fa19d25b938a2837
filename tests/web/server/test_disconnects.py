"""A handler that waits is cancelled when its own client leaves, and for no other reason."""

from typing import TYPE_CHECKING

import trio
import trio.testing
from attrs import define, field

from ductile.web.messages import Channel, Request, Response
from ductile.web.routes import ChannelRoute, Route
from tests.web.server.test_server import UPGRADE

if TYPE_CHECKING:
    from tests.web.conftest import StartServer

ASK = "GET /wait/{} HTTP/1.1\r\nHost: here\r\n\r\n"


@define
class Waiters:
    """A handler that waits until it may answer, and who is in it."""

    inside: set[str] = field(factory=set)
    may_answer: trio.Event = field(factory=trio.Event)

    @property
    def route(self) -> Route:
        return Route(method="GET", path="/wait/{name}", handler=self.wait, waits=True)

    async def wait(self, request: Request) -> Response:
        name = request.params["name"]
        self.inside.add(name)
        try:
            await self.may_answer.wait()
        finally:
            self.inside.remove(name)
        return Response(body=name.encode())

    async def are(self, *names: str) -> None:
        with trio.fail_after(5):
            while self.inside != set(names):
                await trio.testing.wait_all_tasks_blocked()


async def test_only_the_client_that_leaves_ends_its_waiting(start_server: "StartServer") -> None:
    """Others wait on and get their answers."""
    waiters = Waiters()
    server = await start_server(waiters.route)
    clients = {name: await server.connect() for name in ("a", "b", "c")}
    for name, client in clients.items():
        await client.send(ASK.format(name).encode())
    await waiters.are("a", "b", "c")

    await clients["b"].aclose()
    await waiters.are("a", "c")
    waiters.may_answer.set()

    assert [(await clients[name].answer()).body for name in ("a", "c")] == [b"a", b"c"]


async def test_a_client_may_leave_during_any_of_its_requests(start_server: "StartServer") -> None:
    """A connection that has waited before is still watched, and nobody in its place later is confused with it."""
    for _ in range(3):  # the kernel gives the next connection the same descriptor
        waiters = Waiters()
        server = await start_server(waiters.route)
        client = await server.connect()
        waiters.may_answer.set()
        assert (await client.get("/wait/first")).body == b"first"
        waiters.may_answer = trio.Event()
        await client.send(ASK.format("second").encode())
        await waiters.are("second")
        await client.aclose()
        await waiters.are()
        assert not server.faults


async def test_what_a_client_asked_for_behind_a_request_that_it_gave_up_is_not_answered(
    start_server: "StartServer",
) -> None:
    """Who closes only its sending side reads on, and would take the second answer for the first."""

    async def hello(request: Request) -> Response:
        return Response(body=b"second")

    waiters = Waiters()
    server = await start_server(waiters.route, Route(method="GET", path="/hello", handler=hello))
    client = await server.connect()
    await client.send((ASK.format("first") + "GET /hello HTTP/1.1\r\nHost: here\r\n\r\n").encode())
    await waiters.are("first")

    await client.stream.send_eof()
    heard = b""
    with trio.fail_after(5):
        while data := await client.stream.receive_some():
            heard += data

    assert heard == b""
    assert [served.status for served in server.served] == [0]


async def test_a_connection_that_has_waited_can_become_a_websocket(start_server: "StartServer") -> None:
    """Whoever owns the socket from then on may close it at any time."""

    async def greet(request: Request, channel: Channel) -> None:
        await channel.accept()
        await channel.send("hello")

    waiters = Waiters()
    waiters.may_answer.set()
    server = await start_server(waiters.route, ChannelRoute(path="/ws", handler=greet))
    client = await server.connect()
    assert (await client.get("/wait/first")).body == b"first"
    await client.send(UPGRADE)
    assert (await client.answer()).status == 101
    while b"hello" not in client.seen:
        client.seen += await client.stream.receive_some()
    await client.aclose()
    with trio.fail_after(5):
        await server.has_served(2)

    assert not server.faults
    assert await server.is_healthy()
