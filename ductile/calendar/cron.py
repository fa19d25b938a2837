"""Cron lines on a wall clock: which dates and times the five fields name.

Wall times are datetimes without a zone; what a change of the clocks does to them is decided in `slots`. Nothing here
walks minutes: a date is found month by month, a time of day by bisection.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from ductile.values import frozen

MAX_LENGTH = 256
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
LONGEST_PAUSE = 41 * 12
"""Months. 29 February comes back on the same weekday after 40 years at the latest, across a century that is no leap."""
FIRST_MONTH, LAST_MONTH = 2 * 12, 9998 * 12
"""Months are numbered through; the calendar's first and last year are left alone, they have no neighbours."""
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _numbered(words: str, first: int) -> dict[str, int]:
    return {word: number for number, word in enumerate(words.split(), first)}


@frozen
class Field:
    """One of the five: its name, the numbers that `*` stands for, and the words for them.

    So many `more` numbers than `high` may be written; they count from the beginning, as 7 is Sunday.
    """

    name: str
    low: int
    high: int
    words: Mapping[str, int] = {}
    more: int = 0

    @property
    def highest(self) -> int:
        return self.high + self.more

    @property
    def allowed(self) -> str:
        words = list(self.words)
        return f"{self.low}-{self.highest}" + (f" or {words[0]}-{words[-1]}" if words else "")


FIELDS = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day", 1, 31),
    Field("month", 1, 12, _numbered("jan feb mar apr may jun jul aug sep oct nov dec", 1)),
    Field("weekday", 0, 6, _numbered("sun mon tue wed thu fri sat", 0), more=1),
)
_ITEM = re.compile(r"(?:(\*)|([0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?)(?:/([0-9]{1,3}))?", re.ASCII)


@frozen(kw_only=True)
class Line:
    """A parsed cron line. Weekdays count from Sunday, 0.

    `either`: a date matches by its day of month or by its weekday. As in crontab(5) that holds when both fields are
    restricted; a field that begins with `*`, also `*/2`, is not restricted, and then both must match.
    `is_fixed`: minute and hour are written without `*` and `/`, so the line names times of day, not a rhythm.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either: bool
    is_fixed: bool

    def matches(self, wall: datetime) -> bool:
        on_the_minute = wall == _whole_minute_from(wall)
        return on_the_minute and wall.minute in self.minutes and wall.hour in self.hours and self.matches_date(wall)

    def matches_date(self, day: date) -> bool:
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (by_day or by_weekday if self.either else by_day and by_weekday)

    def date_from(self, day: date) -> date | None:
        """The first matching date at or after `day`; None if the calendar ends before."""
        if self.matches_date(day):
            return day
        first = _month(day)
        for month in range(first, min(first + LONGEST_PAUSE, LAST_MONTH)):
            if month % 12 + 1 not in self.months:
                continue
            days = [number for number in self._days_of(month) if month > first or number > day.day]
            if days:
                return date(month // 12, month % 12 + 1, days[0])
        return None

    def date_until(self, day: date) -> date | None:
        """The last matching date at or before `day`; None if the calendar begins after."""
        if self.matches_date(day):
            return day
        last = _month(day)
        for month in range(last, max(last - LONGEST_PAUSE, FIRST_MONTH), -1):
            if month % 12 + 1 not in self.months:
                continue
            days = [number for number in self._days_of(month) if month < last or number < day.day]
            if days:
                return date(month // 12, month % 12 + 1, days[-1])
        return None

    def first(self, wall: datetime) -> datetime | None:
        """The first match at or after `wall`."""
        wall = _whole_minute_from(wall)
        day = self.date_from(wall.date())
        if day == wall.date():
            index = bisect_left(self.minutes, wall.minute) if wall.hour in self.hours else len(self.minutes)
            if index < len(self.minutes):
                return wall.replace(minute=self.minutes[index])
            index = bisect_right(self.hours, wall.hour)
            if index < len(self.hours):
                return wall.replace(hour=self.hours[index], minute=self.minutes[0])
            day = self.date_from(day + DAY)
        return datetime.combine(day, time(self.hours[0], self.minutes[0])) if day else None

    def last(self, wall: datetime) -> datetime | None:
        """The last match before `wall`."""
        wall = _whole_minute_from(wall) - MINUTE
        day = self.date_until(wall.date())
        if day == wall.date():
            index = bisect_right(self.minutes, wall.minute) if wall.hour in self.hours else 0
            if index:
                return wall.replace(minute=self.minutes[index - 1])
            index = bisect_left(self.hours, wall.hour)
            if index:
                return wall.replace(hour=self.hours[index - 1], minute=self.minutes[-1])
            day = self.date_until(day - DAY)
        return datetime.combine(day, time(self.hours[-1], self.minutes[-1])) if day else None

    def count(self, start: datetime, end: datetime) -> int:
        """How many matches lie in [start, end)."""
        if start >= end:
            return 0
        dates = sum(len(self._days_of(month)) for month in range(_month(start), _month(end)))
        dates += self._earlier_dates(end) - self._earlier_dates(start)
        return dates * len(self.hours) * len(self.minutes) + self._earlier_times(end) - self._earlier_times(start)

    def _days_of(self, month: int) -> Sequence[int]:
        """The matching days of a month, in order."""
        if month % 12 + 1 not in self.months:
            return ()
        return _days_in(month, self.days, self.weekdays, self.either)

    def _earlier_dates(self, wall: datetime) -> int:
        """How many dates match in the same month before the date of `wall`."""
        return bisect_left(self._days_of(_month(wall)), wall.day)

    def _earlier_times(self, wall: datetime) -> int:
        """How many matches lie on the same date before `wall`."""
        later = _whole_minute_from(wall)
        if not self.matches_date(wall):
            return 0
        if later.date() != wall.date():
            return len(self.hours) * len(self.minutes)
        in_this_hour = bisect_left(self.minutes, later.minute) if later.hour in self.hours else 0
        return bisect_left(self.hours, later.hour) * len(self.minutes) + in_this_hour


@lru_cache(maxsize=1 << 12)  # thousands of lines name the same days, at other times of day
def _days_in(month: int, days: tuple[int, ...], weekdays: tuple[int, ...], either: bool) -> Sequence[int]:
    """Those of the `days` of a month that fall on one of the `weekdays`; with `either`, one of the two is enough."""
    year, index = divmod(month, 12)
    length = _LONGEST_MONTHS[index] if index != 1 or _is_leap(year) else 28
    eve = date(year, index + 1, 1).isoweekday() - 1
    by_day = [number for number in days if number <= length]
    if either:
        return sorted({*by_day, *(number for number in range(1, length + 1) if (eve + number) % 7 in weekdays)})
    return [number for number in by_day if (eve + number) % 7 in weekdays]


@lru_cache(maxsize=1 << 14)  # the same line is asked for by the check, the scheduler and its hash, at every reload
def parse_line(text: str) -> Line:
    """The line behind `text`; ValueError with what it is instead, also for a line that can never fire."""
    try:
        fields = _fields(text)
        minutes, hours, days, months, weekdays = (_values(*pair) for pair in zip(FIELDS, fields, strict=True))
    except ValueError as reason:
        raise ValueError(f"is not a cron line of five fields (minute hour day month weekday): {reason}") from None
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    if not either and days[0] > max(_LONGEST_MONTHS[month - 1] for month in months):
        raise ValueError("names a date that never comes")
    return Line(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=weekdays,
        either=either,
        is_fixed=not any(mark in written for written in fields[:2] for mark in "*/"),
    )


def _fields(text: str) -> list[str]:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it is longer than {MAX_LENGTH} characters")
    fields = text.lower().split()
    if len(fields) != len(FIELDS):
        raise ValueError(f"it has {len(fields)}")
    return fields


def _values(kind: Field, text: str) -> tuple[int, ...]:
    """The numbers that one field allows, in order."""
    values: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ValueError(
                f"the {kind.name} must be *, {kind.allowed} or a range a-b, each with /n for steps, or a list"
            )
        every, low, high, step = match.groups()
        first = kind.low if every else _number(kind, low)
        last = _number(kind, high) if high else kind.high if every or step else first
        values.update(_stepped(kind, first, last, int(step or 1)))
    return tuple(sorted(values))


def _stepped(kind: Field, first: int, last: int, step: int) -> Iterator[int]:
    """From first to last; a range such as `fri-mon` or `22-2` goes round."""
    if step == 0:
        raise ValueError(f"a step of the {kind.name} must be 1 or more")
    size = kind.high - kind.low + 1
    for number in range(first, (last if first <= last else last + size) + 1, step):
        yield (number - kind.low) % size + kind.low


def _number(kind: Field, text: str) -> int:
    number = int(text) if text.isdigit() else kind.words.get(text, -1)
    if not kind.low <= number <= kind.highest:
        raise ValueError(f"the {kind.name} must be {kind.allowed}")
    return number


def _month(day: date) -> int:
    return day.year * 12 + day.month - 1


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _whole_minute_from(wall: datetime) -> datetime:
    whole = wall.replace(second=0, microsecond=0)
    return whole if whole == wall else whole + MINUTE
