"""When a schedule may fire at all: weekdays and parts of the day, on the wall clocks of its zone.

A time is open or closed by what the clocks show then. So a window that lies in the gap of changing clocks does not open
that day, and one in the repeated hour opens twice.
"""

from datetime import datetime, time, timedelta, tzinfo

from attrs import frozen

from ductile.calendar.cron import DAY
from ductile.calendar.reasons import SkipReason
from ductile.calendar.zones import stretches, wall_time

WEEK = timedelta(days=7)
LONGEST_CLOSED = timedelta(days=16)
"""A week and a day by the wall, twice: the only opening of a week may lie in a gap."""
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


@frozen
class Window:
    """A part of the day, [start, end); one that ends before it starts crosses midnight."""

    start: time
    end: time

    def holds(self, at: time) -> bool:
        if self.start <= self.end:
            return self.start <= at < self.end
        return at >= self.start or at < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


@frozen(kw_only=True)
class Hours:
    """Open when the weekday (0 is Sunday) is not in `not_on` and every one of `windows` holds."""

    zone: tzinfo
    windows: tuple[Window, ...] = ()
    not_on: frozenset[int] = frozenset()

    def closed(self, moment: datetime) -> SkipReason | None:
        """Why nothing may fire at `moment`; None if it may."""
        return self._closed(wall_time(self.zone, moment)) if self.windows or self.not_on else None

    def opens_at(self, moment: datetime) -> datetime | None:
        """The first open moment at or after `moment`; None if there never is one."""
        if self.closed(moment) is None:
            return moment
        for stretch in stretches(self.zone, moment, moment + LONGEST_CLOSED):
            opening = self._opening(stretch.wall(stretch.start))
            if opening is not None and opening < stretch.wall(stretch.end):
                return stretch.moment(opening)
        return None

    def words(self, moment: datetime) -> str:
        """What holds a slot at `moment`, for people."""
        wall = wall_time(self.zone, moment)
        if self._closed(wall) is SkipReason.OUTSIDE_DAY_CONSTRAINT:
            return f"not on {_DAYS[wall.isoweekday() % 7]}"
        return f"only {' and '.join(map(str, self.windows))}, and there it is {wall:%H:%M}"

    def _closed(self, wall: datetime) -> SkipReason | None:
        if wall.isoweekday() % 7 in self.not_on:
            return SkipReason.OUTSIDE_DAY_CONSTRAINT
        if not all(window.holds(wall.time()) for window in self.windows):
            return SkipReason.OUTSIDE_TIME_WINDOW
        return None

    def _opening(self, wall: datetime) -> datetime | None:
        """The first open wall time from `wall` on: there itself, at a midnight, or where a window starts."""
        if self._closed(wall) is None:
            return wall
        starts = sorted({time(), *(window.start for window in self.windows)})
        dates = (wall.date() + number * DAY for number in range(WEEK // DAY + 1))
        openings = (datetime.combine(date, start) for date in dates for start in starts)
        return next((opening for opening in openings if opening > wall and self._closed(opening) is None), None)
