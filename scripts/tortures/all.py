"""All torture tests, one after the other, each in its own process; and the table of their results."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import frozen

from scripts.tortures.lib.report import host_facts, print_progress, print_table, summary_text
from scripts.tortures.programs import LENIENCY_HELP, PROGRAMS, Program

BEGIN, END = "<!-- torture all: begin -->", "<!-- torture all: end -->"
OK, VIOLATED, UNSUPPORTED = os.EX_OK, 1, os.EX_NOPERM


@frozen
class ProgramResult:
    """The result of one torture test. It has no summary if the host does not support it, or it failed."""

    program: Program
    code: int
    seconds: float
    summary: dict[str, Any] | None = None
    last_line: str = ""

    @property
    def verdict(self) -> str:
        """The number of violations, or why there is none."""
        if self.summary is not None:
            return str(sum(self.summary["violations"].values()))
        return f"{'not possible here' if self.code == UNSUPPORTED else 'failed'}: {self.last_line}"

    @property
    def row(self) -> tuple[str, str, str, str]:
        done = summary_text(self.summary, self.program.shown) if self.summary else ""
        return self.program.name, done, self.verdict, f"{self.seconds:.0f} s"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="run the complete numbers, which takes hours")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the table between the markers in this file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--leniency", type=float, default=1.0, help=LENIENCY_HELP)


def run_all(options: argparse.Namespace) -> int:
    """Run the selected tests, print and optionally store the table, and return the exit code."""
    if options.report:
        require_markers(options.report)
    results = [
        run_program(program, full=options.full, seed=options.seed, leniency=options.leniency)
        for program in PROGRAMS
        if program.name in options.only
    ]
    print_table((("torture", "done", "violations", "took"), *(result.row for result in results)))
    if options.report:
        table = markdown_table(results, full=options.full, seed=options.seed, leniency=options.leniency)
        write_between_markers(options.report, table)
    codes = {result.code for result in results}
    if codes - {OK, UNSUPPORTED}:
        return VIOLATED
    return UNSUPPORTED if UNSUPPORTED in codes else OK


def run_program(program: Program, *, full: bool, seed: int, leniency: float) -> ProgramResult:
    """Run one test in its own process and copy its JSON line to stdout."""
    arguments = [*program.arguments(full=full), "--seed", str(seed)]
    arguments += ["--leniency", str(leniency)] if program.is_timed else []
    arguments += ["--hurry"] if program.name == "kill" and not full else []
    print_progress(f"— {program.name} {' '.join(arguments)}")
    begun, last_line = time.monotonic(), ""
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.tortures", program.name, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        assert process.stdout
        try:
            for line in process.stderr:
                last_line = line.strip()
                print_progress(f"  {line.rstrip()}")
            summary = process.stdout.read()
        except KeyboardInterrupt:
            process.terminate()  # Ctrl-C in a terminal reaches the child, SIGTERM does not
            process.wait()
            raise
    seconds = time.monotonic() - begun
    print(summary, end="", flush=True)
    if not summary or process.returncode not in (OK, VIOLATED):
        return ProgramResult(program, process.returncode or VIOLATED, seconds, last_line=last_line)
    return ProgramResult(program, process.returncode, seconds, json.loads(summary))


def markdown_table(results: Sequence[ProgramResult], *, full: bool, seed: int, leniency: float = 1.0) -> str:
    """Format the results with everything that is needed to repeat them."""
    host = host_facts()
    options = f"{' --full' * full} --seed {seed}{f' --leniency {leniency:g}' * (leniency != 1)}"
    head = (
        f"`scripts/torture all{options}` on {datetime.now(UTC):%Y-%m-%d}, {host['cores']} cores, {host['kernel']}, "
        f"Python {host['python']}, SQLite {host['sqlite']}, Trio {host['trio']}, Ductile {host['ductile']}:"
    )
    rows = [f"| `{name}` | {done} | {verdict} | {took} |" for name, done, verdict, took in (one.row for one in results)]
    return "\n".join([head, "", "| Torture | Done | Violations | Took |", "|---|---|---|---|", *rows])


def require_markers(report: Path) -> None:
    """Exit with an error unless the file has both markers once and in order."""
    text = report.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"{report}: the table goes between {BEGIN} and {END}, each on its own line")


def write_between_markers(report: Path, content: str) -> None:
    """Replace what is between the markers, and leave the rest of the file unchanged."""
    text = report.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    report.write_text(f"{before}\n{content}\n{after}")
