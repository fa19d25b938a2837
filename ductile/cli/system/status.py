"""`ductile system status`: is everything well? The configuration, the ledger, the service, the queue, the plugins."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import Complaint, DuctileError, RestartNeeded

if TYPE_CHECKING:
    from ductile.config.snapshot import Snapshot

LAST_RUNS = 5


@click.command("status")
@click.option("--no-health", is_flag=True, help="Do not run the plugins' `health` commands.")
@options.config
@options.as_json
def status(no_health: bool, config_path: Path | None, config_dir: Path | None, as_json: bool) -> int:
    """Say whether the service runs, and whether the configuration, the ledger, the service and the plugins are well.

    Exit 0 if nothing that was looked at is wrong, 1 if something is. A service that does not run is nothing wrong: the
    first line says NOT RUNNING then, and with --json `running` is false. Each plugin that declares `health` is asked,
    all at once, for at most 10 s. That leaves no trace in the ledger.

    Example: ductile system status --json
    """
    report = _report(options.chosen(config_path, config_dir), with_health=not no_health)
    output.show(report, as_json=as_json, human=_lines)
    return 0 if report["healthy"] else 1


class Checks:
    """What was looked at so far; names are stable."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def note(self, name: str, ok: bool, detail: str = "", **more: Any) -> bool:
        self.made.append({"name": name, "ok": ok, "detail": detail, **more})
        return ok

    @property
    def are_well(self) -> bool:
        return all(check["ok"] for check in self.made)


def _report(explicit: Path | None, *, with_health: bool) -> dict[str, Any]:
    checks = Checks()
    report: dict[str, Any] = {
        "running": False,
        "service": None,
        "queue": None,
        "breakers": [],
        "last_runs": [],
        "plugins": [],
    }
    if (root := find_config(checks, explicit)) and (ledger := find_ledger(checks, root)):
        report["running"] = is_running = check_lock(checks, ledger)
        report["service"] = _ask_service(checks, ledger) if is_running else None
        # A service that answers has told what it thinks of the configuration; it alone knows its own environment.
        snapshot = None if report["service"] else load_config(checks, root)
        report |= _ledger_facts(checks, ledger, is_running=is_running)
        if with_health and report["service"]:
            snapshot = _loaded_for_health(checks, root)
        if with_health and snapshot is not None:
            report["plugins"] = _plugin_health(checks, snapshot, ledger)
    return {"healthy": checks.are_well, "checks": checks.made, **report}


def find_config(checks: Checks, explicit: Path | None) -> Path | None:
    """The configuration file, if there is one."""
    from ductile.config.load.sources import find

    try:
        found = find(explicit, os.environ)
    except DuctileError as error:
        checks.note("config_discovery", False, _first_line(error))
        return None
    checks.note("config_discovery", found.path.exists(), found.origin, path=str(found.path))
    return found.path if found.path.exists() else None


def find_ledger(checks: Checks, root: Path) -> Path | None:
    """Where the ledger is; a configuration that does not even say that cannot be loaded."""
    from ductile.config.load.ledger_path import ledger_of

    try:
        return ledger_of(root, os.environ)
    except DuctileError as error:
        checks.note("config_load", False, _first_line(error))
        return None


def load_config(checks: Checks, root: Path) -> "Snapshot | None":
    """The configuration as a service that starts now would use it."""
    from ductile.config.checks.doctor import examine
    from ductile.config.load.load import load
    from ductile.config.snapshot import take_snapshot

    try:
        examination = examine(load(root))
    except DuctileError as error:
        checks.note("config_load", False, _first_line(error))
        return None
    errors = [str(complaint) for complaint in examination.report.errors]
    _note_config(checks, errors, f"plugins configured: {len(examination.config.settings.plugins)}")
    return take_snapshot(examination, os.environ)


def _note_config(checks: Checks, errors: Sequence[str], detail: str) -> None:
    checks.note("config_load", not errors, errors[0] if errors else detail)


def _loaded_for_health(checks: Checks, root: Path) -> "Snapshot | None":
    """The configuration on disk, of which the service has said how it is."""
    here = Checks()
    snapshot = load_config(here, root)
    if snapshot is None:
        checks.note("plugin_health", False, f"cannot be asked: {here.made[0]['detail']}")
    return snapshot


def check_lock(checks: Checks, ledger: Path) -> bool:
    """True while a service runs, which is as well as one that does not."""
    from ductile.core.instance.lock import LOCK_NAME, holder, is_held

    is_running = is_held(ledger.parent / LOCK_NAME)
    pid, since = holder(ledger.parent / LOCK_NAME)
    detail = f"held by process {pid} since {since}" if is_running else "free: the service is not running"
    checks.note("pid_lock", True, detail, active_pid=pid if is_running else None)
    return is_running


def _ask_service(checks: Checks, ledger: Path) -> dict[str, Any] | None:
    """What the running service says of itself, and of the configuration on disk; None if it does not answer."""
    from ductile.cli.base.client import Client
    from ductile.web.server.listeners import local_socket_path

    client = Client(local_socket_path(ledger.parent))
    try:
        service = client.ask("GET", "/healthz")
    except DuctileError as error:
        checks.note("service", False, str(error))
        return None
    checks.note("service", service["status"] == "ok", service["status"])
    try:
        planned = client.ask("POST", "/system/reload?dry_run=true")
    except DuctileError as error:
        # The service is well with what it has; what is on disk waits.
        checks.note("config_load", error.code == RestartNeeded.code, _first_line(error))
    else:
        errors = [str(Complaint.of(error)) for error in planned.get("errors", ())]  # an older service does not tell
        _note_config(checks, errors, "the service can use what is on disk")
    return service


def _ledger_facts(checks: Checks, path: Path, *, is_running: bool) -> dict[str, Any]:
    from ductile.core.clock import to_text
    from ductile.core.model import BreakerState
    from ductile.explain.waiting import orphaned_words
    from ductile.ledger.reports import queue_status, recent
    from ductile.ledger.storage.open_file import open_reader
    from ductile.ledger.storage.path_checks import is_made
    from ductile.ledger.tables import breakers, plugin_inits

    try:
        if not is_made(path):
            checks.note("state_db", True, "not made yet: the first start makes it", path=str(path))
            return {}
        with open_reader(path) as db:
            queue, known, last = queue_status.queue(db), breakers.all_breakers(db), recent.last_ended(db, LAST_RUNS)
            failed = {name: one.error for name, one in plugin_inits.all_inits(db).items() if one.error is not None}
    except DuctileError as error:
        checks.note("state_db", False, str(error), path=str(path))
        return {}
    running, orphaned = (queue.running, 0) if is_running else (0, queue.running)
    detail = f"{queue.queued} queued, {running} running, {queue.dead} dead"
    checks.note("state_db", True, f"{detail}; {orphaned_words(orphaned)}" if orphaned else detail, path=str(path))
    for name, why in failed.items() if is_running else ():
        checks.note("plugin_init", False, f"{name}: its init failed: {why}", plugin=name)
    names = ("queued", "running", "delayed", "waiting_for_key", "waiting_joins", "dead")
    return {
        "queue": {name: getattr(queue, name) for name in names} | {"running": running, "orphaned": orphaned},
        "breakers": [
            {
                "plugin": one.plugin,
                "command": one.command,
                "state": one.state,
                "failure_count": one.failure_count,
                "opened_at": to_text(one.opened_at) if one.opened_at else None,
            }
            for one in known
            if one.state is not BreakerState.CLOSED
        ],
        "last_runs": last,
    }


def _plugin_health(checks: Checks, snapshot: "Snapshot", ledger: Path) -> list[dict[str, Any]]:
    """What each plugin says of itself; one that is wanted and cannot be used is not well either."""
    from ductile.ops.health import HealthResult, ask_plugins, remembered

    answers = ask_plugins(snapshot, remembered(snapshot, ledger))
    unusable = [HealthResult(name, False, snapshot.unavailable[name], 0.0) for name in sorted(snapshot.failed_to_load)]
    for one in (*answers, *unusable):
        if not one.ok:
            checks.note("plugin_health", False, f"{one.plugin}: {one.detail}", plugin=one.plugin)
    if answers and all(one.ok for one in answers):
        checks.note("plugin_health", True, f"{len(answers)} asked")
    return [one.as_data() for one in (*answers, *unusable)]


def _first_line(error: DuctileError) -> str:
    return str(error).splitlines()[0]


def check_lines(headline: str, checks: list[dict[str, Any]]) -> list[str]:
    """A headline and one line for each thing that was looked at."""
    rows = [("ok" if check["ok"] else "FAIL", check["name"], check["detail"]) for check in checks]
    return [headline, *(f"  {line}" for line in output.table(rows))]


def _lines(report: dict[str, Any]) -> list[str]:
    verdict = "HEALTHY" if report["healthy"] else "DEGRADED"
    headline = f"System Status: {verdict}{'' if report['running'] else ', NOT RUNNING'}"
    lines = check_lines(headline, report["checks"])
    if service := report["service"]:
        facts = ("uptime_seconds", "queue_depth", "plugins_loaded", "oldest_claimable_seconds", "version")
        lines.append("  " + ", ".join(f"{name} {service[name]}" for name in facts))
    lines += [
        f"  breaker of {one['plugin']}.{one['command']}: {one['state']}, failures {one['failure_count']}"
        for one in report["breakers"]
    ]
    if report["last_runs"]:
        lines += ["Last runs", *(f"  {line}" for line in output.table([_run_row(one) for one in report["last_runs"]]))]
    if report["plugins"]:
        rows = [("well" if one["ok"] else "UNWELL", one["plugin"], one["detail"]) for one in report["plugins"]]
        lines += ["Plugins", *(f"  {line}" for line in output.table(rows))]
    return lines if report["running"] or not report["healthy"] else [*lines, "  next: ductile system start"]


def _run_row(run: Mapping[str, Any]) -> tuple[str, ...]:
    from ductile.core.format_time import told

    what, error = f"{run['plugin']}.{run['command']}", (run["last_error"] or "").partition("\n")[0]
    return (run["status"], what, told(run["completed_at"]), run["job_id"], error)
