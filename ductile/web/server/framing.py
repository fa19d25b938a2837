"""Strict HTTP/1.1 framing on top of h11: what two parsers could read differently is refused.

h11 parses. This module feeds it one request at a time, after the raw bytes passed the checks that h11 leaves out: line
ends, folded headers, request targets, one statement of the body's length, chunks without extensions and trailers.
Does not know sockets or routes.
"""

import re
from collections.abc import Callable
from typing import Any

import h11
from attrs import define

from ductile.web.messages import Headers, HTTPError, refusal_response
from ductile.web.server.limits import ConnectionLimits, ConnectionStage

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n"
MAX_LENGTH_DIGITS = 18
CHUNKED_PIECE_BYTES = 4 * 1024
CHUNK_OVERHEAD_BYTES = 32 * 1024


class StrictConnection(h11.Connection):
    """The h11 state of one connection, fed with checked bytes only.

    `on_stage` receives each stage that a request enters. After a RemoteProtocolError, `refusal` has the response.
    """

    def __init__(self, limits: ConnectionLimits, on_stage: Callable[[ConnectionStage], None]) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=limits.request_line_bytes + limits.header_bytes)
        self.refusal = malformed("its framing is not valid")
        self._limits = limits
        self._on_stage = on_stage
        self._inbox = bytearray()
        self._scanned = 0
        self._may_skip_line = True
        self._due = 0  # bytes of a body with a declared length that h11 has not received
        self._chunks: Chunks | None = None

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        """The bytes behind the request, for the protocol that the connection switches to."""
        return bytes(self._inbox), False

    def receive_data(self, data: bytes) -> None:
        if self.their_state not in (h11.MUST_CLOSE, h11.CLOSED):  # no request can follow: drop what does
            self._inbox += data

    def next_event(self) -> Any:
        """Return h11's next event. PAUSED while bytes of the next request wait for the end of this one."""
        event = super().next_event()
        try:
            while event is h11.NEED_DATA and self._inbox:
                if self.their_state is h11.DONE:
                    return h11.PAUSED
                if not self._feed():
                    return h11.NEED_DATA
                event = super().next_event()
        except HTTPError as refusal:
            self.refusal = refusal
            raise h11.RemoteProtocolError("refused", error_status_hint=refusal.response.status) from refusal
        if isinstance(event, h11.Request):
            self._on_stage(ConnectionStage.BODY)
        elif isinstance(event, h11.EndOfMessage):
            self._on_stage(ConnectionStage.HANDLING)
        return event

    def start_next_cycle(self) -> None:
        super().start_next_cycle()
        self._may_skip_line = True
        self._on_stage(ConnectionStage.HEAD if self._inbox else ConnectionStage.IDLE)

    def _feed(self) -> bool:
        """Hand checked bytes to h11; False if there are none yet."""
        if self.their_state is h11.IDLE:
            checked = self._checked_head()
        elif self._chunks is not None:
            checked = self._chunks.take(self._inbox)
        else:
            checked = self._take(self._due)
            self._due -= len(checked)
        if checked:
            super().receive_data(checked)
        return bool(checked)

    def _checked_head(self) -> bytes:
        inbox = self._inbox
        if self._may_skip_line and inbox.startswith(b"\r"):  # RFC 9112 2.2: ignore one empty line before a request
            if inbox == b"\r":
                return b""
            if inbox.startswith(b"\r\n"):
                del inbox[:2]
                self._may_skip_line = False
        if not inbox:
            self._on_stage(ConnectionStage.IDLE)
            return b""
        end = head_end(inbox, self._scanned, self._limits)
        self._scanned = 0 if end else len(inbox)
        head = self._take(end)
        if head:
            self._due, is_chunked = body_framing(head, self._limits)
            self._chunks = Chunks() if is_chunked else None
        return head

    def _take(self, count: int) -> bytes:
        taken = bytes(memoryview(self._inbox)[:count])
        del self._inbox[:count]
        return taken


def head_end(buffer: bytearray, scanned: int, limits: ConnectionLimits) -> int:
    """Return where the head ends, behind its blank line, or 0 while it is incomplete. `scanned` bytes were seen before.

    Refuses as soon as the bytes cannot become an acceptable head, so that no client waits for a deadline to learn it.
    """
    if buffer.startswith(HTTP2_PREFACE):
        headers = (("connection", "upgrade"), ("upgrade", "HTTP/1.1"))
        raise _refused(426, "http_1_1_only", "HTTP/2 is not supported", "use HTTP/1.1", headers)
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


def body_framing(head: bytes, limits: ConnectionLimits) -> tuple[int, bool]:
    """Return the declared length of the body and whether it is chunked. Refuses a head that can be read in two ways."""
    if head.count(b"\r\n") - 2 > limits.header_fields:
        message = f"there are more than {limits.header_fields} header fields"
        raise _refused(431, "too_many_headers", message, "send fewer of them")
    matched = _HEAD.fullmatch(head)
    if matched is None:
        raise malformed("its first line is not METHOD /path HTTP/1.1, or a header is not NAME: VALUE")
    framing = _FRAMING.findall(head)
    if not framing:
        return 0, False
    if len(framing) > 1:
        raise malformed("it says more than once how long its body is")
    length, encoding = (value.strip(b" \t") for value in framing[0])
    if encoding:
        if encoding.lower() != b"chunked" or matched[1] == b"0":
            raise malformed("its Transfer-Encoding is not chunked, or not allowed in HTTP/1.0")
        return 0, True
    if not length.isdigit():
        raise malformed("its Content-Length is not a number")
    if len(length) > MAX_LENGTH_DIGITS:
        raise _refused(413, "body_too_large", "the body is larger than anything accepted here", "send less")
    return int(length), False


@define(eq=False)
class Chunks:
    """The framing of a chunked body. Extensions and trailers are refused: parsers differ about where they end."""

    _due: int = 0  # bytes of the current chunk that have not been received
    _ends: bool = False  # the end of a line comes next: behind a chunk, or behind the size of the last one
    _is_last: bool = False
    _is_whole: bool = False
    _taken: int = 0
    _data: int = 0

    def take(self, inbox: bytearray) -> bytes:
        """Remove checked bytes from the inbox and return them; a part at a time, so that other clients have turns."""
        at = 0
        while at < min(len(inbox), CHUNKED_PIECE_BYTES) and not self._is_whole:
            step = self._data_length(inbox, at) if self._due else self._line_length(inbox, at)
            if not step:
                break
            at += step
        self._taken += at
        # Chunks of one byte cost a thousand times their size to read.
        if self._taken > 2 * self._data + CHUNK_OVERHEAD_BYTES:
            raise malformed("its chunks are too small")
        checked = bytes(memoryview(inbox)[:at])
        del inbox[:at]
        return checked

    def _data_length(self, inbox: bytearray, at: int) -> int:
        length = min(self._due, len(inbox) - at)
        self._due -= length
        self._data += length
        self._ends = not self._due
        return length

    def _line_length(self, inbox: bytearray, at: int) -> int:
        """Return the length of the next line; 0 while it is incomplete."""
        line = (_LINE_END if self._ends else _CHUNK_SIZE).match(inbox, at)
        if line is None:
            if (_PART_OF_LINE_END if self._ends else _PART_OF_CHUNK_SIZE).fullmatch(inbox, at):
                return 0
            raise malformed("a chunk of its body is not valid, or the body has an extension or a trailer")
        if self._ends:
            self._ends, self._is_whole = False, self._is_last
        else:
            self._due = int(line[1], 16)
            self._ends = self._is_last = not self._due
        return line.end() - at


def malformed(reason: str, hint: str = "send it with an ordinary HTTP client") -> HTTPError:
    return _refused(400, "malformed_request", f"this is not a valid HTTP/1.1 request: {reason}", hint)


def _refused(status: int, code: str, message: str, hint: str, headers: Headers = ()) -> HTTPError:
    return HTTPError(refusal_response(status, code, message, hint=hint, headers=headers))


_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEAD = re.compile(
    rb"%b /[!\"$-~]* HTTP/1\.([01])\r\n(?:%b:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n" % (_TOKEN.pattern, _TOKEN.pattern)
)
# No part of this can match the same byte in two ways: backtracking over a long header would stop the event loop.
_FRAMING = re.compile(rb"\r\n(?i:content-length:([^\r]*)|transfer-encoding:([^\r]*))")
_CHUNK_SIZE, _PART_OF_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n"), re.compile(rb"[0-9A-Fa-f]{1,16}\r?")
_LINE_END, _PART_OF_LINE_END = re.compile(rb"\r\n"), re.compile(rb"\r")
