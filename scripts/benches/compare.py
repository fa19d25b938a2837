"""Compare another checkout of Ductile with this one.

Both run their own benches with their own .venv, in turns: before, after, before, after. The median of the rounds
counts. Prints one JSON line per measure and round on stdout and the table on stderr; --report writes the table into a
page. A whole comparison takes about twenty minutes. Do nothing else on the machine meanwhile.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from scripts.benches import report
from scripts.benches.bench import INTERRUPTED, Line, tell
from scripts.benches.checkout import HERE, BenchFailed, Checkout
from scripts.benches.report import Compared

LINES = (
    Compared("B1", "http", "calls", "one_step_ms", "synchronous call, one step, median", "ms", "p50_ms"),
    Compared("B4", "sync", "steps", "three_steps_over_bare", "synchronous call, three steps, median", "ms", "p50_ms"),
    Compared(
        "B10", "http", "calls", "sync_over_limit", "16 synchronous callers at once: calls", "/s", "per_second", True
    ),
    Compared("B3", "http", "accept", "accepts_per_second", "signed deliveries accepted, nothing runs", "/s"),
    Compared(
        "B2f",
        "http",
        "deliver",
        "drain_over_limit",
        "signed deliveries until every job is recorded: jobs",
        "/s",
        "jobs_per_second",
        True,
    ),
    Compared("B16", "http", "deliver", "own_cpu_ms_per_job", "processor time for one delivery and its job", "ms"),
    Compared(
        "backlog",
        "run",
        "backlog",
        "backlog_over_limit",
        "5,000 jobs that are queued already: jobs",
        "/s",
        "jobs_per_second",
        True,
    ),
    Compared(
        "B9",
        "run",
        "jobs",
        "python_over_limit",
        "ordinary Python plugin, 2 workers: jobs",
        "/s",
        "jobs_per_second",
        True,
    ),
    Compared("B11", "run", "sleepers", "sleepers_over_ideal", "200 jobs of `sleep 1` on 50 workers", "s", "seconds"),
    Compared("B6", "run", "start", "start_seconds", "cold start to a healthy answer", "s"),
    Compared("B5", "idle", "quiet", "idle_cpu_percent", "idle: processor", "%"),
    Compared("B5", "idle", "quiet", "idle_wakeups", "idle: wake-ups", "/s"),
    Compared("B5b", "idle", "quiet", "idle_pss_mb", "idle: memory (PSS)", "MB"),
    Compared(
        "B7", "scale", "history", "drain_over_short", "jobs per second, long history over short (1,000 jobs)", "×"
    ),
    Compared("B7", "scale", "history", "accept_over_short", "deliveries per second, long history over short", "×"),
    Compared("B7b", "scale", "history", "jobs_ms", "`GET /jobs?limit=20`, long history, slowest filter", "ms"),
)
SIDES = ("before", "after")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--before", type=Path, required=True, metavar="DIR", help="checkout to compare with, such as a git worktree"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median counts (default: 3)")
    parser.add_argument("--only", metavar="B1,B2f", type=chosen, default=LINES, help=f"measure these only: {ids()}")
    parser.add_argument("--rows", type=int, help="length of the long history (default: 1,000,000, quick: 20,000)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the table between the marks of this page")
    parser.add_argument("--quick", action="store_true", help="small sizes: a check that the comparison works")
    return parser.parse_args()


def ids() -> str:
    return ", ".join(dict.fromkeys(one.id for one in LINES))


def chosen(text: str) -> tuple[Compared, ...]:
    """Return the lines of these ids."""
    wanted = text.split(",")
    if unknown := set(wanted) - {one.id for one in LINES}:
        raise argparse.ArgumentTypeError(f"no line is called {', '.join(sorted(unknown))}; there are {ids()}")
    return tuple(one for one in LINES if one.id in wanted)


def main() -> int:
    asked = parsed()
    if asked.report:
        report.require_marks(asked.report)
    checkouts = {"before": Checkout(asked.before.resolve()), "after": HERE}
    checkouts["before"].prepare()
    found: dict[str, list[Line]] = {side: [] for side in SIDES}
    code = os.EX_OK
    try:
        measure(asked, checkouts, found)
    except KeyboardInterrupt:
        tell("interrupted: the table has what was measured")
        code = INTERRUPTED
    except BenchFailed as failed:
        tell(f"bench {failed} failed: the table has what was measured before")
        code = 1
    table = report.table(report.rows(asked.only, found))
    tell(table)
    if asked.report and code == os.EX_OK:
        commits = {side: checkout.commit for side, checkout in checkouts.items()}
        report.write(asked.report, f"{report.origin(found, commits, asked.rounds)}\n\n{table}")
    return code


def measure(asked: argparse.Namespace, checkouts: dict[str, Checkout], found: dict[str, list[Line]]) -> None:
    """Run every bench that the chosen lines need, in turns, and add its lines to `found`."""
    runs = list(dict.fromkeys((one.bench, one.only) for one in asked.only))
    wanted = {(one.bench, one.measure) for one in asked.only}
    with tempfile.TemporaryDirectory(prefix="ductile-bench-") as directory:
        folders = {side: Path(directory) / side for side in SIDES}
        for side, folder in folders.items():
            folder.mkdir()
            checkouts[side].build(folder)
        for number in range(1, asked.rounds + 1):
            for bench, only in runs:
                for side in SIDES:
                    tell(f"round {number} of {asked.rounds}: {bench} {only}, {side}")
                    options = ["--only", only, "--rounds", "1", "--synchronous", "full", *["--quick"] * asked.quick]
                    options += ["--rows", str(asked.rows)] if asked.rows else []
                    with closing(checkouts[side].lines(bench, options, folders[side])) as lines:
                        keep(found[side], (line for line in lines if (line["bench"], line["measure"]) in wanted), side)


def keep(found: list[Line], lines: Iterable[Line], side: str) -> None:
    for line in lines:
        print(json.dumps({"side": side, **line}, ensure_ascii=False), flush=True)
        found.append(line)


if __name__ == "__main__":
    sys.exit(main())
