"""Run a bundled plugin without a service: one request on stdin, one response on stdout."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

PLUGINS = Path(__file__).parents[2] / "plugins"
TIMEOUT_SECONDS = 60.0


@frozen
class PluginRun:
    """A finished run: the response ({} if there is none), stderr and exit code."""

    response: dict[str, Any]
    stderr: str
    code: int


def run_plugin(
    name: str,
    command: str,
    *,
    config: Mapping[str, Any] | None = None,
    payload: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    **more: Any,
) -> PluginRun:
    """Run a command of a bundled plugin. For `handle`, `payload` is the payload of the event."""
    request: dict[str, Any] = {"protocol": 2, "job_id": "j-1", "command": command, "attempt": 1, "max_attempts": 4}
    request |= {"config": config or {}, "state": state or {}}
    if command == "handle":
        request["event"] = {"type": "test.event", "source": "test", "event_id": "e-1", "payload": payload or {}}
    elif payload is not None:
        request["payload"] = payload
    return run_raw(name, json.dumps(request | more).encode(), environ=environ)


def run_raw(
    name: str, stdin: bytes, *, environ: Mapping[str, str] | None = None, options: tuple[str, ...] = ()
) -> PluginRun:
    """Run a bundled plugin with any bytes on stdin. With `options`, run it as `python3 OPTIONS run.py`."""
    entrypoint = str(next(PLUGINS.glob(f"{name}/run*")))
    command = ["python3", *options, entrypoint] if options else [entrypoint]
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **(environ or {})},
    )
    response = json.loads(done.stdout) if done.stdout.strip() else {}
    return PluginRun(response, done.stderr.decode("utf-8", "replace"), done.returncode)


def build(folder: Path) -> None:
    """Compile the plugin as its Makefile does, for machines without make."""
    if (folder / "run.c").exists():
        subprocess.run(
            ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", folder / "run", folder / "run.c"], check=True
        )
