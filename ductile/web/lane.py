"""The lane: every request of one connection, from its first byte to the last byte of its answer.

Reads head and body under their limits, asks the site who answers, and serves hot routes itself; other routes go to
the Quart-Trio host as plain ASGI, WebSockets with the whole connection. Does not accept connections; `serve` does.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import trio

from ductile.values import changed, field, frozen
from ductile.web.hangups import Line
from ductile.web.http1 import (
    CONTINUE,
    Chunks,
    Head,
    Limits,
    handshake,
    head_end,
    malformed,
    parse_head,
    too_large,
    too_slow,
)
from ductile.web.message import Refusal, Request, Response
from ductile.web.routes import AnyRoute, ChannelRoute, Route, decode_path, decode_query
from ductile.web.site import Served, Site
from ductile.web.wire import ClientGone, Reply, Wire

CHUNK_READ_BYTES = 4 * 1024
CHUNK_OVERHEAD_BYTES = 32 * 1024


class Host(Protocol):
    """Whoever serves what the lane does not serve itself."""

    async def http(self, route: Route, request: Request, head: Head, wire: Wire, reply: Reply) -> None: ...

    async def websocket(self, route: ChannelRoute, request: Request, own_head: bytes, wire: Wire) -> None: ...


class Waiting(Protocol):
    """Where a connection stands while it asks for nothing, so that it can be sent away."""

    def begin(self, scope: trio.CancelScope) -> None: ...

    def end(self, scope: trio.CancelScope) -> None: ...

    @property
    def is_closing(self) -> bool: ...


@frozen(kw_only=True)
class Lane:
    """One connection."""

    wire: Wire
    peer: str
    site: Site
    host: Host
    limits: Limits
    waiting: Waiting
    line: Line
    waited_for: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """Cancelled when the client hangs up while a handler waits for something: then there is nobody to serve."""

    async def run(self) -> None:
        """Requests are served one after the other until either side has had enough."""
        with self.waited_for, suppress(ClientGone):
            while await self._serve_next():
                pass
            if self.wire.unread:
                await self.wire.linger()

    async def _serve_next(self) -> bool:
        """One request is answered; whether the connection can carry another."""
        try:
            raw = await self._read_head()
            if raw is None:
                return False
            head = parse_head(raw, self.limits)
        except Refusal as refusal:
            reply = Reply(self.wire, None)
            await self._refuse(reply, refusal)
            self._report(None, None, reply, trio.current_time(), 0)
            return False
        return await self._serve(raw, head)

    async def _read_head(self) -> bytes | None:
        """The next request's head, taken out of the inbox; None when the client asks for nothing more."""
        inbox = self.wire.inbox
        end = self._head_end(0)
        if not end and not self.waiting.is_closing:
            end = self._head_that_came()
        if end:
            await trio.lowlevel.checkpoint()  # a client that sends one request after the other takes turns with others
        elif not self.waiting.is_closing:
            end = await self._wait_for_head()
        if not end:
            return None
        raw = bytes(memoryview(inbox)[:end])
        del inbox[:end]
        return raw

    def _head_that_came(self) -> int:
        """Where the head ends that has come meanwhile; 0 if it has not, or not all of it. A client that is as busy as
        we are is never waited for, and so needs no deadline."""
        scanned = len(self.wire.inbox)
        return self._head_end(scanned) if self.wire.read_now() else 0

    def _head_end(self, scanned: int) -> int:
        """Where the head in the inbox ends; 0 while that has not come. `scanned` bytes were seen before."""
        inbox = self.wire.inbox
        if scanned < 2 and inbox.startswith(b"\r"):  # RFC 9112 2.2: an empty line before a request is forgiven
            if inbox == b"\r":
                return 0
            if inbox.startswith(b"\r\n"):
                del inbox[:2]
                scanned = 0
        return head_end(inbox, scanned, self.limits) if inbox else 0

    async def _wait_for_head(self) -> int:
        """Where the head in the inbox ends; 0 if the client has to go: too long idle, in the way, or we are closing."""
        inbox, limits = self.wire.inbox, self.limits
        seconds = limits.header_seconds if inbox else limits.idle_seconds
        patience = trio.CancelScope(deadline=trio.current_time() + seconds)
        self.waiting.begin(patience)
        try:
            with patience:
                scanned = len(inbox)
                await self.wire.read_more()
                end = self._head_end(scanned)
                if not end and not scanned:  # a client that was idle has begun; nearly always it comes as a whole
                    patience.deadline = trio.current_time() + limits.header_seconds
                while not end:
                    scanned = len(inbox)
                    await self.wire.read_more()
                    end = self._head_end(scanned)
                return end
        finally:
            self.waiting.end(patience)
        if inbox and not self.waiting.is_closing:
            raise too_slow("header")
        return 0

    async def _serve(self, raw: bytes, head: Head) -> bool:
        started_at = trio.current_time()
        reply = Reply(self.wire, head, lambda: self.waiting.is_closing)
        route: AnyRoute | None = None
        request: Request | None = None
        try:
            request = self._request(head)
            route, request = self.site.admit(request, wants_websocket=head.wants_websocket)
            if isinstance(route, ChannelRoute):
                own_head = handshake(head)
                reply.status = 101
                self.line.close()  # from here on the host owns the socket
                await self.host.websocket(route, request, own_head, self.wire)
                return False
            if head.has_body:
                request = changed(request, body=await self._read_body(head, route.max_body))
            await self._answer(route, request, head, reply)
            return reply.keeps_alive
        except Refusal as refusal:
            if head.has_body:
                reply.keeps_alive = False
            await self._refuse(reply, refusal, request)
            return reply.keeps_alive
        finally:
            self._report(route, request, reply, started_at, len(raw))

    def _request(self, head: Head) -> Request:
        path, _, query = head.target.partition("?")
        return Request(
            method=head.method,
            path=decode_path(path),
            query=decode_query(query),
            headers=head.headers,
            peer=self.peer,
        )

    async def _read_body(self, head: Head, max_body: int) -> bytes:
        """The whole body, never more than the cap of it in memory."""
        if head.content_length > max_body:
            raise too_large(max_body)
        inbox, length = self.wire.inbox, head.content_length
        if head.chunked or len(inbox) < length:
            if head.awaits_continue and not inbox:
                await self.wire.write(CONTINUE)
            with trio.CancelScope(deadline=trio.current_time() + self.limits.body_patience(0)) as patience:
                if head.chunked:
                    return await self._read_chunks(max_body, patience)
                await self._read_until(length, patience)
            if patience.cancelled_caught:
                raise too_slow("body")
        body = bytes(memoryview(inbox)[:length])
        del inbox[:length]
        return body

    async def _read_until(self, length: int, patience: trio.CancelScope) -> None:
        began = trio.current_time()
        while len(self.wire.inbox) < length:
            await self.wire.read_more()
            patience.deadline = began + self.limits.body_patience(len(self.wire.inbox))

    async def _read_chunks(self, max_body: int, patience: trio.CancelScope) -> bytes:
        chunks, inbox, began, fed = Chunks(max_body), self.wire.inbox, trio.current_time(), 0
        while True:
            taken = chunks.take(inbox, CHUNK_READ_BYTES)
            if chunks.is_whole:
                return bytes(chunks.body)
            fed += taken
            # Chunks of one byte cost a thousand times their size to read.
            if fed > 2 * len(chunks.body) + CHUNK_OVERHEAD_BYTES:
                raise malformed("its chunks are too small")
            patience.deadline = began + self.limits.body_patience(len(chunks.body))
            if taken:
                await trio.lowlevel.checkpoint()
            else:
                await self.wire.read_more(CHUNK_READ_BYTES)

    async def _answer(self, route: Route, request: Request, head: Head, reply: Reply) -> None:
        if not route.hot:
            await self.host.http(route, request, head, self.wire, reply)
        elif route.waits:
            self.line.keeps_open(self.waited_for)
            try:
                response = await self.site.answer(route, request)
                if response.until is None:
                    await self._send(route, response, reply)
                else:
                    await self._send_until(response.until, route, response, reply)
            finally:
                self.line.lets_go()
        else:
            await self._send(route, await self.site.answer(route, request), reply)

    async def _send(self, route: Route, response: Response, reply: Reply) -> None:
        try:
            await reply.send(response.status, response.headers, response.body)
        except ClientGone:
            reply.keeps_alive = False
        except Exception as error:
            fault = self.site.fault(error, route)
            reply.keeps_alive = False
            if not reply.status:  # otherwise the answer has begun: all that is left is to break it off
                with suppress(ClientGone):
                    await reply.send(fault.status, fault.headers, fault.body)

    async def _send_until(
        self, until: Callable[[], Awaitable[None]], route: Route, response: Response, reply: Reply
    ) -> None:
        async def break_off() -> None:
            await until()
            reply.keeps_alive = False
            sending.cancel_scope.cancel()

        async with trio.open_nursery() as sending:
            sending.start_soon(break_off)
            await self._send(route, response, reply)
            sending.cancel_scope.cancel()

    async def _refuse(self, reply: Reply, refusal: Refusal, request: Request | None = None) -> None:
        self.wire.unread = not reply.keeps_alive
        response = self.site.dressed(request, refusal.response)
        await reply.send(response.status, response.headers, response.body)

    def _report(
        self, route: AnyRoute | None, request: Request | None, reply: Reply, started_at: float, head_bytes: int
    ) -> None:
        self.site.on_request(
            Served(
                peer=self.peer,
                method=request.method if request else "",
                path=request.path if request else "",
                route=route,
                status=reply.status,
                duration_seconds=trio.current_time() - started_at,
                received_bytes=head_bytes + (len(request.body) if request else 0),
                sent_bytes=reply.sent_bytes,
                principal=request.principal if request else None,
            )
        )
