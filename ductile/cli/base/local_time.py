"""Moments as people write and read them: on the wall clocks of a schedule's zone, and in UTC."""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo

from ductile.core.errors import UsageInvalid

HINT = "write 2026-03-29T02:30 or 02:30 as the clocks of the schedule show it, or 2026-03-29T02:30:00Z"
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
_WALL = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?))?", re.ASCII)
DAY = timedelta(days=1)
Span = tuple[datetime, datetime]


def read_moment(text: str, option: str, zone: tzinfo, *, now: datetime, is_past: bool = False) -> datetime:
    """The moment that somebody means; a time of day is that of today, or the last one if it must have passed."""
    from ductile.calendar.bounds import FIRST, LAST

    try:
        found = _meant(text, zone, now, is_past=is_past)
    except (ValueError, OverflowError):
        found = None
    if found is None or not FIRST <= found <= LAST:
        reach = f"between {FIRST:%Y-%m-%d} and {LAST:%Y-%m-%d}"
        raise UsageInvalid(f"{option}: {text[:60]!r} is not a moment {reach}", hint=HINT)
    return found


def read_duration(text: str, option: str) -> timedelta:
    """A duration that is not negative."""
    from ductile.core.units import parse_duration

    try:
        span = parse_duration(text)
    except ValueError as error:
        raise UsageInvalid(f"{option}: {error}") from error
    if span < timedelta():
        raise UsageInvalid(f"{option}: {text[:60]!r} is less than zero")
    return span


def read_clock(text: str) -> time | None:
    """A time of day; None if it is written as something else."""
    match = _CLOCK.fullmatch(text.strip())
    return time(int(match[1]), int(match[2])) if match else None


def read_spans(texts: tuple[str, ...], option: str, zone: tzinfo, start: datetime, end: datetime) -> tuple[Span, ...]:
    """Each `A..B` between `start` and `end`, in order: two moments, or two times of day for every day."""
    spans: list[Span] = []
    for text in texts:
        first, dots, last = text.partition("..")
        if not dots:
            raise UsageInvalid(
                f"{option}: {text[:60]!r} is not FROM..TO", hint="write 02:00..05:00 or two full moments"
            )
        clocks = read_clock(first), read_clock(last)
        if clocks[0] and clocks[1]:
            spans += _daily(clocks[0], clocks[1], zone, start, end)
        else:
            spans.append((_bound(first, option, zone), _bound(last, option, zone)))
            if spans[-1][0] >= spans[-1][1]:
                raise UsageInvalid(f"{option}: {text[:60]!r} ends before it begins")
    return tuple(sorted(spans))


def _meant(text: str, zone: tzinfo, now: datetime, *, is_past: bool) -> datetime:
    clock = read_clock(text)
    if clock is None:
        return _full(text, zone)
    found = _at(now.astimezone(zone), clock, zone)
    return _at(now.astimezone(zone) - DAY, clock, zone) if is_past and found > now else found


def _full(text: str, zone: tzinfo) -> datetime:
    from ductile.core.clock import from_text

    match = _WALL.fullmatch(text.strip())
    if match is None:
        return from_text(text.strip())
    wall = datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00'}")
    return wall.replace(tzinfo=zone).astimezone(UTC)


def _bound(text: str, option: str, zone: tzinfo) -> datetime:
    if read_clock(text) is not None:
        raise UsageInvalid(f"{option}: a time of day goes with another time of day only", hint=HINT)
    return read_moment(text, option, zone, now=datetime.now(UTC))


def _daily(first: time, last: time, zone: tzinfo, start: datetime, end: datetime) -> list[Span]:
    days = (end - start) // DAY + 3
    dates = [start.astimezone(zone) + number * DAY for number in range(-1, days)]
    over = DAY if last <= first else timedelta()
    return [(_at(date, first, zone), _at(date + over, last, zone)) for date in dates]


def _at(date: datetime, clock: time, zone: tzinfo) -> datetime:
    return datetime.combine(date.date(), clock, zone).astimezone(UTC)
