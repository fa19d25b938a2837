"""`scripts/torture NAME …`: one line of JSON on stdout; progress, violations and a table on stderr.

Exit codes: 1 if an invariant was violated, 77 if this host cannot run the test, 130 after Ctrl-C or SIGTERM. An
interrupted test removes its files and processes.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import fields_dict

from ductile.engine.process.procfs import become_subreaper
from scripts.tortures import all as all_programs
from scripts.tortures.failpoints import JOB_FAILPOINTS
from scripts.tortures.http import torture as http
from scripts.tortures.lib.fault_library import UnsupportedHost
from scripts.tortures.lib.instance import stat_fields
from scripts.tortures.lib.report import print_progress, print_table, summary_text
from scripts.tortures.programs import BY_NAME, LENIENCY_HELP, PROGRAMS, Program

UNSUPPORTED, INTERRUPTED = os.EX_NOPERM, 130
PARTS = {"http": tuple(attack.name for attack in http.ATTACKS), "failpoints": tuple(sorted(JOB_FAILPOINTS))}
"""Tests whose parts can be selected with `--only`."""
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    handle_interruptions()
    try:
        return run(parse_arguments())
    except KeyboardInterrupt:
        print_progress("interrupted: no result")
        return INTERRUPTED


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/torture", description="Break the service on purpose and check its guarantees."
    )
    names = parser.add_subparsers(dest="name", required=True)
    for program in PROGRAMS:
        add_options(program, names.add_parser(program.name, help=program.help, aliases=program.aliases))
    all_parser = names.add_parser("all", help="a small version of all tests; with --full, the complete numbers")
    all_programs.add_options(all_parser)
    add_only(all_parser, tuple(program.name for program in PROGRAMS), everything_by_default=True)
    options = parser.parse_args()
    if options.name != "all" and options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        if any(options.keep.iterdir()):
            parser.error(f"{options.keep} is not empty")
    return options


def add_options(program: Program, parser: argparse.ArgumentParser) -> None:
    for one in program.numbers:
        parser.add_argument(one.flag, type=one.kind, default=one.default, dest=one.field, help=one.help)
    if program.workers is not None:
        parser.add_argument("--workers", type=int, default=program.workers, help="service.max_workers")
    if program.is_timed:
        parser.add_argument("--leniency", type=float, default=1.0, help=LENIENCY_HELP)
    if known := PARTS.get(program.name):
        add_only(parser, known)
    if program.name == "kill":
        parser.add_argument(
            "--hurry", action="store_true", help="shorten the backoff of jobs that were hit several times"
        )
    if program.name == "power":
        parser.add_argument(
            "--synchronous", choices=("full", "normal"), default="full", help="normal must lose something"
        )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep configuration, ledgers and logs in DIR (new or empty)"
    )


def add_only(parser: argparse.ArgumentParser, known: tuple[str, ...], *, everything_by_default: bool = False) -> None:
    """Add `--only`, which accepts a list of known names."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: unknown; choose from {', '.join(known)}")
        return names

    default = known if everything_by_default else ()
    parser.add_argument("--only", type=parse, default=default, metavar="A,B", help="run only these parts")


def run(options: argparse.Namespace) -> int:
    """Run the requested test and return the exit code."""
    if options.name == "all":
        return all_programs.run_all(options)
    program = BY_NAME[options.name]
    if options.keep:
        return run_program(program, options.keep.resolve(), options)
    with tempfile.TemporaryDirectory(prefix="ductile-torture-") as directory:
        return run_program(program, Path(directory).resolve(), options)


def run_program(program: Program, directory: Path, options: argparse.Namespace) -> int:
    """Run one test in `directory`, print its summary, and return the exit code."""
    known = fields_dict(program.options)
    arguments = {name: value for name, value in vars(options).items() if name in known}
    try:
        summary = program.torture(directory, program.options(**arguments))
    except UnsupportedHost as error:
        print_progress(f"not possible here: {error}")
        return UNSUPPORTED
    except KeyboardInterrupt:
        kill_children()
        raise
    print(json.dumps(summary), flush=True)
    print_result(program, summary)
    return 1 if any(summary["violations"].values()) else 0


def print_result(program: Program, summary: dict[str, Any]) -> None:
    print_table((("invariant", "violations"), *summary["violations"].items()))
    print_progress(summary_text(summary, program.shown))


def handle_interruptions() -> None:
    """Raise KeyboardInterrupt at the first Ctrl-C or SIGTERM. Later ones do not interrupt the cleanup."""
    for number in INTERRUPTIONS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    for number in INTERRUPTIONS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def kill_children() -> None:
    """Kill all descendants. Services have their own sessions, so Ctrl-C does not reach them."""
    become_subreaper()  # adopt the plugins of a service that ends
    while children := _child_pids():
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _child_pids() -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if int(stat_fields(int(name))[1]) == os.getpid():
                found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main())
