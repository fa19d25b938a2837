"""`scripts/torture NAME …`: lines of JSON on stdout; progress, violations and a table on stderr.

Exit 1 if a promise was broken, 77 if this host cannot do what was asked for, so that nothing was proved; 130 after
Ctrl-C or SIGTERM, which leaves nothing behind and proves nothing either.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from attrs import fields_dict

from ductile.core.instance.failpoints import NAMES
from scripts.tortures import doors, everything
from scripts.tortures.clearing import be_interruptible, end_children
from scripts.tortures.programs import LENIENCY_HELP, PROGRAMS, Program
from scripts.tortures.shim import Unavailable
from scripts.tortures.telling import tell, tell_table, worded

NOT_POSSIBLE, INTERRUPTED = os.EX_NOPERM, 130
PARTS = {"http": tuple(attack.name for attack in doors.ATTACKS), "failpoints": tuple(sorted(NAMES))}
"""Tortures of which single parts can be asked for."""


def main() -> int:
    be_interruptible()
    try:
        return torture()
    except KeyboardInterrupt:
        tell("interrupted: nothing is proved")
        return INTERRUPTED


def torture() -> int:
    """What was asked for is done and told; the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/torture", description="Break the core on purpose and check its promises."
    )
    names = parser.add_subparsers(dest="name", required=True)
    for program in PROGRAMS:
        offer(program, names.add_parser(program.name, help=program.help))
    whole = names.add_parser("all", help="all of them, a little; with --full, as much as is promised")
    everything.offer(whole)
    known = tuple(program.name for program in PROGRAMS)
    whole.add_argument(
        "--only", type=lambda text: parts(text, known), default=known, metavar="A,B", help="only these tortures"
    )
    asked = parser.parse_args()
    if asked.name == "all":
        return everything.run(asked)
    (program,) = (one for one in PROGRAMS if one.name == asked.name)
    if not asked.keep:
        with tempfile.TemporaryDirectory(prefix="ductile-torture-") as directory:
            return report(program, Path(directory).resolve(), asked)
    asked.keep.mkdir(parents=True, exist_ok=True)
    if any(asked.keep.iterdir()):
        parser.error(f"{asked.keep} is not empty")
    return report(program, asked.keep.resolve(), asked)


def offer(program: Program, parser: argparse.ArgumentParser) -> None:
    """The parser knows the program's options."""
    for one in program.numbers:
        parser.add_argument(one.flag, type=one.kind, default=one.usual, dest=one.field, help=one.help)
    if program.workers is not None:
        parser.add_argument("--workers", type=int, default=program.workers, help="service.max_workers")
    if program.is_timed:
        parser.add_argument("--leniency", type=float, default=1.0, help=LENIENCY_HELP)
    if known := PARTS.get(program.name):
        parser.add_argument(
            "--only", type=lambda text: parts(text, known), default=(), metavar="A,B", help="only these parts"
        )
    if program.name == "kill":
        parser.add_argument(
            "--hurry", action="store_true", help="do not wait for jobs that are held back after several crashes"
        )
    if program.name == "power":
        parser.add_argument(
            "--synchronous", choices=("full", "normal"), default="full", help="normal must lose something"
        )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave configuration, ledgers and logs in DIR (new or empty)"
    )


def parts(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names of parts, all of them known."""
    names = tuple(text.split(","))
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are only {', '.join(known)}")
    return names


def report(program: Program, directory: Path, asked: argparse.Namespace) -> int:
    """The torture is over and has told its numbers; the exit code."""
    known = fields_dict(program.options)
    options = program.options(**{name: value for name, value in vars(asked).items() if name in known})
    try:
        summary = program.torture(directory, options)
    except Unavailable as error:
        tell(f"not possible here: {error}")
        return NOT_POSSIBLE
    except KeyboardInterrupt:
        end_children()
        raise
    print(json.dumps(summary), flush=True)
    return judge(program, summary)


def judge(program: Program, summary: dict[str, Any]) -> int:
    """The table at the end, and 1 if anything was violated."""
    tell_table((("promise", "violations"), *summary["violations"].items()))
    tell(worded(summary, program.shown))
    return 1 if any(summary["violations"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
