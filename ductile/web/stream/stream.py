"""Streams over SSE and WebSocket: routes, encodings, limit of subscribers; and the routes of the event stream.

A slow or disconnected client does not affect others and can resume at its position. The cursor selects the events.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, TypeAlias

import trio

from ductile.core.clock import to_text
from ductile.core.errors import DuctileError
from ductile.core.formats.json_schema import Count, Keywords
from ductile.core.hub import JOURNAL
from ductile.web.auth.auth import EVENTS
from ductile.web.context import AppContext
from ductile.web.messages import SAFE_HEADERS, Request, Response, WebSocket
from ductile.web.routing import AnyRoute, Argument, Header, Route, WebSocketRoute
from ductile.web.server.site import Authorize
from ductile.web.stream.broadcast import JournalFeed, make_frame
from ductile.web.stream.cursor import MAX_KINDS, StreamCursor, StreamEnded, open_cursor
from ductile.web.stream.event_types import OPENED

RECONNECT_MILLISECONDS = 1000
CHUNK_BYTES = 32 * 1024
STREAM_HEADERS = (("content-type", "text/event-stream"), ("x-accel-buffering", "no"), *SAFE_HEADERS)

SINCE = Argument("since", Count, "Start after this position; 0 starts at the oldest event")
QUERY = (
    Argument(
        "kind",
        Annotated[list[str], Keywords(maxItems=MAX_KINDS)],
        "Only events of this type; a trailing `*` is a wildcard",
    ),
    Argument("plugin", str, "Only events of this plugin"),
    Argument("job", str, "Only events of this job"),
    Argument("tree", str, "Only events of the tree of this root job"),
    SINCE,
)
OpenCursor: TypeAlias = Callable[[Request, Callable[[], Request | Response]], Awaitable[StreamCursor]]
"""Opens the cursor of a request, given the function that authorizes the request again."""


class TooManyStreams(DuctileError):
    """The limit of event streams is reached."""

    code, exit_code, status = "too_many_streams", 75, 503
    hint = "Close some streams, or try again later."


def routes(ctx: AppContext, authorize: Authorize) -> Iterable[AnyRoute]:
    """Return the routes of the event stream."""
    open_events = partial(open_cursor, ctx, JournalFeed(ctx.ledger))
    return stream_routes(ctx, authorize, open_events, path="/events", scope=EVENTS, what="events", query=QUERY)


def stream_routes(
    ctx: AppContext,
    authorize: Authorize,
    open_: OpenCursor,
    *,
    path: str,
    scope: str,
    what: str,
    query: tuple[Argument, ...],
    group: str = "events",
) -> Iterable[AnyRoute]:
    """Return the SSE route at `path` and the WebSocket route below it."""

    async def stream_events(request: Request) -> Response:
        cursor = await open_(request, partial(authorize, sse, request))
        _require_free(ctx, request.peer)
        body = _sse_body(cursor, request.peer)
        return Response(headers=STREAM_HEADERS, body=body, until=cursor.wait_until_ended)

    async def serve_websocket(request: Request, websocket: WebSocket) -> None:
        cursor = await open_(request, partial(authorize, socket, request))
        _require_free(ctx, request.peer)
        with ctx.held.hold(request.peer):
            await _serve_websocket(cursor, websocket)

    sse = Route(
        method="GET",
        path=path,
        handler=stream_events,
        scope=scope,
        summary=f"Stream {what} as server-sent events",
        group=group,
        query=query,
        headers=(Header("last-event-id", Count, "Resume after this event; overrides `since`"),),
        responses={200: Annotated[str, "Events, each with `id`, `event` and `data`"]},
        media_type="text/event-stream",
        waits=True,
    )
    socket = WebSocketRoute(
        path=f"{path}/ws",
        handler=serve_websocket,
        scope=scope,
        summary=f"Stream {what} over a WebSocket",
        group=group,
        query=query,
    )
    return sse, socket


def _require_free(ctx: AppContext, peer: str) -> None:
    if ctx.held.is_full(peer):
        raise TooManyStreams("too many streams and waiting requests of this address, or in total, are open")


# ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _sse_body(cursor: StreamCursor, peer: str) -> AsyncIterator[bytes]:
    """Yield the chunks of an SSE response. Each is sent immediately."""
    with cursor.ctx.held.hold(peer), cursor.ctx.hub.watch(JOURNAL) as hints:
        # Send the position first, so that a client that reconnects before the first event misses nothing.
        yield b"retry: %d\nid: %d\n\n" % (RECONNECT_MILLISECONDS, cursor.position)
        while True:
            try:
                frames = await cursor.next_frames(hints)
            except StreamEnded as ended:
                yield f": {ended.reason}\n\n".encode()
                return
            for chunk in _join_blocks(frame.server_sent(is_full=cursor.is_full) for frame in frames):
                yield chunk
            if not frames:
                yield b": keep-alive\nid: %d\n\n" % cursor.position


def _join_blocks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Join blocks to chunks of about CHUNK_BYTES."""
    chunk = bytearray()
    for block in blocks:
        chunk += block
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


async def _serve_websocket(cursor: StreamCursor, websocket: WebSocket) -> None:
    """Accept the WebSocket, send events until the stream ends, and close it with the reason."""
    opened = make_frame(OPENED, cursor.position, to_text(cursor.ctx.clock.now()), {"position": cursor.position})
    await websocket.accept()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_discard_messages, websocket)
        nursery.start_soon(_abort_when_ended, cursor, websocket)
        await websocket.send(opened.message(is_full=True))
        ended = await _send_frames(cursor, websocket)
        await websocket.close(ended.code, ended.reason)
        nursery.cancel_scope.cancel()


async def _send_frames(cursor: StreamCursor, websocket: WebSocket) -> StreamEnded:
    with cursor.ctx.hub.watch(JOURNAL) as hints:
        while True:
            try:
                for frame in await cursor.next_frames(hints):
                    cursor.require_access()
                    await websocket.send(frame.message(is_full=cursor.is_full))
            except StreamEnded as ended:
                return ended


async def _discard_messages(websocket: WebSocket) -> None:
    """Discard messages of the client: the stream is one-way."""
    while True:
        await websocket.receive()


async def _abort_when_ended(cursor: StreamCursor, websocket: WebSocket) -> None:
    await cursor.wait_until_ended()
    websocket.abort()
