"""The journal as encoded events, read and encoded once for all subscribers.

Caches only the newest rows; a subscriber that is further behind reads the ledger. Does not know HTTP or scopes.
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
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal
from ductile.web.stream.event_types import NAMES, events_of

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 200, 256 * 1024
"""The most that one subscriber holds in memory. Small, because a slow subscriber holds it for long."""
MAX_CACHED_ROWS, MAX_CACHED_BYTES = 400, 4 * 1024 * 1024
ROWS_PER_QUERY = 25


@frozen
class Frame:
    """An encoded event. `bare` is the version without messages and payload data.

    `position` is the position to resume from after this event. Only the last event of a row has the position of the
    row, so that a subscriber that was disconnected between two events of a row gets the whole row again.
    """

    position: int
    at: str
    name: str
    full: bytes = field(repr=False)
    bare: bytes = field(repr=False)

    def server_sent(self, *, is_full: bool) -> bytes:
        """Return the event as an SSE block."""
        data = self.full if is_full else self.bare
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (self.position, self.name.encode(), data)

    def message(self, *, is_full: bool) -> str:
        """Return the event as a WebSocket message."""
        data = (self.full if is_full else self.bare).decode()
        return f'{{"seq":{self.position},"at":"{self.at}","event":"{self.name}","data":{data}}}'


@frozen
class BroadcastRow:
    """A journal row with its encoded events."""

    seq: int
    plugin: str | None
    job_id: str | None
    root_job_id: str | None
    frames: tuple[Frame, ...]
    size: int


@frozen
class Batch:
    """The rows after a position, oldest first. Complete up to the position `end`."""

    rows: tuple[BroadcastRow, ...]
    end: int
    pruned_to: int | None = None
    """Retention has deleted the rows up to this position; None if it has deleted all that are missing."""

    @property
    def is_full(self) -> bool:
        """True if more rows may be available."""
        return len(self.rows) >= MAX_BATCH_ROWS or sum(row.size for row in self.rows) >= MAX_BATCH_BYTES


@frozen(kw_only=True)
class StreamFilter:
    """The conditions of a subscriber. None matches everything."""

    names: re.Pattern[str] | None = None
    plugin: str | None = None
    job_id: str | None = None
    root_job_id: str | None = None

    def matches(self, row: "journal.JournalEntry | BroadcastRow") -> bool:
        """True if events of the row can match."""
        conditions = ((self.plugin, row.plugin), (self.job_id, row.job_id), (self.root_job_id, row.root_job_id))
        return all(expected is None or expected == actual for expected, actual in conditions)

    def select(self, row: BroadcastRow) -> Iterable[Frame]:
        """Return the matching events of the row."""
        if not self.matches(row):
            return ()
        if self.names is None:
            return row.frames
        return (frame for frame in row.frames if self.names.fullmatch(frame.name))


def compile_names(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the names. A trailing `*` is a wildcard."""
    return re.compile(
        "|".join(re.escape(name[:-1]) + ".*" if name.endswith("*") else re.escape(name) for name in names)
    )


def is_known_event(name: str) -> bool:
    """True if the name or pattern matches an event type."""
    return any(map(compile_names([name]).fullmatch, NAMES))


def make_frame(name: str, position: int, at: str, data: dict[str, Any]) -> Frame:
    """Encode an event of the stream itself, with the same data for every subscriber."""
    text = _encode(data)
    return Frame(position, at, name, text, text)


@define(eq=False)
class JournalFeed:
    """A cache of the newest journal rows: all rows after `_since` up to `_end`."""

    ledger: Ledger
    _rows: list[BroadcastRow] = field(factory=list)
    _since: int = 0
    _end: int = 0
    _size: int = 0
    _lock: trio.Lock = field(factory=trio.Lock)

    async def position(self) -> int:
        return await self.ledger.read(journal.position)

    async def bounds(self) -> tuple[int, int]:
        """Return the first and the last position; (0, 0) without rows."""
        return await self.ledger.read(journal.bounds)

    async def read_after(self, seq: int, filter_: StreamFilter) -> Batch:
        """Return the next batch of rows after the position `seq`. Rows that do not match may have no events."""
        if not self._since <= seq < self._end:
            end = await self.position()
            if end <= seq:
                await trio.lowlevel.checkpoint()
                return Batch((), seq)
            if seq < self._since:
                return await self._read(seq, end, filter_)
            await self._fill_cache(seq, end)
            if seq < self._since:  # the cache has moved on in the meantime
                return await self._read(seq, end, filter_)
        rows = self._rows[bisect_right(self._rows, seq, key=_row_seq) :][:MAX_BATCH_ROWS]
        batch = Batch(tuple(rows), rows[-1].seq if rows else self._end)
        await trio.lowlevel.checkpoint()
        return batch

    async def _fill_cache(self, seq: int, end: int) -> None:
        """Cache the rows after `seq`. The first caller reads them for all waiting callers."""
        async with self._lock:
            if seq > self._end:  # no subscriber for a while
                self._rows, self._since, self._end, self._size = [], seq, seq, 0
            if seq == self._end:
                self._cache(await self._read(seq, end, StreamFilter()))

    def _cache(self, batch: Batch) -> None:
        self._rows.extend(batch.rows)
        self._end = batch.end
        self._size += sum(row.size for row in batch.rows)
        surplus = 0
        while len(self._rows) - surplus > MAX_CACHED_ROWS or self._size > MAX_CACHED_BYTES:
            self._since = self._rows[surplus].seq
            self._size -= self._rows[surplus].size
            surplus += 1
        del self._rows[:surplus]

    async def _read(self, seq: int, end: int, filter_: StreamFilter) -> Batch:
        rows = await self.ledger.read(read_rows, seq, filter_)
        # After a power failure, a lost position would be reused for an event that this subscriber would never get.
        await self.ledger.until_durable()
        return Batch(tuple(rows), rows[-1].seq if rows else end)


def read_rows(db: Db, seq: int, filter_: StreamFilter) -> list[BroadcastRow]:
    """Read and encode a batch of the journal after `seq`. Runs in a reader thread, because encoding is expensive."""
    rows: list[BroadcastRow] = []
    size, has_more = 0, True
    while has_more and len(rows) < MAX_BATCH_ROWS and size < MAX_BATCH_BYTES:
        entries = journal.read_since(db, rows[-1].seq if rows else seq, limit=ROWS_PER_QUERY)
        has_more = len(entries) == ROWS_PER_QUERY
        for entry in entries:
            rows.append(_encode_row(entry, filter_))
            size += rows[-1].size
    return rows


def _encode_row(entry: journal.JournalEntry, filter_: StreamFilter) -> BroadcastRow:
    if not filter_.matches(entry):
        return BroadcastRow(entry.seq, entry.plugin, entry.job_id, entry.root_job_id, (), 0)
    *others, last = events_of(entry)
    at, positions = to_text(entry.at), [(event, entry.seq - 1) for event in others] + [(last, entry.seq)]
    frames = tuple(
        Frame(position, at, event.name, _encode(event.data), _encode(event.bare())) for event, position in positions
    )
    size = sum(len(frame.full) + len(frame.bare) for frame in frames)
    return BroadcastRow(entry.seq, entry.plugin, entry.job_id, entry.root_job_id, frames, size)


def _encode(data: Any) -> bytes:
    try:
        return orjson.dumps(data)
    except TypeError:  # large integers and lone surrogates
        return strict_json.dumps(data).encode()


def _row_seq(row: BroadcastRow) -> int:
    return row.seq
