"""A slow, simple reference implementation of cron slots: visits every UTC minute and reads the zone with zoneinfo.

Shares no code with the product. `comparison` compares the two.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from attrs import frozen

ZONES = (
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Santiago",
    "America/Nuuk",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Australia/Sydney",
    "Australia/Lord_Howe",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Apia",
    "Antarctica/Troll",
)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
RANGE_START, RANGE_END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
WINDOW_MARGIN = 3 * DAY
RANDOM_WINDOWS, RANDOM_WINDOW_LENGTH = 100, 4 * DAY

LISTED_LINES = """
* * * * *|0 * * * *|30 * * * *|*/5 * * * *|*/7 * * * *|59 * * * *|0-10 * * * *|5/20 * * * *|1,31 * * * *
0 0 * * *|30 0 * * *|0 1 * * *|30 1 * * *|59 1 * * *|0 2 * * *|1 2 * * *|30 2 * * *|59 2 * * *|0 3 * * *|30 3 * * *
0 23 * * *|30 23 * * *|59 23 * * *|0 12 * * *|0 0,12 * * *|0,30 0-3 * * *|15 1,2,3 * * *|0 1-3 * * *|0 22-2 * * *
45 23,0 * * *|10,20,30 2 * * *|0-59 2 * * *|0 0-23 * * *|*/15 2 * * *|*/15 1-3 * * *|*/30 0 * * *|* 2 * * *
0 */2 * * *|30 */2 * * *|0 1-23/2 * * *|15 */3 * * *|0 2/3 * * *|0 */5 * * *|0 0-23/6 * * *|5 */24 * * *|*/90 * * * *
0 2 * * sun|0 2 * * 7|30 2 * * 0|30 1 * * sun|30 0 * * sun|0 0 * * sun|0 0 * * sat|30 23 * * sat|0 2 * * mon-fri
0 8 * * 1-5|0 8 * * fri-mon|0 8 * * 6-0|0 8 * * 5-7|0 8 * * 1-7/2|0 8 * * */2|*/20 * * * sat,sun|30 2 * * 6,7
0 3 * * tue/2|0 5 * * 0-7/7|0 5 * * 7-2
0 0 1 * *|30 2 1 * *|0 0 31 * *|0 4 31 * *|0 0 29 2 *|0 0 29 * *|0 0 30 * *|30 2 25-31 * *|30 2 8-14 * *|0 0 15,30 * *
0 0 1 1 *|0 0 31 12 *|30 2 * 3 *|30 2 * mar *|30 1 * 10,11 *|30 2 * mar-apr,sep-oct *|0 0 * nov-feb *|0 0 28-3 * *
30 2 25-31 * sun|30 2 8-14 3 sun|30 1 1-7 11 sun|0 0 13 * fri|0 9 1 * mon|*/30 2 1-7 * sun|0 0 30 2 mon|0 0 31 4 sun
30 2 */2 * sun|30 2 */7 * *|0 0 */100,1-7 * mon|30 2 */2 * */2|30 2 * * */3|30 1 1-7 * */7|0 3 29 2 */7|0 0 */10 * 1
0 0 29 2 sun|0 12 31 1,3,5 *|0 12 29-31 2,4 *|15,45 */4 1-15 * *|3-57/9 5-20/5 * jan-dec/2 *|*,5 1 * * *|0 0 1,* * mon
59 23 31 12 7|0 1 * 3,10 sun|0 2 * 3-4,10-11 0|1-1 2 * * *|0 2-2 * * *|00 02 * * *|0 2 01 01 *|30 2 * * SUN
"""
_NAMES: dict[int, list[str]] = {
    3: ["", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    4: ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def expressions(at_least: int = 320) -> list[str]:
    """Return the listed expressions, extended by random ones. Deterministic."""
    lines = [line.strip() for row in LISTED_LINES.split("\n") for line in row.split("|") if line.strip()]
    rng = random.Random("expressions")
    while len(lines) < at_least:
        lines.append(" ".join(_random_field(rng, index) for index in range(5)))
    return lines


def _random_field(rng: random.Random, index: int) -> str:
    """Prefer fixed values near the hours at which clocks change."""
    low, high = _BOUNDS[index]
    numbers = [0, 1, 2, 2, 3, 23] if index == 1 else list(range(low, high + 1))
    one, other = rng.choice(numbers), rng.randint(low, high)
    common = [str(one), f"{one},{other}"] if index < 2 else ["*", "*", "*"]
    rare = [f"{one}-{other}", f"{min(one, other)}-{max(one, other)}/{rng.randint(1, 5)}", f"*/{rng.randint(2, 9)}"]
    return rng.choice(common * 3 + rare)


@frozen
class OracleLine:
    """A cron line: whether it matches, for every minute of the day and for a date."""

    text: str
    fixed: bool
    times: bytes

    @classmethod
    def of(cls, text: str) -> "OracleLine":
        minute, hour = text.split()[:2]
        times = bytes(_allows(1, hour, number // 60) and _allows(0, minute, number % 60) for number in range(1440))
        return cls(text, hour[0] != "*", times)

    def on(self, day: date) -> bool:
        _, _, in_month, month, in_week = self.text.lower().split()
        by_day, by_week = _allows(2, in_month, day.day), _allows(4, in_week, (day.weekday() + 1) % 7)
        is_intersection = in_month[0] == "*" or in_week[0] == "*"
        return _allows(3, month, day.month) and ((by_day and by_week) if is_intersection else (by_day or by_week))


def _allows(index: int, text: str, number: int) -> bool:
    low, high = _BOUNDS[index]
    for item in text.lower().split(","):
        span, _, step = item.partition("/")
        start, _, end = span.partition("-")
        first = low if start == "*" else _value(index, start)
        last = _value(index, end) if end else high if start == "*" or step else first
        # Sunday is 0 or 7. Ranges can wrap around.
        for candidate in (number, 7) if index == 4 and number == 0 else (number,):
            distance = candidate - first if candidate >= first else candidate - first + high - low + 1
            length = last - first if last >= first else last - first + high - low + 1
            if distance <= length and distance % int(step or 1) == 0:
                return True
    return False


def _value(index: int, text: str) -> int:
    return int(text) if text.isdigit() else _NAMES[index].index(text)


@frozen
class MinuteWalk:
    """All UTC minutes of a span with their wall times, as (minute, date, minute of the day).

    `elapsed_minutes` has each minute once. `wall_minutes` has each wall time at the first minute that shows it; a
    skipped wall time is at the first minute after the gap.
    """

    zone: str
    start: datetime
    end: datetime
    elapsed_minutes: Sequence[tuple[datetime, date, int]]
    wall_minutes: Sequence[tuple[datetime, date, int]]

    @classmethod
    def through(cls, zone: str, start: datetime, end: datetime) -> "MinuteWalk":
        elapsed_minutes, wall_minutes = [], []
        shown: datetime | None = None
        moment, zone_info = start - DAY, ZoneInfo(zone)
        while moment < end:
            wall = moment.astimezone(zone_info).replace(tzinfo=None)
            if moment >= start:
                elapsed_minutes.append((moment, wall.date(), wall.hour * 60 + wall.minute))
            missing = wall if shown is None else shown + MINUTE
            while missing <= wall:
                if moment >= start:
                    wall_minutes.append((moment, missing.date(), missing.hour * 60 + missing.minute))
                missing += MINUTE
            shown = wall if shown is None else max(shown, wall)
            moment += MINUTE
        return cls(zone, start, end, elapsed_minutes, wall_minutes)

    def fires(self, line: OracleLine) -> list[datetime]:
        """Return the times at which the line fires."""
        minutes = self.wall_minutes if line.fixed else self.elapsed_minutes
        dates = {day: line.on(day) for day in {day for _, day, _ in minutes}}
        times = line.times
        return list(dict.fromkeys(moment for moment, day, at in minutes if times[at] and dates[day]))


@lru_cache
def changes(zone: str) -> tuple[datetime, ...]:
    """Return the minutes of the clock changes of the zone, 2020 to 2030."""
    times, zone_info = [], ZoneInfo(zone)
    for day in range((RANGE_END - RANGE_START) // DAY):
        moment = RANGE_START + day * DAY
        offset = moment.astimezone(zone_info).utcoffset()
        if offset != (moment + DAY).astimezone(zone_info).utcoffset():
            minutes = (moment + number * MINUTE for number in range(1, 1441))
            times.append(next(minute for minute in minutes if minute.astimezone(zone_info).utcoffset() != offset))
    return tuple(times)


def windows(zone: str) -> Iterator[tuple[datetime, datetime]]:
    """Yield three days before and after each clock change, and random days."""
    for change in changes(zone):
        yield change - WINDOW_MARGIN, change + WINDOW_MARGIN
    rng = random.Random(zone)
    for _ in range(RANDOM_WINDOWS):
        start = RANGE_START + rng.randrange((RANGE_END - RANGE_START) // MINUTE) * MINUTE
        yield start, start + RANDOM_WINDOW_LENGTH
