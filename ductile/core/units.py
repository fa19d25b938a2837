"""Parse and format durations (`1h30m`) and byte sizes (`10MB`)."""

import re
from datetime import timedelta

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
_PART = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|µs|μs|ms|s|m|h|d|w)", re.ASCII)
_BYTES = {"": 1, "B": 1, "KB": 1 << 10, "KIB": 1 << 10, "MB": 1 << 20, "MIB": 1 << 20, "GB": 1 << 30, "GIB": 1 << 30}
_SIZE = r"([0-9]{1,18})\s*([A-Za-z]*)"
MAX_DURATION = timedelta(days=36500)
MAX_TEXT_LENGTH = 100
MAX_SIZE = 1 << 50

DURATION_HELP = "a duration such as 300ms, 30s, 5m, 1h30m, 7d or 2w"
SIZE_HELP = "a size in bytes such as 65536, 512KB, 1MB or 2GB"


def parse_duration(text: str) -> timedelta:
    """Parse a duration in Go's notation plus `d` and `w`. Raises ValueError with the allowed format."""
    from fractions import Fraction  # imports decimal, which callers of `quote_text` do not need

    rest = text.strip() if len(text) <= MAX_TEXT_LENGTH else ""
    sign = -1 if rest.startswith("-") else 1
    rest = rest.removeprefix("-") if sign < 0 else rest.removeprefix("+")
    if rest == "0":
        return timedelta()
    total, position = Fraction(0), 0
    while match := _PART.match(rest, position):
        total += Fraction(match[1] if not match[1].startswith(".") else "0" + match[1]) * _NANOSECONDS[match[2]]
        position = match.end()
    if not rest or position != len(rest):
        raise ValueError(f"{quote_text(text)} is not {DURATION_HELP}")
    total /= 1000
    if total > MAX_DURATION // timedelta(microseconds=1):
        raise ValueError(f"{quote_text(text)} is longer than {MAX_DURATION.days} days")
    # A non-zero duration never rounds to zero: a limit of 1ns must not become "no limit".
    return sign * timedelta(microseconds=max(round(total), 1 if total else 0))


def format_duration(value: timedelta) -> str:
    """Format exactly, in whole units: `1h30m`, `250ms`, `0s`."""
    micros = value // timedelta(microseconds=1)
    if micros == 0:
        return "0s"
    parts = ["-"] if micros < 0 else []
    micros = abs(micros)
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, micros = divmod(micros, _NANOSECONDS[unit] // 1000)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size(text: str) -> int:
    """Parse a size such as `1MB` into bytes (units are powers of 1024). Raises ValueError with the allowed format."""
    match = re.fullmatch(_SIZE, text.strip(), re.ASCII) if len(text) <= MAX_TEXT_LENGTH else None
    factor = _BYTES.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{quote_text(text)} is not {SIZE_HELP}")
    if (size := int(match[1]) * factor) > MAX_SIZE:
        raise ValueError(f"{quote_text(text)} is larger than {MAX_SIZE >> 30:,}GB")
    return size


def format_size(size: int) -> str:
    """Format for display in the units of `parse_size`: `512B`, `1.5KB`, `20MB`."""
    power = min(max(size.bit_length() - 1, 0) // 10, 3)
    value = size / (1 << 10 * power)
    return f"{value:.{0 if power == 0 or value >= 10 else 1}f}{('B', 'KB', 'MB', 'GB')[power]}"


def quote_text(text: str, max_length: int = 60) -> str:
    """Quote operator input for a message and truncate it to `max_length` characters."""
    return repr(text if len(text) <= max_length else text[:max_length] + "…")
