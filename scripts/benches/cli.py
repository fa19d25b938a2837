"""What a command costs beside a bare Python that does nothing, in the same minutes.

help             `ductile --help` ÷ `python -c pass`
config_check     `config check` of the demo configuration ÷ the same
job_list_down    `job list --json` over a ledger of 10,000 jobs, no service ÷ the same
job_list_up      the same while the service runs
"""

import compileall
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import ductile
from scripts.benches.bench import Bench, Line, main
from scripts.benches.homes import furnished, running

JOBS = 10_000
NOTHING = (sys.executable, "-c", "pass")
DUCTILE = (str(Path(sys.executable).with_name("ductile")),)


def measure_alone(bench: Bench) -> Iterator[Line]:
    # Whoever installs a package compiles it; without this the first rounds would measure the compiler.
    compileall.compile_dir(Path(ductile.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        demo = Path(directory) / "demo"
        subprocess.run([*DUCTILE, "config", "init", "--demo", "--config-dir", demo], check=True, capture_output=True)
        yield compared(bench, "B6b", "help", (*DUCTILE, "--help"))
        yield compared(bench, "B6b", "config_check", (*DUCTILE, "config", "check", "--config", str(demo)))


def measure_lists(bench: Bench) -> Iterator[Line]:
    with furnished(bench, history=JOBS) as home:
        listing = (*DUCTILE, "job", "list", "--json", "--config", str(home.path))
        yield compared(bench, "cli", "job_list_down", listing)
        with running(home):
            yield compared(bench, "cli", "job_list_up", listing)


def compared(bench: Bench, key: str, measure: str, command: tuple[str, ...]) -> Line:
    """The median of rounds, each of which runs both one after the other."""
    once(command)  # what it reads is in memory from here on
    pairs = [(once(command), once(NOTHING)) for _ in range(bench.size(21, 5))]
    ours, bare = ([pair[place] for pair in pairs] for place in (0, 1))
    return bench.line(key, measure, [mine / least for mine, least in pairs], ms=ours, bare_ms=bare)


def once(command: tuple[str, ...]) -> float:
    """Milliseconds of one run."""
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begun) * 1000


if __name__ == "__main__":
    sys.exit(main("cli", __doc__, {"alone": measure_alone, "lists": measure_lists}))
