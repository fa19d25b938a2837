"""`ductile system`: run the service and see how it is."""

import gc
import os
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import LazyGroup
from ductile.cli.base.terminal import state
from ductile.core.errors import Complaint, DuctileError

DEFAULT_GARBAGE_THRESHOLD = 700
"""Python's own default, which `ductile.__main__` raises for short commands."""

NOT_SEALED = "is not in the seal; `ductile config plugin set` makes an entry for it, and seals it"

COMMAND_MODULES = {
    "backup": "system.backup.backup",
    "describe": "agents.describe.describe",
    "doctor": "system.doctor.doctor",
    "plugin-facts": "system.facts.plugin_facts",
    "restart": "system.supervision.restart",
    "restore": "system.backup.restore",
    "scheduler": "system.facts.scheduler",
    "selfcheck": "system.selfcheck.selfcheck",
    "skills": "agents.skills.skills",
    "status": "system.status.status",
    "stop": "system.supervision.stop",
    "storage": "system.storage.storage",
    "watch": "system.watch.watch",
}


@click.group("system", cls=LazyGroup, modules=COMMAND_MODULES)
def group() -> None:
    """Run the service and see how it is."""


@group.command("start")
@options.config
@options.dry_run
@options.as_json
def start(config_path: Path | None, config_dir: Path | None, dry_run: bool, as_json: bool) -> int:
    """Run the service in the foreground until Ctrl-C or SIGTERM; log lines go to stdout.

    The first signal lets running jobs finish (service.drain_timeout), a second one ends at once.
    With --json every line on stdout is one JSON object, whatever service.log_format says; if it fails, the last one
    is the error. --dry-run only looks for what would keep it from starting: configuration, lock, ledger, addresses.

    Example: ductile system start --config ./my-config
    """
    try:
        _start(options.chosen(config_path, config_dir), dry_run=dry_run, as_json=as_json)
    except (DuctileError, BaseExceptionGroup) as error:
        if dry_run or not as_json:
            raise
        return output.fail_in_a_line(error)
    return 0


def _start(chosen: Path | None, *, dry_run: bool, as_json: bool) -> None:
    from ductile import runtime
    from ductile.config.load.sources import find

    found = find(chosen, os.environ)
    if dry_run:
        output.show(runtime.rehearse(found.path), as_json=as_json, human=_rehearsal_lines)
    else:
        log_format = "json" if as_json else None
        runtime.run(found.path, origin=found.origin, announce=_tell_ready, log_format=log_format)


def _rehearsal_lines(plan: dict[str, Any]) -> list[str]:
    usable = "{plugins} plugins, the ledger {ledger} and the addresses are usable: the service would start"
    return [usable.format_map(plan), *finding_lines(plan)]


def finding_lines(report: dict[str, Any]) -> list[str]:
    """What the service does without, each error with its place, and how much more there is to look at."""
    errors, warnings = report.get("errors", []), report.get("warnings", [])  # an older service does not tell
    if not errors and not warnings:
        return []
    lines = [f"  error: {Complaint.of(one)}" for one in errors]
    counts = f"{output.counted(len(errors), 'error')}, {output.counted(len(warnings), 'warning')}"
    return [*lines, f"  {counts}; see `ductile config check`"]


def _tell_ready(text: str) -> None:
    gc.freeze()  # imported modules stay until the process ends: collections need not visit them
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
    """Have the running service use the configuration as it is on disk now, and say what changed.

    A configuration that cannot be used changes nothing. Running jobs and open connections go on.

    Example: ductile system reload --dry-run
    """
    from ductile.cli.base.connect import client

    running = client(options.chosen(config_path, config_dir), api_url, api_key)
    answer = running.ask("POST", f"/system/reload?dry_run={'true' if dry_run else 'false'}")
    output.show(answer, as_json=as_json, human=reload_lines)


def reload_lines(answer: dict[str, Any]) -> list[str]:
    """What a reload changed or would change, for people."""
    lines = [f"{answer['status']}: {answer['message']}"]
    changes = dict(answer["changes"])
    settings, unavailable, unsealed = (changes.pop(name, ()) for name in ("settings", "unavailable", "unsealed"))
    rows = []
    for section, named in changes.items():
        new = unsealed if section == "plugins" else ()
        rows += [("+", section, name, NOT_SEALED if name in new else "") for name in named["added"]]
        rows += [("-", section, name, "") for name in named["removed"]]
        rows += [("~", section, name, ", ".join(paths)) for name, paths in named["changed"].items()]
    rows += [("~", "settings", path, "") for path in settings]
    rows += [("!", "plugins", name, reason) for name, reason in unavailable.items()]
    lines += [f"  {line}" for line in output.table(rows)]
    lines += _next_run_lines(answer["next_runs"])
    ended = "would end" if answer["status"] == "planned" else "ended"
    lines += [f"  {count} waiting jobs of {plugin} {ended}" for plugin, count in answer["ended_jobs"].items()]
    return [*lines, *finding_lines(answer)]


def _next_run_lines(runs: dict[str, dict[str, str | None]]) -> list[str]:
    if not runs:
        return []
    rows = [("schedule", "next run before", "after")]
    rows += [(name, run["before"] or "none", run["after"] or "none") for name, run in runs.items()]
    return [f"  {line}" for line in output.table(rows)]


@group.command("tasks")
@options.config
@options.service
@options.as_json
def tasks(
    config_path: Path | None, config_dir: Path | None, api_url: str | None, api_key: str | None, as_json: bool
) -> None:
    """Show the tree of tasks that run in the service.

    Each running job has a task of its own below the dispatcher, with one task for each of its pipes.

    Example: ductile system tasks
    """
    from ductile.cli.base.connect import client

    running = client(options.chosen(config_path, config_dir), api_url, api_key)
    output.show(running.ask("GET", "/system/tasks"), as_json=as_json, human=task_lines)


def task_lines(task: dict[str, Any]) -> list[str]:
    """Draw the task and everything below it."""
    lines = [task["name"]]
    for child in task["tasks"]:
        is_last = child is task["tasks"][-1]
        first, *rest = task_lines(child)
        lines.append(f"{'└── ' if is_last else '├── '}{first}")
        lines += [f"{'    ' if is_last else '│   '}{line}" for line in rest]
    return lines


@group.command("breaker")
@click.argument("plugin")
@click.option("--command", "command", help="Only that of this command.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="How much of its history.")
@options.config
@options.as_json
def show_breakers(
    plugin: str, command: str | None, limit: int, config_path: Path | None, config_dir: Path | None, as_json: bool
) -> None:
    """Show the circuit breakers of a plugin, one per command: their state and how they came to it, newest first.

    While the service does not run, the configuration and the ledger tell the same.

    Example: ductile system breaker backup
    """
    from urllib.parse import quote

    from ductile.cli.base.connect import running

    explicit = options.chosen(config_path, config_dir)
    if service := running(explicit):
        only = f"&command={quote(command, safe='')}" if command else ""
        view = service.ask("GET", f"/breaker/{quote(plugin, safe='')}?limit={limit}{only}")
    else:
        view = _breakers_in_ledger(explicit, plugin, command, limit)
    output.show(view, as_json=as_json, human=_breaker_lines)


def _breakers_in_ledger(explicit: Path | None, plugin: str, command: str | None, limit: int) -> dict[str, Any]:
    from ductile.cli.schedule.facts import read_ledger, snapshot_of
    from ductile.web.views.schedules import breakers_view

    snapshot = snapshot_of(explicit)
    view = read_ledger(snapshot, breakers_view, snapshot, plugin, command, transitions=limit)
    return {"plugin": snapshot.lane(plugin).name, "breakers": []} if view is None else view


def _breaker_lines(view: dict[str, Any]) -> list[str]:
    if not view["breakers"]:
        return [f"{view['plugin']}: no breaker has counted anything yet"]
    from ductile.core.format_time import told

    lines = []
    for one in view["breakers"]:
        lines.append(f"{view['plugin']}.{one['command']}: {state(one['state'])}, failures {one['failure_count']}")
        lines += [
            f"  {name}: {told(one[name])}" for name in ("opened_at", "probe_from", "last_failure_at") if name in one
        ]
        lines += [f"  {name}: {one[name]}" for name in ("probe_job_id", "last_job_id") if name in one]
        rows = [
            (told(change["created_at"]), f"{change['from_state']} → {change['to_state']}", change["reason"] or "")
            for change in one["transitions"]
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
    """Have the running service close the breakers of a plugin, or that of one COMMAND, and forget their failures.

    What a breaker held fires at once. A probe that runs goes on as an ordinary job.

    Example: ductile system reset backup poll
    """
    from urllib.parse import quote, urlencode

    from ductile.cli.base.connect import client

    query = {"dry_run": "true" if dry_run else "false"} | ({"command": command} if command is not None else {})
    running = client(options.chosen(config_path, config_dir), api_url, api_key)
    answer = running.ask("POST", f"/breaker/{quote(plugin, safe='')}/reset?{urlencode(query)}")
    output.show(answer, as_json=as_json, human=_reset_lines)


def _reset_lines(answer: dict[str, Any]) -> list[str]:
    verb = "would close" if answer["dry_run"] else "closed"
    return [
        f"{verb} {answer['plugin']}.{one['command']} (was {one['previous_state']}, failures {one['failure_count']})"
        for one in answer["reset"]
    ] or [f"{answer['plugin']}: nothing to reset"]
