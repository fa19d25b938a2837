"""The streams of new messages, of a topic, a pattern or a conversation, by the code of the event stream.

A position is the `seq` of a message. The ledger is the buffer; a subscriber reads only messages that match.
"""

from collections.abc import Callable, Iterable
from functools import partial

from attrs import evolve, frozen

from ductile.core.clock import to_text
from ductile.ledger.exchange.message_list import MessageFilter, list_messages, message_bounds
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.web.api.exchange.reading import TOPIC_PATTERN, read_pattern, readable_topics
from ductile.web.api.exchange.requests import require_enabled
from ductile.web.auth.auth import TOPIC_SCOPES
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response
from ductile.web.routing import AnyRoute, Argument
from ductile.web.server.site import Authorize
from ductile.web.stream.broadcast import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    Batch,
    BroadcastRow,
    Frame,
    make_frame,
)
from ductile.web.stream.cursor import StreamCursor, read_position
from ductile.web.stream.stream import SINCE, stream_routes
from ductile.web.views.exchange import message_view
from ductile.web.views.exchange_lists import Allowed

EVENT = "message"
"""The name of each event."""


def routes(ctx: AppContext, authorize: Authorize) -> Iterable[AnyRoute]:
    """Return the SSE and WebSocket routes of messages."""
    feed = MessageFeed(ctx.ledger)

    async def open_cursor(request: Request, authorize_again: Callable[[], Request | Response]) -> StreamCursor:
        require_enabled(ctx)
        pattern = read_pattern(request)
        wanted = MessageFilter(topics=(pattern,) if pattern else None, conversation_id=request.argument("conversation"))
        position = await read_position(ctx, feed, request)
        selection = MessageSelection(wanted, lambda: readable_topics(cursor.request))
        cursor = StreamCursor(ctx, feed, selection, authorize_again, request, position)
        return cursor

    return stream_routes(
        ctx,
        authorize,
        open_cursor,
        path="/exchange/follow",
        scope=TOPIC_SCOPES["ro"],
        what="messages as they are published",
        query=(TOPIC_PATTERN, Argument("conversation", str, "Only messages of this conversation"), SINCE),
        group="exchange",
    )


@frozen
class MessageSelection:
    """The messages that a subscriber wants and may read. A reload can change which topics it may read."""

    wanted: MessageFilter
    readable: Callable[[], Allowed]

    def select(self, row: BroadcastRow) -> Iterable[Frame]:
        return row.frames


@frozen
class MessageFeed:
    """The messages in the order of publishing."""

    ledger: Ledger

    async def position(self) -> int:
        _, last = await self.bounds()
        return last

    async def bounds(self) -> tuple[int, int]:
        return await self.ledger.read(message_bounds)

    async def read_after(self, seq: int, selection: MessageSelection) -> Batch:
        """Return the next batch of messages after the position `seq`."""
        wanted = evolve(selection.wanted, allowed=selection.readable())
        batch = await self.ledger.read(_read_batch, seq, wanted)
        # After a power failure, a lost position would be reused for a message that this subscriber would never get.
        await self.ledger.until_durable()
        return batch


def _read_batch(db: Db, seq: int, wanted: MessageFilter) -> Batch:
    first, _ = message_bounds(db)
    read = partial(list_messages, db, wanted, limit=MAX_BATCH_ROWS, max_bytes=MAX_BATCH_BYTES)
    page = read(after=seq)
    while page.has_more and not page.items:  # no message of the rows that were read matches
        page = read(after=page.position)
    rows = []
    for each in page.items:
        view = message_view(each.message)
        frame = make_frame(EVENT, each.message.seq, to_text(each.message.created_at), dict(view))
        rows.append(BroadcastRow(each.message.seq, None, None, None, (frame,), len(frame.full)))
    return Batch(tuple(rows), max(page.position, seq), pruned_to=max(first - 1, 0))
