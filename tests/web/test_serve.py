"""The server as a whole: who gets in, what one bad connection can do, and how it stops."""

import errno
import importlib.abc
import random
import sys
import threading
import types
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from ductile.web.host import LateHost
from ductile.web.http1 import Limits
from ductile.web.listen import open_unix
from ductile.web.message import Channel, Request, Response
from ductile.web.routes import ChannelRoute, Route

if TYPE_CHECKING:
    from tests.web.conftest import Client, Server, StartServer

BOTH_HOSTS = pytest.mark.parametrize("hot", [True, False], ids=["lane", "quart"])
MORE_THAN_THE_KERNEL_TAKES = 32 * 1024 * 1024
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_the_local_socket_serves_its_owner(start_server: "StartServer", tmp_path: Path) -> None:
    """The same site answers on a unix socket, where the peer has no address, and the file is gone afterwards."""
    path = tmp_path / "ductile.sock"
    server = await start_server(door=open_unix(path))

    assert await server.is_healthy()
    assert server.served[0].peer == "unix"
    server.stopping.set()
    await server.ended.wait()
    assert not path.exists()


async def test_over_the_limit_is_503_at_once(start_server: "StartServer") -> None:
    """Whoever is inside stays, whoever is too many is told so, and there is room again when one leaves."""
    server = await start_server(limits=Limits(connections=2))
    inside = [await ask_nothing(server), await ask_nothing(server)]
    refused = await server.connect()

    assert (await refused.answer()).status == 503
    assert await refused.is_closed()
    assert (await inside[0].post("/echo", b"still here")).body == b"still here"
    await inside[1].aclose()
    while not await server.has_room():
        pass


async def test_one_peer_cannot_take_every_place(start_server: "StartServer", tmp_path: Path) -> None:
    """The limit for one address is lower than the limit for all; the local socket has no addresses to count."""
    limits = Limits(connections=3, connections_per_peer=1)
    server = await start_server(limits=limits)
    await ask_nothing(server)
    refused = await server.connect()
    assert (await refused.answer()).status == 503

    local = await start_server(limits=limits, door=open_unix(tmp_path / "s"))
    await ask_nothing(local)
    assert await local.is_healthy()


async def test_at_the_limit_the_longest_idle_makes_room(start_server: "StartServer") -> None:
    """Connections that only wait cannot lock anybody out, and one with a request in progress is never cut."""
    working = trio.Event()
    finish = trio.Event()

    async def work(request: Request) -> Response:
        working.set()
        await finish.wait()
        return Response(body=b"done")

    server = await start_server(
        Route(method="GET", path="/work", handler=work, hot=True),
        limits=Limits(connections=2, yield_after_seconds=0.0),
    )
    busy = await server.connect()
    await busy.send(b"GET /work HTTP/1.1\r\nHost: here\r\n\r\n")
    await working.wait()
    idle = await ask_nothing(server)

    assert await server.is_healthy()
    assert await idle.is_closed()
    finish.set()
    assert (await busy.answer()).body == b"done"


async def test_slow_clients_do_not_hold_up_others(start_server: "StartServer") -> None:
    """Forty unfinished requests of every kind, and each newcomer is still served; then all of them are cut."""
    limits = Limits(idle_seconds=0.3, header_seconds=0.3, body_seconds=0.3, linger_seconds=0.05)
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


async def test_an_error_nobody_expected_stays_in_its_connection(start_server: "StartServer") -> None:
    """Even a broken access log costs one connection and not the listener."""
    server = await start_server()
    server.log_is_broken = True
    client = await server.connect()
    await client.post("/echo", b"x")
    assert await client.is_closed()
    server.log_is_broken = False

    assert await server.is_healthy()
    assert "the log is broken" in repr(server.faults)


async def test_random_bytes_are_refused_and_forgotten(start_server: "StartServer") -> None:
    """Two hundred connections of noise: each ends with one 4xx, and the server does not even notice."""
    server = await start_server(limits=Limits(header_seconds=0.05, linger_seconds=0.05))
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
    head = b"POST /hosted/echo HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n"
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
    for path in ("/echo", "/hosted/echo"):
        client = await server.connect()
        await client.post(path, b"x")
    await server.connect()
    with trio.fail_after(5):
        server.stopping.set()
        await server.ended.wait()

    assert all([await client.is_closed() for client in server.clients])


@BOTH_HOSTS
async def test_a_request_in_progress_is_answered_during_a_stop(start_server: "StartServer", hot: bool) -> None:
    """Who was let in is served to the end, and told that the connection ends with it; nobody new is let in."""
    working, finish = trio.Event(), trio.Event()

    async def work(request: Request) -> Response:
        working.set()
        await finish.wait()
        return Response(body=b"done")

    server = await start_server(Route(method="GET", path="/work", handler=work, hot=hot), grace_seconds=60)
    client = await server.connect()
    await client.send(b"GET /work HTTP/1.1\r\nHost: here\r\n\r\n")
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


async def test_a_stop_does_not_wait_for_the_import_of_the_framework(
    start_server: "StartServer", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops a service right after its start meets closed doors, not an import that nobody needs any more."""
    monkeypatch.setattr("ductile.web.serve.LEISURE_SECONDS", 0)
    monkeypatch.setattr("ductile.web.serve.time.process_time", lambda: 0.0)
    reached, release = threading.Event(), threading.Event()

    class SlowDisk(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "ductile.web.app":
                reached.set()
                release.wait(60)

    monkeypatch.delitem(sys.modules, "ductile.web.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [SlowDisk(), *sys.meta_path])
    server = await start_server(grace_seconds=60)
    try:
        await trio.to_thread.run_sync(reached.wait)
        server.stopping.set()
        with trio.fail_after(5):
            await server.ended.wait()
    finally:
        release.set()


async def test_the_framework_is_loaded_when_there_is_nothing_better_to_do(
    start_server: "StartServer", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not beside jobs and callers, who would have to share the interpreter with the import."""
    looks, made = 0, trio.Event()

    def work() -> float:
        """Busy until the third look."""
        nonlocal looks
        looks += 1
        return min(looks, 3) * 100.0

    async def make(_: LateHost) -> None:
        made.set()

    monkeypatch.setattr("ductile.web.serve.LEISURE_SECONDS", 0.001)
    monkeypatch.setattr("ductile.web.serve.time.process_time", work)
    monkeypatch.setattr(LateHost, "ready", make)
    await start_server()
    await made.wait()
    assert looks == 4


@pytest.mark.parametrize("is_sound", [True, False], ids=["loaded", "not loaded"])
async def test_the_import_of_the_framework_gives_way_to_whoever_has_something_to_do(
    monkeypatch: pytest.MonkeyPatch, is_sound: bool
) -> None:
    """It takes short turns of the interpreter, and everybody has the usual ones afterwards, whatever came of it."""
    usual, turns = sys.getswitchinterval(), []

    def load(name: str) -> types.SimpleNamespace:
        turns.append(sys.getswitchinterval())
        if not is_sound:
            raise OSError(errno.EMFILE, "Too many open files")
        return types.SimpleNamespace(QuartHost=lambda *_: name)

    monkeypatch.setattr("ductile.web.host.import_module", load)
    with nullcontext() if is_sound else pytest.raises(OSError, match="Too many"):
        await LateHost(None, None).ready()  # type: ignore[arg-type]
    assert len(turns) == 1
    assert turns[0] <= 0.001 < usual == sys.getswitchinterval()


async def test_a_framework_that_cannot_be_loaded_now_does_not_end_the_server(
    start_server: "StartServer", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of descriptors or of memory for a while: who needs it is served later, everybody else meanwhile."""
    monkeypatch.setattr("ductile.web.serve.LEISURE_SECONDS", 0)
    monkeypatch.setattr("ductile.web.serve.time.process_time", lambda: 0.0)
    tried = trio.Event()

    async def fail(_: LateHost) -> None:
        tried.set()
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as scarce:
        scarce.setattr(LateHost, "ready", fail)
        server = await start_server()
        await tried.wait()
        assert await server.is_healthy()
        assert "Too many open files" in repr(server.faults)
    client = await server.connect()
    assert (await client.post("/hosted/echo", b"x")).status == 200


@pytest.mark.parametrize("where", ["lane", "quart", "websocket"])
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
        Route(method="GET", path="/work", handler=work, hot=where == "lane"),
        ChannelRoute(path="/ws", handler=converse),
        grace_seconds=0.1,
    )
    client = await server.connect(receive_buffer=4096)
    await client.send(UPGRADE if where == "websocket" else b"GET /work HTTP/1.1\r\nHost: here\r\n\r\n")
    await working.wait()
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.fail_after(5):
        server.stopping.set()
        await server.ended.wait()


async def test_a_cancelled_server_leaves_no_door_open(start_server: "StartServer", tmp_path: Path) -> None:
    """Cancellation from above closes the doors too."""
    path = tmp_path / "ductile.sock"
    async with trio.open_nursery() as nursery:
        server = await start_server(door=open_unix(path), nursery=nursery)
        assert await server.is_healthy()
        nursery.cancel_scope.cancel()

    assert not path.exists()


async def ask_nothing(server: "Server") -> "Client":
    """A client that has been let in and is idle."""
    client = await server.connect()
    await client.get("/nothing")
    return client
