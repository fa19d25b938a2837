"""Parsers for the values of a schedule: intervals, cron expressions, times, time zones, windows and weekdays.

Each parser returns a value or raises ValueError with the accepted forms. `ductile.calendar` computes when a schedule is
due.
"""

import re
from datetime import datetime, timedelta

from ductile.core.clock import from_text
from ductile.core.errors import did_you_mean
from ductile.core.units import parse_duration, quote_text

_NAMED_INTERVALS = {
    "hourly": timedelta(hours=1),
    "daily": timedelta(days=1),
    "weekly": timedelta(weeks=1),
    "monthly": timedelta(days=30),
}
_WINDOW = "([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})"
_ZONE = "[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*"
_RFC_3339 = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_DAY_ABBREVIATIONS = {"tues": 2, "thur": 4, "thurs": 4} | {day[:3]: number for number, day in enumerate(_DAYS)}


def parse_every(text: str) -> timedelta:
    """Parse a positive interval: a duration, or hourly, daily, weekly, monthly."""
    interval = _NAMED_INTERVALS.get(text.strip().lower()) or parse_duration(text)
    if interval <= timedelta():
        raise ValueError(f"{quote_text(text)} must be longer than zero")
    return interval


def parse_cron(text: str) -> str:
    """Parse a cron expression with five fields that matches at least one date. Returns it with single spaces."""
    from ductile.calendar.cron import parse_line  # not needed without schedules

    try:
        parse_line(text)
    except ValueError as error:
        raise ValueError(f"{quote_text(text)} {error}") from None
    return " ".join(text.split())


def parse_at(text: str) -> datetime:
    """Parse an RFC 3339 time with a UTC offset."""
    if not re.fullmatch(_RFC_3339, text.strip()):
        raise ValueError(f"{quote_text(text)} is not an RFC 3339 time such as 2026-03-01T08:00:00+01:00")
    try:
        return from_text(text.strip().upper().replace(" ", "T"))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{quote_text(text)} is not a real date and time: {error}") from None


def parse_zone(text: str) -> str:
    """Parse the name of an existing time zone."""
    from zoneinfo import ZoneInfo, available_timezones

    name = text.strip()
    problem = f"{quote_text(text)} is not a time zone; use an IANA name such as Europe/Berlin or UTC"
    if len(name) > 64 or not re.fullmatch(_ZONE, name):
        raise ValueError(problem)
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise ValueError(problem + did_you_mean(name, sorted(available_timezones()))) from None
    return name


def parse_window(text: str) -> str:
    """Parse a time range `HH:MM-HH:MM`. It may cross midnight."""
    match = re.fullmatch(_WINDOW, text.strip())
    numbers = [int(number) for number in match.groups()] if match else []
    if not numbers or numbers[0] > 23 or numbers[2] > 23 or numbers[1] > 59 or numbers[3] > 59:
        raise ValueError(f"{quote_text(text)} is not a window such as 08:00-22:00")
    if numbers[:2] == numbers[2:]:
        raise ValueError(f"{quote_text(text)} starts and ends at the same time")
    return "{:02}:{:02}-{:02}:{:02}".format(*numbers)


def parse_weekday(text: str) -> int:
    """Parse a weekday to 0 (Sunday) to 6; 7 is also Sunday."""
    word = text.strip().lower()
    if word in "01234567" and len(word) == 1:
        return int(word) % 7
    number = _DAY_ABBREVIATIONS.get(word, _DAYS.index(word) if word in _DAYS else None)
    if number is None:
        hint = did_you_mean(word, _DAYS)
        allowed = "a name such as saturday or sat, or 0 (Sunday) to 6"
        raise ValueError(f"{quote_text(text)} is not a weekday: {allowed}{hint}")
    return number
