"""Run the scripts of the checkout."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run_script(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(ROOT / "scripts" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
