"""The slots of a schedule as moments in UTC: an even grid, a single moment, or a cron line in a time zone.

Knows the rule for changing clocks: a fixed time in the gap comes right after it and a repeated one only the first time;
a rhythm (`*` or `/` in minute or hour) goes by the minutes that really pass. Who fires a slot is not known here.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

from attrs import frozen

from ductile.calendar.cron import DAY, CronLine
from ductile.calendar.zones import Stretch, stretches

TICK = timedelta.resolution
REACH = timedelta(days=3)
"""How much is searched at once; longer pauses are jumped over."""
FURTHEST = timedelta(days=2)
"""More than the clocks of any zone differ from UTC, with a change of them."""


class Slots(Protocol):
    """Moments in order. Where a schedule's own life begins among them is not their matter."""

    def after(self, moment: datetime) -> datetime | None:
        """The first slot later than `moment`."""

    def before(self, moment: datetime) -> datetime | None:
        """The last slot earlier than `moment`."""

    def count(self, start: datetime, end: datetime) -> int:
        """How many slots are later than `start` and not later than `end`."""


@frozen
class Grid:
    """Every `interval` from `anchor` on, in real elapsed time; no drift, whatever happens to a run."""

    anchor: datetime
    interval: timedelta

    def after(self, moment: datetime) -> datetime | None:
        return self._slot((moment - self.anchor) // self.interval + 1)

    def before(self, moment: datetime) -> datetime | None:
        return self._slot(-((self.anchor - moment) // self.interval) - 1)

    def count(self, start: datetime, end: datetime) -> int:
        return max((end - self.anchor) // self.interval - (start - self.anchor) // self.interval, 0)

    def _slot(self, number: int) -> datetime | None:
        try:
            return self.anchor + number * self.interval
        except OverflowError:  # the calendar ends before the interval does
            return None


@frozen
class Once:
    """A single slot."""

    moment: datetime

    def after(self, moment: datetime) -> datetime | None:
        return self.moment if self.moment > moment else None

    def before(self, moment: datetime) -> datetime | None:
        return self.moment if self.moment < moment else None

    def count(self, start: datetime, end: datetime) -> int:
        return int(start < self.moment <= end)


@frozen
class Piece:
    """Wall times [first, end) of one stretch that count for a line; `moved` adds a slot at the stretch's beginning."""

    stretch: Stretch
    first: datetime
    end: datetime
    moved: bool


@frozen
class Dial:
    """The moments at which a cron line matches the wall clocks of `zone`."""

    line: CronLine
    zone: tzinfo

    def after(self, moment: datetime) -> datetime | None:
        start = moment
        while True:
            found = None
            for piece in self._pieces(start, start + REACH):
                if piece.moved and piece.stretch.start > moment:
                    return piece.stretch.start
                found = self.line.first(max(piece.first, piece.stretch.wall(moment) + TICK))
                if found and found < piece.end:
                    return piece.stretch.moment(found)
            if found is None:
                return None
            start = max(start + REACH, found.replace(tzinfo=UTC) - FURTHEST)

    def before(self, moment: datetime) -> datetime | None:
        end = moment
        while True:
            found = None
            for piece in reversed(list(self._pieces(end - REACH, end))):
                found = self.line.last(piece.end)
                if found and found >= piece.first:
                    return piece.stretch.moment(found)
                if piece.moved:
                    return piece.stretch.start
            if found is None:
                return None
            end = min(end - REACH, found.replace(tzinfo=UTC) + FURTHEST)

    def count(self, start: datetime, end: datetime) -> int:
        total = 0
        for piece in self._pieces(start + TICK, end + TICK):
            total += self.line.count(piece.first, piece.end)
            total += piece.moved and not self.line.matches(piece.first)
        return total

    def _pieces(self, start: datetime, end: datetime) -> Iterator[Piece]:
        """What counts of [start, end), in order. Looks back a day: times of a repeated hour may have been before."""
        shown: datetime | None = None  # the latest wall time so far
        for stretch in stretches(self.zone, start - DAY, end):
            first, last = stretch.wall(stretch.start), stretch.wall(stretch.end)
            moved = False
            if self.line.is_fixed and shown is not None:
                moved = stretch.start >= start and self.line.count(shown, first) > 0
                first = max(first, shown)
            shown = last
            first = max(first, stretch.wall(start))
            if moved or first < last:
                yield Piece(stretch, first, last, moved)
