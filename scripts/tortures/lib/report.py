"""Output of the torture tests: progress and violations on stderr, tables, and statistics for summaries."""

import os
import platform
import sqlite3
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio

from ductile import __version__

MAX_SHOWN = 20


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_violations(violations: Mapping[str, Sequence[str]]) -> None:
    """Print the first violations of each rule."""
    for rule, found in violations.items():
        for violation in found[:MAX_SHOWN]:
            print_progress(f"{rule}: {violation}")
        if len(found) > MAX_SHOWN:
            print_progress(f"{rule}: and {len(found) - MAX_SHOWN} more")


def print_table(rows: Iterable[Sequence[object]]) -> None:
    """Print rows with aligned columns."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print_progress("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def host_facts() -> dict[str, str | int]:
    """Return what the results depend on. Nothing identifies the host."""
    return {
        "cores": os.cpu_count() or 0,
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "trio": trio.__version__,
        "ductile": __version__,
    }


def summary_text(summary: Mapping[str, Any], names: Iterable[str]) -> str:
    """Format the named fields of a summary as text."""
    return "; ".join(f"{name.replace('_', ' ')} {_value_text(summary[name])}" for name in names if name in summary)


def _value_text(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{key}: {_value_text(one)}" for key, one in value.items() if key != "count")
        case list():
            return " → ".join(_value_text(one) for one in (value if len(value) <= 2 else (value[0], value[-1])))
        case int():
            return f"{value:,}"
    return str(value)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and maximum."""
    ordered = sorted(values) or [0.0]
    return {
        "count": len(values),
        "p50": round(percentile(ordered, 50), 3),
        "p99": round(percentile(ordered, 99), 3),
        "max": round(ordered[-1], 3),
    }


def percentile(ordered: Sequence[float], percent: int) -> float:
    if len(ordered) < 2:
        return ordered[0]
    return statistics.quantiles(ordered, n=100, method="inclusive")[percent - 1]


def percentile_ms(seconds: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values is, in milliseconds; 0 if there are none."""
    return round(sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))] * 1000, 1) if seconds else 0.0
