"""How schedules are written: intervals, cron lines, moments, zones, windows and weekdays, each read once at load.

Every reader gives a value or raises ValueError with what is allowed. When a schedule is due is not decided here.
"""

import re
from datetime import datetime, timedelta

from ductile.core.clock import from_text
from ductile.core.units import parse_duration, shown

_WORDS = {
    "hourly": timedelta(hours=1),
    "daily": timedelta(days=1),
    "weekly": timedelta(weeks=1),
    "monthly": timedelta(days=30),
}
_WINDOW = "([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})"
_ZONE = "[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*"
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_DAY_SHORT = {"tues": 2, "thur": 4, "thurs": 4} | {day[:3]: number for number, day in enumerate(_DAYS)}


def parse_every(text: str) -> timedelta:
    """An interval longer than zero: a duration, or hourly, daily, weekly, monthly."""
    interval = _WORDS.get(text.strip().lower()) or parse_duration(text)
    if interval <= timedelta():
        raise ValueError(f"{shown(text)} must be longer than zero")
    return interval


def parse_cron(text: str) -> str:
    """A five-field cron line that will fire some day, with single blanks."""
    from ductile.calendar.cron import parse_line  # who has no schedule does without the calendar

    try:
        parse_line(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)} {error}") from None
    return " ".join(text.split())


def parse_at(text: str) -> datetime:
    """A moment with its offset, as RFC 3339 writes it."""
    if not re.fullmatch(_MOMENT, text.strip()):
        raise ValueError(f"{shown(text)} is not an RFC 3339 time such as 2026-03-01T08:00:00+01:00")
    try:
        return from_text(text.strip().upper().replace(" ", "T"))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{shown(text)} is not a real date and time: {error}") from None


def parse_zone(text: str) -> str:
    """The name of a time zone that exists."""
    from zoneinfo import ZoneInfo

    name = text.strip()
    unknown = ValueError(f"{shown(text)} is not a time zone; use an IANA name such as Europe/Berlin or UTC")
    if len(name) > 64 or not re.fullmatch(_ZONE, name):
        raise unknown
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise unknown from None
    return name


def parse_window(text: str) -> str:
    """A part of the day, `HH:MM-HH:MM`; it may cross midnight."""
    match = re.fullmatch(_WINDOW, text.strip())
    numbers = [int(number) for number in match.groups()] if match else []
    if not numbers or numbers[0] > 23 or numbers[2] > 23 or numbers[1] > 59 or numbers[3] > 59:
        raise ValueError(f"{shown(text)} is not a window such as 08:00-22:00")
    if numbers[:2] == numbers[2:]:
        raise ValueError(f"{shown(text)} begins and ends at the same time")
    return "{:02}:{:02}-{:02}:{:02}".format(*numbers)


def parse_weekday(text: str) -> int:
    """A weekday as 0 (Sunday) to 6; 7 is Sunday too."""
    word = text.strip().lower()
    if word in "01234567" and len(word) == 1:
        return int(word) % 7
    number = _DAY_SHORT.get(word, _DAYS.index(word) if word in _DAYS else None)
    if number is None:
        raise ValueError(f"{shown(text)} is not a weekday: a name such as saturday or sat, or 0 (Sunday) to 6")
    return number
