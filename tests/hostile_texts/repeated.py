"""Texts of one MiB that repeat one unit."""

MIB = 1 << 20


def repeat(unit: str, before: str = "", after: str = "") -> bytes:
    """Repeat `unit` until the text has one MiB."""
    times = (MIB - len(before.encode()) - len(after.encode())) // len(unit.encode())
    return (before + unit * times + after).encode()
