"""How much of the past may be forgotten, whatever the clock says.

A clock that jumps ahead must not empty the ledger, and what was written while it stood far back must not look old when
it is right again. Both are held against the clock that only goes forward. `housekeeping` asks before it forgets.
"""

from collections import deque
from datetime import datetime, timedelta

from attrs import define, field

from ductile.core.clock import Clock
from ductile.ledger.admin.retention import Reach, RetentionPolicy, positions
from ductile.ledger.storage.writer import Ledger
from ductile.ledger.tables.journal import newest_moment

CATCHES_UP = 24
"""How much faster than time itself the past is believed to go by, where the clock says that much of it has."""
ONE_DAY = timedelta(days=1)
MARKS = 100
"""In how many steps a table's past is remembered for as long as its rows are kept."""


@define(eq=False)
class Watermark:
    """How far one table had come, at moments of the clock that only goes forward."""

    marks: deque[tuple[float, int]]

    def note(self, moment: float, position: int, keep: timedelta | None) -> None:
        """The table has come to `position`. Of the marks older than `keep` only the latest is of use."""
        seconds = keep.total_seconds() if keep is not None else 0.0
        if moment - self.marks[-1][0] >= seconds / MARKS:
            self.marks.append((moment, position))
        while len(self.marks) > 1 and self.marks[1][0] <= moment - seconds:
            self.marks.popleft()

    @property
    def reach(self) -> int:
        """Rows up to here are older than they are kept, or than this process: their own moments decide."""
        return self.marks[0][1]


@define(eq=False)
class RetentionClock:
    """What this process knows of the time before now.

    `believed_at` is the moment of the start that nothing speaks against: the clock's, but at most a day after the
    newest row of the journal.
    """

    believed_at: datetime
    started: float
    trails: dict[str, Watermark] = field(factory=dict)

    @classmethod
    async def of(cls, ledger: Ledger, clock: Clock) -> "RetentionClock":
        newest, now, steady = await ledger.read(newest_moment), clock.now(), clock.monotonic()
        start = await ledger.read(positions)
        trails = {kind: Watermark(deque([(steady, start.get(table, 0))])) for kind, (table, _) in FOLLOWED.items()}
        return cls(min(now, newest + ONE_DAY) if newest else now, steady, trails)

    def now(self, clock: Clock) -> datetime:
        """The clock's time, or the latest that can be believed: a long stop is caught up with, a day in each hour."""
        uptime = timedelta(seconds=clock.monotonic() - self.started)
        return min(clock.now(), self.believed_at + uptime * CATCHES_UP)

    async def reach(self, ledger: Ledger, policy: RetentionPolicy, clock: Clock) -> Reach:
        """What is not younger than it is kept by the clock that only goes forward."""
        here, steady = await ledger.read(positions), clock.monotonic()
        for kind, (table, kept_as) in FOLLOWED.items():
            self.trails[kind].note(steady, here.get(table, 0), getattr(policy, kept_as))
        return Reach(**{kind: trail.reach for kind, trail in self.trails.items()})


# A tree is as young as the last attempt in it; its jobs may have waited for long.
FOLLOWED = {
    "trees": ("job_log", "job_queue"),
    "attempts": ("job_log", "job_log"),
    "journal": ("journal", "journal"),
    "facts": ("plugin_facts", "facts"),
}
"""What is forgotten → the table that numbers it, and what the policy calls it."""
