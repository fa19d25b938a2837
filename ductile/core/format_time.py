"""Moments for people: how long ago or how far ahead, and when exactly."""

from datetime import UTC, datetime, timedelta

from ductile.core.clock import from_text

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def told(moment: str | None, now: datetime | None = None) -> str:
    """`3m ago (2026-02-08 09:30:00Z)`; a dash for no moment."""
    return f"{distance(moment, now)} ({exact(moment)})" if moment else "-"


def exact(moment: str) -> str:
    """The stored moment to the second."""
    return f"{moment[:10]} {moment[11:19]}Z"


def distance(moment: str, now: datetime | None = None) -> str:
    """`3m ago`, `in 2h`, `now`."""
    gap = from_text(moment) - (now or datetime.now(UTC))
    span = rounded(abs(gap))
    if span == "0s":
        return "now"
    return f"in {span}" if gap > timedelta() else f"{span} ago"


def rounded(span: timedelta) -> str:
    """The largest unit that fits, and the next one where it matters: `45s`, `3m`, `1h20m`, `2d4h`."""
    seconds = int(span.total_seconds())
    for index, (unit, size) in enumerate(_UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            if size < 3_600:
                return f"{whole}{unit}"
            smaller, step = _UNITS[index + 1]
            return f"{whole}{unit}{rest // step}{smaller}" if rest // step else f"{whole}{unit}"
    return "0s"
