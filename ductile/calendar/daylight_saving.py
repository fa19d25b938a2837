"""The slots of a cron line in a time zone, with the rule for clock changes.

A line is a fixed local time unless its hour field begins with `*`. In a gap it fires once, right after it, and in a
repeated hour only the first time. A line whose hour field begins with `*` follows elapsed minutes.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from attrs import frozen

from ductile.calendar.cron import DAY, CronLine
from ductile.calendar.slots import TICK
from ductile.calendar.zones import OffsetPeriod, offset_periods

SEARCH_PERIOD = timedelta(days=3)
"""The length of one search step; longer pauses between matches are skipped."""
MAX_UTC_OFFSET = timedelta(days=2)
"""An upper bound of the offset of any zone from UTC, including a clock change."""


@frozen
class WallPeriod:
    """The wall times [first, end) of an offset period that count for a line.

    `adds_slot`: the gap before the period contains a match, which fires at the start of the period.
    """

    period: OffsetPeriod
    first: datetime
    end: datetime
    adds_slot: bool


@frozen
class CronSlots:
    """The times at which a cron line matches the wall clock of `zone`."""

    line: CronLine
    zone: tzinfo

    def after(self, moment: datetime) -> datetime | None:
        start = moment
        while True:
            found = None
            for span in self._wall_periods(start, start + SEARCH_PERIOD):
                if span.adds_slot and span.period.start > moment:
                    return span.period.start
                found = self.line.first(max(span.first, span.period.wall(moment) + TICK))
                if found and found < span.end:
                    return span.period.moment(found)
            if found is None:
                return None
            start = max(start + SEARCH_PERIOD, found.replace(tzinfo=UTC) - MAX_UTC_OFFSET)

    def before(self, moment: datetime) -> datetime | None:
        end = moment
        while True:
            found = None
            for span in reversed(list(self._wall_periods(end - SEARCH_PERIOD, end))):
                found = self.line.last(span.end)
                if found and found >= span.first:
                    return span.period.moment(found)
                if span.adds_slot:
                    return span.period.start
            if found is None:
                return None
            end = min(end - SEARCH_PERIOD, found.replace(tzinfo=UTC) + MAX_UTC_OFFSET)

    def count(self, start: datetime, end: datetime) -> int:
        total = 0
        for span in self._wall_periods(start + TICK, end + TICK):
            total += self.line.count(span.first, span.end)
            total += span.adds_slot and not self.line.matches(span.first)
        return total

    def _wall_periods(self, start: datetime, end: datetime) -> Iterator[WallPeriod]:
        """Yield the wall times of [start, end) in order. Starts a day earlier to know the times of a repeated hour."""
        latest: datetime | None = None  # the latest wall time so far
        for period in offset_periods(self.zone, start - DAY, end):
            first, last = period.wall(period.start), period.wall(period.end)
            adds_slot = False
            if self.line.is_fixed and latest is not None:
                adds_slot = period.start >= start and self.line.count(latest, first) > 0
                first = max(first, latest)
            latest = last
            first = max(first, period.wall(start))
            if adds_slot or first < last:
                yield WallPeriod(period, first, last, adds_slot)
