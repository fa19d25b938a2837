"""Runs the `ductile` command with a configuration."""

import json
import subprocess
import sys
from typing import Any, NamedTuple

from tests.e2e.service import Home


class Completed(NamedTuple):
    """Exit code and output of a command."""

    exit_code: int
    stdout: str
    stderr: str


def ductile(home: Home, *args: str) -> Completed:
    """Run `ductile ARGS…` with this configuration to its end."""
    command = [sys.executable, "-m", "ductile", *args, "--config", str(home.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Completed(done.returncode, done.stdout, done.stderr)


def ductile_json(home: Home, *args: str, exit_code: int = 0) -> Any:
    """Run `ductile ARGS… --json`, check its exit code, and return its output."""
    done = ductile(home, *args, "--json")
    assert done.exit_code == exit_code, done
    return json.loads(done.stdout)
