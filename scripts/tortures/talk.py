"""An attacker's side of a connection: sends any bytes, and reads answers more strictly than a browser would.

Knows HTTP answers and nothing of what was asked. Attackers come from several addresses of this host, because a door
counts its guests by address.
"""

import re
from collections.abc import Mapping
from contextlib import suppress

import trio
from attrs import define, field, frozen

PATIENCE = 15.0
"""More than a body has, so that every answer that comes at all comes within it."""


class BadAnswer(Exception):
    """What came is not a well-formed HTTP/1.1 answer."""


class Hung(Exception):
    """Nothing came, and the connection stayed open."""


@frozen
class Answer:
    """One answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return "close" in self.headers.get("connection", "").split(", ")


@define(eq=False)
class Talker:
    """One connection. `patience` is how long it waits for anything."""

    stream: trio.SocketStream
    patience: float = PATIENCE
    _inbox: bytearray = field(factory=bytearray)
    is_over: bool = False

    async def send(self, data: bytes) -> None:
        """As much of it is sent as the other side takes: it may close while we speak."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(self.patience):
            await self.stream.send_all(data)

    async def say_no_more(self) -> None:
        """Our side is closed; the other may go on."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.stream.send_eof()

    async def answer(self, *, to_head: bool = False) -> Answer | None:
        """The next answer; None when the connection was closed instead."""
        while (end := self._inbox.find(b"\r\n\r\n")) < 0:
            if not await self._read():
                if self._inbox:
                    raise BadAnswer(f"closed inside of a head: {bytes(self._inbox[:200])!r}")
                return None
        status, headers = parse_head(bytes(self._inbox[:end]))
        del self._inbox[: end + 4]
        if status == 100:
            return await self.answer(to_head=to_head)
        has_body = status not in (101, 204, 304) and not to_head
        return Answer(status, headers, await self._body(headers) if has_body else b"")

    async def answers(self) -> list[Answer]:
        """Every answer until the connection is closed."""
        found = []
        while (answer := await self.answer()) is not None:
            found.append(answer)
        return found

    async def rest(self) -> bytes:
        """What comes until the connection is closed."""
        while await self._read():
            pass
        rest = bytes(self._inbox)
        self._inbox.clear()
        return rest

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if "transfer-encoding" in headers:
            return await self._chunks()
        if "content-length" not in headers:
            raise BadAnswer(f"no length: {headers}")
        return await self._take(int(headers["content-length"]))

    async def _chunks(self) -> bytes:
        body = b""
        while True:
            while (end := self._inbox.find(b"\r\n")) < 0:
                await self._need()
            size = int(bytes(self._inbox[:end]), 16)
            del self._inbox[: end + 2]
            body += await self._take(size)
            if await self._take(2) != b"\r\n":
                raise BadAnswer("a chunk does not end where it should")
            if not size:
                return body

    async def _take(self, size: int) -> bytes:
        while len(self._inbox) < size:
            await self._need()
        taken = bytes(self._inbox[:size])
        del self._inbox[:size]
        return taken

    async def _need(self) -> None:
        if not await self._read():
            raise BadAnswer("closed inside of an answer")

    async def _read(self) -> bool:
        if self.is_over:
            return False
        with trio.move_on_after(self.patience) as waiting:
            try:
                data = await self.stream.receive_some(65536)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            self._inbox += data
            self.is_over = not data
        if waiting.cancelled_caught:
            raise Hung
        return not self.is_over

    async def close(self) -> None:
        await trio.aclose_forcefully(self.stream)


async def connect(port: int, *, source: str = "127.0.0.1", receive_buffer: int = 0) -> Talker:
    """A connection from `source`, an address of this host."""
    sock = trio.socket.socket()
    if receive_buffer:
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
    await sock.bind((source, 0))
    await sock.connect(("127.0.0.1", port))
    return Talker(trio.SocketStream(sock))


def parse_head(raw: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = raw.decode("latin-1").split("\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise BadAnswer(f"no status line: {first[:200]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        field_line = _FIELD.fullmatch(line)
        if field_line is None:
            raise BadAnswer(f"a bad header: {line[:200]!r}")
        name, value = field_line[1].lower(), field_line[2]
        if name in headers and name != "connection":
            raise BadAnswer(f"a repeated header: {line[:200]!r}")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if "content-length" in headers and "transfer-encoding" in headers:
        raise BadAnswer("it says twice how long it is")
    return int(found[1]), headers


_STATUS_LINE = re.compile(r"HTTP/1\.1 ([1-5][0-9]{2}) [ -~]*")
_FIELD = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+): ([\x20-\x7e\x80-\xff]*)")


def request(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, has_body: bool = False
) -> bytes:
    """A plain request."""
    sent = {"host": "here", **(headers or {})}
    if body or has_body:
        sent["content-length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
