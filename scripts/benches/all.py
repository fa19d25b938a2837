"""Run every bench in its own process, one after the other. Prints one JSON line per measure on stdout."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from attrs import frozen

from scripts.benches.lib.bench import EXIT_INTERRUPTED, MODES, show_progress
from scripts.benches.lib.checkout import THIS_CHECKOUT, BenchFailed


@frozen
class BenchProgram:
    """A bench and its approximate run time on an idle machine."""

    name: str
    seconds: float
    quick_seconds: float


BENCHES = (
    BenchProgram("cli", 15, 5),
    BenchProgram("http", 120, 12),
    BenchProgram("sync", 20, 6),
    BenchProgram("run", 300, 35),
    BenchProgram("schedule", 60, 18),
    BenchProgram("exchange", 240, 40),
    BenchProgram("idle", 250, 22),
    BenchProgram("scale", 480, 40),
)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench all", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: checks that the benches work")
    parser.add_argument("--synchronous", choices=MODES, default="both", help="ledger mode (default: both)")
    parser.add_argument("--rows", type=int, help="jobs in the long history (default: 1,000,000, quick: 20,000)")
    parser.add_argument("--only", metavar="A,B", type=benches_named, default=BENCHES, help="run these benches only")
    return parser.parse_args()


def benches_named(text: str) -> tuple[BenchProgram, ...]:
    """Parse a list of bench names."""
    names = text.split(",")
    if unknown := set(names) - {bench.name for bench in BENCHES}:
        raise argparse.ArgumentTypeError(f"no bench is called {', '.join(sorted(unknown))}")
    return tuple(bench for bench in BENCHES if bench.name in names)


def main() -> int:
    options = parse_options()
    benches: tuple[BenchProgram, ...] = options.only
    arguments = ["--synchronous", options.synchronous, *["--quick"] * options.quick]
    arguments += ["--rows", str(options.rows)] if options.rows else []
    estimates = [bench.quick_seconds if options.quick else bench.seconds for bench in benches]
    failed: list[str] = []
    run_times: list[float] = []
    try:
        with tempfile.TemporaryDirectory(prefix="ductile-bench-") as folder:
            THIS_CHECKOUT.build(Path(folder))
            for number, bench in enumerate(benches):
                seconds_left = remaining_seconds(estimates, run_times)
                show_progress(f"[{number + 1}/{len(benches)}] {bench.name}: about {format_seconds(seconds_left)} left")
                begin = time.monotonic()
                try:
                    with closing(THIS_CHECKOUT.lines(bench.name, arguments, Path(folder))) as lines:
                        for line in lines:
                            print(json.dumps(line, ensure_ascii=False), flush=True)
                except BenchFailed:
                    failed.append(bench.name)
                run_times.append(time.monotonic() - begin)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if failed:
        show_progress(f"failed: {', '.join(failed)}")
    return 1 if failed else os.EX_OK


def remaining_seconds(estimates: Sequence[float], run_times: Sequence[float]) -> float:
    """Scale the estimates of the remaining benches by the ratio of run time to estimate so far."""
    estimated = sum(estimates[: len(run_times)])
    ratio = sum(run_times) / estimated if estimated else 1.0
    return sum(estimates[len(run_times) :]) * ratio


def format_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    sys.exit(main())
