"""`ductile plugin run --local`: one plugin run here, without a service and without a ledger."""

import tempfile
from contextlib import chdir
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ductile.cli.base.json_args import read_json, read_json_file, read_payload
from ductile.core.errors import UsageInvalid
from ductile.core.units import parse_duration
from ductile.devkit.local.harness import bench_for
from ductile.devkit.local.local import LocalRequest, run_locally
from ductile.devkit.local.report import told

FAULTY_DEADLINE = "3s"
"""Nobody wants to wait a minute to see what a plugin is that hangs."""


def run_here(
    target: str,
    command: str,
    explicit: Path | None,
    *,
    payload: str | None,
    payload_file: Path | None,
    event: Path | None,
    state: Path | None,
    plugin_config: str | None,
    fault: str | None,
    deadline: str | None,
) -> dict[str, Any]:
    """What the plugin did, as plain data."""
    import trio

    from ductile.engine.process.procfs import harden_self

    asked = LocalRequest(
        command=command,
        payload=read_payload(payload, payload_file),
        event=_object(event, "--event"),
        state=_object(state, "--state") or {},
    )
    if asked.event is not None and (asked.payload is not None or command != "handle"):
        raise UsageInvalid("--event is for `handle`, and carries the payload itself; other commands take --payload")
    limit = read_span(deadline or (FAULTY_DEADLINE if fault else None), "--deadline")
    with tempfile.TemporaryDirectory(prefix="ductile-local-") as folder:
        bench = bench_for(target, explicit, config_given(plugin_config), Path(folder))
        harden_self()
        attempt = partial(
            run_locally,
            bench.snapshot,
            bench.plugin.name,
            asked,
            deadline=limit,
            fault=fault,
        )
        with chdir(bench.snapshot.config.directory):
            local = trio.run(attempt)
    return told(local, bench.mask) | {"fault": fault}


def config_given(text: str | None) -> dict[str, Any]:
    """The object of `--plugin-config`."""
    given = read_json(text, "--plugin-config") if text is not None else {}
    if not isinstance(given, dict):
        raise UsageInvalid("--plugin-config must be a JSON object")
    return given


def read_span(text: str | None, flag: str) -> timedelta | None:
    """The duration that a flag was given."""
    if text is None:
        return None
    try:
        span = parse_duration(text)
    except ValueError as error:
        raise UsageInvalid(f"{flag}: {error}") from error
    if span <= timedelta():
        raise UsageInvalid(f"{flag}: {text} is no time at all")
    return span


def _object(path: Path | None, flag: str) -> dict[str, Any] | None:
    if path is None:
        return None
    content = read_json_file(path)
    if not isinstance(content, dict):
        raise UsageInvalid(f"{flag} {path}: must hold a JSON object")
    return content


def lines(shown: dict[str, Any]) -> list[str]:
    """The run for people: request, answer, verdict, consequences."""
    title = f"{shown['plugin']}.{shown['command']}, local" + (f", fault {shown['fault']}" if shown["fault"] else "")
    printed = [title, "  request", *_json_lines(shown["request"]), "  response", *_json_lines(shown["response"])]
    if shown["stderr"]:
        printed += ["  stderr", *(f"    {line}" for line in shown["stderr"].rstrip().splitlines())]
    printed.append(f"  process: {_process(shown)}")
    printed.append(f"  verdict: {shown['verdict']}" + (f": {shown['error']}" if shown["error"] else ""))
    if retry := shown["retry"]:
        delays = ", ".join(f"{seconds:g}s" for seconds in retry["backoff_seconds"])
        again = f"attempt {retry['attempt']} of {retry['max_attempts']}; the next after {retry['in_seconds']:g}s"
        printed.append(f"  retry: {again} (delays: {delays})")
    printed += [f"  warning: {warning}" for warning in shown["warnings"]]
    return printed + [f"  would {line}" for line in _consequences(shown["would"])]


def _json_lines(content: Any) -> list[str]:
    import json

    return [f"    {line}" for line in json.dumps(content, indent=2, ensure_ascii=False).splitlines()]


def _process(shown: dict[str, Any]) -> str:
    if not shown["started"]:
        return "never started"
    ended = f"signal {shown['signal']}" if shown["signal"] is not None else f"exit code {shown['exit_code']}"
    left = f", left {shown['left_processes']} processes behind" if shown["left_processes"] else ""
    return f"{ended}, {shown['ending']}, {shown['duration_ms']} ms{left}"


def _consequences(would: dict[str, Any]) -> list[str]:
    def place(job: dict[str, Any]) -> str:
        return f" as {job['pipeline']}/{job['step_id']}" if job["step_id"] else ""

    jobs = [f"enqueue {job['plugin']}.{job['command']}{place(job)}" for job in would["jobs"]]
    facts = [f"keep the fact {fact['fact_type']}" for fact in would["facts"]]
    state = [f"merge into the state: {', '.join(would['state_updates'])}"] if would["state_updates"] else []
    return [*jobs, *facts, *state, *(f"note {note['kind']}" for note in would["notes"])] or ["change nothing"]


def exit_code(shown: dict[str, Any]) -> int:
    """0 if a service would call it a success."""
    return 0 if shown["verdict"] == "succeeded" else 1
