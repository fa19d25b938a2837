"""The server as a whole: who gets in, what one bad connection can do, and how it stops."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from attrs import define, field

from ductile.web.messages import Channel, Request, Response
from ductile.web.routes import ChannelRoute, Route
from ductile.web.server.limits import ConnectionLimiter, ConnectionLimits, ConnectionStage, GuardedStream
from ductile.web.server.listeners import open_unix
from ductile.web.server.proxies import trusted_proxies

if TYPE_CHECKING:
    from tests.web.conftest import Client, Server, StartServer

BOTH_PATHS = pytest.mark.parametrize("method", ["POST", "GET"], ids=["direct", "quart"])
MANY_REQUESTS = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n" * 2000
MORE_THAN_IS_READ_AHEAD = 3 * MANY_REQUESTS
MORE_THAN_THE_KERNEL_TAKES = 32 * 1024 * 1024
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_the_local_socket_serves_its_owner(start_server: "StartServer", tmp_path: Path) -> None:
    """The same site answers on a unix socket, where the peer has no address, and the file is gone afterwards."""
    path = tmp_path / "ductile.sock"
    server = await start_server(listener=open_unix(path))

    assert await server.is_healthy()
    assert server.served[0].peer == "unix"
    server.stopping.set()
    await server.ended.wait()
    assert not path.exists()


async def test_over_the_limit_is_503_at_once(start_server: "StartServer") -> None:
    """Requests in progress keep their connections; there is room again when one of them is answered."""
    work = Work()
    server = await start_server(work.route, limits=ConnectionLimits(connections=2))
    busy = [await work.begin(server) for _ in range(2)]
    refused = await server.connect()

    assert (await refused.answer()).json["code"] == "too_many_connections"
    assert await refused.is_closed()
    assert [served.status for served in server.served] == [503]
    work.finish.set()
    for client in busy:
        assert (await client.answer()).body == b"done"
    assert await server.is_healthy()


async def test_one_peer_cannot_take_every_place(start_server: "StartServer", tmp_path: Path) -> None:
    """The limit for one address is lower than the limit for all; the local socket has no addresses to count."""
    limits, work = ConnectionLimits(connections=3, connections_per_peer=1), Work()
    server = await start_server(work.route, limits=limits)
    await work.begin(server)
    refused = await server.connect()
    assert (await refused.answer()).status == 503
    assert await server.is_healthy(source="127.0.0.2")

    local = await start_server(work.route, limits=limits, listener=open_unix(tmp_path / "s"))
    await work.begin(local)
    assert await local.is_healthy()


async def test_at_the_limit_the_longest_idle_makes_room(start_server: "StartServer") -> None:
    """Connections that only wait keep no client out, and one with a request in progress is never closed."""
    work = Work()
    server = await start_server(work.route, limits=ConnectionLimits(connections=3, idle_yields_after_seconds=0.0))
    busy = await work.begin(server)
    idle, fresh = await ask_nothing(server), await ask_nothing(server)

    assert await server.is_healthy()
    assert await idle.is_closed()
    assert (await fresh.get("/nothing")).status == 404
    work.finish.set()
    assert (await busy.answer()).body == b"done"


@pytest.mark.parametrize(
    "sent", [b"", b"POST /ec", b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nhalf"],
    ids=["nothing", "half a head", "half a body"],
)  # fmt: skip
@pytest.mark.parametrize(
    "limits", [ConnectionLimits(), ConnectionLimits(connections_per_peer=256)], ids=["one peer", "all"]
)
async def test_unfinished_requests_shut_nobody_out(
    start_server: "StartServer", sent: bytes, limits: ConnectionLimits
) -> None:
    """Regression: 256 half-sent bodies, or 64 from one address, kept every other client out with 503."""
    server = await start_server(limits=limits)
    for _ in range(limits.connections):
        client = await server.connect()
        await client.send(sent)

    for _ in range(20):
        assert await server.is_healthy()


async def test_responses_that_are_not_read_shut_nobody_out(start_server: "StartServer") -> None:
    """A few pipelined requests fill the buffers of a client that does not read. They once kept its place for 30 s."""
    limits = ConnectionLimits(connections=3, expected_bytes_per_second=1024 * 1024)
    work = Work()
    server = await start_server(work.route, limits=limits)
    busy = await work.begin(server)
    stalled = [await server.connect(receive_buffer=4096) for _ in range(2)]
    for client in stalled:
        await client.send(MANY_REQUESTS)
    await trio.testing.wait_all_tasks_blocked(0.1)

    for _ in range(3):
        assert await server.is_healthy()
    work.finish.set()
    assert (await busy.answer()).body == b"done"
    assert not server.faults


@pytest.mark.parametrize("sent", [MANY_REQUESTS, MORE_THAN_IS_READ_AHEAD], ids=["read ahead", "more"])
async def test_what_a_client_sent_ahead_is_dropped_when_it_is_gone(start_server: "StartServer", sent: bytes) -> None:
    """A client that leaves with thousands of pipelined requests unanswered once cost the time of all of them."""
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


async def test_whoever_is_evicted_while_sending_is_told_to_try_again(start_server: "StartServer") -> None:
    """A sender that was slow for an honest reason repeats a delivery that was answered with 503."""
    server = await start_server(limits=ConnectionLimits(connections=1))
    slow = await server.connect()
    await slow.send(b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nhalf")
    await trio.testing.wait_all_tasks_blocked()

    assert await server.is_healthy()
    answer = await slow.answer()
    assert (answer.status, answer.json["code"]) == (503, "too_many_connections")
    assert "retry-after" in answer.headers
    assert await slow.is_closed()


async def test_a_request_that_is_complete_when_it_is_evicted_gets_its_response() -> None:
    """Its work may be done: a 503 would make the sender repeat it. Afterwards the connection is closed."""
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
    """Its place is taken by another: connections that are not counted must not add up."""
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
        await stream.send_all(bytes(MORE_THAN_THE_KERNEL_TAKES))


async def test_the_slowest_sender_is_evicted_first() -> None:
    """Idle connections first, then by how far each is behind the expected rate; never one that is being handled."""
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
        newcomer = guarded_stream()
        if limiter.admit(newcomer):
            newcomer.stage = ConnectionStage.HANDLING
        evicted += [name for name, stream in streams.items() if stream.is_evicted and name not in evicted]
    assert evicted == [name for name, *_ in expected[:5]]


async def test_a_trusted_proxy_is_not_one_peer(start_server: "StartServer") -> None:
    """It may have more connections than a peer, and names the client of each; another peer may do neither."""
    work = Work()
    proxies = trusted_proxies(("127.0.0.2", "10.0.0.0/8"))
    server = await start_server(work.route, limits=ConnectionLimits(connections_per_peer=1), proxies=proxies)
    for _ in range(3):
        await work.begin(server, source="127.0.0.2")
    through, around = await server.connect(source="127.0.0.2"), await server.connect()
    forwarded = "X-Forwarded-For: unix, 6.6.6.6, 203.0.113.9, 10.1.2.3"
    await through.post("/echo", b"", forwarded)
    await around.post("/echo", b"", forwarded)

    assert [served.peer for served in server.served] == ["203.0.113.9", "127.0.0.1"]


async def test_slow_clients_do_not_hold_up_others(start_server: "StartServer") -> None:
    """Forty unfinished requests of every kind, and each newcomer is still served; then all of them are cut."""
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


async def test_http2_uploads_answered_early_do_not_end_the_server(start_server: "StartServer") -> None:
    """Regression: a cleartext HTTP/2 upload that met its 413 early once ended every listener of the process."""
    server = await start_server()
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    data = b"\x00\x40\x00\x00\x00\x00\x00\x00\x01" + bytes(16384)
    for _ in range(20):
        client = await server.connect()
        await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + data)
        assert (await client.answer()).status == 426
        assert await client.is_closed()

    assert await server.is_healthy()
    assert not server.faults


async def test_an_offer_of_h2c_is_answered_in_http_1_1(start_server: "StartServer") -> None:
    """The offer is ignored, the request is served."""
    server = await start_server()
    client = await server.connect()
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")

    assert (await client.post("/echo", b"plain", *offer)).body == b"plain"
    assert (await client.get("/nothing", *offer)).status == 404


async def test_bytes_after_a_websocket_upgrade_do_not_end_the_server(start_server: "StartServer") -> None:
    """Regression: data sent before the upgrade was accepted once ended every listener of the process.

    It waits until the upgrade is accepted, whether it came with the upgrade or after it.
    """
    accept = trio.Event()

    async def converse(request: Request, channel: Channel) -> None:
        await accept.wait()
        await channel.accept()
        await channel.send(await channel.receive())

    server = await start_server(ChannelRoute(path="/ws", handler=converse))
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
        assert (await client.answer()).status == 101
        while b"early" not in client.seen:
            client.seen += await client.stream.receive_some()
    assert await server.is_healthy()


@pytest.mark.parametrize("host", ["..", "a" * 20_000, "[::1", "a:b", "a/b", ""])
async def test_no_host_is_a_fault(start_server: "StartServer", host: str) -> None:
    """Quart fails on some. Without a token, each such request once was a 500 and a line in the log of errors."""
    work = Work()
    work.finish.set()

    async def converse(request: Request, channel: Channel) -> None:
        await channel.accept()

    server = await start_server(work.route, ChannelRoute(path="/ws", handler=converse))
    plain, upgraded = await server.connect(), await server.connect()
    await plain.send(f"GET /work HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await upgraded.send(UPGRADE.replace(b"Host: here", f"Host: {host}".encode()))

    assert (await plain.answer()).body == b"done"
    assert (await upgraded.answer()).status == 101
    assert not server.faults


async def test_an_error_nobody_expected_stays_in_its_request(start_server: "StartServer") -> None:
    """Even a broken access log is reported and costs the listener nothing."""
    server = await start_server()
    server.log_is_broken = True
    client = await server.connect()
    assert (await client.post("/echo", b"x")).status == 200
    server.log_is_broken = False

    assert await server.is_healthy()
    assert "the log is broken" in repr(server.faults)


async def test_random_bytes_are_refused_and_forgotten(start_server: "StartServer") -> None:
    """Two hundred connections of noise: each ends with one 4xx, and the server does not even notice."""
    server = await start_server(limits=ConnectionLimits(header_seconds=0.05, linger_seconds=0.05))
    noise = random.Random(7)
    for _ in range(200):
        client = await server.connect()
        await client.send(noise.randbytes(noise.randrange(1, 400)) + noise.choice((b"", b"\r\n\r\n", b"\n\n")))
        assert 400 <= (await client.answer()).status < 500
        assert await client.is_closed()

    assert await server.is_healthy()
    assert not server.faults


async def test_a_client_that_vanishes_harms_nobody(start_server: "StartServer") -> None:
    """Resets at every point of a request are the client's own business."""
    server = await start_server()
    head = b"PUT /quart/echo HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n"
    for sent in (b"", head[:20], head, head + b"12345", head + b"1234567890"):
        client = await server.connect()
        await client.send(sent)
        client.stream.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # SO_LINGER 0: close with a reset
        client.stream.socket.close()

    assert await server.is_healthy()
    assert not server.faults


async def test_idle_clients_do_not_delay_a_stop(start_server: "StartServer") -> None:
    """Kept-alive connections close at once, long before the grace is over."""
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
    """Who was let in is served to the end, and told that the connection ends with it; nobody new is let in."""
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
    answer = await client.answer()

    assert (answer.body, answer.headers["connection"]) == (b"done", "close")
    assert await client.is_closed()
    await server.ended.wait()


@pytest.mark.parametrize("where", ["direct", "quart", "websocket"])
@pytest.mark.parametrize("what", ["handler that never ends", "client that never reads"])
async def test_nothing_outlasts_the_grace(start_server: "StartServer", where: str, what: str) -> None:
    """When the grace is over, neither a handler nor a client that does not read keeps the server from ending."""
    working = trio.Event()

    async def work(request: Request) -> Response:
        working.set()
        if what == "handler that never ends":
            await trio.sleep_forever()
        return Response(body=bytes(MORE_THAN_THE_KERNEL_TAKES))

    async def converse(request: Request, channel: Channel) -> None:
        await channel.accept()
        working.set()
        while what == "client that never reads":
            await channel.send(bytes(1024 * 1024))
        await trio.sleep_forever()

    server = await start_server(
        Route(method="POST" if where == "direct" else "GET", path="/work", handler=work),
        ChannelRoute(path="/ws", handler=converse),
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


async def test_a_cancelled_server_leaves_no_listener_open(start_server: "StartServer", tmp_path: Path) -> None:
    """Cancellation from above closes the listeners too."""
    path = tmp_path / "ductile.sock"
    async with trio.open_nursery() as nursery:
        server = await start_server(listener=open_unix(path), nursery=nursery)
        assert await server.is_healthy()
        nursery.cancel_scope.cancel()

    assert not path.exists()


@define
class Work:
    """A handler that works until it may finish."""

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


async def ask_nothing(server: "Server") -> "Client":
    """A client that has been let in and is idle."""
    client = await server.connect()
    await client.get("/nothing")
    return client
