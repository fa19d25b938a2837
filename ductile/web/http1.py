"""HTTP/1.1 as we accept and write it: the limits, the strict reading of a head and of chunks, the bytes of an answer.

Pure functions of bytes. Reads less than the standard allows: whatever two readers could read differently is refused.
h11 is the tests' oracle. Does not know sockets or routes. The lane calls it.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from itertools import starmap

from ductile.values import define, field, frozen
from ductile.web.message import Headers, Refusal, refusal_response
from ductile.web.routes import MIB


@frozen(kw_only=True)
class Limits:
    """What one client may use up before it is told to stop."""

    connections: int = 256
    connections_per_peer: int = 64
    request_line_bytes: int = 8 * 1024
    header_fields: int = 64
    header_bytes: int = 32 * 1024
    header_seconds: float = 5.0
    body_seconds: float = 10.0
    body_seconds_per_mib: float = 1.0
    idle_seconds: float = 30.0
    write_stall_seconds: float = 30.0
    # At the connection limit, whoever has asked for nothing for this long makes room for a newcomer.
    yield_after_seconds: float = 1.0
    # A client that is still sending when we close needs time and room to see our answer before the reset.
    linger_seconds: float = 1.0
    linger_bytes: int = MIB

    def body_patience(self, received: int) -> float:
        """Seconds from the first wait for a body until it must be complete, given what has come so far."""
        return self.body_seconds + self.body_seconds_per_mib * received / MIB


@frozen(kw_only=True)
class Head:
    """A request's head: strictly framed, not yet matched with a route."""

    method: str
    target: str
    headers: Mapping[str, tuple[str, ...]] = field(repr=False)
    is_http_10: bool
    content_length: int
    chunked: bool

    @property
    def has_body(self) -> bool:
        return self.chunked or self.content_length > 0

    @property
    def keeps_alive(self) -> bool:
        return not self.is_http_10 and "close" not in self._tokens("connection")

    @property
    def awaits_continue(self) -> bool:
        return not self.is_http_10 and "100-continue" in self._tokens("expect")

    @property
    def wants_websocket(self) -> bool:
        return (
            self.method == "GET"
            and not self.is_http_10
            and not self.has_body
            and "upgrade" in self._tokens("connection")
            and "websocket" in self._tokens("upgrade")
        )

    def _tokens(self, name: str) -> set[str]:
        values = self.headers.get(name)
        return {token.strip().lower() for value in values for token in value.split(",")} if values else set()


def head_end(buffer: bytearray, scanned: int, limits: Limits) -> int:
    """Where the head ends, just past its blank line, or 0 while that has not come. `scanned` bytes were seen before.

    Refuses as soon as the bytes so far cannot become an acceptable head, so nobody waits for a deadline to learn it.
    """
    if buffer.startswith(HTTP2_PREFACE):
        raise _refused(
            426,
            "http_1_1_only",
            "HTTP/2 is not spoken here",
            "use HTTP/1.1",
            (("connection", "upgrade"), ("upgrade", "HTTP/1.1")),
        )
    if not scanned and not _TOKEN.match(buffer, 0, 1):
        raise malformed("it does not begin with a method", "this port speaks plain HTTP/1.1, not TLS")
    blank = buffer.find(b"\r\n\r\n", max(0, scanned - 3))
    seen = blank if blank >= 0 else len(buffer)
    line_end = buffer.find(b"\r\n", 0, limits.request_line_bytes + 2)
    if line_end < 0 and seen > limits.request_line_bytes:
        message = f"the request line is over {limits.request_line_bytes} bytes"
        raise _refused(414, "request_line_too_long", message, "shorten the path or the query")
    if line_end >= 0 and seen - line_end > limits.header_bytes:
        message = f"the headers are over {limits.header_bytes} bytes"
        raise _refused(431, "headers_too_large", message, "send fewer or shorter headers")
    if buffer.count(b"\n", scanned, seen) != buffer.count(b"\r\n", max(0, scanned - 1), seen):
        raise malformed("a line ends without CR LF")
    return blank + 4 if blank >= 0 else 0


def parse_head(raw: bytes, limits: Limits) -> Head:
    """The head, if it can be read in one way only."""
    line_ends = raw.count(b"\r\n")
    lines = line_ends - 2  # without the first, and the blank one
    if lines > limits.header_fields:
        message = f"there are more than {limits.header_fields} header fields"
        raise _refused(431, "too_many_headers", message, "send fewer of them")
    if _is_ambiguous(raw, line_ends):
        raise malformed("it has a control character, a bare CR or a folded header")
    text = raw.decode("latin-1")
    request_line = _REQUEST_LINE.match(text)
    if request_line is None:
        raise malformed("its first line is not METHOD /path HTTP/1.1")
    method, target, version = request_line.groups()
    fields = _FIELD.findall(text)
    if len(fields) != lines:
        raise malformed("a header is not NAME: VALUE")
    headers: dict[str, tuple[str, ...]] = {name.lower(): (value.rstrip(" \t"),) for name, value in fields}
    if len(headers) != lines:
        headers = _gathered(fields)
    is_http_10 = version == "1.0"
    if len(headers.get("host", ())) != 1 and not (is_http_10 and "host" not in headers):
        raise malformed("it must have exactly one Host header")
    content_length, chunked = _framing(headers, is_http_10=is_http_10)
    return Head(
        method=method,
        target=target,
        headers=headers,
        is_http_10=is_http_10,
        content_length=content_length,
        chunked=chunked,
    )


def handshake(head: Head) -> bytes:
    """The head of this wish for a WebSocket, in our own words: what its sender offers beside is not in it, so whoever
    reads it next finds a WebSocket and nothing else."""
    if head.headers.get("sec-websocket-version") != (WEBSOCKET_VERSION,):
        raise _refused(
            426,
            "websocket_version_unknown",
            f"only version {WEBSOCKET_VERSION} of WebSocket is spoken here",
            f"send Sec-WebSocket-Version: {WEBSOCKET_VERSION}",
            (("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", WEBSOCKET_VERSION)),
        )
    keys = head.headers.get("sec-websocket-key", ())
    if len(keys) != 1 or not _WEBSOCKET_KEY.fullmatch(keys[0]):
        message = "this is not the handshake of a WebSocket: it must have exactly one Sec-WebSocket-Key, in base64"
        raise _refused(400, "bad_handshake", message, "connect with a WebSocket client")
    return (
        f"GET {head.target} HTTP/1.1\r\nHost: ductile\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: {WEBSOCKET_VERSION}\r\nSec-WebSocket-Key: {keys[0]}\r\n\r\n"
    ).encode("ascii")


@define(eq=False)
class Chunks:
    """A chunked body as it comes. Extensions and trailers are refused: readers differ about where they end."""

    max_body: int
    body: bytearray = field(factory=bytearray)
    is_whole: bool = False
    _due: int = 0  # bytes of the chunk that have not come
    _ends: bool = False  # whether the end of a line comes next: behind a chunk, or behind the size of the last
    _is_last: bool = False

    def take(self, inbox: bytearray, at_most: int) -> int:
        """What has come of the body is no longer in the inbox; returns how much. May leave all beyond `at_most`."""
        at = 0
        while at < min(len(inbox), at_most) and not self.is_whole:
            taken = self._take_data(inbox, at) if self._due else self._take_line(inbox, at)
            if not taken:
                break
            at += taken
        del inbox[:at]
        return at

    def _take_data(self, inbox: bytearray, at: int) -> int:
        piece = inbox[at : at + self._due]
        self.body += piece
        self._due -= len(piece)
        self._ends = not self._due
        return len(piece)

    def _take_line(self, inbox: bytearray, at: int) -> int:
        """Its length; 0 while it may still become one."""
        line = (_LINE_END if self._ends else _CHUNK_SIZE).match(inbox, at)
        if line is None:
            if (_PART_OF_LINE_END if self._ends else _PART_OF_CHUNK_SIZE).fullmatch(inbox, at):
                return 0
            raise malformed("a chunk of its body is not valid, or the body has an extension or a trailer")
        if self._ends:
            self._ends, self.is_whole = False, self._is_last
        else:
            self._due = int(line[1], 16)
            self._ends = self._is_last = not self._due
            if len(self.body) + self._due > self.max_body:
                raise too_large(self.max_body)
        return line.end() - at


def response_head(status: int, headers: Headers, date: str) -> bytes:
    """The bytes before a body. `ValueError` for a header that would not stay one header on the wire."""
    reason, fields = _REASONS.get(status, ""), "".join(starmap(_field_line, headers))
    return f"HTTP/1.1 {status} {reason}\r\ndate: {date}\r\n{fields}\r\n".encode("latin-1")


@lru_cache(maxsize=512)  # most answers have the same few headers
def _field_line(name: str, value: str) -> str:
    if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
        raise ValueError(f"header {name!r} cannot be sent as it is")
    return f"{name}: {value}\r\n"


def has_no_body(status: int) -> bool:
    return status < 200 or status in (204, 304)


def malformed(reason: str, hint: str = "send it with an ordinary HTTP client") -> Refusal:
    return _refused(400, "malformed_request", f"this is not a valid HTTP/1.1 request: {reason}", hint)


def too_large(max_body: int) -> Refusal:
    return _refused(
        413, "body_too_large", f"the body is over {max_body} bytes", "send less, or raise its max_body_size"
    )


def too_slow(part: str) -> Refusal:
    return _refused(408, "too_slow", f"the {part} did not arrive in time", "send it again, in one go")


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WEBSOCKET_VERSION = "13"

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_REQUEST_LINE = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) (/[!\"$-~]*) HTTP/(1\.[01])\r\n")
_FIELD = re.compile(r"\r\n([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r]*)")
_CLEAR = bytes(code for code in range(256) if (code >= 0x20 and code != 0x7F) or code in b"\t\r\n")
_CHUNK_SIZE, _PART_OF_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n"), re.compile(rb"[0-9A-Fa-f]{1,16}\r?")
_LINE_END, _PART_OF_LINE_END = re.compile(rb"\r\n"), re.compile(rb"\r")
_WEBSOCKET_KEY = re.compile(r"[A-Za-z0-9+/]{1,64}={0,2}")
_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FIELD_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")
_REASONS = {status.value: status.phrase for status in HTTPStatus}


def _is_ambiguous(raw: bytes, line_ends: int) -> bool:
    """Whether it has a control character, a CR or LF without the other, or a folded line. By counting, which takes a
    fifth of the time that a pattern does."""
    return bool(
        raw.translate(None, _CLEAR)
        or raw.count(b"\r") != line_ends
        or raw.count(b"\n") != line_ends
        or b"\n " in raw
        or b"\n\t" in raw
    )


def _gathered(fields: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Every value of a header that is given more than once."""
    headers: dict[str, tuple[str, ...]] = {}
    for name, value in fields:
        key = name.lower()
        headers[key] = (*headers.get(key, ()), value.rstrip(" \t"))
    return headers


def _framing(headers: Mapping[str, tuple[str, ...]], *, is_http_10: bool) -> tuple[int, bool]:
    """Declared length, and whether the body is chunked instead."""
    lengths, encodings = headers.get("content-length", ()), headers.get("transfer-encoding", ())
    if lengths and encodings:
        raise malformed("it has both Content-Length and Transfer-Encoding")
    if len(lengths) > 1 or len(encodings) > 1:
        raise malformed("it says more than once how long its body is")
    if encodings:
        if is_http_10 or encodings[0].lower() != "chunked":
            raise malformed("its Transfer-Encoding is not chunked, or not allowed in HTTP/1.0")
        return 0, True
    if not lengths:
        return 0, False
    if not (lengths[0].isascii() and lengths[0].isdigit()):
        raise malformed("its Content-Length is not a number")
    if len(lengths[0]) > 18:
        raise _refused(413, "body_too_large", "the body is larger than anything accepted here", "send less")
    return int(lengths[0]), False


def _refused(status: int, code: str, message: str, hint: str, headers: Headers = ()) -> Refusal:
    return Refusal(refusal_response(status, code, message, hint=hint, headers=headers))
