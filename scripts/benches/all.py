"""All benches one after the other, each in a process of its own, and the page that is kept of it."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

from attrs import frozen

from scripts.benches import plots, report
from scripts.benches.bench import HERE, INTERRUPTED, MODES, SHARED, Line, build, tell
from scripts.benches.targets import SUITE


@frozen
class Part:
    """A bench, and about how many seconds it takes on a quiet machine."""

    name: str
    seconds: float
    quick_seconds: float


PARTS = (
    Part("cli", 15, 5),
    Part("ledger", 110, 10),
    Part("http", 180, 15),
    Part("sync", 20, 6),
    Part("run", 340, 40),
    Part("schedule", 90, 22),
    Part("idle", 250, 22),
    Part("scale", 480, 40),
)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench all", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round: shows that it works, not how fast"
    )
    parser.add_argument("--synchronous", choices=MODES, default="both", help="how the ledger writes (default: both)")
    parser.add_argument("--rows", type=int, help="length of a long history (default: 1,000,000, quick: 20,000)")
    parser.add_argument("--only", metavar="A,B", type=chosen, default=PARTS, help="the others count as not measured")
    parser.add_argument(
        "--report", type=Path, metavar="PAGE", help="write tables between the marks of this page, and plots"
    )
    parser.add_argument(
        "--lines", type=Path, metavar="FILE", help="measure nothing, report these lines of an earlier run"
    )
    parser.add_argument(
        "--beside", type=Path, metavar="FILE", help="show the lines of another run, as of another Python, in the tables"
    )
    return parser.parse_args()


def chosen(text: str) -> tuple[Part, ...]:
    """The benches of these names."""
    names = text.split(",")
    if unknown := set(names) - {part.name for part in PARTS}:
        raise argparse.ArgumentTypeError(f"no bench is called {', '.join(sorted(unknown))}")
    return tuple(part for part in PARTS if part.name in names)


def main() -> int:
    """Every bench has had its turn and the page is kept; after Ctrl-C, with what there is."""
    asked = parsed()
    if asked.report:
        report.require_marks(asked.report)
    lines: list[Line] = []
    beside = kept(asked.beside) if asked.beside else []
    code = os.EX_OK
    if asked.lines:
        lines = kept(asked.lines)
    else:
        try:
            code = measured(asked, lines)
        except KeyboardInterrupt:
            tell("interrupted: what follows is what there is")
            code = INTERRUPTED
    modes = MODES[asked.synchronous]
    tell(report.summary(report.rows(SUITE, lines, modes)))
    if asked.report:
        written(asked.report, lines, modes, beside)
    return code


def kept(path: Path) -> list[Line]:
    """The lines of an earlier run."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured(asked: argparse.Namespace, lines: list[Line]) -> int:
    """Every bench has run; its lines are added as they come."""
    parts: tuple[Part, ...] = asked.only
    options = ["--synchronous", asked.synchronous, *["--quick"] * asked.quick]
    options += ["--rows", str(asked.rows)] if asked.rows else []
    estimates = [part.quick_seconds if asked.quick else part.seconds for part in parts]
    broken: list[str] = []
    took: list[float] = []
    with tempfile.TemporaryDirectory(prefix="ductile-bench-") as folder:
        build(Path(folder))
        for number, part in enumerate(parts):
            left = remaining(estimates, took)
            tell(f"[{number + 1}/{len(parts)}] {part.name}: about {worded(left)} left in all")
            begun = time.monotonic()
            with closing(told(part.name, options, Path(folder), broken)) as found:
                for line in found:
                    print(json.dumps(line, ensure_ascii=False), flush=True)
                    lines.append(line)
            took.append(time.monotonic() - begun)
    if broken:
        tell(f"broken: {', '.join(broken)}")
    return 1 if broken else os.EX_OK


def told(name: str, options: Sequence[str], folder: Path, broken: list[str]) -> Generator[Line]:
    """The lines of one bench while it runs. Ctrl-C reaches it through us, once, so that it can clean up."""
    command = [sys.executable, "-P", str(HERE / f"{name}.py"), *options]
    environ = {**os.environ, SHARED: str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, process_group=0) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                yield json.loads(line)
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    if process.returncode:
        broken.append(name)


def remaining(estimates: Sequence[float], took: Sequence[float]) -> float:
    """Seconds that are left, if this machine stays as slow as it was so far."""
    done = sum(estimates[: len(took)])
    slowness = sum(took) / done if done else 1.0
    return sum(estimates[len(took) :]) * slowness


def worded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def written(page: Path, lines: Sequence[Line], modes: tuple[str, ...], beside: Sequence[Line]) -> None:
    """The page has the tables, the folder beside it the plots and the lines."""
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    drawn = plots.pictures(lines)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, (_, picture) in drawn.items():
        (folder / name).write_text(picture)
    for name, run in {"lines.jsonl": lines, "beside.jsonl": beside}.items():
        (folder / name).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in run))
    if not beside:
        (folder / "beside.jsonl").unlink()
    titles = [(name, title) for name, (title, _) in drawn.items()]
    report.keep(page, report.regions(lines, modes, titles, beside))
    tell(f"written: {', '.join(map(str, (page, *(folder / name for name in drawn))))}")


if __name__ == "__main__":
    sys.exit(main())
