"""An attacker connection: sends any bytes and parses responses strictly.

Attackers use several addresses of this host, because the service limits connections by address.
"""

import re
from collections.abc import Mapping
from contextlib import suppress

import trio
from attrs import define, field, frozen

READ_TIMEOUT = 15.0
"""Longer than the time limit of a request body."""


class InvalidResponse(Exception):
    """The service sent something that is not a well-formed HTTP/1.1 response."""


class NoResponse(Exception):
    """Nothing arrived in time, and the connection stayed open."""


@frozen
class Response:
    """One response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return "close" in self.headers.get("connection", "").split(", ")


@define(eq=False)
class AttackerConnection:
    """One connection. `timeout` limits every send and receive."""

    stream: trio.SocketStream
    timeout: float = READ_TIMEOUT
    _buffer: bytearray = field(factory=bytearray)
    is_closed: bool = False

    async def send(self, data: bytes) -> None:
        """Send as much as the service accepts before it closes the connection."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(self.timeout):
            await self.stream.send_all(data)

    async def send_eof(self) -> None:
        """Close the sending direction."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.stream.send_eof()

    async def receive(self, *, to_head: bool = False) -> Response | None:
        """Return the next response; None if the connection was closed instead."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not await self._read():
                if self._buffer:
                    raise InvalidResponse(f"closed within a head: {bytes(self._buffer[:200])!r}")
                return None
        status, headers = parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        if status == 100:
            return await self.receive(to_head=to_head)
        has_body = status not in (101, 204, 304) and not to_head
        return Response(status, headers, await self._read_body(headers) if has_body else b"")

    async def receive_all(self) -> list[Response]:
        """Return every response until the connection is closed."""
        found = []
        while (response := await self.receive()) is not None:
            found.append(response)
        return found

    async def receive_rest(self) -> bytes:
        """Return all bytes until the connection is closed."""
        while await self._read():
            pass
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    async def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if "transfer-encoding" in headers:
            return await self._read_chunks()
        if "content-length" not in headers:
            raise InvalidResponse(f"no length: {headers}")
        return await self._read_exactly(int(headers["content-length"]))

    async def _read_chunks(self) -> bytes:
        body = b""
        while True:
            while (end := self._buffer.find(b"\r\n")) < 0:
                await self._read_more()
            size = int(bytes(self._buffer[:end]), 16)
            del self._buffer[: end + 2]
            body += await self._read_exactly(size)
            if await self._read_exactly(2) != b"\r\n":
                raise InvalidResponse("a chunk has another length than its size")
            if not size:
                return body

    async def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._read_more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def _read_more(self) -> None:
        if not await self._read():
            raise InvalidResponse("closed within a response")

    async def _read(self) -> bool:
        if self.is_closed:
            return False
        with trio.move_on_after(self.timeout) as deadline:
            try:
                data = await self.stream.receive_some(65536)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            self._buffer += data
            self.is_closed = not data
        if deadline.cancelled_caught:
            raise NoResponse
        return not self.is_closed

    async def close(self) -> None:
        await trio.aclose_forcefully(self.stream)


async def connect(port: int, *, source: str = "127.0.0.1", receive_buffer: int = 0) -> AttackerConnection:
    """Connect from `source`, an address of this host."""
    sock = trio.socket.socket()
    if receive_buffer:
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
    await sock.bind((source, 0))
    await sock.connect(("127.0.0.1", port))
    return AttackerConnection(trio.SocketStream(sock))


def parse_head(raw: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers. Raises InvalidResponse."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise InvalidResponse(f"no status line: {first[:200]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        field_line = _FIELD.fullmatch(line)
        if field_line is None:
            raise InvalidResponse(f"an invalid header: {line[:200]!r}")
        name, value = field_line[1].lower(), field_line[2]
        if name in headers and name != "connection":
            raise InvalidResponse(f"a repeated header: {line[:200]!r}")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if "content-length" in headers and "transfer-encoding" in headers:
        raise InvalidResponse("it has a length and a transfer encoding")
    return int(found[1]), headers


_STATUS_LINE = re.compile(r"HTTP/1\.1 ([1-5][0-9]{2}) [ -~]*")
_FIELD = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+): ([\x20-\x7e\x80-\xff]*)")


def request(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, has_body: bool = False
) -> bytes:
    """Format a valid request."""
    all_headers = {"host": "here", **(headers or {})}
    if body or has_body:
        all_headers["content-length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
