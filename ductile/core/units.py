"""Durations and byte sizes as people write them."""

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
LONGEST = timedelta(days=36500)
LONGEST_TEXT = 100
LARGEST = 1 << 50

DURATION_HELP = "a duration such as 300ms, 30s, 5m, 1h30m, 7d or 2w"
SIZE_HELP = "a size in bytes such as 65536, 512KB, 1MB or 2GB"


def parse_duration(text: str) -> timedelta:
    """`1h30m` as a timedelta: Go's notation plus `d` and `w`. Raises ValueError with what is allowed."""
    from fractions import Fraction  # decimal with it, and most who come here want only `shown`

    rest = text.strip() if len(text) <= LONGEST_TEXT else ""
    sign = -1 if rest.startswith("-") else 1
    rest = rest.removeprefix("-") if sign < 0 else rest.removeprefix("+")
    if rest == "0":
        return timedelta()
    total, position = Fraction(0), 0
    while match := _PART.match(rest, position):
        total += Fraction(match[1] if not match[1].startswith(".") else "0" + match[1]) * _NANOSECONDS[match[2]]
        position = match.end()
    if not rest or position != len(rest):
        raise ValueError(f"{shown(text)} is not {DURATION_HELP}")
    total /= 1000
    if total > LONGEST // timedelta(microseconds=1):
        raise ValueError(f"{shown(text)} is longer than {LONGEST.days} days")
    # What is not zero stays so: a limit of 1ns must not become "no limit".
    return sign * timedelta(microseconds=max(round(total), 1 if total else 0))


def format_duration(value: timedelta) -> str:
    """The shortest exact notation of whole units: `1h30m`, `250ms`, `0s`."""
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
    """`1MB` as a number of bytes (units are powers of 1024). Raises ValueError with what is allowed."""
    match = re.fullmatch(_SIZE, text.strip(), re.ASCII) if len(text) <= LONGEST_TEXT else None
    factor = _BYTES.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{shown(text)} is not {SIZE_HELP}")
    if (size := int(match[1]) * factor) > LARGEST:
        raise ValueError(f"{shown(text)} is larger than {LARGEST >> 30:,}GB")
    return size


def format_size(size: int) -> str:
    """`512B`, `1.5KB`, `20MB`: for people, in the units of `parse_size`."""
    power = min(max(size.bit_length() - 1, 0) // 10, 3)
    value = size / (1 << 10 * power)
    return f"{value:.{0 if power == 0 or value >= 10 else 1}f}{('B', 'KB', 'MB', 'GB')[power]}"


def shown(text: str, most: int = 60) -> str:
    """Operator input quoted for a message, cut when it is long."""
    return repr(text if len(text) <= most else text[:most] + "…")
