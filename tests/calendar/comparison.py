"""Compare the calendar with the oracle: every line, every zone, every clock change, and random days.

`scripts/oracle` compares everything; `test_oracle` a fixed sample.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from attrs import frozen

from ductile.calendar.cron import parse_line
from ductile.calendar.daylight_saving import CronSlots
from ductile.calendar.slots import Slots
from tests.calendar.oracle import WINDOW_MARGIN, ZONES, MinuteWalk, OracleLine, expressions, windows

TICK = timedelta(microseconds=1)


@frozen
class ZoneResult:
    """The number of compared slots of a zone, and the differences."""

    zone: str
    slots: int
    differences: tuple[str, ...]


def compare(zone: str, lines: Iterable[str], spans: Sequence[tuple[datetime, datetime]]) -> ZoneResult:
    """Compare slots forward, backward (around clock changes) and counts with the oracle, for each line in each span."""
    pairs = [(OracleLine.of(line), CronSlots(parse_line(line), ZoneInfo(zone))) for line in lines]
    slots, differences = 0, []
    for start, end in spans:
        walk = MinuteWalk.through(zone, start, end)
        for line, cron_slots in pairs:
            expected = walk.fires(line)
            slots += len(expected)
            results = {
                "after": list(forward(cron_slots, start, end)),
                "count": cron_slots.count(start - TICK, end - TICK),
            }
            if end - start == 2 * WINDOW_MARGIN:
                results["before"] = list(backward(cron_slots, start, end))[::-1]
            for direction, actual in results.items():
                if actual != (len(expected) if direction == "count" else expected):
                    differences.append(f"{zone} {line.text!r} {direction} from {start}: {_describe(actual, expected)}")
    return ZoneResult(zone, slots, tuple(differences))


def forward(slots: Slots, start: datetime, end: datetime) -> Iterator[datetime]:
    at = slots.after(start - TICK)
    while at and at < end:
        yield at
        at = slots.after(at)


def backward(slots: Slots, start: datetime, end: datetime) -> Iterator[datetime]:
    at = slots.before(end)
    while at and at >= start:
        yield at
        at = slots.before(at)


def _describe(actual: object, expected: list[datetime]) -> str:
    if not isinstance(actual, list):
        return f"{actual} instead of {len(expected)}"
    return ", ".join(str(moment) for moment in sorted({*actual} ^ {*expected})[:5])


def _compare_zone(zone: str, lines: Sequence[str]) -> ZoneResult:
    return compare(zone, lines, list(windows(zone)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("zones", nargs="*", default=ZONES, help="default: all 20")
    parser.add_argument("--lines", type=int, default=320, help="how many cron lines")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    lines, started, slots, differences = expressions(arguments.lines), time.monotonic(), 0, 0
    with ProcessPoolExecutor(arguments.processes) as pool:
        for result in pool.map(partial(_compare_zone, lines=lines), arguments.zones):
            slots, differences = slots + result.slots, differences + len(result.differences)
            print(f"{result.zone}: {result.slots:,} slots, {len(result.differences)} differences", flush=True)
            print(*result.differences[:20], sep="\n", end="\n" if result.differences else "", file=sys.stderr)
    duration = f"{(time.monotonic() - started) / 60:.0f} min"
    print(f"{len(arguments.zones)} zones, {len(lines)} lines, {slots:,} slots, {differences} differences, {duration}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
