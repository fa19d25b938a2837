"""`scripts/torture NAME …`: prints one line of JSON, progress on stderr; exit 1 if a promise was broken."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scripts.tortures import doors, kill, reload, schedule
from scripts.tortures.kill import Options


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/torture", description="Break the core on purpose and check its promises."
    )
    names = parser.add_subparsers(dest="name", required=True)
    killed = names.add_parser("kill", help="kill -9 of the core at random moments")
    killed.add_argument("--cycles", type=int, default=100)
    killed.add_argument("--jobs-per-second", type=float, default=20.0, help="root jobs asked for over the API")
    killed.add_argument(
        "--hurry", action="store_true", help="do not wait for jobs that are held back after several crashes"
    )
    scheduled = names.add_parser("schedule", help="kill -9 while schedules fire, skip, queue and cancel")
    scheduled.add_argument("--runs", type=int, default=500, dest="cycles")
    reloaded = names.add_parser("reload", help="change the configuration while jobs come in and run")
    reloaded.add_argument("--reloads", type=int, default=200, dest="cycles")
    reloaded.add_argument("--jobs-per-second", type=float, default=10.0, help="root jobs asked for over the API")
    attacked = names.add_parser("http", help="attack the API's and the webhooks' door beside ordinary callers")
    attacked.add_argument("--share", type=float, default=1.0, help="do this share of every number")
    attacked.add_argument("--only", type=parts, default=(), metavar="H1,W2", help="only these attacks")
    attacked.add_argument("--leniency", type=float, default=1.0, help="times as long as promised, on a busy host")
    for each in (killed, scheduled, reloaded):
        each.add_argument("--workers", type=int, default=4)
    for each in (killed, scheduled, reloaded, attacked):
        each.add_argument("--seed", type=int, default=1)
        each.add_argument(
            "--keep", type=Path, metavar="DIR", help="leave configuration, ledgers and logs in DIR (new or empty)"
        )
    asked = parser.parse_args()
    run = partial(TORTURES[asked.name], options=options_of(asked))
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
        if any(asked.keep.iterdir()):
            parser.error(f"{asked.keep} is not empty")
        return report(run(asked.keep.resolve()))
    with tempfile.TemporaryDirectory(prefix="ductile-torture-") as directory:
        return report(run(Path(directory).resolve()))


def options_of(asked: argparse.Namespace) -> Any:
    if asked.name == "http":
        return doors.Options(asked.seed, asked.share, asked.only, asked.leniency)
    rate, hurry = getattr(asked, "jobs_per_second", 0.0), getattr(asked, "hurry", False)
    return Options(asked.cycles, asked.seed, rate, asked.workers, hurry)


def parts(text: str) -> tuple[str, ...]:
    """The names of attacks."""
    known, names = [attack.name for attack in doors.ATTACKS], tuple(text.split(","))
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are only {', '.join(known)}")
    return names


def report(summary: dict[str, Any]) -> int:
    print(json.dumps(summary))
    return 1 if any(summary["violations"].values()) else 0


TORTURES: dict[str, Callable[..., dict[str, Any]]] = {
    "kill": kill.torture,
    "schedule": schedule.torture,
    "reload": reload.torture,
    "http": doors.torture,
}

if __name__ == "__main__":
    sys.exit(main())
