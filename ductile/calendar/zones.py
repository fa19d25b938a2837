"""Where the clocks change: a time zone as stretches of constant offset.

Every other room reckons inside a stretch, where wall time is UTC plus a constant. Any tzinfo will do; what was found
out about one is remembered.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from attrs import frozen

from ductile.calendar.bounds import within

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
STEP = timedelta(days=3)
"""No zone has changed its clocks twice within six days since 1970: a change and its opposite cannot hide in a step."""


@frozen
class Stretch:
    """Wall time is UTC plus `offset` from `start` up to, not including, `end`."""

    start: datetime
    end: datetime
    offset: timedelta

    def wall(self, moment: datetime) -> datetime:
        """What a clock on the wall shows at `moment`."""
        return (moment + self.offset).replace(tzinfo=None)

    def moment(self, wall: datetime) -> datetime:
        """When a clock on the wall shows `wall`, by this stretch's offset."""
        return wall.replace(tzinfo=UTC) - self.offset


def wall_time(zone: tzinfo, moment: datetime) -> datetime:
    """What a clock on the wall shows there at `moment`."""
    return moment.astimezone(zone).replace(tzinfo=None)


def stretches(zone: tzinfo, start: datetime, end: datetime) -> Iterator[Stretch]:
    """The stretches that [start, end) consists of; between two of them the clocks change."""
    begun, offset = start, timedelta()
    # Not the step that begins at `end`: it would not know of a change at that moment, which belongs to the one before.
    last = (end - timedelta.resolution - EPOCH) // STEP
    for number in range((start - EPOCH) // STEP, last + 1):
        before, change, after = _clocks(zone, number)
        if change is None or change >= end:
            offset = before
        elif change <= begun:
            offset = after
        else:
            yield Stretch(begun, change, before)
            begun, offset = change, after
    yield Stretch(begun, end, offset)


@lru_cache(maxsize=4096)
def _clocks(zone: tzinfo, number: int) -> tuple[timedelta, datetime | None, timedelta]:
    """The offset at the beginning of a step, when it changes within it, and the offset at its end."""
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


def local_text(moment: datetime, zone: tzinfo) -> str:
    """What a clock on the wall shows there, with its offset."""
    return within(moment).astimezone(zone).isoformat(timespec="seconds")
