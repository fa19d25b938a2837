"""The frame of a bench: its options, its measures one after the other, and the JSON line of each result.

Does not depend on what is measured.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile import __version__
from scripts.benches.lib.machine import machine
from scripts.benches.lib.measures import find_measure
from scripts.benches.lib.programs import BareRuns, bare_runs, program_folder

MODES = {"full": ("full",), "normal": ("normal",), "both": ("full", "normal")}
EXIT_INTERRUPTED = 130

Line = dict[str, Any]


@frozen
class Bench:
    """One run of one bench."""

    name: str
    folder: Path
    rounds: int
    modes: tuple[str, ...]
    quick: bool
    rows: int
    machine: Mapping[str, Any]

    @property
    def mode(self) -> str:
        """The strictest of the requested modes, for measures that use only one."""
        return self.modes[0]

    @property
    def plugin(self) -> Path:
        return self.folder / "plugin"

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def bare_runs(self, plugin: Path, *, width: int, count: int, request_bytes: int = 300) -> BareRuns:
        """Run `plugin` from a C program, as the reference for the same work in Ductile."""
        return bare_runs(self.folder, plugin, width=width, count=count, request_bytes=request_bytes)

    def line(
        self, measure_id: str, measure: str, value: float | Sequence[float], *, mode: str = "", **details: Any
    ) -> Line:
        """Return the JSON line of a value. Of several rounds the value is the median."""
        if not isinstance(value, int | float):
            details, value = {"rounds": value, **details}, statistics.median(value)
        return {
            "id": measure_id,
            "value": rounded(value),
            "unit": find_measure(measure_id, measure).unit,
            "bench": self.name,
            "measure": measure,
            "synchronous": mode or self.mode,
            **{name: rounded(detail) for name, detail in details.items()},
            "quick": self.quick,
            "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "machine": self.machine,
            "version": __version__,
        }


MeasureFunction = Callable[[Bench], Iterator[Line]]


def main(name: str, description: str | None, measures: Mapping[str, MeasureFunction]) -> int:
    """Run the requested measures and print their lines. Return the exit code."""
    options = parse_options(name, description, measures)
    with program_folder() as folder:
        bench = Bench(
            name=name,
            folder=folder,
            rounds=options.rounds or (1 if options.quick else 3),
            modes=MODES[options.synchronous],
            quick=options.quick,
            rows=options.rows or (20_000 if options.quick else 1_000_000),
            machine=machine(),
        )
        try:
            for measure, run in measures.items():
                if options.only in (None, measure):
                    show_progress(f"measuring {measure} …")
                    for line in run(bench):
                        print(json.dumps(line, ensure_ascii=False), flush=True)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
    return os.EX_OK


def parse_options(name: str, description: str | None, measures: Mapping[str, MeasureFunction]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"scripts/bench {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round: checks that the bench works, not how fast it is"
    )
    parser.add_argument("--synchronous", choices=MODES, default="both", help="ledger mode (default: both)")
    parser.add_argument("--rounds", type=int, help="number of rounds; the value is their median (default: 3, quick: 1)")
    parser.add_argument("--rows", type=int, help="jobs in the long history (default: 1,000,000, quick: 20,000)")
    parser.add_argument("--only", choices=measures, help="run only this measure")
    return parser.parse_args()


def show_progress(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value at this percentile. It is one of `values`; there is no interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def rounded(value: Any) -> Any:
    """Return the value with every number in it rounded to four decimal places."""
    match value:
        case float():
            return round(value, 4)
        case list() | tuple():
            return [rounded(item) for item in value]
        case dict():
            return {key: rounded(item) for key, item in value.items()}
    return value
