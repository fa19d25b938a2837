"""`ductile plugin`: which plugins there are, what they can do, running one, and pausing one."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli import options, output
from ductile.errors import NotFound


@click.group("plugin")
def group() -> None:
    """See which plugins there are, what they can do, run one, pause and resume one."""


@group.command("list")
@options.config
@options.as_json
def list_plugins(config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """List every plugin and alias, also those that cannot be used, with the reason.

    Example: ductile plugin list --json
    """
    examination = _examine(options.chosen(config_path, config_dir))
    rows = [_row(examination, name, plugin) for name, plugin in sorted(examination.found.items())]
    rows += [_rejected_row(rejected) for rejected in examination.discovery.rejected]
    known = {row["name"] for row in rows}
    rows += [_absent_row(name, why) for name, why in examination.unusable.items() if name not in known]
    output.show({"plugins": rows}, as_json=as_json, human=_list_lines)


@group.command("show")
@click.argument("name")
@options.config
@options.as_json
def show_plugin(name: str, config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Show one plugin: its commands, what it wants configured, its facts, where it is and whether it can be used.

    Example: ductile plugin show echo
    """
    examination = _examine(options.chosen(config_path, config_dir))
    report = _details(examination, name) if name in examination.found else _unusable(examination, name)
    output.show(report, as_json=as_json, human=_show_lines)


@group.command("run")
@click.argument("name")
@click.option("--command", "command", default="poll", show_default=True, help="Which command of the plugin.")
@click.option("--payload", help="A JSON object for the plugin.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="The same from a file; - is stdin.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the job is over; exit 1 if it did not succeed.")
@click.option("--timeout", default="5m", show_default=True, help="How long --wait waits.")
@options.config
@options.service
@options.as_json
def run_plugin(
    name: str,
    command: str,
    payload: str | None,
    payload_file: Path | None,
    waits: bool,
    timeout: str,
    config_path: Path | None,
    config_dir: Path | None,
    api_url: str | None,
    api_key: str | None,
    as_json: bool,
) -> int:
    """Ask the running service to run a plugin once. Without --wait it prints the job's id and is done.

    Example: ductile plugin run echo --payload '{"message": "hi"}' --wait
    """
    from ductile.cli.connect import client
    from ductile.cli.payload import read_payload
    from ductile.cli.waiting import job_when_over, patience

    seconds = patience(timeout)
    given = read_payload(payload, payload_file)
    body = {"payload": given} if given is not None else None
    service = client(options.chosen(config_path, config_dir), api_url, api_key)
    job = service.ask("POST", f"/plugin/{quote(name, safe='')}/{quote(command, safe='')}", body)
    if waits:
        job = job_when_over(service, job["job_id"], seconds)
    output.show(job, as_json=as_json, human=_job_lines)
    return 1 if waits and job["status"] != "succeeded" else 0


@group.command("pause")
@click.argument("name")
@click.option("--reason", help="Why, for whoever wonders.")
@options.config
@options.service
@options.dry_run
@options.as_json
def pause_plugin(name: str, reason: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service start no more jobs of a plugin. They are still taken; what runs goes on.

    A pause survives restarts.

    Example: ductile plugin pause backup --reason "the disk is being replaced"
    """
    from ductile.cli.pausing import pause_lines, post_pause

    answer = post_pause("pause", name, where, dry_run=dry_run, reason=reason)
    output.show(answer, as_json=as_json, human=pause_lines)


@group.command("resume")
@click.argument("name")
@options.config
@options.service
@options.dry_run
@options.as_json
def resume_plugin(name: str, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service start the jobs of a plugin again that was paused.

    Example: ductile plugin resume backup
    """
    from ductile.cli.pausing import pause_lines, post_pause

    output.show(post_pause("resume", name, where, dry_run=dry_run), as_json=as_json, human=pause_lines)


def _job_lines(job: dict[str, Any]) -> list[str]:
    lines = [f"job {job['job_id']} ({job['plugin']}.{job['command']}): {job['status']}"]
    result = job.get("result")
    if isinstance(result, dict) and result.get("result"):
        lines.append(f"  result: {result['result']}")
    lines += [f"  error: {job['last_error']}"] if job.get("last_error") else []
    return [*lines, f"  next: ductile job inspect {job['job_id']}"]


def _examine(explicit: Path | None) -> Any:
    from ductile.config.check import examine
    from ductile.config.load import load
    from ductile.config.sources import find

    return examine(load(find(explicit, os.environ).path))


def _state(examination: Any, name: str) -> tuple[str, str]:
    """In one word what can be done with a plugin, and why not more."""
    entry = examination.config.settings.plugins.get(name)
    if name in examination.unusable:
        return "unusable", examination.unusable[name]
    if entry is None:
        return "unconfigured", "has no entry under `plugins:`; it can be triggered, not scheduled"
    return ("enabled", "") if entry.enabled else ("disabled", "enabled: false")


def _row(examination: Any, name: str, plugin: Any) -> dict[str, Any]:
    state, reason = _state(examination, name)
    return {
        "name": name,
        "version": plugin.manifest.version,
        "description": plugin.manifest.description,
        "commands": list(plugin.manifest.commands),
        "state": state,
        "reason": reason,
        "uses": plugin.uses,
        "path": str(plugin.folder),
    }


def _rejected_row(rejected: Any) -> dict[str, Any]:
    return _absent_row(rejected.name, rejected.reason, path=str(rejected.path), state="rejected")


def _absent_row(name: str, reason: str, *, path: str = "", state: str = "unusable") -> dict[str, Any]:
    return {
        "name": name,
        "version": "",
        "description": "",
        "commands": [],
        "state": state,
        "reason": reason,
        "uses": None,
        "path": path,
    }


def _list_lines(result: dict[str, Any]) -> list[str]:
    if not result["plugins"]:
        return ["no plugins; put some below one of the plugin_roots"]
    head = ("NAME", "VERSION", "STATE", "COMMANDS", "ABOUT")
    rows = [
        (
            row["name"],
            row["version"],
            row["state"],
            " ".join(row["commands"]),
            _first_line(row["reason"] or row["description"]),
        )
        for row in result["plugins"]
    ]
    return output.table([head, *rows])


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _details(examination: Any, name: str) -> dict[str, Any]:
    from ductile.config.show import redacted

    plugin = examination.found[name]
    manifest = plugin.manifest
    entries = redacted(examination.config.settings, examination.config.mask)["plugins"]
    return _row(examination, name, plugin) | {
        "protocol": manifest.protocol,
        "concurrency_safe": manifest.concurrency_safe,
        "entrypoint": str(plugin.entrypoint),
        "commands": [_command(command) for command in manifest.commands.values()],
        "config_keys": {
            "required": list(manifest.config_keys.required),
            "optional": list(manifest.config_keys.optional),
        },
        "fact_outputs": [
            {"command": rule.command, "fact_type": rule.fact_type, "compatibility_view": str(rule.compatibility_view)}
            for rule in manifest.fact_outputs
        ],
        "fingerprint": {"manifest": plugin.fingerprint.manifest_hash, "entrypoint": plugin.fingerprint.entrypoint_hash},
        "warnings": [str(warning) for warning in manifest.warnings],
        "entry": entries.get(name),
    }


def _command(command: Any) -> dict[str, Any]:
    return {
        "name": command.name,
        "type": str(command.type),
        "description": command.description,
        "input_schema": command.input_schema,
        "output_schema": command.output_schema,
    }


def _unusable(examination: Any, name: str) -> dict[str, Any]:
    for rejected in examination.discovery.rejected:
        if rejected.name == name:
            return _rejected_row(rejected)
    if name in examination.unusable:
        return _absent_row(name, examination.unusable[name])
    known = ", ".join(sorted(examination.found)) or "none"
    raise NotFound(f"there is no plugin {name!r}", hint=f"known: {known}")


def _show_lines(report: dict[str, Any]) -> list[str]:
    lines = [
        f"{report['name']} {report['version']}".rstrip() + (f" (alias of {report['uses']})" if report["uses"] else "")
    ]
    if report["description"]:
        lines.append(f"  {report['description']}")
    lines.append(f"  state: {report['state']}" + (f" — {report['reason']}" if report["reason"] else ""))
    lines.append(f"  path: {report['path']}")
    if "entrypoint" not in report:
        return lines
    lines.append(f"  entrypoint: {report['entrypoint']}")
    lines.append("  commands:")
    lines += [
        f"    {line}" for line in output.table([(c["name"], c["type"], c["description"]) for c in report["commands"]])
    ]
    for need in ("required", "optional"):
        if report["config_keys"][need]:
            lines.append(f"  config, {need}: {', '.join(report['config_keys'][need])}")
    lines += [f"  fact: {fact['fact_type']} from {fact['command']}" for fact in report["fact_outputs"]]
    return lines + [f"  warning: {warning}" for warning in report["warnings"]]
