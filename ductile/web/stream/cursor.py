"""One client's way through the journal: where it begins, what it wants, what comes next, and when it is over.

Keeps nothing but its position: the ledger is its buffer. Whether the client may listen is asked again under every new
configuration. Does not know how events are sent; the stream does.
"""

from collections.abc import Callable

import trio
from attrs import define

from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.errors import did_you_mean
from ductile.core.hub import CONFIGURATION, Hint
from ductile.ledger.tables import journal
from ductile.web.auth.auth import EVENTS_WITH_PAYLOAD
from ductile.web.context import RECHECK_SECONDS, AppContext, BadRequest
from ductile.web.messages import Request, Response
from ductile.web.stream.broadcast import Feed, Frame, Portion, StreamFilter, frame_of, is_known, pattern_of
from ductile.web.stream.event_types import GAP, NAMES

KEEP_ALIVE_SECONDS = 15.0
BREATH_SECONDS = 0.1
"""A reader looks this often at most: under load one look brings many events."""
LOSS_IS_SEEN_AFTER_SECONDS = 2.0
"""How long a lost right goes unnoticed if its hint is lost too."""
LAST_WORDS_SECONDS = 1.0
GOING_AWAY, POLICY_VIOLATION = 1001, 1008
MOST_KINDS = 50


class Over(Exception):
    """The stream ends, with words for the client."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code, self.words = code, words


@define(eq=False)
class StreamCursor:
    """One client's way through the journal."""

    desk: AppContext
    feed: Feed
    wanted: StreamFilter
    check: Callable[[], Request | Response]
    """Asks again whether the client may listen."""
    admitted: Request
    last: int
    _checked_under: Snapshot | None = None
    _may_listen: bool = True
    _check_again_at: float = 0.0
    _looked_at: float = float("-inf")

    @property
    def is_full(self) -> bool:
        """Whether the client may see payloads."""
        return bool(self.admitted.principal.may(EVENTS_WITH_PAYLOAD))

    async def next(self, hints: trio.MemoryReceiveChannel[Hint]) -> list[Frame]:
        """What comes next; empty if nothing did for a while. Raises Over when the stream has to end."""
        patient_until = trio.current_time() + KEEP_ALIVE_SECONDS
        while True:
            await trio.sleep_until(self._looked_at + BREATH_SECONDS)
            self._looked_at = trio.current_time()
            portion = await self.feed.after(self.last, self.wanted)
            if portion.is_full:
                self._looked_at = float("-inf")
            self.require_right()
            frames = self._take(portion)
            if frames or trio.current_time() >= patient_until:
                return frames
            if not portion.lines:
                # A hint can be lost, so the ledger is asked again after a while.
                with trio.move_on_at(min(patient_until, trio.current_time() + RECHECK_SECONDS)):
                    await hints.receive()

    def require_right(self) -> None:
        """Raises Over if the service is stopping, or the client lost its right: by a reload, or because it expired."""
        if self.desk.is_stopping():
            raise Over(GOING_AWAY, "the service is stopping")
        snapshot, now = self.desk.snapshot(), trio.current_time()
        if snapshot is not self._checked_under or now >= self._check_again_at:
            self._check_again_at = now + LOSS_IS_SEEN_AFTER_SECONDS  # a token can come to its end by itself
            found = self.check()
            self._checked_under, self._may_listen = snapshot, isinstance(found, Request)
            if isinstance(found, Request):
                self.admitted = found
        if not self._may_listen:
            raise Over(POLICY_VIOLATION, "the token may not listen any more")

    async def is_over(self) -> None:
        """Returns when the stream must be over and has had a moment for its last words."""
        with self.desk.hub.watch(CONFIGURATION) as hints:
            try:
                while True:
                    self.require_right()
                    with trio.move_on_after(LOSS_IS_SEEN_AFTER_SECONDS):
                        await hints.receive()
            except Over:
                pass
        await trio.sleep(LAST_WORDS_SECONDS)

    def gap(self, to: int) -> Frame:
        """The mark for rows that are kept no more."""
        data = {"from": self.last + 1, "to": to, "reason": "pruned"}
        return frame_of(GAP, to, to_text(self.desk.clock.now()), data)

    def _take(self, portion: Portion) -> list[Frame]:
        """What the portion has for this client, which is behind it afterwards."""
        frames: list[Frame] = []
        for line in portion.lines:
            if line.seq > self.last + 1:
                frames.append(self.gap(line.seq - 1))
            frames.extend(self.wanted.of(line))
            self.last = line.seq
        if portion.end > self.last:
            frames.append(self.gap(portion.end))
            self.last = portion.end
        return frames


async def open_reader(
    desk: AppContext, feed: Feed, request: Request, check: Callable[[], Request | Response]
) -> StreamCursor:
    """A reader at the position and with the wishes of the request; BadRequest if they make no sense."""
    wanted = wanted_of(request)
    return StreamCursor(desk, feed, wanted, check, request, await _position_of(desk, feed, request))


def wanted_of(request: Request) -> StreamFilter:
    kinds = request.query.get("kind", ())
    if len(kinds) > MOST_KINDS:
        raise BadRequest(f"kind: given {len(kinds)} times", hint=f"at most {MOST_KINDS}; `job.*` means all of a family")
    for kind in kinds:
        if not is_known(kind):
            known = did_you_mean(kind, NAMES)
            raise BadRequest(f"kind: there is no event {kind[:80]!r}{known}", hint="docs/events.md has all names")
    return StreamFilter(
        names=pattern_of(kinds) if kinds else None,
        plugin=request.argument("plugin"),
        job_id=request.argument("job"),
        root_job_id=request.argument("tree"),
    )


async def _position_of(desk: AppContext, feed: Feed, request: Request) -> int:
    """After which row to begin: the newest, unless the request names one."""
    since, last = request.argument("since"), request.header("last-event-id")
    name, asked = ("since", since) if last is None else ("Last-Event-ID", last)
    end = await feed.position()
    await desk.ledger.until_durable()  # the client gets this position
    if asked is None:
        return end
    if not (asked.isascii() and asked.isdigit() and len(asked) <= 19):
        raise BadRequest(f"{name}: {asked[:80]!r} is not a position", hint="send the id of the last event you have")
    position = int(asked)
    if position > end:
        # Of another ledger, or of this one before a restore: whoever asks again and again must come in one day.
        return end
    if position == 0:
        first, _ = await desk.ledger.read(journal.bounds)
        return first - 1 if first else end
    return position
