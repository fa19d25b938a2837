"""Fixtures for server tests: a real server on a loopback port, and a client that sends raw bytes."""

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
from ductile.web.routing import AnyRoute, Route, RouteTable
from ductile.web.server.limits import ConnectionLimits
from ductile.web.server.listeners import Listener, open_tcp
from ductile.web.server.proxies import NO_PROXIES, TrustedProxies
from ductile.web.server.server import serve
from ductile.web.server.site import AccessLogEntry, Authorize, Site


@frozen
class ClientResponse:
    """A response as received by the client."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@define
class Client:
    """A client connection that sends and reads raw bytes."""

    stream: trio.SocketStream
    buffer: bytes = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def post(self, path: str, body: bytes = b"", *headers: str, method: str = "POST") -> ClientResponse:
        extra = "".join(f"{header}\r\n" for header in headers)
        head = f"{method} {path} HTTP/1.1\r\nHost: here\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)
        return await self.read_response()

    async def get(self, path: str, *headers: str, method: str = "GET") -> ClientResponse:
        extra = "".join(f"{header}\r\n" for header in headers)
        await self.send(f"{method} {path} HTTP/1.1\r\nHost: here\r\n{extra}\r\n".encode("latin-1"))
        return await self.read_response(bodiless=method == "HEAD")

    async def read_response(self, *, bodiless: bool = False) -> ClientResponse:
        """Read the next complete response."""
        while b"\r\n\r\n" not in self.buffer:
            await self._read()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = b""
        if not bodiless and "content-length" in headers:
            body = await self.read(int(headers["content-length"]))
        elif not bodiless and headers.get("transfer-encoding") == "chunked":
            while chunk := await self.read_chunk():
                body += chunk
        return ClientResponse(int(first.split()[1]), headers, body)

    async def read_chunk(self) -> bytes:
        while not (match := re.match(rb"([0-9a-f]+)\r\n", self.buffer)):
            await self._read()
        self.buffer = self.buffer[match.end() :]
        return (await self.read(int(match[1], 16) + 2))[:-2]

    async def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            await self._read()
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    async def is_closed(self) -> bool:
        """Wait until the server closes the connection. Returns False if it sends more data instead."""
        try:
            return not self.buffer and not await self.stream.receive_some()
        except trio.BrokenResourceError:
            return True

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def _read(self) -> None:
        data = await self.stream.receive_some()
        assert data, f"the server closed the connection after {self.buffer!r}"
        self.buffer += data


@define
class Server:
    """A running server with its access log and reported faults."""

    listener: Listener
    stopping: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)
    served: list[AccessLogEntry] = field(factory=list)
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

    def report(self, served: AccessLogEntry) -> None:
        if self.log_is_broken:
            raise RuntimeError("the log is broken")
        self.served.append(served)
        self._reported.set()
        self._reported = trio.Event()

    async def wait_for_requests(self, count: int) -> None:
        """Wait until the access log has this many entries."""
        while len(self.served) < count:
            await self._reported.wait()

    async def is_healthy(self, *, source: str = "") -> bool:
        """True if a new connection is served normally."""
        client = await self.connect(source=source)
        response = await client.post("/echo", b"ping")
        await client.aclose()
        return response.status == 200 and response.body == b"ping"

    async def accepts_connections(self) -> bool:
        """True if a new connection is not rejected."""
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


def allow_all(route: AnyRoute, request: Request) -> Request:
    return request


@pytest.fixture
async def start_server(nursery: trio.Nursery) -> AsyncIterator[StartServer]:
    """Start servers with `POST /echo` (bypasses Quart), `PUT /quart/echo` (through Quart) and the given routes."""
    servers: list[Server] = []

    async def start(
        *routes: AnyRoute,
        limits: ConnectionLimits | None = None,
        grace_seconds: float = 5.0,
        listener: Listener | None = None,
        authorize: Authorize = allow_all,
        proxies: TrustedProxies = NO_PROXIES,
        nursery: trio.Nursery = nursery,
    ) -> Server:
        server = Server(listener or open_tcp("127.0.0.1:0"))
        servers.append(server)
        site = Site(
            table=RouteTable([ECHO, QUART_ECHO, *routes]),
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
    """Build routes that respond with a description of the request."""
    return partial(Route, handler=describe)
