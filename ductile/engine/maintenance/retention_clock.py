"""The clock of retention: decides which rows have expired even if the wall clock was wrong.

A wall clock that jumps ahead must not empty the ledger, and rows written while it was far behind must not expire when
it is corrected. Both are checked against the monotonic clock.
"""

from collections import deque
from datetime import datetime, timedelta

from attrs import define, field

from ductile.core.clock import Clock
from ductile.ledger.admin.retention import RetentionPolicy, Watermarks, positions
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.tables.journal import newest_time

CATCH_UP_FACTOR = 24
"""How much faster than real time the retention clock follows a wall clock that is ahead."""
MAX_TRUSTED_GAP = timedelta(days=1)
"""The wall clock at a start is accepted up to this long after the newest journal row."""
MAX_MARKS = 100
"""Positions stored per table over its retention time."""


@define(eq=False)
class PositionHistory:
    """The newest row of a table at points of the monotonic clock."""

    marks: deque[tuple[float, int]]

    def add(self, moment: float, position: int, keep: timedelta | None) -> None:
        """Add the newest position. Of the marks older than `keep` only the latest is needed."""
        seconds = keep.total_seconds() if keep is not None else 0.0
        if moment - self.marks[-1][0] >= seconds / MAX_MARKS:
            self.marks.append((moment, position))
        while len(self.marks) > 1 and self.marks[1][0] <= moment - seconds:
            self.marks.popleft()

    @property
    def watermark(self) -> int:
        """Rows up to here exceed the retention time or are older than this process; their timestamps decide."""
        return self.marks[0][1]


@define(eq=False)
class RetentionClock:
    """A wall clock that is checked against the monotonic clock."""

    trusted_start_at: datetime
    """The start time by the wall clock, at most MAX_TRUSTED_GAP after the newest journal row."""
    started: float
    histories: dict[str, PositionHistory] = field(factory=dict)

    @classmethod
    async def load(cls, ledger: Ledger, clock: Clock) -> "RetentionClock":
        """Start the clock at the current positions of the ledger."""
        newest, now, monotonic = await ledger.read(newest_time), clock.now(), clock.monotonic()
        start = await ledger.read(positions)
        histories = {
            kind: PositionHistory(deque([(monotonic, start.get(table, 0))]))
            for kind, (table, _) in PRUNED_TABLES.items()
        }
        return cls(min(now, newest + MAX_TRUSTED_GAP) if newest else now, monotonic, histories)

    def now(self, clock: Clock) -> datetime:
        """Return the wall clock time, or the latest trusted time. After a long stop it catches up a day per hour."""
        uptime = timedelta(seconds=clock.monotonic() - self.started)
        return min(clock.now(), self.trusted_start_at + uptime * CATCH_UP_FACTOR)

    async def update_watermarks(self, ledger: Ledger, policy: RetentionPolicy, clock: Clock) -> Watermarks:
        """Add the current positions and return up to which rows may be pruned by their timestamps."""
        newest, monotonic = await ledger.read(positions), clock.monotonic()
        for kind, (table, setting) in PRUNED_TABLES.items():
            self.histories[kind].add(monotonic, newest.get(table, 0), getattr(policy, setting))
        return Watermarks(**{kind: history.watermark for kind, history in self.histories.items()})


# The age of a tree is that of its last attempt, because its jobs may have waited for long.
PRUNED_TABLES = {
    "trees": ("job_log", "job_queue"),
    "attempts": ("job_log", "job_log"),
    "journal": ("journal", "journal"),
    "facts": ("plugin_facts", "facts"),
    "receipts": ("journal", "receipts"),
    "deliveries": ("webhook_deliveries", "deliveries"),
    "messages": ("messages", "messages"),
}
"""Kind of row → the table whose positions count, and the field of the retention policy."""
