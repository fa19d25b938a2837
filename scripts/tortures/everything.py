"""All tortures, one after the other, each in a process of its own; and the table that is kept of it."""

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

from scripts.tortures.programs import LENIENCY_HELP, PROGRAMS, Program
from scripts.tortures.telling import machine, tell, tell_table, worded

BEGIN, END = "<!-- torture all: begin -->", "<!-- torture all: end -->"
OK, VIOLATED, NOT_POSSIBLE = os.EX_OK, 1, os.EX_NOPERM


@frozen
class Result:
    """What became of one torture; without a summary it was not possible here, or broke."""

    program: Program
    code: int
    seconds: float
    summary: dict[str, Any] | None = None
    said: str = ""

    @property
    def verdict(self) -> str:
        """How many promises were broken, or why that is not known."""
        if self.summary is not None:
            return str(sum(self.summary["violations"].values()))
        return f"{'not possible here' if self.code == NOT_POSSIBLE else 'broke'}: {self.said}"

    @property
    def row(self) -> tuple[str, str, str, str]:
        done = worded(self.summary, self.program.shown) if self.summary else ""
        return self.program.name, done, self.verdict, f"{self.seconds:.0f} s"


def offer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="as much as is promised: takes hours")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the table between the marks in this file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--leniency", type=float, default=1.0, help=LENIENCY_HELP)


def run(asked: argparse.Namespace) -> int:
    """Every torture has had its turn and the table is told and, if asked for, kept; the exit code."""
    if asked.report:
        require_marks(asked.report)
    results = [
        tortured(program, full=asked.full, seed=asked.seed, leniency=asked.leniency)
        for program in PROGRAMS
        if program.name in asked.only
    ]
    tell_table((("torture", "done", "violations", "took"), *(result.row for result in results)))
    if asked.report:
        keep(asked.report, table(results, full=asked.full, seed=asked.seed, leniency=asked.leniency))
    codes = {result.code for result in results}
    if codes - {OK, NOT_POSSIBLE}:
        return VIOLATED
    return NOT_POSSIBLE if NOT_POSSIBLE in codes else OK


def tortured(program: Program, *, full: bool, seed: int, leniency: float) -> Result:
    """One torture, with its line of JSON on our stdout."""
    arguments = [*program.arguments(full=full), "--seed", str(seed)]
    arguments += ["--leniency", str(leniency)] if program.is_timed else []
    arguments += ["--hurry"] if program.name == "kill" and not full else []
    tell(f"— {program.name} {' '.join(arguments)}")
    begun, said = time.monotonic(), []
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
                said.append(line.strip())
                tell(f"  {line.rstrip()}")
            told = process.stdout.read()
        except KeyboardInterrupt:
            process.terminate()  # a Ctrl-C in a terminal has told it already, a SIGTERM has not
            process.wait()
            raise
    seconds = time.monotonic() - begun
    print(told, end="", flush=True)
    if not told or process.returncode not in (OK, VIOLATED):
        return Result(program, process.returncode or VIOLATED, seconds, said=said[-1] if said else "")
    return Result(program, process.returncode, seconds, json.loads(told))


def table(results: Sequence[Result], *, full: bool, seed: int, leniency: float = 1.0) -> str:
    """The results as Markdown, with all that is needed to repeat them."""
    host = machine()
    asked = f"{' --full' * full} --seed {seed}{f' --leniency {leniency:g}' * (leniency != 1)}"
    head = (
        f"`scripts/torture all{asked}` on {datetime.now(UTC):%Y-%m-%d}, {host['cores']} cores, {host['kernel']}, "
        f"Python {host['python']}, SQLite {host['sqlite']}, Trio {host['trio']}, Ductile {host['ductile']}:"
    )
    rows = [f"| `{name}` | {done} | {verdict} | {took} |" for name, done, verdict, took in (one.row for one in results)]
    return "\n".join([head, "", "| Torture | Done | Violations | Took |", "|---|---|---|---|", *rows])


def require_marks(report: Path) -> None:
    text = report.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"{report}: the table goes between {BEGIN} and {END}, each on a line of its own")


def keep(report: Path, content: str) -> None:
    """The content is between the marks, and the rest of the file as it was."""
    text = report.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    report.write_text(f"{before}\n{content}\n{after}")
