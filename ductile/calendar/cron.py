"""Cron expressions on wall-clock time, parsed and iterated by croniter.

Wall times are naive datetimes; `daylight_saving` applies time zones and clock changes. Rejects croniter's extensions
beyond five fields of numbers, names, ranges, steps and lists, and dates that never occur.
"""

import re
from bisect import bisect_left
from collections.abc import Callable
from copy import copy
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from attrs import evolve, field, frozen
from croniter import croniter

MAX_LENGTH = 256
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
FIRST_YEAR, LAST_YEAR = 2, 9997
"""The supported years. A time zone offset could move dates outside of them beyond the range of datetime."""
MAX_PAUSE = 41 * 366 * DAY
"""Longer than any pause between matches of a date and weekday: 29 February on one weekday recurs within 40 years."""
ANY_TIME = datetime(2000, 1, 1)
"""The initial position of an iterator; every step sets its own start."""


@frozen
class Field:
    """One of the five fields: its name, the range of `*`, and the allowed values for messages."""

    name: str
    low: int
    high: int
    allowed: str

    @property
    def size(self) -> int:
        return self.high - self.low + 1

    def alone(self, text: str) -> str:
        """Return a cron line in which only this field is restricted."""
        return " ".join(text if kind is self else "*" for kind in FIELDS)

    def number(self, text: str) -> int:
        """Return the value of a number or of a name such as `mon`."""
        return int(text) if text.isdigit() else int(croniter.expand(self.alone(text))[0][FIELDS.index(self)][0])


FIELDS = (
    Field("minute", 0, 59, "0-59"),
    Field("hour", 0, 23, "0-23"),
    Field("day", 1, 31, "1-31"),
    Field("month", 1, 12, "1-12 or jan-dec"),
    Field("weekday", 0, 6, "0-7 or sun-sat"),
)
_VALUE = "[0-9]{1,2}|[a-z]{3}"
_ITEM = re.compile(rf"(?:\*|(?P<low>{_VALUE})(?:-(?P<high>{_VALUE}))?)(?:/(?P<step>[0-9]{{1,3}}))?", re.ASCII)


@frozen(kw_only=True)
class CronLine:
    """A parsed cron line. Weekdays count from 0, Sunday.

    `either`: a date matches by day of month or by weekday. As in crontab(5), this applies if both fields are
    restricted. A field that starts with `*`, including `*/2`, is not restricted, and then both must match.
    `is_fixed`: the hour field does not begin with `*`, so the line names times of day instead of an interval.
    `excluded`: weekdays that never match.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either: bool
    is_fixed: bool
    excluded: frozenset[int] = frozenset()
    iterator: croniter = field(eq=False, repr=False)

    def without(self, weekdays: frozenset[int]) -> "CronLine":
        """Return this line without its matches on `weekdays`."""
        return evolve(self, excluded=weekdays)

    def matches(self, wall: datetime) -> bool:
        return self.first(wall) == wall

    def first(self, wall: datetime) -> datetime | None:
        """Return the first match at or after `wall`; None if there is none in the supported years."""
        return self._search(croniter.get_next, _whole_minute_from(wall) - MINUTE, day_end=DAY - MINUTE)

    def last(self, wall: datetime) -> datetime | None:
        """Return the last match before `wall`; None if there is none in the supported years."""
        return self._search(croniter.get_prev, _whole_minute_from(wall), day_end=timedelta())

    def count(self, start: datetime, end: datetime) -> int:
        """Count the matches in [start, end)."""
        if start >= end:
            return 0
        ordinals = range(start.toordinal(), end.toordinal())
        dates = sum(self._matches_date(date.fromordinal(ordinal)) for ordinal in ordinals)
        return dates * len(self.hours) * len(self.minutes) + self._earlier_times(end) - self._earlier_times(start)

    def _search(self, step: Callable[..., datetime], start: datetime, *, day_end: timedelta) -> datetime | None:
        """Step to the next match that is not on an excluded weekday. Such a day is left at `day_end`."""
        if self.excluded.issuperset(range(7) if self.either else self.weekdays):
            return None
        found = self._step(step, start)
        while found and _weekday(found) in self.excluded:
            midnight = datetime.combine(found, time())
            found = self._step(step, midnight + day_end) if abs(found - start) < MAX_PAUSE else None
        return found

    def _step(self, step: Callable[..., datetime], start: datetime) -> datetime | None:
        try:
            found = step(
                copy(self.iterator), datetime, start
            )  # a copy: croniter keeps its position, threads share lines
        except (ValueError, OverflowError):  # CroniterBadDateError is a ValueError
            return None
        return found if FIRST_YEAR <= found.year <= LAST_YEAR else None

    def _matches_date(self, day: date) -> bool:
        if day.month not in self.months or _weekday(day) in self.excluded:
            return False
        by_day, by_weekday = day.day in self.days, _weekday(day) in self.weekdays
        return by_day or by_weekday if self.either else by_day and by_weekday

    def _earlier_times(self, wall: datetime) -> int:
        """Count the matches on the date of `wall` that are earlier than `wall`."""
        if not self._matches_date(wall):
            return 0
        later = _whole_minute_from(wall)
        if later.date() != wall.date():
            return len(self.hours) * len(self.minutes)
        in_this_hour = bisect_left(self.minutes, later.minute) if later.hour in self.hours else 0
        return bisect_left(self.hours, later.hour) * len(self.minutes) + in_this_hour


@lru_cache(maxsize=1 << 14)  # every reload parses the same lines several times
def parse_line(text: str) -> CronLine:
    """Parse a cron line. Raises ValueError with the reason, including for a line that can never fire."""
    try:
        fields = _fields(text)
        plain = list(map(_plain, FIELDS, fields))
    except ValueError as reason:
        raise ValueError(f"is not a cron line of five fields (minute hour day month weekday): {reason}") from None
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    iterator = croniter(" ".join(plain), ANY_TIME, day_or=either)
    values = iterator.expanded
    if not croniter.is_valid(" ".join(plain), strict=True):
        if not either:
            raise ValueError("names a date that never occurs")
        plain[2] = "*"  # croniter would search for the impossible day of month and ignore the weekday
        iterator = croniter(" ".join(plain), ANY_TIME)
    minutes, hours, days, months, weekdays = (
        tuple(range(kind.low, kind.high + 1)) if "*" in found else tuple(map(int, found))
        for kind, found in zip(FIELDS, values, strict=True)
    )
    return CronLine(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=weekdays,
        either=either,
        is_fixed=not fields[1].startswith("*"),
        iterator=iterator,
    )


def _fields(text: str) -> list[str]:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it is longer than {MAX_LENGTH} characters")
    fields = text.lower().split()
    if len(fields) != len(FIELDS):
        raise ValueError(f"it has {len(fields)}")
    return fields


def _plain(kind: Field, text: str) -> str:
    """Normalise a field for croniter. Raises ValueError with the allowed values."""
    matches = [_ITEM.fullmatch(item) for item in text.split(",")]
    items = [match for match in matches if match]
    if len(items) < len(matches):
        raise ValueError(f"the {kind.name} must be *, {kind.allowed} or a range a-b, each with /n for steps, or a list")
    if any(int(item["step"] or 1) == 0 for item in items):
        raise ValueError(f"a step of the {kind.name} must be 1 or more")
    values = [value for item in items for value in item.group("low", "high") if value]
    if values and not croniter.is_valid(kind.alone(",".join(values))):
        raise ValueError(f"the {kind.name} must be {kind.allowed}")
    return ",".join(_plain_item(kind, item) for item in items)


def _plain_item(kind: Field, item: re.Match[str]) -> str:
    """Replace `*` by its range, and a range such as `2-2` or `fri-mon` by a list of numbers.

    croniter reads `2-2` as the whole field, miscounts the steps of a range that wraps around, and ignores a list that
    contains `*`.
    """
    low, high, step = item.group("low", "high", "step")
    if low is None:
        return f"{kind.low}-{kind.high}{item[0][1:]}"
    if not high and not step:
        return item[0]
    first, last = kind.number(low), kind.number(high) if high else kind.high
    if first < last:
        return item[0]
    end = last if first == last else last + kind.size
    return ",".join(str((number - kind.low) % kind.size + kind.low) for number in range(first, end + 1, int(step or 1)))


def _weekday(day: date) -> int:
    """Return the weekday; 0 is Sunday."""
    return day.isoweekday() % 7


def _whole_minute_from(wall: datetime) -> datetime:
    whole = wall.replace(second=0, microsecond=0)
    return whole if whole == wall else whole + MINUTE
