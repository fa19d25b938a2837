"""A torture as anybody starts it, in a process of its own, because it adopts and reaps what dead services leave."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen
class Tortured:
    """What it said and how it ended."""

    code: int
    summary: dict[str, Any]
    said: str

    @property
    def broken(self) -> dict[str, int]:
        """The promises that were not kept, with how often."""
        assert self.summary, self.said
        return {rule: count for rule, count in self.summary["violations"].items() if count}


def torture(*arguments: str, environ: Mapping[str, str] | None = None) -> Tortured:
    """`scripts/torture …`, over."""
    command = [sys.executable, "-m", "scripts.tortures", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    lines = done.stdout.splitlines()
    return Tortured(done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr)
