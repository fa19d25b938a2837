"""A real server on a loopback port, and a client that speaks raw bytes to it."""

import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
import trio
from attrs import define, field, frozen

from ductile.web.messages import Request, Response, json_response
from ductile.web.routes import AnyRoute, Route, Table
from ductile.web.server.limits import ConnectionLimits
from ductile.web.server.listeners import Listener, open_tcp
from ductile.web.server.proxies import NO_PROXIES, TrustedProxies
from ductile.web.server.server import serve
from ductile.web.site import Authorize, Served, Site


@frozen
class Answer:
    """What came back for one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@define
class Client:
    """A connection whose every byte the test decides."""

    stream: trio.SocketStream
    seen: bytes = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def post(self, path: str, body: bytes = b"", *headers: str, method: str = "POST") -> Answer:
        extra = "".join(f"{header}\r\n" for header in headers)
        head = f"{method} {path} HTTP/1.1\r\nHost: here\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)
        return await self.answer()

    async def get(self, path: str, *headers: str, method: str = "GET") -> Answer:
        extra = "".join(f"{header}\r\n" for header in headers)
        await self.send(f"{method} {path} HTTP/1.1\r\nHost: here\r\n{extra}\r\n".encode("latin-1"))
        return await self.answer(bodiless=method == "HEAD")

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """The next answer, complete."""
        while b"\r\n\r\n" not in self.seen:
            await self._read()
        head, _, self.seen = self.seen.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = b""
        if not bodiless and "content-length" in headers:
            body = await self.take(int(headers["content-length"]))
        elif not bodiless and headers.get("transfer-encoding") == "chunked":
            while piece := await self.chunk():
                body += piece
        return Answer(int(first.split()[1]), headers, body)

    async def chunk(self) -> bytes:
        while not (match := re.match(rb"([0-9a-f]+)\r\n", self.seen)):
            await self._read()
        self.seen = self.seen[match.end() :]
        return (await self.take(int(match[1], 16) + 2))[:-2]

    async def take(self, count: int) -> bytes:
        while len(self.seen) < count:
            await self._read()
        data, self.seen = self.seen[:count], self.seen[count:]
        return data

    async def is_closed(self) -> bool:
        """Waits until the server closes this connection; False if it says something more instead."""
        try:
            return not self.seen and not await self.stream.receive_some()
        except trio.BrokenResourceError:
            return True

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def _read(self) -> None:
        data = await self.stream.receive_some()
        assert data, f"the server closed the connection after {self.seen!r}"
        self.seen += data


@define
class Server:
    """A running server and everything it has reported."""

    listener: Listener
    stopping: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)
    served: list[Served] = field(factory=list)
    faults: list[BaseException] = field(factory=list)
    log_is_broken: bool = False
    clients: list[Client] = field(factory=list)
    _reported: trio.Event = field(factory=trio.Event)

    async def connect(self, *, receive_buffer: int | None = None, source: str = "") -> Client:
        sock = trio.socket.socket(self.listener.sock.family, socket.SOCK_STREAM)
        if source:
            await sock.bind((source, 0))
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await sock.connect(str(self.listener.path) if self.listener.path else ("127.0.0.1", self.listener.port))
        except OSError:
            sock.close()
            raise
        self.clients.append(Client(trio.SocketStream(sock)))
        return self.clients[-1]

    def report(self, served: Served) -> None:
        if self.log_is_broken:
            raise RuntimeError("the log is broken")
        self.served.append(served)
        self._reported.set()
        self._reported = trio.Event()

    async def has_served(self, count: int) -> None:
        """Waits until that many exchanges have ended."""
        while len(self.served) < count:
            await self._reported.wait()

    async def is_healthy(self, *, source: str = "") -> bool:
        """Whether a newcomer is served as if nothing had happened."""
        client = await self.connect(source=source)
        answer = await client.post("/echo", b"fine")
        await client.aclose()
        return answer.status == 200 and answer.body == b"fine"

    async def has_room(self) -> bool:
        """Whether a newcomer is let in, whatever it is told then."""
        client = await self.connect()
        try:
            return (await client.get("/nothing")).status == 404
        except trio.BrokenResourceError:
            return False
        finally:
            await client.aclose()


StartServer: TypeAlias = Callable[..., Awaitable[Server]]


async def echo(request: Request) -> Response:
    return Response(body=request.body)


async def describe(request: Request) -> Response:
    return json_response(
        {"method": request.method, "path": request.path, "params": dict(request.params), "peer": request.peer}
    )


ECHO = Route(method="POST", path="/echo", handler=echo, max_body=4096)
QUART_ECHO = Route(method="PUT", path="/quart/echo", handler=echo, max_body=4096)


def everyone(route: AnyRoute, request: Request) -> Request:
    return request


@pytest.fixture
async def start_server(nursery: trio.Nursery) -> AsyncIterator[StartServer]:
    """Starts a server with `POST /echo` (in front of Quart), `PUT /quart/echo` (through it) and a test's routes."""
    servers: list[Server] = []

    async def start(
        *routes: AnyRoute,
        limits: ConnectionLimits | None = None,
        grace_seconds: float = 5.0,
        listener: Listener | None = None,
        authorize: Authorize = everyone,
        proxies: TrustedProxies = NO_PROXIES,
        nursery: trio.Nursery = nursery,
    ) -> Server:
        server = Server(listener or open_tcp("127.0.0.1:0"))
        servers.append(server)
        site = Site(
            table=Table([ECHO, QUART_ECHO, *routes]),
            authorize=authorize,
            trusted_proxies=lambda: proxies,
            on_request=server.report,
            on_fault=lambda error, _where: server.faults.append(error),
        )

        async def run(task_status: trio.TaskStatus[tuple[str, ...]]) -> None:
            await serve(
                site,
                [server.listener],
                stopping=server.stopping,
                limits=limits or ConnectionLimits(),
                grace_seconds=grace_seconds,
                task_status=task_status,
            )
            server.ended.set()

        assert await nursery.start(run) == (server.listener.address,)
        return server

    yield start
    for client in (client for server in servers for client in server.clients):
        client.stream.socket.close()


@pytest.fixture
def described() -> Callable[..., Route]:
    """Builds a route that answers with what it was asked."""
    return partial(Route, handler=describe)
