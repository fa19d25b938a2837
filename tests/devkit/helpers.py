"""Run the CLI in a separate process, and write plugins and fixtures for it.

A separate process, because `plugin check` reaps and kills child processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from attrs import frozen

MANIFEST = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: {name}
version: 0.1.0
protocol: 2
entrypoint: run
description: Made for a test
commands:
  - {{name: poll, type: read, description: Looks, values: {{emit: [{{event: looked, values: [payload.n]}}]}}}}
config_keys: {{optional: [api_key]}}
{more}
"""


@frozen
class CliResult:
    """The result of a CLI command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def cli(*args: str | Path, cwd: Path | None = None, environ: dict[str, str] | None = None) -> CliResult:
    """Run `ductile ARGS…` without the configuration of the host."""
    env = {name: value for name, value in os.environ.items() if name != "DUCTILE_CONFIG_DIR"}
    env |= {"HOME": "/nonexistent", **(environ or {})}
    command = [sys.executable, "-m", "ductile", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)
    assert "Traceback" not in done.stderr, done.stderr
    return CliResult(done.returncode, done.stdout, done.stderr)


def write_plugin(folder: Path, script: str, *, more: str = "", manifest: str = MANIFEST) -> Path:
    """Write a plugin with `script` as its entrypoint."""
    folder.mkdir(mode=0o755, parents=True)
    (folder / "manifest.yaml").write_text(manifest.format(name=folder.name, more=more))
    (folder / "run").write_text(script)
    (folder / "run").chmod(0o755)
    return folder


def write_fixture(folder: Path, content: Any, name: str = "poll.json") -> Path:
    path = folder / "fixtures" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


PYTHON_PLUGIN = """#!/usr/bin/env python3
import json, os, sys, time
request = json.loads(sys.stdin.buffer.read())
if request["protocol"] != 2:
    sys.exit(78)
config, state = request["config"], request["state"]
payload = request.get("payload") or {}
answer = {"status": "ok", "result": "looked"}
%s
print(json.dumps(answer))
"""
"""A correct plugin with a placeholder for a defect."""
