"""Runs `scripts/torture` in its own process, because it adopts and reaps what dead services leave behind."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen
class TortureRun:
    """The result of one run."""

    exit_code: int
    summary: dict[str, Any]
    stderr: str

    @property
    def violations(self) -> dict[str, int]:
        """The violated invariants, with the number of violations."""
        assert self.summary, self.stderr
        return {rule: count for rule, count in self.summary["violations"].items() if count}


def run_torture(*arguments: str, environ: Mapping[str, str] | None = None) -> TortureRun:
    """Run `scripts/torture ARGUMENTS` to its end."""
    command = [sys.executable, "-m", "scripts.tortures", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    lines = done.stdout.splitlines()
    return TortureRun(done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr)
