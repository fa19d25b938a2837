"""The journal as events that are ready to be sent: read once, encoded once, shared by everybody who listens.

Only the newest rows are kept; whoever is further behind reads the ledger, which is the buffer of every reader. Knows
nothing of HTTP, of rights or of who reads. The stream calls it.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import orjson
import trio
from attrs import define, field, frozen

from ductile.core.clock import to_text
from ductile.core.formats import strict_json
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import Ledger
from ductile.ledger.tables import journal
from ductile.web.stream.event_types import NAMES, events_of

PORTION, PORTION_BYTES = 200, 256 * 1024
"""How much a reader holds at once, so that one that does not read holds little for long."""
KEPT, KEPT_BYTES = 400, 4 * 1024 * 1024
ROWS_AT_ONCE = 25


@frozen
class Frame:
    """One event as JSON; `bare` is for those who may not see payloads.

    `place` is where to go on after it. Only the last event of a row is a place beyond the row, so that a reader which
    was cut off between two of them gets the row again, never half of it.
    """

    place: int
    at: str
    name: str
    full: bytes = field(repr=False)
    bare: bytes = field(repr=False)

    def server_sent(self, *, is_full: bool) -> bytes:
        """As an SSE block."""
        data = self.full if is_full else self.bare
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (self.place, self.name.encode(), data)

    def message(self, *, is_full: bool) -> str:
        """As a WebSocket message."""
        data = (self.full if is_full else self.bare).decode()
        return f'{{"seq":{self.place},"at":"{self.at}","event":"{self.name}","data":{data}}}'


@frozen
class BroadcastRow:
    """One row of the journal and its events."""

    seq: int
    plugin: str | None
    job_id: str | None
    root_job_id: str | None
    frames: tuple[Frame, ...]
    size: int


@frozen
class Portion:
    """The lines after a position, oldest first; there is nothing else up to `end`."""

    lines: tuple[BroadcastRow, ...]
    end: int

    @property
    def is_full(self) -> bool:
        """Whether more may be there already."""
        return len(self.lines) >= PORTION or sum(line.size for line in self.lines) >= PORTION_BYTES


@frozen(kw_only=True)
class StreamFilter:
    """What a reader asked for; whatever it did not name is all the same to it."""

    names: re.Pattern[str] | None = None
    plugin: str | None = None
    job_id: str | None = None
    root_job_id: str | None = None

    def concerns(self, row: "journal.JournalEntry | BroadcastRow") -> bool:
        """Whether the row can have an event that is wanted."""
        asked = ((self.plugin, row.plugin), (self.job_id, row.job_id), (self.root_job_id, row.root_job_id))
        return all(want is None or want == has for want, has in asked)

    def of(self, line: BroadcastRow) -> Iterable[Frame]:
        """Those events of the line that are wanted."""
        if not self.concerns(line):
            return ()
        if self.names is None:
            return line.frames
        return (frame for frame in line.frames if self.names.fullmatch(frame.name))


def pattern_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches each of the names; `*` at the end of one stands for any rest."""
    return re.compile(
        "|".join(re.escape(name[:-1]) + ".*" if name.endswith("*") else re.escape(name) for name in names)
    )


def is_known(name: str) -> bool:
    """Whether there can ever be an event that this name, or pattern, means."""
    return any(map(pattern_of([name]).fullmatch, NAMES))


def frame_of(name: str, place: int, at: str, data: dict[str, Any]) -> Frame:
    """An event of the stream itself, the same for everybody."""
    text = _encoded(data)
    return Frame(place, at, name, text, text)


@define(eq=False)
class Feed:
    """The newest lines of the journal. Holds every line after `_since` up to `_end`."""

    ledger: Ledger
    _lines: list[BroadcastRow] = field(factory=list)
    _since: int = 0
    _end: int = 0
    _size: int = 0
    _turn: trio.Lock = field(factory=trio.Lock)

    async def position(self) -> int:
        return await self.ledger.read(journal.position)

    async def after(self, seq: int, wanted: StreamFilter) -> Portion:
        """The next lines after position `seq`, a portion of them at most; some that are not wanted may be empty."""
        if not self._since <= seq < self._end:
            end = await self.position()
            if end <= seq:
                await trio.lowlevel.checkpoint()
                return Portion((), seq)
            if seq < self._since:
                return await self._read(seq, end, wanted)
            await self._catch_up(seq, end)
            if seq < self._since:  # others went on meanwhile, too far for what is kept
                return await self._read(seq, end, wanted)
        lines = self._lines[bisect_right(self._lines, seq, key=_seq) :][:PORTION]
        portion = Portion(tuple(lines), lines[-1].seq if lines else self._end)
        await trio.lowlevel.checkpoint()
        return portion

    async def _catch_up(self, seq: int, end: int) -> None:
        """What follows `seq` is kept; whoever comes first reads it for all."""
        async with self._turn:
            if seq > self._end:  # nobody has listened for a while
                self._lines, self._since, self._end, self._size = [], seq, seq, 0
            if seq == self._end:
                self._keep(await self._read(seq, end, StreamFilter()))

    def _keep(self, portion: Portion) -> None:
        self._lines.extend(portion.lines)
        self._end = portion.end
        self._size += sum(line.size for line in portion.lines)
        surplus = 0
        while len(self._lines) - surplus > KEPT or self._size > KEPT_BYTES:
            self._since = self._lines[surplus].seq
            self._size -= self._lines[surplus].size
            surplus += 1
        del self._lines[:surplus]

    async def _read(self, seq: int, end: int, wanted: StreamFilter) -> Portion:
        lines = await self.ledger.read(read_lines, seq, wanted)
        # A place that a power cut takes back would be given again, to something the reader then never sees.
        await self.ledger.until_durable()
        return Portion(tuple(lines), lines[-1].seq if lines else end)


def read_lines(db: Db, seq: int, wanted: StreamFilter) -> list[BroadcastRow]:
    """A portion of the journal after `seq`, encoded: most of the work, so that it is done in a reader's thread."""
    lines: list[BroadcastRow] = []
    size, has_more = 0, True
    while has_more and len(lines) < PORTION and size < PORTION_BYTES:
        entries = journal.read_since(db, lines[-1].seq if lines else seq, limit=ROWS_AT_ONCE)
        has_more = len(entries) == ROWS_AT_ONCE
        for entry in entries:
            lines.append(_line(entry, wanted))
            size += lines[-1].size
    return lines


def _line(entry: journal.JournalEntry, wanted: StreamFilter) -> BroadcastRow:
    if not wanted.concerns(entry):
        return BroadcastRow(entry.seq, entry.plugin, entry.job_id, entry.root_job_id, (), 0)
    *others, last = events_of(entry)
    at, places = to_text(entry.at), [(event, entry.seq - 1) for event in others] + [(last, entry.seq)]
    frames = tuple(
        Frame(place, at, event.name, _encoded(event.data), _encoded(event.bare())) for event, place in places
    )
    size = sum(len(frame.full) + len(frame.bare) for frame in frames)
    return BroadcastRow(entry.seq, entry.plugin, entry.job_id, entry.root_job_id, frames, size)


def _encoded(data: Any) -> bytes:
    try:
        return orjson.dumps(data)
    except TypeError:  # integers of any size and halves of characters
        return strict_json.dumps(data).encode()


def _seq(line: BroadcastRow) -> int:
    return line.seq
