"""Parse times and time ranges of the command line, in the time zone of a schedule or in UTC."""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo

from ductile.core.errors import UsageInvalid

HINT = "Write 2026-03-29T02:30 or 02:30 (time zone of the schedule), or 2026-03-29T02:30:00Z."
PAST_HINT = "Write 1h (ago), 02:30 or 2026-03-29T02:30 (time zone of this host), or 2026-03-29T02:30:00Z."
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_WALL = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?", re.ASCII)
_SPACE_BEFORE_OFFSET = re.compile(r" (?=[+-]\d\d:\d\d$)", re.ASCII)
DAY = timedelta(days=1)
Span = tuple[datetime, datetime]


def parse_past(text: str, option: str) -> datetime:
    """Parse a time in the past: a duration before now, such as 1h, or a time in the zone of this host."""
    from ductile.core.units import parse_duration

    now = datetime.now(UTC)
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError):
        zone = now.astimezone().tzinfo or UTC
        return parse_time(text, option, zone, now=now, is_past=True, hint=PAST_HINT)


def parse_time(
    text: str, option: str, zone: tzinfo, *, now: datetime, is_past: bool = False, hint: str = HINT
) -> datetime:
    """Parse a time. A time of day is today's; with `is_past` it is the last one before `now`."""
    from ductile.calendar.bounds import CALENDAR_END, CALENDAR_START

    try:
        found = _parse(text, zone, now, is_past=is_past)
    except (ValueError, OverflowError):
        found = None
    if found is None or not CALENDAR_START <= found <= CALENDAR_END:
        reach = f"between {CALENDAR_START:%Y-%m-%d} and {CALENDAR_END:%Y-%m-%d}"
        raise UsageInvalid(f"{option}: {text[:60]!r} is not a time {reach}", hint=hint)
    return found


def parse_duration_option(text: str, option: str) -> timedelta:
    """Parse a duration that is not negative."""
    from ductile.core.units import parse_duration

    try:
        span = parse_duration(text)
    except ValueError as error:
        raise UsageInvalid(f"{option}: {error}") from error
    if span < timedelta():
        raise UsageInvalid(f"{option}: {text[:60]!r} is negative")
    return span


def parse_time_of_day(text: str) -> time | None:
    """Parse a time of day; None if the text is something else."""
    match = _CLOCK.fullmatch(text.strip())
    return time(int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def parse_ranges(texts: tuple[str, ...], option: str, zone: tzinfo, start: datetime, end: datetime) -> tuple[Span, ...]:
    """Parse each `A..B` into ranges between `start` and `end`, in order. Two times of day apply to every day."""
    spans: list[Span] = []
    for text in texts:
        first, dots, last = text.partition("..")
        if not dots:
            raise UsageInvalid(
                f"{option}: {text[:60]!r} is not FROM..TO", hint="Write 02:00..05:00, or two full times."
            )
        clocks = parse_time_of_day(first), parse_time_of_day(last)
        if clocks[0] and clocks[1]:
            spans += _daily(clocks[0], clocks[1], zone, start, end)
        else:
            spans.append((_bound(first, option, zone), _bound(last, option, zone)))
            if spans[-1][0] >= spans[-1][1]:
                raise UsageInvalid(f"{option}: {text[:60]!r} ends before it starts")
    return tuple(sorted(spans))


def _parse(text: str, zone: tzinfo, now: datetime, *, is_past: bool) -> datetime:
    clock = parse_time_of_day(text)
    if clock is None:
        return _full(text, zone)
    found = _at(now.astimezone(zone), clock, zone)
    return _at(now.astimezone(zone) - DAY, clock, zone) if is_past and found > now else found


def _full(text: str, zone: tzinfo) -> datetime:
    from ductile.core.clock import from_text

    match = _WALL.fullmatch(text.strip())
    if match is None:
        return from_text(_SPACE_BEFORE_OFFSET.sub("", text.strip()))
    wall = datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00'}")
    return wall.replace(tzinfo=zone).astimezone(UTC)


def _bound(text: str, option: str, zone: tzinfo) -> datetime:
    if parse_time_of_day(text) is not None:
        raise UsageInvalid(f"{option}: both ends must be times of day, or both full times", hint=HINT)
    return parse_time(text, option, zone, now=datetime.now(UTC))


def _daily(first: time, last: time, zone: tzinfo, start: datetime, end: datetime) -> list[Span]:
    days = (end - start) // DAY + 3
    dates = [start.astimezone(zone) + number * DAY for number in range(-1, days)]
    over = DAY if last <= first else timedelta()
    return [(_at(date, first, zone), _at(date + over, last, zone)) for date in dates]


def _at(date: datetime, clock: time, zone: tzinfo) -> datetime:
    return datetime.combine(date.date(), clock, zone).astimezone(UTC)
