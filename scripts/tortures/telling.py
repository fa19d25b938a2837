"""How a torture talks while it goes on, and what it runs on: progress and violations on stderr, facts as values."""

import os
import platform
import sqlite3
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio

from ductile import __version__

SHOWN = 20


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tell_violations(violations: Mapping[str, Sequence[str]]) -> None:
    """The first few of each rule, with their ids."""
    for rule, found in violations.items():
        for violation in found[:SHOWN]:
            tell(f"{rule}: {violation}")
        if len(found) > SHOWN:
            tell(f"{rule}: and {len(found) - SHOWN} more")


def machine() -> dict[str, str | int]:
    """What the numbers depend on; nothing that says whose machine it is."""
    return {
        "cores": os.cpu_count() or 0,
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "trio": trio.__version__,
        "ductile": __version__,
    }


def tell_table(rows: Iterable[Sequence[object]]) -> None:
    """Columns that stand below each other."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        tell("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def worded(summary: Mapping[str, Any], names: Iterable[str]) -> str:
    """These parts of a summary, for people."""
    return "; ".join(f"{name.replace('_', ' ')} {_value(summary[name])}" for name in names if name in summary)


def _value(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{key}: {_value(one)}" for key, one in value.items() if key != "count")
        case list():
            return " → ".join(_value(one) for one in (value if len(value) <= 2 else (value[0], value[-1])))
        case int():
            return f"{value:,}"
    return str(value)
