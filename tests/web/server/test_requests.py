"""Requests over a real socket: both paths through the app behave alike, and every limit is enforced."""

import tracemalloc
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from attrs import evolve

from ductile.core.errors import NotFound
from ductile.web.messages import HTTPError, Request, Response, json_response, refusal_response
from ductile.web.routing import AnyRoute, Route
from ductile.web.server.limits import ConnectionLimits

if TYPE_CHECKING:
    from tests.web.conftest import StartServer

BOTH_PATHS = pytest.mark.parametrize("method", ["POST", "GET"], ids=["direct", "quart"])
BOTH_ECHOES = pytest.mark.parametrize(
    ("method", "path"), [("POST", "/echo"), ("PUT", "/quart/echo")], ids=["direct", "quart"]
)
POST = b"POST /echo HTTP/1.1\r\nHost: here\r\n"
MORE_THAN_KERNEL_BUFFERS = 32 * 1024 * 1024


@BOTH_ECHOES
async def test_a_connection_serves_several_requests(start_server: "StartServer", method: str, path: str) -> None:
    """Responses come in order, including errors."""
    server = await start_server()
    client = await server.connect()

    assert (await client.post(path, b"one", method=method)).body == b"one"
    assert (await client.get("/nothing")).status == 404
    assert (await client.get(path)).status == 405
    assert (await client.post(path, b"", method=method)).body == b""
    assert (await client.post(path, b"x" * 4096, method=method)).body == b"x" * 4096
    assert not server.faults


@BOTH_PATHS
async def test_a_handler_gets_the_same_request_on_both_paths(start_server: "StartServer", method: str) -> None:
    """Path, parameters, query, headers, body and peer are the same with and without Quart."""
    seen: list[Request] = []

    async def record_request(request: Request) -> Response:
        seen.append(request)
        return Response(status=201, headers=(("x-a", "1"), ("x-a", "2")), body=b"done")

    server = await start_server(Route(method=method, path="/plugin/{name}/{command}", handler=record_request))
    client = await server.connect()
    response = await client.post("/plugin/a%20b/poll?x=1&x=2", b"body", "X-Test: Yes", method=method)

    assert (response.status, response.body, response.headers["x-a"]) == (201, b"done", "2")
    [request] = seen
    assert (request.method, request.path, request.body, request.peer) == (
        method,
        "/plugin/a b/poll",
        b"body",
        "127.0.0.1",
    )
    assert request.params == {"name": "a b", "command": "poll"}
    assert request.query == {"x": ("1", "2")}
    assert request.header("x-test") == "Yes"


async def test_head_is_get_without_a_body(start_server: "StartServer") -> None:
    """Content-Length is sent, and the connection stays usable."""

    async def hello(request: Request) -> Response:
        return Response(body=b"hello")

    server = await start_server(Route(method="GET", path="/hello", handler=hello))
    client = await server.connect()
    head = await client.get("/hello", method="HEAD")

    assert (head.status, head.headers["content-length"]) == (200, "5")
    assert (await client.get("/hello")).body == b"hello"


@BOTH_PATHS
async def test_an_exception_becomes_a_response_without_internal_details(
    start_server: "StartServer", method: str
) -> None:
    """A known error has its status and message; an unexpected one is reported to the operator only."""

    async def missing(request: Request) -> Response:
        raise NotFound("no such job")

    async def refuses(request: Request) -> Response:
        raise HTTPError(refusal_response(422, "no", "not like this", hint="otherwise"))

    async def breaks(request: Request) -> Response:
        raise ValueError("password=hunter2")

    server = await start_server(
        Route(method=method, path="/missing", handler=missing),
        Route(method=method, path="/refuses", handler=refuses),
        Route(method=method, path="/breaks", handler=breaks),
    )
    client = await server.connect()

    assert (await client.get("/missing", method=method)).json["error"] == "no such job"
    assert (await client.get("/refuses", method=method)).status == 422
    broken = await client.get("/breaks", method=method)
    assert (broken.status, broken.json["code"]) == (500, "internal_error")
    assert b"hunter2" not in broken.body
    assert [str(fault) for fault in server.faults] == ["password=hunter2"]
    assert await server.is_healthy()


@BOTH_PATHS
async def test_a_header_that_would_split_the_response_is_a_500(start_server: "StartServer", method: str) -> None:
    """Input that is copied into a header cannot add a header."""

    async def reflect(request: Request) -> Response:
        return Response(headers=(("x-name", request.params["name"] + "\r\nset-cookie: a=b"),))

    server = await start_server(Route(method=method, path="/reflect/{name}", handler=reflect))
    client = await server.connect()
    response = await client.get("/reflect/x", method=method)

    assert (response.status, "set-cookie" in response.headers, response.json["code"]) == (500, False, "internal_error")
    assert len(server.faults) == 1


@BOTH_ECHOES
async def test_a_chunked_body_is_joined(start_server: "StartServer", method: str, path: str) -> None:
    """However it is segmented. The bytes after it are the next request."""
    server = await start_server()
    client = await server.connect()
    await client.send(f"{method} {path} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nab".encode())
    await client.send(b"c\r\n4\r\ndefg\r")
    await client.send(b"\n0\r\n\r\nPOST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\n!")

    assert (await client.read_response()).body == b"abcdefg"
    assert (await client.read_response()).body == b"!"


@pytest.mark.parametrize(
    "body",
    [
        b"3\r\nabcd\r\n0\r\n\r\n", b"3\r\nabcXX0\r\n\r\n", b"-1\r\n", b"0x3\r\nabc\r\n", b"g\r\n", b"\r\n",
        b"3\nabc\r\n0\r\n\r\n", b"0\r\n\n", b"0\r\nTrailer: 1\r\n\r\n", b"0\r\nTrailer: 1\n\n",
        b"fffffffffffffffffffff\r\n", b"1\r\na\r\n" * 20_000, b"10000000000000003\r\nabc\r\n0\r\n\r\n",
        b"3;a=b\r\nabc\r\n0\r\n\r\n", b"3;a\rb\r\nabc\r\n0\r\n\r\n", b"3;\0\r\nabc\r\n0\r\n\r\n",
        b"3\r\nabc\r\n0;a\r\n\r\n", b"3 \r\nabc\r\n0\r\n\r\n", b"3\t\r\nabc\r\n0\r\n\r\n",
    ],
    ids=[
        "long chunk", "bad tail", "negative", "hexadecimal prefix", "no number", "empty", "bare LF",
        "bare LF at the end", "trailer", "trailer with bare LF", "too many digits", "one byte a chunk",
        "beyond 64 bits", "extension", "CR in an extension", "NUL in an extension", "extension of the last",
        "blank after the size", "tab after the size",
    ],
)  # fmt: skip
async def test_an_invalid_chunk_is_a_400_and_closes_the_connection(start_server: "StartServer", body: bytes) -> None:
    """The end of a chunked body must be unambiguous, and tiny chunks must not occupy the event loop."""
    server = await start_server(
        Route(method="POST", path="/large", handler=fail_if_called, max_body=MORE_THAN_KERNEL_BUFFERS)
    )
    client = await server.connect()
    await client.send(b"POST /large HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n" + body)

    assert (await client.read_response()).status == 400
    assert await client.is_closed()
    assert await server.is_healthy()


async def test_100_continue_is_sent_only_if_the_head_is_accepted(start_server: "StartServer") -> None:
    """Otherwise the final response is sent."""
    server = await start_server()
    client = await server.connect()
    await client.send(POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert (await client.read_response()).status == 100
    await client.send(b"hello")
    assert (await client.read_response()).body == b"hello"

    await client.send(POST + b"Expect: 100-continue\r\nContent-Length: 4097\r\n\r\n")
    assert (await client.read_response()).status == 413


async def test_pipelined_requests_are_answered_in_order(start_server: "StartServer") -> None:
    """Also if requests with and without Quart alternate."""
    server = await start_server()
    client = await server.connect()
    await client.send(
        POST
        + b"Content-Length: 1\r\n\r\n1"
        + POST.replace(b"POST /echo", b"PUT /quart/echo")
        + b"Content-Length: 1\r\n\r\n2\r\n"
        + POST
        + b"Content-Length: 1\r\n\r\n3"
    )

    assert [(await client.read_response()).body for _ in range(3)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "pieces", [(b"\r\n", b""), (b"\r", b"\n"), (b"", b"\r\n")], ids=["alone", "halves", "with_the_next"]
)
async def test_an_empty_line_after_a_body_is_ignored(start_server: "StartServer", pieces: tuple[bytes, bytes]) -> None:
    """It may arrive with the body, alone, or with the next request."""
    server = await start_server()
    client = await server.connect()
    request = POST + b"Content-Length: 1\r\n\r\n1"
    await client.send(request)
    assert (await client.read_response()).status == 200
    await trio.testing.wait_all_tasks_blocked()
    if pieces[0]:
        await client.send(pieces[0])
        await trio.testing.wait_all_tasks_blocked(0.01)
    await client.send(pieces[1] + request)
    assert (await client.read_response()).status == 200


async def test_pipelined_requests_do_not_starve_other_clients(start_server: "StartServer") -> None:
    """Other clients are served before all three hundred requests are answered."""
    server = await start_server()
    many, other = await server.connect(), await server.connect()
    await many.send((POST + b"Content-Length: 1\r\n\r\n!") * 300)

    assert (await other.post("/echo", b"me too")).body == b"me too"
    assert len(server.served) < 300


async def test_requests_after_an_invalid_one_are_not_answered(start_server: "StartServer") -> None:
    """The second could be a part of the first."""
    server = await start_server()
    client = await server.connect()
    await client.send(
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + POST + b"Content-Length: 1\r\n\r\n!"
    )

    assert (await client.read_response()).status == 400
    assert await client.is_closed()
    assert [served.status for served in server.served] == [400]


@BOTH_ECHOES
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_body_over_its_limit_is_413_and_closes_the_connection(
    start_server: "StartServer", method: str, path: str, framing: str
) -> None:
    """The client can read the response while it is still sending."""
    server = await start_server(limits=ConnectionLimits(linger_seconds=0.2))
    client = await server.connect()
    head = f"{method} {path} HTTP/1.1\r\nHost: here\r\n".encode()
    if framing == "length":
        await client.send(head + b"Content-Length: 1000000\r\n\r\n" + bytes(300_000))
    else:
        await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"493e0\r\n" + bytes(300_000))
    response = await client.read_response()

    assert (response.status, response.headers["connection"]) == (413, "close")
    assert await client.stream.receive_some() == b"", "a reset could discard the response"
    assert await server.is_healthy()


async def test_only_a_bounded_part_of_a_refused_body_is_read(start_server: "StartServer") -> None:
    """Then the server closes the connection, and the client gets an error."""
    server = await start_server(limits=ConnectionLimits(linger_bytes=100_000))
    client = await server.connect()
    await client.send(POST + b"Content-Length: 1000000000\r\n\r\n")
    assert (await client.read_response()).status == 413

    with pytest.raises(trio.BrokenResourceError):
        await client.send(bytes(4 * MORE_THAN_KERNEL_BUFFERS))


async def test_an_unauthorized_request_is_refused_before_its_body_is_read(start_server: "StartServer") -> None:
    """The scope is checked from the head alone, and the handler gets the principal."""

    def authorize(route: AnyRoute, request: Request) -> Request | Response:
        if route.scope and request.header("authorization") != "Bearer right":
            return refusal_response(401, "unauthorized", "no", hint="-")
        return evolve(request, principal="operator")

    async def whoami(request: Request) -> Response:
        return json_response({"principal": request.principal})

    server = await start_server(
        Route(method="POST", path="/who", handler=whoami, scope="job:rw"),
        Route(method="PUT", path="/who", handler=whoami, scope="job:rw"),
        authorize=authorize,
    )
    for method in ("POST", "PUT"):
        client = await server.connect()
        await client.send(f"{method} /who HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n\r\n".encode())
        assert (await client.read_response()).status == 401
        client = await server.connect()
        response = await client.post("/who", b"body", "Authorization: Bearer right", method=method)
        assert response.json == {"principal": "operator"}


async def test_an_exception_during_authorization_is_a_500(start_server: "StartServer") -> None:
    """The request is not authorized."""

    def broken(route: AnyRoute, request: Request) -> Request:
        raise KeyError("token")

    server = await start_server(authorize=broken)
    client = await server.connect()

    assert (await client.get("/echo", method="POST")).status == 500
    assert len(server.faults) == 1


async def test_a_slow_head_is_408(start_server: "StartServer") -> None:
    """The timeout starts at the first byte."""
    server = await start_server(limits=ConnectionLimits(header_seconds=0.05))
    client = await server.connect()
    await client.send(b"POST /echo HT")

    assert (await client.read_response()).status == 408
    assert await client.is_closed()


async def test_an_incomplete_body_is_408(start_server: "StartServer") -> None:
    """With Content-Length and with chunks."""
    server = await start_server(limits=ConnectionLimits(body_seconds=0.05, linger_seconds=0.05))
    for framing in (b"Content-Length: 10\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"):
        client = await server.connect()
        await client.send(POST + framing)

        assert (await client.read_response()).status == 408
        assert await client.is_closed()


def test_a_larger_body_has_a_longer_timeout() -> None:
    """Ten seconds, and one more for each MiB received."""
    limits = ConnectionLimits()

    assert limits.body_timeout(0) == 10
    assert limits.body_timeout(3 * 1024 * 1024) == 13


@pytest.mark.parametrize("first", [b"", POST + b"Content-Length: 0\r\n\r\n"], ids=["fresh", "kept alive"])
async def test_an_idle_connection_is_closed_without_a_response(start_server: "StartServer", first: bytes) -> None:
    """A client would take it for the response to its next request."""
    server = await start_server(limits=ConnectionLimits(idle_seconds=0.05))
    client = await server.connect()
    if first:
        await client.send(first)
        await client.read_response()

    assert await client.is_closed()


@BOTH_PATHS
async def test_a_client_that_does_not_read_is_disconnected(start_server: "StartServer", method: str) -> None:
    """Its slot is freed."""

    async def large(request: Request) -> Response:
        return Response(body=bytes(MORE_THAN_KERNEL_BUFFERS))

    server = await start_server(
        Route(method=method, path="/large", handler=large),
        limits=ConnectionLimits(write_stall_seconds=0.1, connections=1),
    )
    client = await server.connect(receive_buffer=4096)
    await client.send(f"{method} /large HTTP/1.1\r\nHost: here\r\n\r\n".encode())

    await server.wait_for_requests(1)
    while not await server.accepts_connections():
        pass
    assert not server.faults


@BOTH_PATHS
async def test_a_response_that_is_not_read_is_in_memory_once(start_server: "StartServer", method: str) -> None:
    """No copy is made while the client does not read."""
    body = bytes(MORE_THAN_KERNEL_BUFFERS)

    async def large(request: Request) -> Response:
        return Response(body=body)

    server = await start_server(Route(method=method, path="/large", handler=large))
    client = await server.connect(receive_buffer=4096)
    tracemalloc.start()
    try:
        await client.send(f"{method} /large HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        await client.read(1000)
        await trio.testing.wait_all_tasks_blocked(0.05)
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert allocated < len(body) / 2


@BOTH_PATHS
@pytest.mark.parametrize(
    "more", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"], ids=["alone", "and half", "and another"]
)
async def test_a_waiting_handler_is_cancelled_when_its_client_disconnects(
    start_server: "StartServer", method: str, more: bytes
) -> None:
    """Also if the client has sent further requests."""
    waiting, cancelled = trio.Event(), trio.Event()

    async def wait(request: Request) -> Response:
        waiting.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    server = await start_server(Route(method=method, path="/wait", handler=wait, waits=True))
    client = await server.connect()
    await client.send(f"{method} /wait HTTP/1.1\r\nHost: here\r\n\r\n".encode() + more[:40])
    await waiting.wait()
    await client.send(more[40:])
    await client.aclose()
    with trio.fail_after(5):
        await cancelled.wait()
    await server.wait_for_requests(1)

    assert server.served[0].status == 0
    assert not server.faults
    assert await server.is_healthy()


@pytest.mark.parametrize(
    "request_line", ["POST /nothing", "POST /echo", "PUT /quart/echo", "HEAD /nothing", "HEAD /%ff"]
)
async def test_an_invalid_request_is_answered_once(start_server: "StartServer", request_line: str) -> None:
    """Errors of the head and of the body can be detected at the same time."""
    server = await start_server(limits=ConnectionLimits(linger_seconds=0.05))
    client = await server.connect()
    await client.send(f"{request_line} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n".encode())

    response = await client.read_response(bodiless=request_line.startswith("HEAD"))
    assert response.status in (400, 404)
    assert await client.is_closed()
    assert len(server.served) == 1
    assert not server.faults


async def test_a_client_that_closes_its_sending_side_gets_its_responses(start_server: "StartServer") -> None:
    """`nc` does this. It does not cancel a handler without `waits`."""
    server = await start_server()
    client = await server.connect()
    await client.send((POST + b"Content-Length: 1\r\n\r\n!") * 3)
    await client.stream.send_eof()

    assert [(await client.read_response()).body for _ in range(3)] == [b"!"] * 3
    assert await client.is_closed()


async def test_a_method_is_case_sensitive(start_server: "StartServer") -> None:
    """`head` is an unknown method, so its response has a body."""
    server = await start_server()
    client = await server.connect()
    await client.send(b"head /echo HTTP/1.1\r\nHost: here\r\n\r\n")

    response = await client.read_response()
    assert (response.status, response.json["code"]) == (405, "method_not_allowed")
    assert not server.faults


async def test_a_stream_ends_when_its_client_disconnects_with_pipelined_bytes(start_server: "StartServer") -> None:
    """The unread bytes hide the disconnect; the failed write must end the stream."""
    may_write = trio.Semaphore(0)

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1024
            await may_write.acquire()

    async def stream(request: Request) -> Response:
        return Response(headers=(("content-type", "text/event-stream"),), body=pieces())

    route = Route(method="GET", path="/stream", handler=stream, waits=True)
    server = await start_server(route, limits=ConnectionLimits(connections=1), grace_seconds=60)
    client = await server.connect()
    with trio.move_on_after(1):  # the server does not read all of it
        await client.send(b"GET /stream HTTP/1.1\r\nHost: here\r\n\r\n" + b"y" * 400_000)
    client.stream.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # SO_LINGER 0: close with a reset
    client.stream.socket.close()
    with trio.fail_after(10):
        while not server.served:
            may_write.release()
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert await server.is_healthy()
        server.stopping.set()
        await server.ended.wait()


async def test_a_stream_is_sent_chunk_by_chunk(start_server: "StartServer") -> None:
    """Each chunk is sent before the next one is produced, and the connection stays usable."""
    taken = trio.Semaphore(0)

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one", b"", b"two"):
            yield piece
            await taken.acquire()

    async def stream(request: Request) -> Response:
        return Response(headers=(("content-type", "text/event-stream"),), body=pieces())

    server = await start_server(Route(method="GET", path="/stream", handler=stream, waits=True))
    client = await server.connect()
    await client.send(b"GET /stream HTTP/1.1\r\nHost: here\r\n\r\n")
    while b"\r\n\r\n" not in client.buffer:
        client.buffer += await client.stream.receive_some()
    head, _, client.buffer = client.buffer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    assert await client.read_chunk() == b"one"
    taken.release()
    taken.release()
    assert await client.read_chunk() == b"two"
    taken.release()
    assert await client.read_chunk() == b""
    assert (await client.post("/echo", b"more")).body == b"more"


async def test_a_failed_stream_is_not_terminated_normally(start_server: "StartServer") -> None:
    """An incomplete response must not look complete."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("broken stream")

    async def stream(request: Request) -> Response:
        return Response(body=pieces())

    server = await start_server(Route(method="GET", path="/stream", handler=stream, waits=True))
    client = await server.connect()
    await client.send(b"GET /stream HTTP/1.1\r\nHost: here\r\n\r\n")
    received = b""
    while data := await client.stream.receive_some():
        received += data

    assert received.endswith(b"4\r\nhalf\r\n")
    assert len(server.faults) == 1
    assert "broken stream" in repr(server.faults)


async def test_an_http_1_0_connection_is_closed_after_its_response(start_server: "StartServer") -> None:
    """HTTP/1.0 responses are not chunked."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"all"

    async def stream(request: Request) -> Response:
        return Response(body=pieces())

    server = await start_server(Route(method="GET", path="/stream", handler=stream))
    for request, expected in (
        (b"GET /stream HTTP/1.0\r\n\r\n", b"\r\n\r\nall"),
        (b"POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nok", b"\r\n\r\nok"),
    ):
        client = await server.connect()
        await client.send(request)
        received = b""
        while data := await client.stream.receive_some():
            received += data
        assert received.endswith(expected)


async def test_the_access_log_has_no_query_headers_or_body(start_server: "StartServer") -> None:
    """They can contain secrets."""
    server = await start_server()
    client = await server.connect()
    await client.post("/echo?token=hunter2", b"secret", "Authorization: Bearer hunter2")
    await client.get("/nothing")
    await client.send(b"nonsense\r\n\r\n")
    await client.read_response()

    assert [(s.method, s.path, s.status, s.peer) for s in server.served] == [
        ("POST", "/echo", 200, "127.0.0.1"),
        ("GET", "/nothing", 404, "127.0.0.1"),
        ("", "", 400, "127.0.0.1"),
    ]
    assert (server.served[0].sent_bytes, server.served[0].route is not None) == (6, True)
    assert "hunter2" not in repr(server.served)


async def fail_if_called(request: Request) -> Response:
    raise AssertionError("the body was accepted")
