"""`ductile system`: run the service and see how it is."""

import os
from pathlib import Path
from typing import Any

import click

from ductile.cli import options, output
from ductile.errors import DuctileError


@click.group("system")
def group() -> None:
    """Run the service and see how it is."""


@group.command("start")
@options.config
@options.as_json
def start(config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Run the service in the foreground until Ctrl-C or SIGTERM; log lines go to stdout.

    The first signal lets running jobs finish (service.drain_timeout), a second one ends at once.
    --json says why it could not start as JSON.

    Example: ductile system start --config ./my-config
    """
    from ductile import runtime
    from ductile.config.sources import find

    found = find(options.chosen(config_path, config_dir), os.environ)
    runtime.run(found.path, origin=found.origin, announce=output.note)


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
    from ductile.cli.connect import client

    running = client(options.chosen(config_path, config_dir), api_url, api_key)
    answer = running.ask("POST", f"/system/reload?dry_run={'true' if dry_run else 'false'}")
    output.show(answer, as_json=as_json, human=reload_lines)


def reload_lines(answer: dict[str, Any]) -> list[str]:
    """What a reload changed or would change, for people."""
    lines = [f"{answer['status']}: {answer['message']}"]
    changes = dict(answer["changes"])
    settings, unavailable = changes.pop("settings"), changes.pop("unavailable")
    rows = []
    for section, named in changes.items():
        rows += [("+", section, name, "") for name in named["added"]]
        rows += [("-", section, name, "") for name in named["removed"]]
        rows += [("~", section, name, ", ".join(paths)) for name, paths in named["changed"].items()]
    rows += [("~", "settings", path, "") for path in settings]
    rows += [("!", "plugins", name, reason) for name, reason in unavailable.items()]
    lines += [f"  {line}" for line in output.table(rows)]
    lines += _next_run_lines(answer["next_runs"])
    ended = "would end" if answer["status"] == "planned" else "ended"
    lines += [f"  {count} waiting jobs of {plugin} {ended}" for plugin, count in answer["ended_jobs"].items()]
    return lines


def _next_run_lines(runs: dict[str, dict[str, str | None]]) -> list[str]:
    if not runs:
        return []
    rows = [("schedule", "next run before", "after")]
    rows += [(name, run["before"] or "none", run["after"] or "none") for name, run in runs.items()]
    return [f"  {line}" for line in output.table(rows)]


@group.command("status")
@options.config
@options.as_json
def status(config_path: Path | None, config_dir: Path | None, as_json: bool) -> int:
    """Say whether the configuration, the ledger and the service are well. Exit 1 if something is not.

    Example: ductile system status --json
    """
    report = _status(options.chosen(config_path, config_dir))
    output.show(report, as_json=as_json, human=_status_lines)
    return 0 if report["healthy"] else 1


def _status(explicit: Path | None) -> dict[str, Any]:
    from ductile.cli.client import Client
    from ductile.config.load import load
    from ductile.config.sources import find
    from ductile.lock import LOCK_NAME, holder, is_held
    from ductile.web.listen import local_socket_path

    checks: list[dict[str, Any]] = []
    service: dict[str, Any] | None = None

    def check(name: str, ok: bool, detail: str = "", **more: Any) -> None:
        checks.append({"name": name, "ok": ok, "detail": detail, **more})

    try:
        found = find(explicit, os.environ)
        check("config_discovery", True, found.origin, path=str(found.path))
        config = load(found.path)
        check("config_load", True, f"plugins configured: {len(config.settings.plugins)}")
    except DuctileError as error:
        check("config_load", False, str(error).splitlines()[0])
        return {"healthy": False, "checks": checks, "service": None}
    ledger = config.settings.state.path
    check(*_ledger_check(ledger), path=str(ledger))
    running = is_held(ledger.parent / LOCK_NAME)
    pid, since = holder(ledger.parent / LOCK_NAME)
    detail = f"held by process {pid} since {since}" if running else "free: the service is not running"
    check("pid_lock", True, detail, active_pid=pid if running else None)
    if running:
        try:
            service = Client(local_socket_path(ledger.parent)).ask("GET", "/healthz")
            check("service", service["status"] == "ok", service["status"])
        except DuctileError as error:
            check("service", False, str(error))
    return {"healthy": all(entry["ok"] for entry in checks), "checks": checks, "service": service}


def _ledger_check(path: Path) -> tuple[str, bool, str]:
    from ductile.ledger import reports
    from ductile.ledger.store import open_reader

    if not path.exists():
        return "state_db", True, "not made yet: the first start makes it"
    try:
        with open_reader(path) as db:
            queue = reports.queue(db)
    except DuctileError as error:
        return "state_db", False, str(error)
    return "state_db", True, f"{queue.queued} queued, {queue.running} running, {queue.dead} dead"


def _status_lines(report: dict[str, Any]) -> list[str]:
    lines = [f"System Status: {'HEALTHY' if report['healthy'] else 'DEGRADED'}"]
    rows = [("ok" if entry["ok"] else "FAIL", entry["name"], entry["detail"]) for entry in report["checks"]]
    lines += [f"  {line}" for line in output.table(rows)]
    if service := report["service"]:
        facts = ("uptime_seconds", "queue_depth", "plugins_loaded", "oldest_claimable_seconds", "version")
        lines.append("  " + ", ".join(f"{name} {service[name]}" for name in facts))
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

    Reads the configuration and the ledger, so it works while the service does not run.

    Example: ductile system breaker backup
    """
    from ductile.cli.schedule_facts import read_ledger, snapshot_of
    from ductile.web.schedule_views import breakers_view

    snapshot = snapshot_of(options.chosen(config_path, config_dir))
    view = read_ledger(snapshot, breakers_view, snapshot, plugin, command, transitions=limit)
    if view is None:
        view = {"plugin": snapshot.lane(plugin).name, "breakers": []}
    output.show(view, as_json=as_json, human=_breaker_lines)


def _breaker_lines(view: dict[str, Any]) -> list[str]:
    if not view["breakers"]:
        return [f"{view['plugin']}: no breaker has counted anything yet"]
    lines = []
    for one in view["breakers"]:
        lines.append(f"{view['plugin']}.{one['command']}: {one['state']}, failures {one['failure_count']}")
        facts = ("opened_at", "probe_from", "probe_job_id", "last_failure_at", "last_job_id")
        lines += [f"  {name}: {one[name]}" for name in facts if name in one]
        rows = [
            (change["created_at"], f"{change['from_state']} → {change['to_state']}", change["reason"] or "")
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

    from ductile.cli.connect import client

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
