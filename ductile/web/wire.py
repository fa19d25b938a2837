"""The bytes of one connection: read under limits, written without waiting for ever, and one answer being written.

Knows sockets and deadlines, not routes. The lane reads requests and writes answers through it.
"""

import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache

import trio

from ductile.web.http1 import Head, Limits, has_no_body, response_head
from ductile.web.message import Headers

READ_BYTES = 64 * 1024
WRITE_BYTES = 64 * 1024


class ClientGone(Exception):
    """The client closed the connection, or stopped reading for so long that it might as well have."""


class Wire:
    """One connection's stream and what has been read from it but not used yet."""

    def __init__(self, stream: trio.SocketStream, limits: Limits) -> None:
        self.stream = stream
        self.limits = limits
        self.inbox = bytearray()
        self.unread = False  # whether the client may still be sending what nobody will read

    def read_now(self, at_most: int = READ_BYTES) -> int:
        """What has come by now is in the inbox; returns how many bytes that are, 0 if nothing has."""
        try:
            data = os.read(self.stream.socket.fileno(), at_most)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ClientGone from error
        if not data:
            raise ClientGone
        self.inbox += data
        return len(data)

    async def read_more(self, at_most: int = READ_BYTES) -> int:
        """At least one more byte is in the inbox; returns how many. Others had their turn meanwhile."""
        read = 0
        while not read:
            if (descriptor := self.stream.socket.fileno()) < 0:  # it was closed under us
                raise ClientGone
            try:
                await trio.lowlevel.wait_readable(descriptor)
            except trio.ClosedResourceError as error:
                raise ClientGone from error
            read = self.read_now(at_most)
        return read

    async def write(self, data: bytes) -> None:
        """All of `data` is with the kernel; the client was never still for longer than the limit."""
        written = self._write_now(data)
        if written < len(data):
            await self._write_rest(memoryview(data)[written:])

    async def _write_rest(self, data: memoryview) -> None:
        for start in range(0, len(data), WRITE_BYTES):
            with trio.move_on_after(self.limits.write_stall_seconds) as patience:
                try:
                    await self.stream.send_all(data[start : start + WRITE_BYTES])
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise ClientGone from error
            if patience.cancelled_caught:
                raise ClientGone

    def _write_now(self, data: bytes) -> int:
        """How much the kernel takes at once: nearly always all of it, without a deadline and a turn of the loop."""
        try:
            return os.write(self.stream.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ClientGone from error

    async def hung_up(self) -> None:
        """Returns when the client has closed its side. What else it asks meanwhile is kept for later; whoever has
        asked for more than is kept counts as there."""
        with suppress(ClientGone):
            while len(self.inbox) < READ_BYTES:
                await self.read_more()
            await trio.sleep_forever()

    async def linger(self) -> None:
        """The client had a chance to read our answer: closing with unread bytes would reset the connection under it."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.stream.send_eof()
        room = self.limits.linger_bytes
        with trio.move_on_after(self.limits.linger_seconds), suppress(ClientGone):
            while room > 0:
                room -= await self.read_more()
                self.inbox.clear()
            # Who sends more than we care to throw away is held up, not cut off: then it has time to read, too.
            await trio.sleep_forever()


class Reply:
    """One answer on its way: the head leaves together with the first piece of the body."""

    def __init__(self, wire: Wire, head: Head | None, is_last: Callable[[], bool] = lambda: False) -> None:
        self._wire = wire
        self._is_last = is_last
        self._bodiless = head is not None and head.method == "HEAD"
        self._can_chunk = head is not None and not head.is_http_10
        self._pending = b""
        self._expected: int | None = None
        self._chunked = False
        self.keeps_alive = head is not None and head.keeps_alive
        self.status = 0
        self.sent_bytes = 0

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        """The head is ready to leave. Without a length the body is chunked, or ends with the connection."""
        self.keeps_alive = self.keeps_alive and not self._is_last()
        bodiless, chunked = has_no_body(status), length is None and self._can_chunk
        own: list[tuple[str, str]] = []
        if not bodiless:
            if length is None and not chunked:
                self.keeps_alive = False
            else:
                own.append(("transfer-encoding", "chunked") if chunked else ("content-length", str(length)))
        if not self.keeps_alive:
            own.append(("connection", "close"))
        self._pending = response_head(status, (*headers, *own), http_date(int(time.time())))
        self.status, self._expected = status, length
        self._chunked, self._bodiless = chunked, self._bodiless or bodiless

    async def flush(self) -> None:
        pending, self._pending = self._pending, b""
        if pending:
            await self._wire.write(pending)

    async def piece(self, data: bytes) -> None:
        """This piece of the body is with the kernel."""
        if self._bodiless or not data:
            return
        self.sent_bytes += len(data)
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        if len(framed) > WRITE_BYTES:
            await self.flush()  # together with the head it would be a copy, for as long as the client takes
        pending, self._pending = self._pending, b""
        await self._wire.write(pending + framed if pending else framed)

    async def end(self) -> None:
        """The answer is complete. One that is shorter or longer than announced ends the connection instead."""
        if self._chunked and not self._bodiless:
            self._pending += b"0\r\n\r\n"
        await self.flush()
        if self._expected is not None and not self._bodiless and self.sent_bytes != self._expected:
            self.keeps_alive = False

    async def send(self, status: int, headers: Headers, body: bytes | AsyncIterable[bytes]) -> None:
        """The whole answer is with the kernel."""
        if isinstance(body, bytes):
            self.begin(status, headers, len(body))
            await self.piece(body)
            if self._pending:  # nothing of a body went with it
                await self.flush()
        else:
            self.begin(status, headers, None)
            await self.flush()  # a reader of a quiet stream should see that it is connected
            await self._send_pieces(body)
            await self.end()

    async def _send_pieces(self, body: AsyncIterable[bytes]) -> None:
        if self._bodiless:
            return
        try:
            async for piece in body:
                await self.piece(piece)
        finally:
            if isinstance(body, AsyncGenerator):
                await body.aclose()


@lru_cache(maxsize=2)
def http_date(second: int) -> str:
    return formatdate(second, usegmt=True)
