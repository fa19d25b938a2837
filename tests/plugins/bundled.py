"""A bundled plugin alone, without a service: one request in, one answer out."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

PLUGINS = Path(__file__).parents[2] / "plugins"
PATIENCE = 60.0


@frozen
class Said:
    """What a plugin said: its answer ({} if there is none), stderr and exit code."""

    answer: dict[str, Any]
    stderr: str
    code: int


def ask(
    name: str,
    command: str,
    *,
    config: Mapping[str, Any] | None = None,
    payload: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    **more: Any,
) -> Said:
    """Run the entrypoint of a bundled plugin once. For `handle`, `payload` is that of the event."""
    request: dict[str, Any] = {"protocol": 2, "job_id": "j-1", "command": command, "attempt": 1, "max_attempts": 4}
    request |= {"config": config or {}, "state": state or {}}
    if command == "handle":
        request["event"] = {"type": "test.event", "source": "test", "event_id": "e-1", "payload": payload or {}}
    elif payload is not None:
        request["payload"] = payload
    return said(name, json.dumps(request | more).encode(), environ=environ)


def said(name: str, stdin: bytes, *, environ: Mapping[str, str] | None = None, options: tuple[str, ...] = ()) -> Said:
    """The same with any bytes on stdin; with `options`, under `python3 OPTIONS`."""
    entrypoint = str(next(PLUGINS.glob(f"{name}/run*")))
    command = ["python3", *options, entrypoint] if options else [entrypoint]
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=PATIENCE,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **(environ or {})},
    )
    answer = json.loads(done.stdout) if done.stdout.strip() else {}
    return Said(answer, done.stderr.decode("utf-8", "replace"), done.returncode)


def build(folder: Path) -> None:
    """What its Makefile does, for machines that have a compiler but no make."""
    if (folder / "run.c").exists():
        subprocess.run(
            ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", folder / "run", folder / "run.c"], check=True
        )
