"""The server: connection limits, isolation of connections, and shutdown."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from attrs import define, field

from ductile.web.messages import Request, Response, WebSocket
from ductile.web.routing import Route, WebSocketRoute
from ductile.web.server.limits import ConnectionLimiter, ConnectionLimits, ConnectionStage, GuardedStream
from ductile.web.server.listeners import open_unix
from ductile.web.server.proxies import parse_proxies

if TYPE_CHECKING:
    from tests.web.conftest import Client, Server, StartServer

BOTH_PATHS = pytest.mark.parametrize("method", ["POST", "GET"], ids=["direct", "quart"])
MANY_REQUESTS = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n" * 2000
MORE_THAN_READ_AHEAD = 3 * MANY_REQUESTS
MORE_THAN_KERNEL_BUFFERS = 32 * 1024 * 1024
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_a_unix_socket_is_served_and_removed(start_server: "StartServer", tmp_path: Path) -> None:
    """The peer of a unix socket is `unix`."""
    path = tmp_path / "ductile.sock"
    server = await start_server(listener=open_unix(path))

    assert await server.is_healthy()
    assert server.served[0].peer == "unix"
    server.stopping.set()
    await server.ended.wait()
    assert not path.exists()


async def test_a_connection_over_the_limit_gets_503(start_server: "StartServer") -> None:
    """Requests in progress keep their connections. A new connection is accepted when one of them has ended."""
    work = BlockingHandler()
    server = await start_server(work.route, limits=ConnectionLimits(connections=2))
    busy = [await work.begin(server) for _ in range(2)]
    refused = await server.connect()

    assert (await refused.read_response()).json["code"] == "too_many_connections"
    assert await refused.is_closed()
    assert [served.status for served in server.served] == [503]
    work.finish.set()
    for client in busy:
        assert (await client.read_response()).body == b"done"
    assert await server.is_healthy()


async def test_the_connections_of_one_peer_are_limited(start_server: "StartServer", tmp_path: Path) -> None:
    """The limit of one address is lower than the total limit. The local socket is exempt."""
    limits, work = ConnectionLimits(connections=3, connections_per_peer=1), BlockingHandler()
    server = await start_server(work.route, limits=limits)
    await work.begin(server)
    refused = await server.connect()
    assert (await refused.read_response()).status == 503
    assert await server.is_healthy(source="127.0.0.2")

    local = await start_server(work.route, limits=limits, listener=open_unix(tmp_path / "s"))
    await work.begin(local)
    assert await local.is_healthy()


async def test_at_the_limit_the_longest_idle_connection_is_evicted(start_server: "StartServer") -> None:
    """A connection with a request in progress is not evicted."""
    work = BlockingHandler()
    server = await start_server(work.route, limits=ConnectionLimits(connections=3, idle_yields_after_seconds=0.0))
    busy = await work.begin(server)
    idle, fresh = await connect_idle(server), await connect_idle(server)

    assert await server.is_healthy()
    assert await idle.is_closed()
    assert (await fresh.get("/nothing")).status == 404
    work.finish.set()
    assert (await busy.read_response()).body == b"done"


@pytest.mark.parametrize(
    "sent", [b"", b"POST /ec", b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nhalf"],
    ids=["nothing", "half a head", "half a body"],
)  # fmt: skip
@pytest.mark.parametrize(
    "limits", [ConnectionLimits(), ConnectionLimits(connections_per_peer=256)], ids=["one peer", "all"]
)
async def test_incomplete_requests_do_not_block_new_clients(
    start_server: "StartServer", sent: bytes, limits: ConnectionLimits
) -> None:
    """Regression: with 256 incomplete bodies, or 64 from one address, every other client got a 503."""
    server = await start_server(limits=limits)
    for _ in range(limits.connections):
        client = await server.connect()
        await client.send(sent)

    for _ in range(20):
        assert await server.is_healthy()


async def test_clients_that_do_not_read_do_not_block_new_clients(start_server: "StartServer") -> None:
    """Regression: a client that did not read its pipelined responses kept its slot for 30 s."""
    limits = ConnectionLimits(connections=3, expected_bytes_per_second=1024 * 1024)
    work = BlockingHandler()
    server = await start_server(work.route, limits=limits)
    busy = await work.begin(server)
    stalled = [await server.connect(receive_buffer=4096) for _ in range(2)]
    for client in stalled:
        await client.send(MANY_REQUESTS)
    await trio.testing.wait_all_tasks_blocked(0.1)

    for _ in range(3):
        assert await server.is_healthy()
    work.finish.set()
    assert (await busy.read_response()).body == b"done"
    assert not server.faults


@pytest.mark.parametrize("sent", [MANY_REQUESTS, MORE_THAN_READ_AHEAD], ids=["read ahead", "more"])
async def test_pipelined_requests_are_dropped_when_the_client_disconnects(
    start_server: "StartServer", sent: bytes
) -> None:
    """Regression: thousands of pipelined requests were processed after the client had disconnected."""
    server = await start_server(grace_seconds=60)
    client = await server.connect(receive_buffer=4096)
    await client.send(sent)
    await trio.testing.wait_all_tasks_blocked(0.1)
    answered = len(server.served)
    client.stream.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # SO_LINGER 0: close with a reset
    client.stream.socket.close()
    await trio.testing.wait_all_tasks_blocked(0.1)

    assert answered < MANY_REQUESTS.count(b"GET")
    assert len(server.served) <= answered + 2
    assert not server.faults
    with trio.fail_after(2):  # nothing of the connection is left
        server.stopping.set()
        await server.ended.wait()


async def test_a_client_evicted_while_sending_gets_503_with_retry_after(start_server: "StartServer") -> None:
    """Webhook senders repeat a delivery after a 503."""
    server = await start_server(limits=ConnectionLimits(connections=1))
    slow = await server.connect()
    await slow.send(b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nhalf")
    await trio.testing.wait_all_tasks_blocked()

    assert await server.is_healthy()
    response = await slow.read_response()
    assert (response.status, response.json["code"]) == (503, "too_many_connections")
    assert "retry-after" in response.headers
    assert await slow.is_closed()


async def test_a_request_that_completes_during_eviction_gets_its_response() -> None:
    """A 503 would make the sender repeat it. Afterwards the connection is closed."""
    limiter = ConnectionLimiter(ConnectionLimits(connections=1))
    ours, theirs = trio.socket.socketpair()
    sender = GuardedStream(trio.SocketStream(ours), "192.0.2.1", ConnectionLimits())
    assert limiter.admit(sender)
    sender.enter(ConnectionStage.BODY)
    assert limiter.admit(guarded_stream())
    sender.enter(ConnectionStage.HANDLING)  # the rest of the body had arrived
    with trio.move_on_after(0.05) as waiting:
        await sender.receive_some()
    assert waiting.cancelled_caught
    sender.enter(ConnectionStage.IDLE)
    assert await sender.receive_some() == b""
    ours.close()
    theirs.close()


async def test_an_evicted_connection_does_not_finish_its_write() -> None:
    """Its slot is taken, and uncounted connections must not accumulate."""
    limiter = ConnectionLimiter(ConnectionLimits(connections=1))
    ours, theirs = trio.socket.socketpair()
    evicted = GuardedStream(trio.SocketStream(ours), "192.0.2.1", ConnectionLimits())
    assert limiter.admit(evicted)
    evicted.enter(ConnectionStage.BODY)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_broken_write, evicted)
            await trio.testing.wait_all_tasks_blocked()
            assert limiter.admit(guarded_stream())
    assert evicted.is_broken
    theirs.close()


async def expect_broken_write(stream: GuardedStream) -> None:
    with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
        await stream.send_all(bytes(MORE_THAN_KERNEL_BUFFERS))


async def test_eviction_starts_with_idle_then_slowest_connections() -> None:
    """A connection whose request is being handled is not evicted."""
    now, rate = trio.current_time(), ConnectionLimits().expected_bytes_per_second
    limiter = ConnectionLimiter(ConnectionLimits(connections=6))
    expected = [
        ("idle for long", ConnectionStage.IDLE, 9.0, 0),
        ("idle", ConnectionStage.IDLE, 2.0, 0),
        ("stalled", ConnectionStage.BODY, 8.0, 10),
        ("slow", ConnectionStage.HEAD, 5.0, rate),
        ("quick", ConnectionStage.BODY, 9.0, 9 * rate),
        ("handled", ConnectionStage.HANDLING, 30.0, 0),
    ]
    streams = {}
    for name, stage, seconds, received in reversed(expected):
        stream = streams[name] = guarded_stream()
        assert limiter.admit(stream)
        stream.stage, stream.since, stream.received = stage, now - seconds, received

    evicted = []
    for _ in range(6):
        added = guarded_stream()
        if limiter.admit(added):
            added.stage = ConnectionStage.HANDLING
        evicted += [name for name, stream in streams.items() if stream.is_evicted and name not in evicted]
    assert evicted == [name for name, *_ in expected[:5]]


async def test_a_trusted_proxy_is_exempt_from_the_peer_limit(start_server: "StartServer") -> None:
    """It also names the client of each request; other peers cannot."""
    work = BlockingHandler()
    proxies = parse_proxies(("127.0.0.2", "10.0.0.0/8"))
    server = await start_server(work.route, limits=ConnectionLimits(connections_per_peer=1), proxies=proxies)
    for _ in range(3):
        await work.begin(server, source="127.0.0.2")
    through, around = await server.connect(source="127.0.0.2"), await server.connect()
    forwarded = "X-Forwarded-For: unix, 6.6.6.6, 203.0.113.9, 10.1.2.3"
    await through.post("/echo", b"", forwarded)
    await around.post("/echo", b"", forwarded)

    assert [served.peer for served in server.served] == ["203.0.113.9", "127.0.0.1"]


async def test_slow_clients_do_not_delay_others(start_server: "StartServer") -> None:
    """New clients are served while forty requests are incomplete. These then time out."""
    limits = ConnectionLimits(idle_seconds=0.3, header_seconds=0.3, body_seconds=0.3, linger_seconds=0.05)
    server = await start_server(limits=limits)
    slow = [await server.connect() for _ in range(40)]
    for index, client in enumerate(slow):
        head = b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nhalf"
        await client.send((b"", b"POST", head[:60], head)[index % 4])

    for _ in range(20):
        assert await server.is_healthy()
    for client in slow:
        while await client.stream.receive_some():
            pass
    assert not server.faults


async def test_http2_uploads_do_not_stop_the_server(start_server: "StartServer") -> None:
    """Regression: a cleartext HTTP/2 upload with an early 413 stopped every listener."""
    server = await start_server()
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    data = b"\x00\x40\x00\x00\x00\x00\x00\x00\x01" + bytes(16384)
    for _ in range(20):
        client = await server.connect()
        await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + data)
        assert (await client.read_response()).status == 426
        assert await client.is_closed()

    assert await server.is_healthy()
    assert not server.faults


async def test_an_h2c_upgrade_is_ignored(start_server: "StartServer") -> None:
    """The request is served with HTTP/1.1."""
    server = await start_server()
    client = await server.connect()
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")

    assert (await client.post("/echo", b"plain", *offer)).body == b"plain"
    assert (await client.get("/nothing", *offer)).status == 404


async def test_bytes_sent_before_an_upgrade_is_accepted_are_buffered(start_server: "StartServer") -> None:
    """Regression: such bytes stopped every listener. They may be sent with the upgrade or after it."""
    accept = trio.Event()

    async def serve_websocket(request: Request, websocket: WebSocket) -> None:
        await accept.wait()
        await websocket.accept()
        await websocket.send(await websocket.receive())

    server = await start_server(WebSocketRoute(path="/ws", handler=serve_websocket))
    frame = b"\x81\x85\x00\x00\x00\x00early"
    together, after, noise = [await server.connect() for _ in range(3)]
    await together.send(UPGRADE + frame)
    await after.send(UPGRADE)
    await trio.testing.wait_all_tasks_blocked(0.02)
    await after.send(frame)
    await noise.send(UPGRADE + bytes(1000))
    await trio.testing.wait_all_tasks_blocked(0.02)
    assert await server.is_healthy()
    accept.set()

    for client in (together, after):
        assert (await client.read_response()).status == 101
        while b"early" not in client.buffer:
            client.buffer += await client.stream.receive_some()
    assert await server.is_healthy()


@pytest.mark.parametrize("host", ["..", "a" * 20_000, "[::1", "a:b", "a/b", ""])
async def test_an_invalid_host_header_is_not_a_fault(start_server: "StartServer", host: str) -> None:
    """Regression: Quart fails on some hosts, which caused a 500 and an error in the log."""
    work = BlockingHandler()
    work.finish.set()

    async def serve_websocket(request: Request, websocket: WebSocket) -> None:
        await websocket.accept()

    server = await start_server(work.route, WebSocketRoute(path="/ws", handler=serve_websocket))
    plain, upgraded = await server.connect(), await server.connect()
    await plain.send(f"GET /work HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await upgraded.send(UPGRADE.replace(b"Host: here", f"Host: {host}".encode()))

    assert (await plain.read_response()).body == b"done"
    assert (await upgraded.read_response()).status == 101
    assert not server.faults


async def test_an_unexpected_exception_affects_only_its_request(start_server: "StartServer") -> None:
    """Also an exception in the access log."""
    server = await start_server()
    server.log_is_broken = True
    client = await server.connect()
    assert (await client.post("/echo", b"x")).status == 200
    server.log_is_broken = False

    assert await server.is_healthy()
    assert "the log is broken" in repr(server.faults)


async def test_random_bytes_are_refused(start_server: "StartServer") -> None:
    """Each connection ends with one 4xx and causes no fault."""
    server = await start_server(limits=ConnectionLimits(header_seconds=0.05, linger_seconds=0.05))
    noise = random.Random(7)
    for _ in range(200):
        client = await server.connect()
        await client.send(noise.randbytes(noise.randrange(1, 400)) + noise.choice((b"", b"\r\n\r\n", b"\n\n")))
        assert 400 <= (await client.read_response()).status < 500
        assert await client.is_closed()

    assert await server.is_healthy()
    assert not server.faults


async def test_a_connection_reset_is_not_a_fault(start_server: "StartServer") -> None:
    """At any point of a request."""
    server = await start_server()
    head = b"PUT /quart/echo HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n"
    for sent in (b"", head[:20], head, head + b"12345", head + b"1234567890"):
        client = await server.connect()
        await client.send(sent)
        client.stream.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # SO_LINGER 0: close with a reset
        client.stream.socket.close()

    assert await server.is_healthy()
    assert not server.faults


async def test_idle_connections_do_not_delay_a_stop(start_server: "StartServer") -> None:
    """They are closed immediately, without using the grace period."""
    server = await start_server(grace_seconds=60)
    for method, path in (("POST", "/echo"), ("PUT", "/quart/echo")):
        client = await server.connect()
        await client.post(path, b"x", method=method)
    await server.connect()
    with trio.fail_after(5):
        server.stopping.set()
        await server.ended.wait()

    assert all([await client.is_closed() for client in server.clients])


@BOTH_PATHS
async def test_a_request_in_progress_is_answered_during_a_stop(start_server: "StartServer", method: str) -> None:
    """Its connection is closed afterwards. New connections are refused."""
    working, finish = trio.Event(), trio.Event()

    async def work(request: Request) -> Response:
        working.set()
        await finish.wait()
        return Response(body=b"done")

    server = await start_server(Route(method=method, path="/work", handler=work), grace_seconds=60)
    client = await server.connect()
    await client.send(f"{method} /work HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    await working.wait()
    server.stopping.set()
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(ConnectionRefusedError):
        await server.connect()
    finish.set()
    response = await client.read_response()

    assert (response.body, response.headers["connection"]) == (b"done", "close")
    assert await client.is_closed()
    await server.ended.wait()


@pytest.mark.parametrize("where", ["direct", "quart", "websocket"])
@pytest.mark.parametrize("what", ["handler that never ends", "client that never reads"])
async def test_the_server_ends_after_the_grace_period(start_server: "StartServer", where: str, what: str) -> None:
    """Neither a handler nor a client that does not read delays it further."""
    working = trio.Event()

    async def work(request: Request) -> Response:
        working.set()
        if what == "handler that never ends":
            await trio.sleep_forever()
        return Response(body=bytes(MORE_THAN_KERNEL_BUFFERS))

    async def serve_websocket(request: Request, websocket: WebSocket) -> None:
        await websocket.accept()
        working.set()
        while what == "client that never reads":
            await websocket.send(bytes(1024 * 1024))
        await trio.sleep_forever()

    server = await start_server(
        Route(method="POST" if where == "direct" else "GET", path="/work", handler=work),
        WebSocketRoute(path="/ws", handler=serve_websocket),
        grace_seconds=0.1,
    )
    client = await server.connect(receive_buffer=4096)
    method = "POST" if where == "direct" else "GET"
    await client.send(UPGRADE if where == "websocket" else f"{method} /work HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    await working.wait()
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.fail_after(5):
        server.stopping.set()
        await server.ended.wait()


async def test_a_cancelled_server_closes_its_listeners(start_server: "StartServer", tmp_path: Path) -> None:
    path = tmp_path / "ductile.sock"
    async with trio.open_nursery() as nursery:
        server = await start_server(listener=open_unix(path), nursery=nursery)
        assert await server.is_healthy()
        nursery.cancel_scope.cancel()

    assert not path.exists()


@define
class BlockingHandler:
    """A handler that waits until `finish` is set."""

    finish: trio.Event = field(factory=trio.Event)
    _begun: trio.Semaphore = field(factory=lambda: trio.Semaphore(0))

    @property
    def route(self) -> Route:
        return Route(method="GET", path="/work", handler=self.work)

    async def work(self, request: Request) -> Response:
        self._begun.release()
        await self.finish.wait()
        return Response(body=b"done")

    async def begin(self, server: "Server", *, source: str = "") -> "Client":
        """Return a client whose request is in progress."""
        client = await server.connect(source=source)
        await client.send(b"GET /work HTTP/1.1\r\nHost: here\r\n\r\n")
        await self._begun.acquire()
        return client


def guarded_stream() -> GuardedStream:
    ours, theirs = trio.socket.socketpair()
    theirs.close()
    ours.close()
    return GuardedStream(trio.SocketStream(ours), "192.0.2.1", ConnectionLimits())


async def connect_idle(server: "Server") -> "Client":
    """Return a connected client that is idle."""
    client = await server.connect()
    await client.get("/nothing")
    return client
