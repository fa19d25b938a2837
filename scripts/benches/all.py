"""Run every bench, one after the other, each in a process of its own. One JSON line per measure on stdout."""

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

from scripts.benches.bench import INTERRUPTED, MODES, tell
from scripts.benches.checkout import HERE, BenchFailed


@frozen
class Part:
    """A bench, and about how many seconds it takes on a quiet machine."""

    name: str
    seconds: float
    quick_seconds: float


PARTS = (
    Part("cli", 15, 5),
    Part("http", 120, 12),
    Part("sync", 20, 6),
    Part("run", 300, 35),
    Part("schedule", 60, 18),
    Part("idle", 250, 22),
    Part("scale", 480, 40),
)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench all", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a check that the benches work")
    parser.add_argument("--synchronous", choices=MODES, default="both", help="how the ledger writes (default: both)")
    parser.add_argument("--rows", type=int, help="length of a long history (default: 1,000,000, quick: 20,000)")
    parser.add_argument("--only", metavar="A,B", type=chosen, default=PARTS, help="run these benches only")
    return parser.parse_args()


def chosen(text: str) -> tuple[Part, ...]:
    """Return the benches of these names."""
    names = text.split(",")
    if unknown := set(names) - {part.name for part in PARTS}:
        raise argparse.ArgumentTypeError(f"no bench is called {', '.join(sorted(unknown))}")
    return tuple(part for part in PARTS if part.name in names)


def main() -> int:
    asked = parsed()
    parts: tuple[Part, ...] = asked.only
    options = ["--synchronous", asked.synchronous, *["--quick"] * asked.quick]
    options += ["--rows", str(asked.rows)] if asked.rows else []
    estimates = [part.quick_seconds if asked.quick else part.seconds for part in parts]
    failed: list[str] = []
    took: list[float] = []
    try:
        with tempfile.TemporaryDirectory(prefix="ductile-bench-") as folder:
            HERE.build(Path(folder))
            for number, part in enumerate(parts):
                left = remaining(estimates, took)
                tell(f"[{number + 1}/{len(parts)}] {part.name}: about {worded(left)} left in all")
                begun = time.monotonic()
                try:
                    with closing(HERE.lines(part.name, options, Path(folder))) as found:
                        for line in found:
                            print(json.dumps(line, ensure_ascii=False), flush=True)
                except BenchFailed:
                    failed.append(part.name)
                took.append(time.monotonic() - begun)
    except KeyboardInterrupt:
        return INTERRUPTED
    if failed:
        tell(f"failed: {', '.join(failed)}")
    return 1 if failed else os.EX_OK


def remaining(estimates: Sequence[float], took: Sequence[float]) -> float:
    """Return the seconds that are left, if this machine stays as slow as it was so far."""
    done = sum(estimates[: len(took)])
    slowness = sum(took) / done if done else 1.0
    return sum(estimates[len(took) :]) * slowness


def worded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    sys.exit(main())
