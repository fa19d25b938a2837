"""Compare another checkout of Ductile with this one.

Each checkout runs its own benches with its own .venv, alternately: before, after, before, after. The result is the
median of the rounds. Prints one JSON line per measure and round on stdout and the table on stderr; --report writes the
table into a page. A full comparison takes about twenty minutes. Keep the machine idle during that time.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from scripts.benches.lib import report
from scripts.benches.lib.bench import EXIT_INTERRUPTED, Line, show_progress
from scripts.benches.lib.checkout import THIS_CHECKOUT, BenchFailed, Checkout
from scripts.benches.lib.report import ComparedMeasure

ROWS = (
    ComparedMeasure("B1", "http", "calls", "one_step_ms", "synchronous call, one step, median", "ms", "p50_ms"),
    ComparedMeasure(
        "B4", "sync", "steps", "three_steps_over_bare", "synchronous call, three steps, median", "ms", "p50_ms"
    ),
    ComparedMeasure(
        "B10", "http", "calls", "sync_over_limit", "16 synchronous callers at once: calls", "/s", "per_second", True
    ),
    ComparedMeasure("B3", "http", "accept", "accepts_per_second", "signed deliveries accepted, nothing runs", "/s"),
    ComparedMeasure(
        "B2f",
        "http",
        "deliver",
        "drain_over_limit",
        "signed deliveries until every job is recorded: jobs",
        "/s",
        "jobs_per_second",
        True,
    ),
    ComparedMeasure(
        "B16", "http", "deliver", "own_cpu_ms_per_job", "processor time for one delivery and its job", "ms"
    ),
    ComparedMeasure(
        "backlog",
        "run",
        "backlog",
        "backlog_over_limit",
        "5,000 jobs that are queued already: jobs",
        "/s",
        "jobs_per_second",
        True,
    ),
    ComparedMeasure(
        "B9",
        "run",
        "jobs",
        "python_over_limit",
        "ordinary Python plugin, 2 workers: jobs",
        "/s",
        "jobs_per_second",
        True,
    ),
    ComparedMeasure(
        "B11", "run", "sleepers", "sleepers_over_ideal", "200 jobs of `sleep 1` on 50 workers", "s", "seconds"
    ),
    ComparedMeasure("B6", "run", "start", "start_seconds", "cold start to a healthy response", "s"),
    ComparedMeasure("B5", "idle", "quiet", "idle_cpu_percent", "idle: processor", "%"),
    ComparedMeasure("B5", "idle", "quiet", "idle_wakeups", "idle: wake-ups", "/s"),
    ComparedMeasure("B5b", "idle", "quiet", "idle_pss_mb", "idle: memory (PSS)", "MB"),
    ComparedMeasure(
        "B7", "scale", "history", "drain_over_short", "jobs per second, long history over short (1,000 jobs)", "×"
    ),
    ComparedMeasure(
        "B7", "scale", "history", "accept_over_short", "deliveries per second, long history over short", "×"
    ),
    ComparedMeasure("B7b", "scale", "history", "jobs_ms", "`GET /jobs?limit=20`, long history, slowest filter", "ms"),
)
SIDES = ("before", "after")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--before", type=Path, required=True, metavar="DIR", help="checkout to compare with, such as a git worktree"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of rounds; the result is their median (default: 3)"
    )
    parser.add_argument(
        "--only", metavar="B1,B2f", type=rows_named, default=ROWS, help=f"measure only these: {row_ids()}"
    )
    parser.add_argument("--rows", type=int, help="jobs in the long history (default: 1,000,000, quick: 20,000)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the table between the markers in this page")
    parser.add_argument("--quick", action="store_true", help="small sizes: checks that the comparison works")
    return parser.parse_args()


def row_ids() -> str:
    return ", ".join(dict.fromkeys(row.id for row in ROWS))


def rows_named(text: str) -> tuple[ComparedMeasure, ...]:
    """Parse a list of ids."""
    wanted = text.split(",")
    if unknown := set(wanted) - {row.id for row in ROWS}:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; known: {row_ids()}")
    return tuple(row for row in ROWS if row.id in wanted)


def main() -> int:
    options = parse_options()
    if options.report:
        report.require_markers(options.report)
    checkouts = {"before": Checkout(options.before.resolve()), "after": THIS_CHECKOUT}
    checkouts["before"].prepare()
    lines: dict[str, list[Line]] = {side: [] for side in SIDES}
    code = os.EX_OK
    try:
        measure(options, checkouts, lines)
    except KeyboardInterrupt:
        show_progress("interrupted: the table contains the completed measures")
        code = EXIT_INTERRUPTED
    except BenchFailed as failed:
        show_progress(f"bench {failed} failed: the table contains the measures completed before it")
        code = 1
    table = report.format_table(report.table_rows(options.only, lines))
    show_progress(table)
    if options.report and code == os.EX_OK:
        commits = {side: checkout.commit for side, checkout in checkouts.items()}
        report.write_section(options.report, f"{report.describe_run(lines, commits, options.rounds)}\n\n{table}")
    return code


def measure(options: argparse.Namespace, checkouts: dict[str, Checkout], results: dict[str, list[Line]]) -> None:
    """Run every bench that the requested rows need, alternately in both checkouts, and add its lines to `results`."""
    runs = list(dict.fromkeys((row.bench, row.only) for row in options.only))
    wanted = {(row.bench, row.measure) for row in options.only}
    size = [*["--quick"] * options.quick, *(["--rows", str(options.rows)] if options.rows else [])]
    with tempfile.TemporaryDirectory(prefix="ductile-bench-") as directory:
        folders = {side: Path(directory) / side for side in SIDES}
        for side, folder in folders.items():
            folder.mkdir()
            checkouts[side].build(folder)
        for number in range(1, options.rounds + 1):
            for bench, only in runs:
                for side in SIDES:
                    show_progress(f"round {number} of {options.rounds}: {bench} {only}, {side}")
                    arguments = ["--only", only, "--rounds", "1", "--synchronous", "full", *size]
                    with closing(checkouts[side].lines(bench, arguments, folders[side])) as lines:
                        for line in lines:
                            if (line["bench"], line["measure"]) in wanted:
                                print(json.dumps({"side": side, **line}, ensure_ascii=False), flush=True)
                                results[side].append(line)


if __name__ == "__main__":
    sys.exit(main())
