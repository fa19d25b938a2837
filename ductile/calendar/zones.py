"""A time zone as periods of constant UTC offset, separated by clock changes.

The other modules compute within a period, where wall time is UTC plus a constant. Works with any tzinfo; the changes
found are cached.
`daylight_saving` has the rule for cron lines at a clock change.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from attrs import frozen

from ductile.calendar.bounds import clamp

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
STEP = timedelta(days=3)
"""Search step. Since 1970 no zone changed its clock twice within six days, so a step contains at most one change."""


@frozen
class OffsetPeriod:
    """A period [start, end) in which wall time is UTC plus `offset`."""

    start: datetime
    end: datetime
    offset: timedelta

    def wall(self, moment: datetime) -> datetime:
        """Return the wall time at `moment`."""
        return (moment + self.offset).replace(tzinfo=None)

    def moment(self, wall: datetime) -> datetime:
        """Return the UTC time of the wall time `wall`, by this period's offset."""
        return wall.replace(tzinfo=UTC) - self.offset


def wall_time(zone: tzinfo, moment: datetime) -> datetime:
    """Return the wall time in `zone` at `moment`."""
    return moment.astimezone(zone).replace(tzinfo=None)


def offset_periods(zone: tzinfo, start: datetime, end: datetime) -> Iterator[OffsetPeriod]:
    """Yield the offset periods of [start, end), in order."""
    begin, offset = start, timedelta()
    # Excludes the step that starts at `end`: a change at that time belongs to the step before.
    last = (end - timedelta.resolution - EPOCH) // STEP
    for number in range((start - EPOCH) // STEP, last + 1):
        before, change, after = _offsets(zone, number)
        if change is None or change >= end:
            offset = before
        elif change <= begin:
            offset = after
        else:
            yield OffsetPeriod(begin, change, before)
            begin, offset = change, after
    yield OffsetPeriod(begin, end, offset)


@lru_cache(maxsize=4096)
def _offsets(zone: tzinfo, number: int) -> tuple[timedelta, datetime | None, timedelta]:
    """Return the offset at the start of a step, the time of a change within it, and the offset at its end."""
    start = EPOCH + number * STEP
    before, after = _offset(zone, start), _offset(zone, start + STEP)
    if before == after:
        return before, None, after
    same, other = 0, STEP // SECOND
    while other - same > 1:
        middle = (same + other) // 2
        if _offset(zone, start + middle * SECOND) == before:
            same = middle
        else:
            other = middle
    return before, start + other * SECOND, after


def _offset(zone: tzinfo, moment: datetime) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None, "a zone that knows its wall time knows its offset"
    return offset


def format_local(moment: datetime, zone: tzinfo) -> str:
    """Format as local time in `zone`, with its offset."""
    return clamp(moment).astimezone(zone).isoformat(timespec="seconds")
