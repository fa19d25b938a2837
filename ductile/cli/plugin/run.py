"""`ductile plugin run`: enqueue one job, or run the plugin locally without a service."""

from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.core.errors import ConfigInvalid, DuctileError, NotFound, UsageInvalid

FAULTS = ("timeout", "crash", "garbage", "slow", "partial")


class PluginNotLoaded(DuctileError):
    """The plugin is on disk, but the running service has not loaded it."""

    code, exit_code, status = "plugin_not_loaded", 1, 409
    hint = "Run `ductile system reload`, then try again."


@click.command("run")
@click.argument("name", metavar="NAME|DIR")
@click.argument("command", required=False)
@click.option("--command", "command_flag", help="Alias of COMMAND. Default: poll.")
@click.option("--payload", help="Payload, a JSON object.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="Read the payload from a file; - is stdin.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the job has ended; exit 1 if it failed.")
@click.option("--timeout", default="5m", show_default=True, help="Timeout of --wait.")
@click.option("--local", "local", is_flag=True, help="Run the plugin here, without the service; record nothing.")
@click.option("--event", type=click.Path(path_type=Path), help="With --local: JSON file with the event for `handle`.")
@click.option("--state", type=click.Path(path_type=Path), help="With --local: JSON file with the plugin state.")
@click.option("--plugin-config", help="With --local: JSON object that overrides the plugin configuration.")
@click.option("--deadline", help="With --local: deadline instead of the configured one.")
@click.option("--fault", type=click.Choice(FAULTS), help="Run locally and inject a fault into the response.")
@options.config
@options.service
@options.dry_run
@options.as_json
def run_plugin(
    name: str,
    command: str | None,
    command_flag: str | None,
    payload: str | None,
    payload_file: Path | None,
    waits: bool,
    timeout: str,
    local: bool,
    fault: str | None,
    config_path: Path | None,
    config_dir: Path | None,
    api_url: str | None,
    api_key: str | None,
    dry_run: bool,
    as_json: bool,
    **only_local: Any,
) -> int:
    """Run a plugin command as a job. Without --wait, print the job id and exit.

    --local runs the plugin here exactly as the service would, with the same environment, directory, deadline and
    limits. It prints the request, the response (secrets masked) and what the service would do next, and records
    nothing. A directory (./disk) needs no configuration.

    --fault runs the plugin locally and changes its response: no response (timeout), the process is killed (crash),
    invalid JSON (garbage), small chunks (slow), a truncated response (partial).

    Example: ductile plugin run echo --payload '{"message": "hi"}' --wait
    """
    if command is not None and command_flag not in (None, command):
        raise UsageInvalid(f"COMMAND is {command} but --command is {command_flag}")
    requested, explicit = command or command_flag or "poll", options.selected_config(config_path, config_dir)
    if local or fault:
        from ductile.cli.plugin.local import exit_code, run_lines, run_local

        if waits or api_url or api_key or dry_run:
            raise UsageInvalid("--wait, --api-url, --api-key and --dry-run cannot be combined with --local")
        params = {"payload": payload, "payload_file": payload_file, "fault": fault, **only_local}
        shown = run_local(name, requested, explicit, **params)
        output.show(shown, as_json=as_json, human=run_lines)
        return exit_code(shown)
    from ductile.cli.base.connect import client
    from ductile.cli.base.json_args import read_payload
    from ductile.cli.base.long_poll import naming_job, parse_timeout, wait_for_job

    _require_no_local_options(name, only_local)
    seconds = parse_timeout(timeout)
    content = read_payload(payload, payload_file)
    body = {"payload": content} if content is not None else None
    service = client(explicit, api_url, api_key)
    query = "?dry_run=true" if dry_run else ""
    try:
        job = service.request("POST", f"/plugin/{quote(name, safe='')}/{quote(requested, safe='')}{query}", body)
    except NotFound:
        if api_url is None:
            _require_unknown_on_disk(name, explicit)
        raise
    if dry_run:
        output.show(job, as_json=as_json, human=lambda _: [f"would run {name}.{requested}"])
        return 0
    if waits:
        with naming_job(job["job_id"]):
            job = wait_for_job(service, job["job_id"], seconds)
    output.show(job, as_json=as_json, human=_job_lines)
    return 1 if waits and job["status"] != "succeeded" else 0


def _require_unknown_on_disk(name: str, explicit: Path | None) -> None:
    """Raise PluginNotLoaded if the configuration on disk has the plugin, PluginUnavailable if it cannot be loaded."""
    from ductile.cli.base.connect import load_snapshot

    with suppress(NotFound, ConfigInvalid):
        load_snapshot(explicit).plugin(name)
        raise PluginNotLoaded(f"plugin {name} is on disk, but the running service has not loaded it")


def _require_no_local_options(name: str, only_local: dict[str, Any]) -> None:
    """Raise UsageInvalid for options and arguments of a local run."""
    params = [f"--{flag.replace('_', '-')}" for flag, value in only_local.items() if value is not None]
    if params:
        raise UsageInvalid(f"{', '.join(params)} requires --local", hint="The service runs plugins as configured.")
    if "/" in name:
        raise UsageInvalid(f"{name} is a directory; the service runs plugins by name", hint="Add --local.")


def _job_lines(job: dict[str, Any]) -> list[str]:
    lines = [f"job {job['job_id']} ({job['plugin']}.{job['command']}): {job['status']}"]
    result = job.get("result")
    if isinstance(result, dict) and result.get("result"):
        lines.append(f"  result: {result['result']}")
    lines += [f"  error: {job['last_error']}"] if job.get("last_error") else []
    return [*lines, f"  next: ductile job inspect {job['job_id']}"]
