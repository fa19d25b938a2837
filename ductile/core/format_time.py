"""Timestamps and durations formatted for display: relative (`3m ago`) and absolute."""

from datetime import UTC, datetime, timedelta

from ductile.core.clock import from_text

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def format_when(moment: str | None, now: datetime | None = None) -> str:
    """Format as `3m ago (2026-02-08 09:30:00Z)`; None as a dash."""
    return f"{format_relative(moment, now)} ({format_timestamp(moment)})" if moment else "-"


def format_timestamp(moment: str) -> str:
    """Format a stored timestamp to the second."""
    return f"{moment[:10]} {moment[11:19]}Z"


def format_relative(moment: str, now: datetime | None = None) -> str:
    """Format as `3m ago`, `just now`, `now` or `in 2h`."""
    gap = from_text(moment) - (now or datetime.now(UTC))
    span = format_span(abs(gap))
    if span == "0s":
        return "just now" if gap < timedelta() else "now"
    return f"in {span}" if gap > timedelta() else f"{span} ago"


def format_span(span: timedelta) -> str:
    """Format in the largest unit that fits, with the next one for hours and days: `45s`, `3m`, `1h20m`, `2d4h`."""
    seconds = int(span.total_seconds())
    for index, (unit, size) in enumerate(_UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            if size < 3_600:
                return f"{whole}{unit}"
            smaller, step = _UNITS[index + 1]
            return f"{whole}{unit}{rest // step}{smaller}" if rest // step else f"{whole}{unit}"
    return "0s"
