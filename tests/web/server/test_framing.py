"""HTTP/1.1 framing: which bytes are a request, and which are refused."""

import re
import time
from collections.abc import Iterable

import h11
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from ductile.web.server.exchange import raw_headers
from ductile.web.server.framing import StrictConnection
from ductile.web.server.limits import ConnectionLimits, ConnectionStage

LIMITS = ConnectionLimits()
HOST = b"Host: here\r\n"
POST = b"POST / HTTP/1.1\r\n" + HOST


@frozen
class Parsed:
    """The parsed requests with their bodies, and the status of the error at the end."""

    requests: list[tuple[h11.Request, bytes]]
    refused: int | None = None


def parse(pieces: Iterable[bytes], connection: StrictConnection | h11.Connection | None = None) -> Parsed:
    """Parse requests like a server that answers each immediately."""
    connection = connection or StrictConnection(LIMITS, lambda _: None)
    requests: list[tuple[h11.Request, bytes]] = []
    head, body = None, b""
    try:
        for piece in pieces:
            connection.receive_data(piece)
            while (event := connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Request):
                    head, body = event, b""
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    assert head is not None
                    requests.append((head, body))
                    connection.send(h11.Response(status_code=204, headers=[]))
                    connection.send(h11.EndOfMessage())
                    if connection.our_state is not h11.DONE:
                        return Parsed(requests)
                    connection.start_next_cycle()
    except h11.RemoteProtocolError as error:
        return Parsed(requests, error.error_status_hint)
    return Parsed(requests)


def headers_of(head: h11.Request) -> list[tuple[bytes, bytes]]:
    return list(head.headers)


def status_of(raw: bytes) -> int | None:
    found = parse([raw])
    assert not found.requests
    return found.refused


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b" ", b"\t", b"\0", b"\x7f", b"\xff"]), max_size=12))
def test_an_ambiguous_header_is_refused(pieces: list[bytes]) -> None:
    """Control characters, bare CR or LF, and folded lines are refused at any position."""
    value = b"".join(pieces)
    raw = b"GET / HTTP/1.1\r\n" + HOST + b"X: " + value + b"\r\n\r\n"
    pattern = rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n|\n[ \t]"
    if re.search(pattern, raw[: raw.index(b"\r\n\r\n")]):
        assert status_of(raw) == 400
    elif b"\r\n" not in value:
        [(head, _)] = parse([raw]).requests
        assert (b"x", value.strip(b" \t")) in headers_of(head)


def test_a_plain_request_is_parsed() -> None:
    """Header names are lower-cased, values are stripped, repeated headers are kept."""
    raw = b"POST /a?b=c HTTP/1.1\r\n" + HOST + b"X-A:  1 \r\nx-a: 2\r\nContent-Length: 5\r\n\r\nhello"
    [(head, body)] = parse([raw]).requests

    assert (head.method, head.target, body) == (b"POST", b"/a?b=c", b"hello")
    assert [value for name, value in head.headers if name == b"x-a"] == [b"1", b"2"]


AMBIGUOUS = {
    "length and encoding": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "encoding and length": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    "two equal lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
    "length list": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3, 3\r\n\r\n",
    "signed length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +3\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: -3\r\n\r\n",
    "hexadecimal length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0x3\r\n\r\n",
    "spaced length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1 2\r\n\r\n",
    "superscript length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: \xb2\r\n\r\n",
    "empty length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length:\r\n\r\n",
    "two encodings": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "encoding list": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "unknown encoding": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n",
    "chunked in 1.0": b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\n" + HOST + b"X-A: 1\r\n 2\r\n\r\n",
    "fold at once": b"GET / HTTP/1.1\r\n Host: here\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: here\r\n\r\n",
    "bare LF in a header": b"GET / HTTP/1.1\r\n" + HOST + b"X-A: 1\nX-B: 2\r\n\r\n",
    "bare LF everywhere": b"GET / HTTP/1.1\nHost: here\n\n",
    "bare CR": b"GET / HTTP/1.1\r\n" + HOST + b"X-A: 1\rX-B: 2\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\n" + HOST + b"X-A: \x00\r\n\r\n",
    "control character": b"GET / HTTP/1.1\r\n" + HOST + b"X-A: \x1b\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length : 3\r\n\r\n",
    "nameless header": b"GET / HTTP/1.1\r\n" + HOST + b": 3\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\n" + HOST + b"X-A\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "absolute form": b"GET http://here/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "authority form": b"CONNECT here:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "asterisk form": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "no path": b"GET ?x HTTP/1.1\r\n" + HOST + b"\r\n",
    "fragment": b"GET /#a HTTP/1.1\r\n" + HOST + b"\r\n",
    "raw non-ASCII target": b"GET /\xc3\xbc HTTP/1.1\r\n" + HOST + b"\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n",
    "tab": b"GET\t/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "space in target": b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\n" + HOST + b"\r\n",
    "HTTP/2 in a line": b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
    "lower case http": b"GET / http/1.1\r\n" + HOST + b"\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "two empty lines first": b"\r\n\r\nGET / HTTP/1.1\r\n" + HOST + b"\r\n",
}


def test_requests_that_parsers_could_read_differently_are_400() -> None:
    """Where the server and a proxy disagree, a request could be smuggled inside another."""
    assert {name: status_of(raw) for name, raw in AMBIGUOUS.items()} == dict.fromkeys(AMBIGUOUS, 400)


def test_cleartext_http2_is_refused_at_its_preface() -> None:
    """No HTTP/2 frame is read."""
    assert status_of(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == 426


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\n", 414),
        (b"G" * 8193, 414),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X-A: " + b"a" * 32768, 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X-A: 1\r\n" * 64 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
    ],
    ids=["line", "line without end", "header bytes", "header fields", "length of 5000 digits"],
)
def test_a_head_over_its_limits_is_refused_before_it_is_complete(raw: bytes, status: int) -> None:
    """The memory for a head is bounded, and the status names the limit."""
    assert status_of(raw) == status


@pytest.mark.parametrize("name", [b"Content-Length", b"Transfer-Encoding", b"Connection", b"Expect", b"X"])
@pytest.mark.parametrize("value", [b"1" + b" " * 30_000 + b"1", b" " * 30_000 + b"1" + b"\t" * 1_000])
def test_a_long_header_is_parsed_in_linear_time(name: bytes, value: bytes) -> None:
    """Regression: one request of 32 KiB blocked the event loop for four seconds."""
    started = time.process_time()
    parse([POST + name + b": " + value + b"\r\n\r\n"])
    assert time.process_time() - started < 1.0


def test_a_head_at_its_limits_is_accepted() -> None:
    """64 header fields are allowed."""
    [(head, _)] = parse([b"GET / HTTP/1.1\r\n" + HOST + b"X-A: 1\r\n" * 63 + b"\r\n"]).requests
    assert len(headers_of(head)) == 64


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_segmentation_does_not_change_the_requests(step: int) -> None:
    """Requests end at the same byte and a bare LF is detected, however the data is segmented."""
    whole = b"\r\nPOST /path HTTP/1.1\r\n" + HOST + b"X-A: 1\r\nContent-Length: 3\r\n\r\nabc"
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    for raw, bodies, refused in (
        (whole + chunked + whole, [b"abc"] * 3, None),
        (whole + whole.replace(b"1\r\n", b"1\n", 1), [b"abc"], 400),
        (chunked + chunked.replace(b"c\r\n", b"c\n"), [b"abc"], 400),
    ):
        found = parse([raw[at : at + step] for at in range(0, len(raw), step)])
        assert ([body for _, body in found.requests], found.refused) == (bodies, refused)


@pytest.mark.parametrize(
    ("version", "connection", "answered"),
    [
        ("1.1", "", 2),
        ("1.1", "Connection: close\r\n", 1),
        ("1.1", "Connection: keep-alive, Close\r\n", 1),
        ("1.0", "", 1),
        ("1.0", "Connection: keep-alive\r\n", 1),
    ],
)
def test_when_a_connection_is_kept_alive(version: str, connection: str, answered: int) -> None:
    """HTTP/1.1 connections unless `close` is sent, HTTP/1.0 connections never."""
    raw = f"GET / HTTP/{version}\r\nHost: here\r\n{connection}\r\n".encode()
    assert len(parse([raw * 2]).requests) == answered


def test_bytes_after_the_last_request_are_dropped() -> None:
    """Otherwise a client could fill the memory while its response is written."""
    connection = StrictConnection(LIMITS, lambda _: None)
    parse([b"GET / HTTP/1.0\r\nHost: here\r\n\r\n"], connection)
    connection.receive_data(b"x" * 1_000_000)

    assert connection.trailing_data == (b"", False)


def test_the_stages_of_a_request_are_reported() -> None:
    """Each stage has its own timeout."""
    stages: list[ConnectionStage] = []
    parse([POST + b"Content-Length: 3\r\n\r\nab", b"c", POST], StrictConnection(LIMITS, stages.append))

    assert stages == [ConnectionStage.BODY, ConnectionStage.HANDLING, ConnectionStage.IDLE]


@pytest.mark.parametrize(
    ("name", "value"), [("x-a", "1\r\nx-b: 2"), ("x-a", "1\n"), ("x-a", "\x00"), ("x a", "1"), ("", "1"), ("x-ü", "1")]
)
def test_a_header_value_cannot_add_headers_to_a_response(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        raw_headers(((name, value),))


TOKENS = st.text(alphabet="abcXYZ-_!09 :\t", max_size=6)
PIECES = (
    "GET", "POST", " ", "/", "/a?b", "HTTP/1.1", "HTTP/1.0", "\r\n", "\r\n", "\n", "\r", "\x00", ":", ": ", " ",
    "Host: here", "Content-Length: 3", "content-length: 03", "Transfer-Encoding: chunked", "Connection: close",
    "X: \xe9",
)  # fmt: skip
CHUNK_PIECES = (
    b"3\r\nabc\r\n", b"1\r\na\r\n", b"0A\r\n0123456789\r\n", b"0\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"\n",
    b"\r", b"3", b";x", b" ", b"a",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES) | TOKENS, max_size=14), st.integers(1, 40))
def test_an_accepted_head_is_parsed_as_h11_alone_would(pieces: list[str], step: int) -> None:
    """The checks only refuse requests; they do not change their meaning."""
    assert_agrees_with_h11(("GET / HTTP/1.1\r\nHost: here\r\n" + "".join(pieces) + "\r\n\r\n").encode("latin-1"), step)
    assert_agrees_with_h11(("".join(pieces) + "\r\nHost: here\r\n\r\n").encode("latin-1"), step)


@given(st.lists(st.sampled_from(CHUNK_PIECES), max_size=8), st.integers(1, 9))
def test_an_accepted_chunked_body_is_parsed_as_h11_alone_would(pieces: list[bytes], step: int) -> None:
    """The body ends at the same byte, however it is segmented."""
    assert_agrees_with_h11(POST + b"transfer-encoding: chunked\r\n\r\n" + b"".join(pieces), step)


def assert_agrees_with_h11(raw: bytes, step: int) -> None:
    ours = parse([raw[at : at + step] for at in range(0, len(raw), step)])
    if not ours.requests or raw.startswith(b"\r\n"):  # h11 does not skip an empty line
        return
    theirs = parse([raw], h11.Connection(h11.SERVER))
    for (our_head, our_body), (their_head, their_body) in zip(ours.requests, theirs.requests, strict=False):
        assert (our_head.method, our_head.target, our_body) == (their_head.method, their_head.target, their_body)
        assert headers_of(our_head) == headers_of(their_head)
    assert len(theirs.requests) >= len(ours.requests) or b"\r\n\r\n\r\n" in raw


def test_tiny_chunks_are_refused() -> None:
    """Reading chunks of one byte costs a thousand times their size."""
    assert parse([POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 20_000]).refused == 400
