"""Wall and monotonic time, and the text format of timestamps.

Timestamps use the wall clock; deadlines and timeouts use the monotonic clock. Stored timestamps are UTC text of fixed
width, so that text order is time order.
"""

import re
import time
from datetime import UTC, datetime
from functools import lru_cache

EARLIEST_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""A wall clock before this has not been set yet."""
_WRITTEN = r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(:\d\d(?:\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)?)?"
_SECOND, _STORED = "%04d-%02d-%02dT%02d:%02d:%02d", "%s.%06dZ"
_STORED_LENGTH = len("2026-02-08T09:30:00.000000Z")


class Clock:
    """The clocks of this host. Tests substitute their own."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def to_text(moment: datetime) -> str:
    """Format as `2026-02-08T09:30:00.000000Z`: always 27 characters, always UTC."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    # Half the time of `isoformat`: most timestamps fall into the same second as the one before.
    return _STORED % (_second(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second), utc.microsecond)


@lru_cache(maxsize=16)
def _second(*parts: int) -> str:
    return _SECOND % parts


def from_text(text: str) -> datetime:
    """Parse a stored timestamp, RFC 3339 with any fraction or offset, or a date alone.

    Text without an offset is UTC. Raises ValueError if the text is not a timestamp.
    """
    if len(text) == _STORED_LENGTH and text[20:26].isdigit() and text[26] == "Z":
        return datetime.fromisoformat(text)
    match = re.fullmatch(_WRITTEN, text, re.ASCII)
    if match is None:
        raise ValueError(f"{text[:60]!r} is not a timestamp such as 2026-02-08T09:30:00Z")
    day, minute, second, zone = match.groups(default="")
    # Python reads at most six digits of a second, other programs write nine.
    seconds, dot, fraction = (second or ":00").partition(".")
    written = f"{day}T{minute or '00:00'}{seconds}{dot}{fraction[:6]}{zone.upper() or 'Z'}"
    try:
        return datetime.fromisoformat(written).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text} is outside the years 1 to 9999 in UTC") from error


def to_text_or_none(moment: datetime | None) -> str | None:
    return None if moment is None else to_text(moment)


def from_text_or_none(text: str | None) -> datetime | None:
    return None if text is None else from_text(text)
