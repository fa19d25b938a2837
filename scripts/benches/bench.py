"""What all benches share: their options, the programs in C, the limit of the machine, and how a line looks.

A bench is a table of measures which `main` runs one after the other. Knows nothing of what is measured.
"""

import argparse
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile import __version__
from scripts.benches.measures import measure_named

HERE = Path(__file__).parent
SHARED = "DUCTILE_BENCH_FOLDER"
"""The folder in which `bench all` or `bench compare` has built the programs."""
MODES = {"full": ("full",), "normal": ("normal",), "both": ("full", "normal")}
PROGRAMS = {
    "plugin": ("-static", "plugin.c"),
    "big": ("-static", "-DANSWER=8388608", "plugin.c"),
    "launcher": ("-pthread", "launcher.c"),
    "client": ("-D_GNU_SOURCE", "client.c"),
}

INTERRUPTED = 130

Line = dict[str, Any]


@frozen
class Limit:
    """What the launcher in C reached."""

    runs_per_second: float
    p50_ms: float


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
        """Where one is enough: the stricter of those asked for."""
        return self.modes[0]

    @property
    def plugin(self) -> Path:
        return self.folder / "plugin"

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def limit(self, plugin: Path, *, width: int, count: int, request_bytes: int = 300) -> Limit:
        """What a small C program makes of the same plugin, now."""
        command = [str(each) for each in (self.folder / "launcher", plugin, width, count, request_bytes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs, micros, _ = map(float, done.stdout.split())
        return Limit(runs, micros / 1000)

    def line(self, key: str, measure: str, value: float | Sequence[float], *, mode: str = "", **more: Any) -> Line:
        """Return a value, or the median of rounds, with the numbers behind it and the machine."""
        mode = mode or self.mode
        if not isinstance(value, int | float):
            more, value = {"rounds": value, **more}, statistics.median(value)
        return {
            "id": key,
            "value": short(value),
            "unit": measure_named(key, measure).unit,
            "bench": self.name,
            "measure": measure,
            "synchronous": mode,
            **{key: short(item) for key, item in more.items()},
            "quick": self.quick,
            "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "machine": self.machine,
            "version": __version__,
        }


Measure = Callable[[Bench], Iterator[Line]]


def main(name: str, what: str | None, measures: Mapping[str, Measure]) -> int:
    """Every measure asked for has printed its lines."""
    options = parsed(name, what, measures)
    with workshop() as folder:
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
            for key, measure in measures.items():
                if options.only in (None, key):
                    tell(f"measuring {key} …")
                    for line in measure(bench):
                        print(json.dumps(line, ensure_ascii=False), flush=True)
        except KeyboardInterrupt:
            return INTERRUPTED
    return os.EX_OK


def parsed(name: str, what: str | None, measures: Mapping[str, Measure]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"scripts/bench {name}", description=what, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round: shows that it works, not how fast"
    )
    parser.add_argument("--synchronous", choices=MODES, default="both", help="how the ledger writes (default: both)")
    parser.add_argument("--rounds", type=int, help="the median of so many counts (default: 3, quick: 1)")
    parser.add_argument("--rows", type=int, help="length of a long history (default: 1,000,000, quick: 20,000)")
    parser.add_argument("--only", choices=measures, help="one measure")
    return parser.parse_args()


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def workshop() -> Iterator[Path]:
    """Yield a folder with the programs in it; the shared one, if there is one."""
    if shared := os.environ.get(SHARED):
        yield Path(shared)
        return
    with tempfile.TemporaryDirectory(prefix="ductile-bench-") as directory:
        build(Path(directory))
        yield Path(directory)


def build(folder: Path) -> None:
    if not shutil.which("gcc"):
        raise SystemExit("what Ductile is compared with is written in C: install gcc")
    for name, (*flags, source) in PROGRAMS.items():
        subprocess.run(["gcc", "-O2", *flags, "-o", folder / name, HERE / source], check=True)


def machine() -> dict[str, Any]:
    """What the numbers depend on; nothing that says whose machine it is."""
    return {
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "python_is_optimised": is_optimised(sysconfig.get_config_vars()),
        "sqlite": sqlite3.sqlite_version,
        "load_before": round(os.getloadavg()[0], 2),
    }


def is_optimised(build: Mapping[str, Any]) -> bool | None:
    """Whether this build of Python was guided by a profile; None if it does not say."""
    asked = str(build.get("CONFIG_ARGS"))
    if "'--enable-optimizations" in asked or "-fprofile-use" in str(build.get("PY_CORE_CFLAGS")):
        return True
    # `configure` always leaves it there; a distribution that optimises in its own way takes it out with other traces.
    return False if build.get("PGO_PROF_USE_FLAG") else None


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def short(found: Any) -> Any:
    """The same, without digits that mean nothing."""
    match found:
        case float():
            return round(found, 4)
        case list() | tuple():
            return [short(each) for each in found]
        case dict():
            return {key: short(each) for key, each in found.items()}
    return found
