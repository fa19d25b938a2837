"""The C programs: the plugin, the HTTP client, and the program that runs a plugin without Ductile."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

FOLDER_VARIABLE = "DUCTILE_BENCH_FOLDER"
"""The environment variable with the folder in which `all` or `compare` has built the programs."""
SOURCES = Path(__file__).parent
PROGRAMS = {
    "plugin": ("-static", "plugin.c"),
    "large_plugin": ("-static", "-DRESULT_BYTES=8388608", "plugin.c"),
    "bare_runs": ("-pthread", "bare_runs.c"),
    "http_client": ("-D_GNU_SOURCE", "http_client.c"),
}


@contextmanager
def program_folder() -> Iterator[Path]:
    """Yield a folder that contains the programs: the shared one, or a temporary one."""
    if shared := os.environ.get(FOLDER_VARIABLE):
        yield Path(shared)
        return
    with tempfile.TemporaryDirectory(prefix="ductile-bench-") as directory:
        build(Path(directory))
        yield Path(directory)


def build(folder: Path) -> None:
    """Compile the programs into `folder`."""
    if not shutil.which("gcc"):
        raise SystemExit("the benches compile C programs: install gcc")
    for name, (*flags, source) in PROGRAMS.items():
        subprocess.run(["gcc", "-O2", *flags, "-o", folder / name, SOURCES / source], check=True)


@frozen
class BareRuns:
    """The speed of a plugin that is run by a C program."""

    runs_per_second: float
    p50_ms: float


def bare_runs(folder: Path, plugin: Path, *, width: int, count: int, request_bytes: int = 300) -> BareRuns:
    """Run `plugin` `count` times, `width` runs at a time."""
    command = [str(argument) for argument in (folder / "bare_runs", plugin, width, count, request_bytes)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    per_second, p50_us, _ = map(float, finished.stdout.split())
    return BareRuns(per_second, p50_us / 1000)
