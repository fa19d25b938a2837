"""`ductile plugin run`: one job through the running service, or one attempt here without it."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid

FAULTS = ("timeout", "crash", "garbage", "slow", "partial")


@click.command("run")
@click.argument("name", metavar="NAME|DIR")
@click.argument("command", required=False)
@click.option("--command", "command_flag", help="The same as COMMAND. Default: poll.")
@click.option("--payload", help="A JSON object for the plugin.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="The same from a file; - is stdin.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the job is over; exit 1 if it did not succeed.")
@click.option("--timeout", default="5m", show_default=True, help="How long --wait waits.")
@click.option("--local", "local", is_flag=True, help="Run it here as the service would; nothing is recorded.")
@click.option("--event", type=click.Path(path_type=Path), help="Local: JSON file with the event for `handle`.")
@click.option("--state", type=click.Path(path_type=Path), help="Local: JSON file with the state it is given.")
@click.option("--plugin-config", help="Local: a JSON object that goes over the plugin's configuration.")
@click.option("--deadline", help="Local: how long it may run, instead of what is configured.")
@click.option("--fault", type=click.Choice(FAULTS), help="Local: spoil its answer, and see what the core makes of it.")
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
    """Ask the running service to run a plugin once. Without --wait it prints the job's id and is done.

    With --local the plugin runs here, once, as the service would run it: same environment, directory, deadline, caps
    and judgement. Shown are the exact request and answer (secrets masked) and what the service would do next; nothing
    is recorded. A folder (./disk) needs no configuration.

    --fault runs the real plugin and spoils its answer: it never comes (timeout), the process dies first (crash), it is
    no JSON (garbage), it comes in pieces (slow), half of it comes (partial). Only here: a service has no faults on
    demand.

    Example: ductile plugin run echo --payload '{"message": "hi"}' --wait
    """
    if command is not None and command_flag not in (None, command):
        raise UsageInvalid(f"COMMAND is {command} and --command is {command_flag}; give one of them")
    asked, explicit = command or command_flag or "poll", options.chosen(config_path, config_dir)
    if local or fault:
        from ductile.cli.plugin.local import exit_code, lines, run_here

        if waits or api_url or api_key or dry_run:
            raise UsageInvalid("--wait, --api-url, --api-key and --dry-run are for the service; a local run has none")
        given = {"payload": payload, "payload_file": payload_file, "fault": fault, **only_local}
        shown = run_here(name, asked, explicit, **given)
        output.show(shown, as_json=as_json, human=lines)
        return exit_code(shown)
    from ductile.cli.base.connect import client
    from ductile.cli.base.json_args import read_payload
    from ductile.cli.base.long_poll import job_when_over, on_record, patience

    _require_nothing_local(name, only_local)
    seconds = patience(timeout)
    content = read_payload(payload, payload_file)
    body = {"payload": content} if content is not None else None
    service = client(explicit, api_url, api_key)
    query = "?dry_run=true" if dry_run else ""
    job = service.ask("POST", f"/plugin/{quote(name, safe='')}/{quote(asked, safe='')}{query}", body)
    if dry_run:
        output.show(job, as_json=as_json, human=lambda _: [f"would run {name}.{asked}"])
        return 0
    if waits:
        with on_record(job["job_id"]):
            job = job_when_over(service, job["job_id"], seconds)
    output.show(job, as_json=as_json, human=_job_lines)
    return 1 if waits and job["status"] != "succeeded" else 0


def _require_nothing_local(name: str, only_local: dict[str, Any]) -> None:
    """Nothing was asked for that only a local run can do."""
    given = [f"--{flag.replace('_', '-')}" for flag, value in only_local.items() if value is not None]
    if given:
        raise UsageInvalid(f"{', '.join(given)} only with --local", hint="the service runs plugins as configured")
    if "/" in name:
        raise UsageInvalid(f"{name} is a folder; the service knows plugins by name", hint="add --local")


def _job_lines(job: dict[str, Any]) -> list[str]:
    lines = [f"job {job['job_id']} ({job['plugin']}.{job['command']}): {job['status']}"]
    result = job.get("result")
    if isinstance(result, dict) and result.get("result"):
        lines.append(f"  result: {result['result']}")
    lines += [f"  error: {job['last_error']}"] if job.get("last_error") else []
    return [*lines, f"  next: ductile job inspect {job['job_id']}"]
