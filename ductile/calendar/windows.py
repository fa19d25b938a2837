"""The hours in which a schedule may fire: weekdays and times of day, on the wall clock of its zone.

A window that falls into the gap of a clock change does not open that day, and one in a repeated hour opens twice.
"""

from datetime import datetime, time, timedelta, tzinfo

from attrs import frozen

from ductile.calendar.cron import DAY
from ductile.calendar.reasons import SkipReason
from ductile.calendar.zones import offset_periods, wall_time

WEEK = timedelta(days=7)
MAX_CLOSED = timedelta(days=16)
"""A week and a day of wall time, twice: the only opening of a week may fall into a gap."""
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


@frozen
class Window:
    """A time of day range [start, end). It crosses midnight if it ends before it starts."""

    start: time
    end: time

    def contains(self, at: time) -> bool:
        if self.start <= self.end:
            return self.start <= at < self.end
        return at >= self.start or at < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


@frozen(kw_only=True)
class OpenHours:
    """Open hours: the weekday (0 is Sunday) is not in `not_on`, and all `windows` contain the time."""

    zone: tzinfo
    windows: tuple[Window, ...] = ()
    not_on: frozenset[int] = frozenset()

    def closed_reason(self, moment: datetime) -> SkipReason | None:
        """Return why nothing may fire at `moment`; None if the hours are open."""
        return self._closed(wall_time(self.zone, moment)) if self.windows or self.not_on else None

    def opens_at(self, moment: datetime) -> datetime | None:
        """Return the first open time at or after `moment`; None if the hours never open."""
        if self.closed_reason(moment) is None:
            return moment
        for period in offset_periods(self.zone, moment, moment + MAX_CLOSED):
            opening = self._opening(period.wall(period.start))
            if opening is not None and opening < period.wall(period.end):
                return period.moment(opening)
        return None

    def describe_closed(self, moment: datetime) -> str:
        """Describe why the hours are closed at `moment`."""
        wall = wall_time(self.zone, moment)
        if self._closed(wall) is SkipReason.OUTSIDE_DAY_CONSTRAINT:
            return f"not on {_DAYS[wall.isoweekday() % 7]}"
        return f"only {' and '.join(map(str, self.windows))}; local time is {wall:%H:%M}"

    def _closed(self, wall: datetime) -> SkipReason | None:
        if wall.isoweekday() % 7 in self.not_on:
            return SkipReason.OUTSIDE_DAY_CONSTRAINT
        if not all(window.contains(wall.time()) for window in self.windows):
            return SkipReason.OUTSIDE_TIME_WINDOW
        return None

    def _opening(self, wall: datetime) -> datetime | None:
        """Return the first open wall time from `wall` on: `wall` itself, a midnight, or the start of a window."""
        if self._closed(wall) is None:
            return wall
        starts = sorted({time(), *(window.start for window in self.windows)})
        dates = (wall.date() + number * DAY for number in range(WEEK // DAY + 1))
        openings = (datetime.combine(date, start) for date in dates for start in starts)
        return next((opening for opening in openings if opening > wall and self._closed(opening) is None), None)
