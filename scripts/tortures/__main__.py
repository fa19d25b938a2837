"""`scripts/torture NAME …`: prints one line of JSON, progress on stderr; exit 1 if a promise was broken."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from scripts.tortures.kill import Options, torture


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/torture", description="Break the core on purpose and check its promises."
    )
    kill = parser.add_subparsers(dest="name", required=True).add_parser(
        "kill", help="kill -9 of the core at random moments"
    )
    kill.add_argument("--cycles", type=int, default=100)
    kill.add_argument("--seed", type=int, default=1)
    kill.add_argument("--jobs-per-second", type=float, default=20.0, help="root jobs asked for over the API")
    kill.add_argument("--workers", type=int, default=4)
    kill.add_argument(
        "--hurry", action="store_true", help="do not wait for jobs that are held back after several crashes"
    )
    kill.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave configuration, ledgers and logs in DIR (new or empty)"
    )
    asked = parser.parse_args()
    options = Options(asked.cycles, asked.seed, asked.jobs_per_second, asked.workers, asked.hurry)
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
        if any(asked.keep.iterdir()):
            parser.error(f"{asked.keep} is not empty")
        return report(asked.keep.resolve(), options)
    with tempfile.TemporaryDirectory(prefix="ductile-torture-") as directory:
        return report(Path(directory).resolve(), options)


def report(directory: Path, options: Options) -> int:
    summary = torture(directory, options)
    print(json.dumps(summary))
    return 1 if any(summary["violations"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
