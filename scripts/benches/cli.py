"""Measure the run time of commands, relative to `python -c pass`.

alone    `ductile --help`, and `config check` of the demo configuration
lists    `job list --json` with 10,000 jobs in the ledger, without and with a running service
"""

import compileall
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import ductile
from scripts.benches.lib.bench import Bench, Line, main
from scripts.benches.lib.instance import new_instance
from scripts.benches.lib.service import running_service

JOBS = 10_000
EMPTY_PROGRAM = (sys.executable, "-c", "pass")
DUCTILE = (str(Path(sys.executable).with_name("ductile")),)


def measure_alone(bench: Bench) -> Iterator[Line]:
    # An installed package is compiled. A checkout may not be, and the first rounds would measure the compiler.
    compileall.compile_dir(Path(ductile.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        demo = Path(directory) / "demo"
        subprocess.run([*DUCTILE, "config", "init", "--demo", "--config-dir", demo], check=True, capture_output=True)
        yield compare(bench, "B6b", "help", (*DUCTILE, "--help"))
        yield compare(bench, "B6b", "config_check", (*DUCTILE, "config", "check", "--config", str(demo)))


def measure_lists(bench: Bench) -> Iterator[Line]:
    with new_instance(bench, history=JOBS) as instance:
        listing = (*DUCTILE, "job", "list", "--json", "--config", str(instance.path))
        yield compare(bench, "cli", "job_list_down", listing)
        with running_service(instance):
            yield compare(bench, "cli", "job_list_up", listing)


def compare(bench: Bench, measure_id: str, measure: str, command: tuple[str, ...]) -> Line:
    """Run the command and the empty program alternately and return the ratio."""
    run_once(command)  # loads its files into the page cache
    pairs = [(run_once(command), run_once(EMPTY_PROGRAM)) for _ in range(bench.size(21, 5))]
    times, empty_times = ([pair[index] for pair in pairs] for index in (0, 1))
    return bench.line(measure_id, measure, [ms / empty_ms for ms, empty_ms in pairs], ms=times, bare_ms=empty_times)


def run_once(command: tuple[str, ...]) -> float:
    """Run a command and return its run time in milliseconds."""
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begin) * 1000


if __name__ == "__main__":
    sys.exit(main("cli", __doc__, {"alone": measure_alone, "lists": measure_lists}))
