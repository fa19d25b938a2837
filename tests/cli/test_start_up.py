"""What a command costs before it does anything: imports are paid by those who need them."""

import subprocess
import sys
from pathlib import Path

import pytest

from ductile.cli import NOUNS

HEAVY = ("trio", "quart", "hypercorn", "quart_trio", "cattrs", "yaml", "sqlite3", "croniter", "asyncio")


def imported_by(*args: str) -> set[str]:
    """The top-level modules that `ductile ARGS` imports, in a process of its own."""
    script = (
        "import sys; from ductile.cli import ductile, output; code = output.run(ductile, sys.argv[1:]);"
        "print('\\n'.join({name.partition('.')[0] for name in sys.modules}), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "args", [("--help",), ("version",), ("version", "--json"), *((noun, "--help") for noun in NOUNS)]
)
def test_help_and_version_import_nothing_heavy(args: tuple[str, ...]) -> None:
    """`ductile --help` starts in about the time of importing click."""
    assert imported_by(*args).isdisjoint(HEAVY)


def test_reading_the_configuration_needs_no_event_loop_and_no_server(demo: Path) -> None:
    """`config check` imports what it reads with, not what the service runs on."""
    assert imported_by("config", "check", "--config", str(demo)).isdisjoint({"trio", "quart", "hypercorn", "sqlite3"})
