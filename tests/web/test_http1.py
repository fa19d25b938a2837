"""Which bytes are a request, and which are refused before anybody acts on them."""

import re

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.web.http1 import Chunks, Head, Limits, head_end, parse_head, response_head
from ductile.web.message import Refusal

LIMITS = Limits()
HOST = b"Host: here\r\n"


def read(raw: bytes, limits: Limits = LIMITS) -> Head:
    """The head as the lane reads it: found first, parsed then."""
    buffer = bytearray(raw)
    end = head_end(buffer, 0, limits)
    assert end, "the head is not complete"
    return parse_head(bytes(buffer[:end]), limits)


def status_of(raw: bytes, limits: Limits = LIMITS) -> int:
    with pytest.raises(Refusal) as refusal:
        read(raw, limits)
    return refusal.value.response.status


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b" ", b"\t", b"\0", b"\x7f", b"\xff"]), max_size=12))
def test_nothing_that_could_be_read_in_two_ways_gets_past_the_counting(pieces: list[bytes]) -> None:
    """Counting line ends finds exactly what the pattern for them does."""
    value = b"".join(pieces)
    raw = b"GET / HTTP/1.1\r\n" + HOST + b"X: " + value + b"\r\n\r\n"
    pattern = rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n|\n[ \t]"
    if re.search(pattern, raw):
        with pytest.raises(Refusal):
            parse_head(raw, LIMITS)
        if re.search(rb"(?<!\r)\n", raw[: raw.index(b"\r\n\r\n")]):
            assert status_of(raw) == 400
    elif b"\r\n" not in value:
        assert read(raw).headers["x"] == (value.strip(b" \t").decode("latin-1"),)


def test_a_plain_request_is_read_as_it_was_written() -> None:
    """Names are lower case, values are stripped, repeated fields are all there."""
    head = read(b"POST /a?b=c HTTP/1.1\r\n" + HOST + b"X-A:  1 \r\nx-a: 2\r\nContent-Length: 5\r\n\r\nhello")

    assert (head.method, head.target, head.content_length, head.chunked) == ("POST", "/a?b=c", 5, False)
    assert head.headers["x-a"] == ("1", "2")
    assert head.keeps_alive


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


@pytest.mark.parametrize("raw", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_what_two_readers_could_read_differently_is_400(raw: bytes) -> None:
    """Where this reader and a proxy in front might disagree, one request could be smuggled inside another."""
    assert status_of(raw) == 400


def test_cleartext_http2_is_refused_at_its_preface() -> None:
    """The first line of HTTP/2 is enough; none of its frames is ever read."""
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
    """Memory for a head is bounded, and the client learns which limit it met."""
    assert status_of(raw) == status


def test_a_head_at_its_limits_is_accepted() -> None:
    """64 fields are allowed, the 65th is not."""
    assert len(read(b"GET / HTTP/1.1\r\n" + HOST + b"X-A: 1\r\n" * 63 + b"\r\n").headers["x-a"]) == 63


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_a_head_in_pieces_is_the_same_head(step: int) -> None:
    """How the network cuts a head changes neither where it ends nor that a bare LF is seen."""
    whole = b"GET /path HTTP/1.1\r\n" + HOST + b"X-A: 1\r\n\r\n"
    for raw, refused in ((whole, False), (whole.replace(b"1\r\n", b"1\n", 1), True)):
        buffer, scanned, end, refusals = bytearray(), 0, 0, 0
        for start in range(0, len(raw), step):
            buffer += raw[start : start + step]
            try:
                end = head_end(buffer, scanned, LIMITS)
            except Refusal:
                refusals += 1
                break
            scanned = len(buffer)
        assert (end == len(whole), bool(refusals)) == (not refused, refused)


@pytest.mark.parametrize(
    ("version", "connection", "keeps_alive"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close\r\n", False),
        ("1.1", "Connection: keep-alive, Close\r\n", False),
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive\r\n", False),
    ],
)
def test_who_may_send_another_request(version: str, connection: str, keeps_alive: bool) -> None:
    """HTTP/1.1 keeps the connection unless told otherwise, HTTP/1.0 never."""
    assert read(f"GET / HTTP/{version}\r\nHost: here\r\n{connection}\r\n".encode()).keeps_alive is keeps_alive


def test_an_h2c_upgrade_is_not_a_websocket() -> None:
    """An offer to switch to HTTP/2 is ignored."""
    upgrade = b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n"

    assert not read(upgrade % b"h2c").wants_websocket
    assert read(upgrade % b"WebSocket").wants_websocket


@pytest.mark.parametrize(
    ("name", "value"), [("x-a", "1\r\nx-b: 2"), ("x-a", "1\n"), ("x-a", "\x00"), ("x a", "1"), ("", "1"), ("x-ü", "1")]
)
def test_an_answer_cannot_be_given_extra_headers_through_a_value(name: str, value: str) -> None:
    """Whatever a handler copies into a header stays one header."""
    with pytest.raises(ValueError, match="cannot be sent"):
        response_head(200, ((name, value),), "now")


TOKENS = st.text(alphabet="abcXYZ-_!09 :\t", max_size=6)
PIECES = (
    "GET", "POST", " ", "/", "/a?b", "HTTP/1.1", "HTTP/1.0", "\r\n", "\r\n", "\n", "\r", "\x00", ":", ": ", " ",
    "Host: here", "Content-Length: 3", "content-length: 03", "Transfer-Encoding: chunked", "Connection: close",
    "X: \xe9",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES) | TOKENS, max_size=14))
def test_an_accepted_head_means_the_same_to_h11(pieces: list[str]) -> None:
    """Ours is the stricter reader: what it accepts, h11 accepts with the same method, target, headers and framing."""
    raw = ("GET / HTTP/1.1\r\nHost: here\r\n" + "".join(pieces) + "\r\n\r\n").encode("latin-1")
    agree_with_h11(raw)


@given(st.lists(st.sampled_from(PIECES) | TOKENS, max_size=10))
def test_an_accepted_request_line_means_the_same_to_h11(pieces: list[str]) -> None:
    """The same rule for what stands in the first line."""
    agree_with_h11(("".join(pieces) + "\r\nHost: here\r\n\r\n").encode("latin-1"))


def agree_with_h11(raw: bytes) -> None:
    try:
        head = read(raw)
    except (Refusal, AssertionError):
        return
    raw = raw[: head_end(bytearray(raw), 0, LIMITS)]
    oracle = h11.Connection(h11.SERVER)
    oracle.receive_data(raw)
    event = oracle.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method.decode(), event.target.decode("latin-1")) == (head.method, head.target)
    ours = sorted((name, value) for name, values in head.headers.items() for value in values)
    theirs = sorted((name.decode(), value.decode("latin-1")) for name, value in event.headers)
    assert [(n, v) for n, v in ours if n not in FRAMING] == [(n, v) for n, v in theirs if n not in FRAMING]
    after = oracle.next_event()
    assert isinstance(after, h11.EndOfMessage) is not head.has_body


FRAMING = ("content-length", "transfer-encoding")


CHUNK_PIECES = (
    b"3\r\nabc\r\n", b"1\r\na\r\n", b"0A\r\n0123456789\r\n", b"0\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"\n",
    b"\r", b"3", b";x", b" ", b"a",
)  # fmt: skip


@given(st.lists(st.sampled_from(CHUNK_PIECES), max_size=8), st.integers(1, 9))
def test_an_accepted_chunked_body_means_the_same_to_h11(pieces: list[bytes], step: int) -> None:
    """Cut anywhere by the network: what is accepted is the body that h11 reads, and ends at the same byte."""
    raw, inbox, chunks = b"".join(pieces), bytearray(), Chunks(max_body=100)
    try:
        for at in range(0, len(raw), step):
            inbox += raw[at : at + step]
            while chunks.take(inbox, 4):
                pass
    except Refusal:
        return
    if not chunks.is_whole:
        return
    oracle = h11.Connection(h11.SERVER)
    oracle.receive_data(b"POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n" + raw)
    body = b""
    while not isinstance(event := oracle.next_event(), h11.EndOfMessage):
        body += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert (bytes(chunks.body), bytes(inbox)) == (body, oracle.trailing_data[0])
