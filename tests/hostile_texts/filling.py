"""Texts of one MiB, made of one repeated piece."""

MIB = 1 << 20


def filled(unit: str, before: str = "", after: str = "") -> bytes:
    """As much of `unit` as makes one MiB."""
    times = (MIB - len(before.encode()) - len(after.encode())) // len(unit.encode())
    return (before + unit * times + after).encode()
