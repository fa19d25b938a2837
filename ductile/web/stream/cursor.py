"""The cursor of one subscriber: start position, filter, next events, and the end of its stream.

Stores only a position: the ledger is the buffer. Authorization is checked again after every reload. Its feed reads the
journal, or the messages of the exchange. Does not know how events are sent.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import trio
from attrs import define

from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.errors import did_you_mean
from ductile.core.hub import CONFIGURATION, Hint
from ductile.web.auth.auth import EVENTS_WITH_PAYLOAD
from ductile.web.context import RECHECK_INTERVAL, AppContext, BadRequest
from ductile.web.messages import Request, Response
from ductile.web.stream.broadcast import (
    Batch,
    BroadcastRow,
    Frame,
    JournalFeed,
    StreamFilter,
    compile_names,
    is_known_event,
    make_frame,
)
from ductile.web.stream.event_types import GAP, NAMES

KEEP_ALIVE_INTERVAL = 15.0
MIN_READ_INTERVAL = 0.1
"""The shortest time between two reads of a subscriber, so that one read returns many events under load."""
ACCESS_CHECK_INTERVAL = 2.0
"""How often access is checked without a hint: a token can expire, and a hint can be lost."""
CLOSE_GRACE_SECONDS = 1.0
GOING_AWAY, POLICY_VIOLATION = 1001, 1008
MAX_KINDS = 50


class StreamEnded(Exception):
    """The stream must end, with a WebSocket close code and a reason for the client."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class RowSelection(Protocol):
    """Selects the events of a subscriber."""

    def select(self, row: BroadcastRow) -> Iterable[Frame]: ...


class Feed(Protocol):
    """What a cursor reads: rows in the order of their positions."""

    async def position(self) -> int: ...

    async def bounds(self) -> tuple[int, int]: ...

    async def read_after(self, seq: int, filter_: Any, /) -> Batch: ...


@define(eq=False)
class StreamCursor:
    """The position of one subscriber in a feed."""

    ctx: AppContext
    feed: Feed
    filter: RowSelection
    authorize: Callable[[], Request | Response]
    """Authorize the request again."""
    request: Request
    position: int
    _checked_snapshot: Snapshot | None = None
    _has_access: bool = True
    _check_again_at: float = 0.0
    _read_at: float = float("-inf")

    @property
    def is_full(self) -> bool:
        """True if the client may see payloads."""
        return bool(self.request.principal.has_scope(EVENTS_WITH_PAYLOAD))

    async def next_frames(self, hints: trio.MemoryReceiveChannel[Hint]) -> list[Frame]:
        """Wait for events and return them; empty after KEEP_ALIVE_INTERVAL. Raises StreamEnded."""
        deadline = trio.current_time() + KEEP_ALIVE_INTERVAL
        while True:
            await trio.sleep_until(self._read_at + MIN_READ_INTERVAL)
            self._read_at = trio.current_time()
            batch = await self.feed.read_after(self.position, self.filter)
            if batch.is_full:
                self._read_at = float("-inf")
            self.require_access()
            frames = self._select(batch)
            if frames or trio.current_time() >= deadline:
                return frames
            if not batch.rows:
                # A hint can be lost, so the ledger is read again after a while.
                with trio.move_on_at(min(deadline, trio.current_time() + RECHECK_INTERVAL)):
                    await hints.receive()

    def require_access(self) -> None:
        """Raise StreamEnded if the service is stopping, or the token has expired or lost its scope."""
        if self.ctx.is_stopping():
            raise StreamEnded(GOING_AWAY, "the service is stopping")
        snapshot, now = self.ctx.snapshot(), trio.current_time()
        if snapshot is not self._checked_snapshot or now >= self._check_again_at:
            self._check_again_at = now + ACCESS_CHECK_INTERVAL
            result = self.authorize()
            self._checked_snapshot, self._has_access = snapshot, isinstance(result, Request)
            if isinstance(result, Request):
                self.request = result
        if not self._has_access:
            raise StreamEnded(POLICY_VIOLATION, "the token no longer has access")

    async def wait_until_ended(self) -> None:
        """Return when the stream must end and has had CLOSE_GRACE_SECONDS to send its close message."""
        with self.ctx.hub.watch(CONFIGURATION) as hints:
            try:
                while True:
                    self.require_access()
                    with trio.move_on_after(ACCESS_CHECK_INTERVAL):
                        await hints.receive()
            except StreamEnded:
                pass
        await trio.sleep(CLOSE_GRACE_SECONDS)

    def gap(self, to: int) -> Frame:
        """Return the event that marks pruned rows up to the position `to`."""
        data = {"from": self.position + 1, "to": to, "reason": "pruned"}
        return make_frame(GAP, to, to_text(self.ctx.clock.now()), data)

    def _select(self, batch: Batch) -> list[Frame]:
        """Return the matching events of the batch, and advance the position past it."""
        frames: list[Frame] = []
        for row in batch.rows:
            frames.extend(self._skip_to(row.seq - 1, batch))
            frames.extend(self.filter.select(row))
            self.position = row.seq
        frames.extend(self._skip_to(batch.end, batch))
        return frames

    def _skip_to(self, position: int, batch: Batch) -> Iterable[Frame]:
        """Advance past rows that the batch does not have. Yield the event that marks those that were pruned."""
        pruned_to = position if batch.pruned_to is None else min(batch.pruned_to, position)
        if pruned_to > self.position:
            yield self.gap(pruned_to)
        self.position = max(self.position, position)


async def open_cursor(
    ctx: AppContext, feed: JournalFeed, request: Request, authorize: Callable[[], Request | Response]
) -> StreamCursor:
    """Open a cursor with the filter and position of the request. Raises BadRequest."""
    filter_ = read_filter(request)
    return StreamCursor(ctx, feed, filter_, authorize, request, await read_position(ctx, feed, request))


def read_filter(request: Request) -> StreamFilter:
    kinds = request.query.get("kind", ())
    if len(kinds) > MAX_KINDS:
        raise BadRequest(
            f"kind: {len(kinds)} values", hint=f"Send at most {MAX_KINDS}; `job.*` matches all job events."
        )
    for kind in kinds:
        if not is_known_event(kind):
            close = did_you_mean(kind, NAMES)
            raise BadRequest(f"kind: unknown event {kind[:80]!r}{close}", hint="See docs/events.md for all events.")
    return StreamFilter(
        names=compile_names(kinds) if kinds else None,
        plugin=request.argument("plugin"),
        job_id=request.argument("job"),
        root_job_id=request.argument("tree"),
    )


async def read_position(ctx: AppContext, feed: Feed, request: Request) -> int:
    """Return the position to start after: that of the request, or the newest."""
    since, last = request.argument("since"), request.header("last-event-id")
    name, text = ("since", since) if last is None else ("Last-Event-ID", last)
    end = await feed.position()
    await ctx.ledger.until_durable()  # the client gets this position
    if text is None:
        return end
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise BadRequest(
            f"{name}: {text[:80]!r} is not a position", hint="Send the id of the last event that you received."
        )
    position = int(text)
    if position > end:
        # A position of another ledger, or from before a restore. An error would make the client retry forever.
        return end
    if position == 0:
        first, _ = await feed.bounds()
        return first - 1 if first else end
    return position
