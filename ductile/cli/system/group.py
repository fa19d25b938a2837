"""`ductile system`: run and reload the service, show its tasks and breakers.

The other actions have modules of their own.
"""

import gc
import os
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import LazyGroup
from ductile.cli.base.terminal import state
from ductile.core.errors import DuctileError, UsageInvalid

DEFAULT_GARBAGE_THRESHOLD = 700
"""The default of Python, which `ductile.__main__` raises for short commands."""


COMMAND_MODULES = {
    "audit": "system.audit.audit",
    "backup": "system.backup.backup",
    "describe": "agents.describe.describe",
    "doctor": "system.doctor.doctor",
    "notify": "system.notify.notify",
    "plugin-facts": "system.facts.plugin_facts",
    "restore": "system.backup.restore",
    "scheduler": "system.facts.scheduler",
    "selfcheck": "system.status.selfcheck",
    "skills": "agents.skills.skills",
    "status": "system.status.status",
    "storage": "system.storage.storage",
    "watch": "system.watch.watch",
}


@click.group("system", cls=LazyGroup, modules=COMMAND_MODULES)
def group() -> None:
    """Run, monitor, back up and repair the service."""


@group.command("start")
@options.config
@options.dry_run
@options.as_json
def start(config_path: Path | None, config_dir: Path | None, dry_run: bool, as_json: bool) -> int:
    """Run the service in the foreground until Ctrl-C or SIGTERM. Log lines go to stdout.

    The first signal lets running jobs finish (service.drain_timeout); a second one stops immediately. With --json,
    every line on stdout is a JSON object regardless of service.log_format, and after a failure the last one is the
    error. --dry-run checks the configuration, the lock, the ledger and the addresses without starting.

    Example: ductile system start --config ./my-config
    """
    try:
        run_service(options.selected_config(config_path, config_dir), dry_run=dry_run, as_json=as_json)
    except (DuctileError, BaseExceptionGroup) as error:
        if dry_run or not as_json:
            raise
        return output.fail_on_one_line(error)
    return 0


def run_service(chosen: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """Run the service of this configuration until it is stopped; with `dry_run`, print what a start would use."""
    from ductile import runtime
    from ductile.config.files.sources import find_config

    found = find_config(chosen, os.environ)
    if dry_run:
        output.show(runtime.check_start(found.path), as_json=as_json, human=_dry_run_lines)
    else:
        log_format = "json" if as_json else None
        runtime.run(found.path, origin=found.origin, announce=_announce_ready, log_format=log_format)


def _dry_run_lines(plan: dict[str, Any]) -> list[str]:
    from ductile.cli.config.plan import finding_lines

    usable = "ready to start: {plugins} plugins, ledger {ledger}, addresses available"
    return [usable.format_map(plan), *finding_lines(plan)]


def _announce_ready(text: str) -> None:
    gc.freeze()  # imported modules live until the process ends, so collections can skip them
    gc.set_threshold(DEFAULT_GARBAGE_THRESHOLD)
    output.note(text)


@group.command("reload")
@options.config
@options.service
@options.dry_run
@options.as_json
def reload(
    config_path: Path | None,
    config_dir: Path | None,
    api_url: str | None,
    api_key: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Reload the configuration from disk and show what changed.

    An invalid configuration is refused and changes nothing. Running jobs and open connections continue.

    Example: ductile system reload --dry-run
    """
    from ductile.cli.base.connect import client
    from ductile.cli.config.plan import reload_lines

    service = client(options.selected_config(config_path, config_dir), api_url, api_key)
    answer = service.request("POST", f"/system/reload?dry_run={'true' if dry_run else 'false'}")
    output.show(answer, as_json=as_json, human=reload_lines)


@group.command("tasks")
@options.config
@options.service
@options.as_json
def tasks(
    config_path: Path | None, config_dir: Path | None, api_url: str | None, api_key: str | None, as_json: bool
) -> None:
    """Show the task tree of the running service.

    Each running job is a task below the dispatcher, with one child task per pipe.

    Example: ductile system tasks
    """
    from ductile.cli.base.connect import client

    service = client(options.selected_config(config_path, config_dir), api_url, api_key)
    output.show(service.request("GET", "/system/tasks"), as_json=as_json, human=task_lines)


def task_lines(task: dict[str, Any]) -> list[str]:
    """Draw the task and its children as a tree."""
    lines = [task["name"]]
    for child in task["tasks"]:
        is_last = child is task["tasks"][-1]
        first, *rest = task_lines(child)
        lines.append(f"{'└── ' if is_last else '├── '}{first}")
        lines += [f"{'    ' if is_last else '│   '}{line}" for line in rest]
    return lines


@group.command("breaker")
@click.argument("plugin")
@click.option("--command", "command", help="Only the breaker of this command.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="Number of past transitions.")
@options.config
@options.as_json
def show_breakers(
    plugin: str, command: str | None, limit: int, config_path: Path | None, config_dir: Path | None, as_json: bool
) -> None:
    """Show the circuit breakers of a plugin, one per command, with their transitions, newest first.

    Reads the configuration and the ledger while the service is stopped.

    Example: ductile system breaker backup
    """
    from urllib.parse import quote

    from ductile.cli.base.connect import running_client

    explicit = options.selected_config(config_path, config_dir)
    if service := running_client(explicit):
        only = f"&command={quote(command, safe='')}" if command else ""
        view = service.request("GET", f"/breaker/{quote(plugin, safe='')}?limit={limit}{only}")
    else:
        view = _breakers_in_ledger(explicit, plugin, command, limit)
    output.show(view, as_json=as_json, human=_breaker_lines)


def _breakers_in_ledger(explicit: Path | None, plugin: str, command: str | None, limit: int) -> Any:
    from ductile.cli.base.connect import load_snapshot, read_ledger
    from ductile.web.views.schedules import breakers_view

    snapshot = load_snapshot(explicit)
    view = read_ledger(snapshot, breakers_view, snapshot, plugin, command, transitions=limit)
    return {"plugin": snapshot.plugin(plugin).name, "breakers": []} if view is None else view


def _breaker_lines(view: dict[str, Any]) -> list[str]:
    if not view["breakers"]:
        return [f"{view['plugin']}: no breakers"]
    from ductile.core.format_time import format_when

    lines = []
    for breaker in view["breakers"]:
        lines.append(
            f"{view['plugin']}.{breaker['command']}: {state(breaker['state'])}, failures {breaker['failure_count']}"
        )
        lines += [
            f"  {name}: {format_when(breaker[name])}"
            for name in ("opened_at", "probe_from", "last_failure_at")
            if name in breaker
        ]
        lines += [f"  {name}: {breaker[name]}" for name in ("probe_job_id", "last_job_id") if name in breaker]
        rows = [
            (
                format_when(change["created_at"]),
                f"{change['from_state']} → {change['to_state']}",
                " by ".join(filter(None, (change["reason"], change["actor"]))),
            )
            for change in breaker["transitions"]
        ]
        lines += [f"  {line}" for line in output.table(rows)]
    return lines


@group.command("reset")
@click.argument("plugin")
@click.argument("command", required=False)
@options.config
@options.service
@options.dry_run
@options.as_json
def reset_breakers(
    plugin: str,
    command: str | None,
    config_path: Path | None,
    config_dir: Path | None,
    api_url: str | None,
    api_key: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Close the circuit breakers of a plugin, or the breaker of one COMMAND, and reset their failure counts.

    Jobs that the breaker blocked start immediately. A running probe continues as an ordinary job.

    Example: ductile system reset backup poll
    """
    from urllib.parse import quote, urlencode

    from ductile.cli.base.connect import client

    query = {"dry_run": "true" if dry_run else "false"} | ({"command": command} if command is not None else {})
    service = client(options.selected_config(config_path, config_dir), api_url, api_key)
    answer = service.request("POST", f"/breaker/{quote(plugin, safe='')}/reset?{urlencode(query)}")
    output.show(answer, as_json=as_json, human=_reset_lines)


def _reset_lines(answer: dict[str, Any]) -> list[str]:
    verb = "would close" if answer["dry_run"] else "closed"
    return [
        f"{verb} {answer['plugin']}.{breaker['command']}"
        f" (was {breaker['previous_state']}, failures {breaker['failure_count']})"
        for breaker in answer["reset"]
    ] or [f"{answer['plugin']}: nothing to reset"]


# ── left to the process supervisor ────────────────────────────────────────────────────────────────────────────────────


def _add_refusal(action: str) -> None:
    """Add a hidden command that names the process supervisor."""

    @group.command(action, hidden=True, context_settings={"ignore_unknown_options": True})
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def refuse(rest: tuple[str, ...]) -> None:
        """Not available: a process supervisor, such as systemd, stops and restarts the service."""
        raise UsageInvalid(
            f"`ductile system {action}` does not exist: the process supervisor {action}s the service",
            hint=f"Run `systemctl {action} ductile` or `docker {action} ductile`, or press Ctrl-C in its terminal. "
            "A changed configuration needs no restart: run `ductile system reload`.",
        )


_add_refusal("stop")
_add_refusal("restart")
