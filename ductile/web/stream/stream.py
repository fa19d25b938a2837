"""The journal as it grows, over SSE and WebSocket: the routes, how events are written, how many may follow.

A client that is slow or gone costs nobody anything: it can go on where it was. What it gets is the reader's business.
The runtime adds the routes.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import trio
from attrs import define, field

from ductile.core.clock import to_text
from ductile.core.errors import DuctileError
from ductile.core.hub import JOURNAL
from ductile.web.auth.auth import EVENTS
from ductile.web.context import AppContext
from ductile.web.messages import SAFE_HEADERS, Channel, Request, Response
from ductile.web.openapi.schemas import Argument, Header, integer, listing, text
from ductile.web.routes import AnyRoute, ChannelRoute, Route
from ductile.web.site import Authorize
from ductile.web.stream.broadcast import Feed, frame_of
from ductile.web.stream.cursor import MOST_KINDS, Over, StreamCursor, open_reader
from ductile.web.stream.event_types import OPENED

RECONNECT_MILLISECONDS = 1000
PIECE_BYTES = 32 * 1024
MOST_STREAMS, MOST_STREAMS_PER_PEER = 128, 48
"""Fewer than there may be connections, so that listeners never keep out those who have something to ask."""
STREAM_HEADERS = (("content-type", "text/event-stream"), ("x-accel-buffering", "no"), *SAFE_HEADERS)

ASKS = (
    Argument(
        "kind", listing(text(), maxItems=MOST_KINDS), "Only events of this name; `*` at its end stands for any rest"
    ),
    Argument("plugin", text(), "Only what concerns this plugin"),
    Argument("job", text(), "Only what concerns this job"),
    Argument("tree", text(), "Only what concerns the tree of this root job"),
    Argument("since", integer(minimum=0), "Go on after this position; 0: from the first event that is kept"),
)


class TooManyStreams(DuctileError):
    """As many readers as may follow the events follow them already."""

    code, exit_code, status = "too_many_streams", 75, 503
    hint = "close some, or try later"


def routes(desk: AppContext, authorize: Authorize) -> Iterable[AnyRoute]:
    """The two ways to follow what happens."""
    room = StreamSlots()
    feed = Feed(desk.ledger)

    async def listen(request: Request) -> Response:
        reader = await open_reader(desk, feed, request, partial(authorize, sse, request))
        room.require(request.peer)
        return Response(headers=STREAM_HEADERS, body=_pieces(reader, room, request.peer), until=reader.is_over)

    async def converse(request: Request, channel: Channel) -> None:
        reader = await open_reader(desk, feed, request, partial(authorize, socket, request))
        room.require(request.peer)
        with room.one_more(request.peer):
            await _converse(reader, channel)

    sse = Route(
        method="GET",
        path="/events",
        handler=listen,
        scope=EVENTS,
        summary="What happens, as it happens (server-sent events)",
        group="events",
        asks=ASKS,
        heeds=(Header("last-event-id", integer(minimum=0), "Go on after this event; wins over `since`"),),
        gives={200: text("Events, each with `id`, `event` and `data`")},
        media="text/event-stream",
        waits=True,
    )
    socket = ChannelRoute(
        path="/events/ws",
        handler=converse,
        scope=EVENTS,
        summary="What happens, as it happens (WebSocket)",
        group="events",
        asks=ASKS,
    )
    yield from (sse, socket)


@define(eq=False)
class StreamSlots:
    """How many follow the events now."""

    _inside: Counter[str] = field(factory=Counter)

    def require(self, peer: str) -> None:
        """Raises TooManyStreams if there is no room for one more of this peer."""
        total, mine = self._inside.total(), self._inside[peer]
        if total >= MOST_STREAMS or (peer != "unix" and mine >= MOST_STREAMS_PER_PEER):
            raise TooManyStreams(
                f"{total} readers follow the events, {mine} of them from there", hint="close some, or try later"
            )

    @contextmanager
    def one_more(self, peer: str) -> Iterator[None]:
        self._inside[peer] += 1
        try:
            yield
        finally:
            self._inside[peer] -= 1
            self._inside += Counter()  # forgets those at zero


# ── the two ways to send ────────────────────────────────────────────────────────────────────────────────────────────


async def _pieces(reader: StreamCursor, room: StreamSlots, peer: str) -> AsyncIterator[bytes]:
    """The body of an SSE answer; each piece is sent at once."""
    with room.one_more(peer), reader.desk.hub.watch(JOURNAL) as hints:
        # With the position from the start: whoever has to reconnect before the first event misses nothing.
        yield b"retry: %d\nid: %d\n\n" % (RECONNECT_MILLISECONDS, reader.last)
        while True:
            try:
                frames = await reader.next(hints)
            except Over as over:
                yield f": {over.words}\n\n".encode()
                return
            for piece in _joined(frame.server_sent(is_full=reader.is_full) for frame in frames):
                yield piece
            if not frames:
                yield b": still here\nid: %d\n\n" % reader.last


def _joined(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Many blocks as few pieces."""
    piece = bytearray()
    for block in blocks:
        piece += block
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


async def _converse(reader: StreamCursor, channel: Channel) -> None:
    """The whole conversation, from its acceptance to the reason for its end."""
    opened = frame_of(OPENED, reader.last, to_text(reader.desk.clock.now()), {"position": reader.last})
    await channel.accept()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ignore_messages, channel)
        nursery.start_soon(_cut_when_over, reader, channel)
        await channel.send(opened.message(is_full=True))
        over = await _send_all(reader, channel)
        await channel.close(over.code, over.words)
        nursery.cancel_scope.cancel()


async def _send_all(reader: StreamCursor, channel: Channel) -> Over:
    with reader.desk.hub.watch(JOURNAL) as hints:
        while True:
            try:
                for frame in await reader.next(hints):
                    reader.require_right()
                    await channel.send(frame.message(is_full=reader.is_full))
            except Over as over:
                return over


async def _ignore_messages(channel: Channel) -> None:
    """A client has nothing to say here; what it says all the same is not kept."""
    while True:
        await channel.receive()


async def _cut_when_over(reader: StreamCursor, channel: Channel) -> None:
    await reader.is_over()
    channel.cut()
