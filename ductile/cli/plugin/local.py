"""`ductile plugin run --local`: run a plugin once, without a service and without a ledger."""

import tempfile
from contextlib import chdir
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ductile.cli.base.json_args import read_json, read_json_file, read_payload
from ductile.core.errors import UsageInvalid
from ductile.core.units import parse_duration
from ductile.devkit.local.harness import harness_for
from ductile.devkit.local.report import run_report
from ductile.devkit.local.run import LocalRequest, run_locally

FAULT_DEADLINE = "3s"
"""Default deadline with --fault: a simulated hang should end soon."""


def run_local(
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
    """Run the plugin and return the report."""
    import trio

    from ductile.engine.process.procfs import harden_self

    request = LocalRequest(
        command=command,
        payload=read_payload(payload, payload_file),
        event=_object(event, "--event"),
        state=_object(state, "--state") or {},
    )
    if request.event is not None and (request.payload is not None or command != "handle"):
        raise UsageInvalid(
            "--event requires the command `handle` and includes the payload; other commands use --payload"
        )
    limit = parse_positive_duration(deadline or (FAULT_DEADLINE if fault else None), "--deadline")
    with tempfile.TemporaryDirectory(prefix="ductile-local-") as folder:
        bench = harness_for(target, explicit, parse_plugin_config(plugin_config), Path(folder))
        harden_self()
        attempt = partial(
            run_locally,
            bench.snapshot,
            bench.plugin.name,
            request,
            deadline=limit,
            fault=fault,
        )
        with chdir(bench.snapshot.config.directory):
            local = trio.run(attempt)
    return run_report(local, bench.mask) | {"fault": fault}


def parse_plugin_config(text: str | None) -> dict[str, Any]:
    """Parse the object of `--plugin-config`."""
    params = read_json(text, "--plugin-config") if text is not None else {}
    if not isinstance(params, dict):
        raise UsageInvalid("--plugin-config must be a JSON object")
    return params


def parse_positive_duration(text: str | None, flag: str) -> timedelta | None:
    """Parse the duration of a flag; None if it is not given."""
    if text is None:
        return None
    try:
        span = parse_duration(text)
    except ValueError as error:
        raise UsageInvalid(f"{flag}: {error}") from error
    if span <= timedelta():
        raise UsageInvalid(f"{flag}: {text} is not positive")
    return span


def _object(path: Path | None, flag: str) -> dict[str, Any] | None:
    if path is None:
        return None
    content = read_json_file(path)
    if not isinstance(content, dict):
        raise UsageInvalid(f"{flag} {path}: must contain a JSON object")
    return content


def run_lines(shown: dict[str, Any]) -> list[str]:
    """Format the run: request, response, verdict, consequences."""
    title = f"{shown['plugin']}.{shown['command']}, local" + (f", fault {shown['fault']}" if shown["fault"] else "")
    printed = [title, "  request", *_json_lines(shown["request"]), "  response", *_json_lines(shown["response"])]
    if shown["stderr"]:
        printed += ["  stderr", *(f"    {line}" for line in shown["stderr"].rstrip().splitlines())]
    printed.append(f"  process: {_process(shown)}")
    printed.append(f"  verdict: {shown['verdict']}" + (f": {shown['error']}" if shown["error"] else ""))
    if retry := shown["retry"]:
        delays = ", ".join(f"{seconds:g}s" for seconds in retry["backoff_seconds"])
        again = f"attempt {retry['attempt']} of {retry['max_attempts']}; next in {retry['in_seconds']:g}s"
        printed.append(f"  retry: {again} (delays: {delays})")
    printed += [f"  warning: {warning}" for warning in shown["warnings"]]
    return printed + [f"  would {line}" for line in _consequences(shown["would"])]


def _json_lines(content: Any) -> list[str]:
    import json

    return [f"    {line}" for line in json.dumps(content, indent=2, ensure_ascii=False).splitlines()]


def _process(shown: dict[str, Any]) -> str:
    if not shown["started"]:
        return "not started"
    ended = f"signal {shown['signal']}" if shown["signal"] is not None else f"exit code {shown['exit_code']}"
    left = f", left {shown['left_processes']} processes running" if shown["left_processes"] else ""
    return f"{ended}, {shown['ending']}, {shown['duration_ms']} ms{left}"


def _consequences(would: dict[str, Any]) -> list[str]:
    def place(job: dict[str, Any]) -> str:
        return f" as {job['pipeline']}/{job['step_id']}" if job["step_id"] else ""

    jobs = [f"enqueue {job['plugin']}.{job['command']}{place(job)}" for job in would["jobs"]]
    facts = [f"store the fact {fact['fact_type']}" for fact in would["facts"]]
    state = [f"merge into the state: {', '.join(would['state_updates'])}"] if would["state_updates"] else []
    return [*jobs, *facts, *state, *(f"record {note['kind']}" for note in would["notes"])] or ["change nothing"]


def exit_code(shown: dict[str, Any]) -> int:
    """Return 0 if the service would record a success, otherwise 1."""
    return 0 if shown["verdict"] == "succeeded" else 1
