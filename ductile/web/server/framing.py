"""Strict HTTP/1.1 framing on top of h11: requests that two parsers could read differently are refused.

h11 parses. This module feeds it one request at a time, after checks that h11 omits: line endings, folded headers,
request targets, a single body length, chunks without extensions and trailers. Does not know sockets or routes.
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
MAX_CHUNKED_READ_BYTES = 4 * 1024
MAX_CHUNK_OVERHEAD_BYTES = 32 * 1024


class StrictConnection(h11.Connection):
    """An h11 connection that receives only checked bytes.

    `on_stage` is called with each stage of a request. After a RemoteProtocolError, `refusal` has the response.
    """

    def __init__(self, limits: ConnectionLimits, on_stage: Callable[[ConnectionStage], None]) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=limits.request_line_bytes + limits.header_bytes)
        self.refusal = malformed("invalid framing")
        self._limits = limits
        self._on_stage = on_stage
        self._inbox = bytearray()
        self._scanned = 0
        self._may_skip_line = True
        self._due = 0  # remaining bytes of a body with Content-Length
        self._chunks: ChunkedBody | None = None

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        """The bytes after the request, for the protocol that the connection switches to."""
        return bytes(self._inbox), False

    def receive_data(self, data: bytes) -> None:
        if self.their_state not in (h11.MUST_CLOSE, h11.CLOSED):  # no further request is possible: drop the data
            self._inbox += data

    def next_event(self) -> Any:
        """Return h11's next event. PAUSED while the next request waits for the end of this one."""
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
        """Pass checked bytes to h11. Returns False if there are none yet."""
        if self.their_state is h11.IDLE:
            checked = self._checked_head()
        elif self._chunks is not None:
            checked = self._chunks.read(self._inbox)
        else:
            checked = self._pop(self._due)
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
        end = find_head_end(inbox, self._scanned, self._limits)
        self._scanned = 0 if end else len(inbox)
        head = self._pop(end)
        if head:
            self._due, is_chunked = parse_body_framing(head, self._limits)
            self._chunks = ChunkedBody() if is_chunked else None
        return head

    def _pop(self, count: int) -> bytes:
        taken = bytes(memoryview(self._inbox)[:count])
        del self._inbox[:count]
        return taken


def find_head_end(buffer: bytearray, scanned: int, limits: ConnectionLimits) -> int:
    """Return the end of the head, after its blank line, or 0 while it is incomplete. Skips `scanned` bytes.

    Raises HTTPError as soon as the bytes cannot become a valid head, so that no client waits for a timeout.
    """
    if buffer.startswith(HTTP2_PREFACE):
        headers = (("connection", "upgrade"), ("upgrade", "HTTP/1.1"))
        raise _refusal(426, "http_1_1_only", "HTTP/2 is not supported", "Use HTTP/1.1.", headers)
    if not scanned and not _TOKEN.match(buffer, 0, 1):
        raise malformed("it does not start with a method", "Use plain HTTP/1.1 on this port, not TLS.")
    blank = buffer.find(b"\r\n\r\n", max(0, scanned - 3))
    seen = blank if blank >= 0 else len(buffer)
    line_end = buffer.find(b"\r\n", 0, limits.request_line_bytes + 2)
    if line_end < 0 and seen > limits.request_line_bytes:
        message = f"the request line is over {limits.request_line_bytes} bytes"
        raise _refusal(414, "request_line_too_long", message, "Shorten the path or the query.")
    if line_end >= 0 and seen - line_end > limits.header_bytes:
        message = f"the headers are over {limits.header_bytes} bytes"
        raise _refusal(431, "headers_too_large", message, "Send fewer or shorter headers.")
    if buffer.count(b"\n", scanned, seen) != buffer.count(b"\r\n", max(0, scanned - 1), seen):
        raise malformed("a line ends without CR LF")
    return blank + 4 if blank >= 0 else 0


def parse_body_framing(head: bytes, limits: ConnectionLimits) -> tuple[int, bool]:
    """Return the Content-Length of the body and whether it is chunked. Raises HTTPError for an ambiguous head."""
    if head.count(b"\r\n") - 2 > limits.header_fields:
        message = f"more than {limits.header_fields} header fields"
        raise _refusal(431, "too_many_headers", message, "Send fewer headers.")
    matched = _HEAD.fullmatch(head)
    if matched is None:
        raise malformed("the request line is not METHOD /path HTTP/1.1, or a header is not NAME: VALUE")
    framing = _FRAMING.findall(head)
    if not framing:
        return 0, False
    if len(framing) > 1:
        raise malformed("it has more than one Content-Length or Transfer-Encoding")
    length, encoding = (value.strip(b" \t") for value in framing[0])
    if encoding:
        if encoding.lower() != b"chunked" or matched[1] == b"0":
            raise malformed("Transfer-Encoding is not chunked, or is used with HTTP/1.0")
        return 0, True
    if not length.isdigit():
        raise malformed("Content-Length is not a number")
    if len(length) > MAX_LENGTH_DIGITS:
        raise _refusal(413, "body_too_large", "the body is too large", "Send a smaller body.")
    return int(length), False


@define(eq=False)
class ChunkedBody:
    """The framing of a chunked body. Extensions and trailers are refused: parsers disagree about where they end."""

    _due: int = 0  # remaining bytes of the current chunk
    _ends: bool = False  # a line end comes next: after a chunk, or after the size of the last chunk
    _is_last: bool = False
    _is_whole: bool = False
    _taken: int = 0
    _data: int = 0

    def read(self, inbox: bytearray) -> bytes:
        """Remove checked bytes from the inbox and return them, a part at a time to let other tasks run."""
        at = 0
        while at < min(len(inbox), MAX_CHUNKED_READ_BYTES) and not self._is_whole:
            step = self._data_length(inbox, at) if self._due else self._line_length(inbox, at)
            if not step:
                break
            at += step
        self._taken += at
        # Reading chunks of one byte costs a thousand times their size.
        if self._taken > 2 * self._data + MAX_CHUNK_OVERHEAD_BYTES:
            raise malformed("the chunks are too small")
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
            raise malformed("the body has an invalid chunk, a chunk extension or a trailer")
        if self._ends:
            self._ends, self._is_whole = False, self._is_last
        else:
            self._due = int(line[1], 16)
            self._ends = self._is_last = not self._due
        return line.end() - at


def malformed(reason: str, hint: str = "Use a standard HTTP client.") -> HTTPError:
    return _refusal(400, "malformed_request", f"invalid HTTP/1.1 request: {reason}", hint)


def _refusal(status: int, code: str, message: str, hint: str, headers: Headers = ()) -> HTTPError:
    return HTTPError(refusal_response(status, code, message, hint=hint, headers=headers))


_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEAD = re.compile(
    rb"%b /[!\"$-~]* HTTP/1\.([01])\r\n(?:%b:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n" % (_TOKEN.pattern, _TOKEN.pattern)
)
# No part can match the same byte in two ways: backtracking over a long header would block the event loop.
_FRAMING = re.compile(rb"\r\n(?i:content-length:([^\r]*)|transfer-encoding:([^\r]*))")
_CHUNK_SIZE, _PART_OF_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n"), re.compile(rb"[0-9A-Fa-f]{1,16}\r?")
_LINE_END, _PART_OF_LINE_END = re.compile(rb"\r\n"), re.compile(rb"\r")
