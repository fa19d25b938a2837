"""`ductile system status` and `selfcheck`: check the configuration, the ledger, the service and the plugins."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import Complaint, DuctileError, RestartNeeded

if TYPE_CHECKING:
    from ductile.config.snapshot import Snapshot
    from ductile.explain.health import HealthReason
    from ductile.ops.checks.check import Installation

LAST_RUNS = 5
INIT, CHECK, DOCTOR = "ductile config init", "ductile config check", "ductile system doctor"
START = "ductile system start"


@click.command("status")
@click.option("--no-health", is_flag=True, help="Do not run the `health` commands of plugins.")
@options.config
@options.as_json
def status(no_health: bool, config_path: Path | None, config_dir: Path | None, as_json: bool) -> int:
    """Show whether the service is running, and its verdict: HEALTHY, ATTENTION or FAILED, with reasons and commands.

    Exit 0 if HEALTHY, otherwise 1. ATTENTION: a pause, an open breaker, a late schedule, a service that was killed, a
    ready job that does not start, or failures since the last success of a plugin. FAILED: a failed check. A stopped
    service is not a failure: the first line has NOT RUNNING, and with --json `running` is false. The `health` commands
    of all plugins run in parallel, for at most 10 s, and are not recorded.

    Example: ductile system status --json
    """
    report = _report(options.selected_config(config_path, config_dir), with_health=not no_health)
    output.show(report, as_json=as_json, human=_lines)
    return 0 if report["healthy"] else 1


class Checks:
    """The results of checks. Their names are stable."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self.failed: list[tuple[str, str, str]] = []
        """Name, detail and fix of each failed check that has a fix."""

    def add(self, name: str, ok: bool, detail: str = "", *, fix: str = "", **more: Any) -> bool:
        self.results.append({"name": name, "ok": ok, "detail": detail, **more})
        if fix and not ok:
            self.failed.append((name, detail, fix))
        return ok

    def failure_reasons(self) -> "list[HealthReason]":
        """Return a reason for each failed check that has a fix."""
        from ductile.explain.health import HealthReason, HealthVerdict
        from ductile.explain.reason import Reason

        return [
            HealthReason(HealthVerdict.FAILED, Reason(name, {"error": detail}), fix)
            for name, detail, fix in self.failed
        ]

    @property
    def all_passed(self) -> bool:
        return all(check["ok"] for check in self.results)


def _report(explicit: Path | None, *, with_health: bool) -> dict[str, Any]:
    from ductile.explain.health import Health, HealthVerdict

    checks = Checks()
    report: dict[str, Any] = {
        "running": False,
        "service": None,
        "queue": None,
        "breakers": [],
        "last_runs": [],
        "plugins": [],
    }
    found: Sequence[HealthReason] = ()
    if (root := find_config(checks, explicit)) and (ledger := find_ledger(checks, root)):
        report["running"] = is_running = check_lock(checks, ledger)
        report["service"] = _request_health(checks, ledger) if is_running else None
        # A service that responds has validated the configuration itself; only it knows its environment.
        snapshot = None if report["service"] else load_config(checks, root).snapshot
        facts, found = _ledger_facts(checks, ledger, report["service"], is_running=is_running)
        report |= facts
        if with_health and report["service"]:
            snapshot = _loaded_for_health(checks, root)
        if with_health and snapshot is not None:
            report["plugins"] = _plugin_health(checks, snapshot, ledger)
    health = Health((*checks.failure_reasons(), *found))
    return {
        "verdict": health.verdict,
        "healthy": health.verdict is HealthVerdict.HEALTHY,
        "reasons": [reason.as_data() for reason in health.reasons],
        "checks": checks.results,
        **report,
    }


def find_config(checks: Checks, explicit: Path | None) -> Path | None:
    """Return the configuration file, if it exists."""
    from ductile.config.files.sources import find_config

    try:
        found = find_config(explicit, os.environ)
    except DuctileError as error:
        checks.add("config_discovery", False, _first_line(error), fix=INIT)
        return None
    checks.add("config_discovery", found.path.exists(), found.origin, fix=INIT, path=str(found.path))
    return found.path if found.path.exists() else None


def find_ledger(checks: Checks, root: Path) -> Path | None:
    """Return the path of the ledger; None if the configuration cannot be loaded."""
    from ductile.config.files.ledger_path import find_ledger

    try:
        return find_ledger(root, os.environ)
    except DuctileError as error:
        checks.add("config_load", False, _first_line(error), fix=CHECK)
        return None


def load_config(checks: Checks, root: Path) -> "Installation":
    """Load the configuration as a service that starts now would use it."""
    from ductile.ops.checks.check import Installation

    installation = Installation(root)
    errors = [str(complaint) for complaint in installation.loaded.report.errors]
    if examination := installation.loaded.examination:
        _note_config(checks, errors, f"plugins configured: {len(examination.config.settings.plugins)}")
    else:
        checks.add("config_load", False, errors[0].splitlines()[0], fix=CHECK)
    return installation


def _note_config(checks: Checks, errors: Sequence[str], detail: str) -> None:
    checks.add("config_load", not errors, errors[0] if errors else detail, fix=CHECK)


def _loaded_for_health(checks: Checks, root: Path) -> "Snapshot | None":
    """Load the configuration for the health commands; the service has already checked it."""
    here = Checks()
    snapshot = load_config(here, root).snapshot
    if snapshot is None:
        checks.add("plugin_health", False, f"health commands cannot run: {here.results[0]['detail']}", fix=CHECK)
    return snapshot


def check_lock(checks: Checks, ledger: Path) -> bool:
    """Return whether a service is running. Both states pass the check."""
    from ductile.core.instance.lock import LOCK_NAME, is_locked, read_holder

    is_running = is_locked(ledger.parent / LOCK_NAME)
    pid, since = read_holder(ledger.parent / LOCK_NAME)
    detail = f"held by process {pid} since {since}" if is_running else "free: the service is not running"
    checks.add("pid_lock", True, detail, active_pid=pid if is_running else None)
    return is_running


def _request_health(checks: Checks, ledger: Path) -> dict[str, Any] | None:
    """Request the health of the service and its validation of the configuration; None if it does not respond."""
    from ductile.cli.base.client import Client
    from ductile.web.server.listeners import local_socket_path

    client = Client(local_socket_path(ledger.parent))
    try:
        service = client.health()
    except DuctileError as error:
        checks.add("service", False, str(error), fix=DOCTOR)
        return None
    checks.add("service", service["status"] == "ok", service["status"])
    try:
        planned = client.request("POST", "/system/reload?dry_run=true")
    except DuctileError as error:
        # RestartNeeded is not a failure: the service runs with its current configuration.
        checks.add("config_load", error.code == RestartNeeded.code, _first_line(error), fix=CHECK)
    else:
        errors = [
            str(Complaint.of(error)) for error in planned.get("errors", ())
        ]  # an older service does not send them
        _note_config(checks, errors, "the service can load the files on disk")
    return service


def _ledger_facts(
    checks: Checks, path: Path, service: Mapping[str, Any] | None, *, is_running: bool
) -> "tuple[dict[str, Any], Sequence[HealthReason]]":
    """Read the ledger. Return members of the report, and the reasons of the verdict."""
    from datetime import UTC, datetime

    from ductile.core.clock import to_text
    from ductile.core.model import BreakerState
    from ductile.explain.waiting import orphaned_message
    from ductile.ledger.reports import job_stats, queue_status
    from ductile.ledger.storage.open_file import open_reader
    from ductile.ledger.storage.path_checks import ledger_exists
    from ductile.ledger.tables import breakers
    from ductile.ops.check_health import check_health

    try:
        if not ledger_exists(path):
            checks.add("state_db", True, "not created yet; the first start creates it", path=str(path))
            return {}, ()
        with open_reader(path) as db:
            queue, known, last = (
                queue_status.queue(db),
                breakers.all_breakers(db),
                job_stats.last_finished(db, LAST_RUNS),
            )
            health = check_health(
                db,
                path,
                is_running=is_running,
                is_degraded=service is not None and service["status"] != "ok",
                now=datetime.now(UTC),
            )
    except DuctileError as error:
        checks.add("state_db", False, str(error), fix=DOCTOR, path=str(path))
        return {}, ()
    running, orphaned = (queue.running, 0) if is_running else (0, queue.running)
    detail = f"{queue.queued} queued, {running} running, {output.format_dead(queue.dead, queue.cancelled)}"
    checks.add("state_db", True, f"{detail}; {orphaned_message(orphaned)}" if orphaned else detail, path=str(path))
    for unhealthy in (found.reason.data for found in health.reasons if found.reason.code == "unhealthy"):
        detail = f"{unhealthy['plugin']}: init failed: {unhealthy['error']}"
        checks.add("plugin_init", False, detail, plugin=unhealthy["plugin"])
    names = ("queued", "running", "delayed", "waiting_for_key", "waiting_joins", "dead", "cancelled")
    return {
        "queue": {name: getattr(queue, name) for name in names} | {"running": running, "orphaned": orphaned},
        "breakers": [
            {
                "plugin": breaker.plugin,
                "command": breaker.command,
                "state": breaker.state,
                "failure_count": breaker.failure_count,
                "opened_at": to_text(breaker.opened_at) if breaker.opened_at else None,
            }
            for breaker in known
            if breaker.state is not BreakerState.CLOSED
        ],
        "last_runs": last,
    }, health.reasons


def _plugin_health(checks: Checks, snapshot: "Snapshot", ledger: Path) -> list[dict[str, Any]]:
    """Run the health command of each plugin. A configured plugin that cannot be loaded fails."""
    from ductile.ops.health import HealthResult, check_plugins, read_plugin_states

    answers = check_plugins(snapshot, read_plugin_states(snapshot, ledger))
    unusable = [HealthResult(name, False, snapshot.unavailable[name], 0.0) for name in snapshot.unusable_entries]
    for result in (*answers, *unusable):
        if not result.ok:
            detail = f"{result.plugin}: {result.detail}"
            fix = f"ductile plugin show {shlex.quote(result.plugin)}" if result.was_run else CHECK
            checks.add("plugin_health", False, detail, fix=fix, plugin=result.plugin)
    if answers and all(result.ok for result in answers):
        checks.add("plugin_health", True, f"{len(answers)} passed")
    return [result.as_data() for result in (*answers, *unusable)]


def _first_line(error: DuctileError) -> str:
    return str(error).splitlines()[0]


def check_lines(headline: str, checks: list[dict[str, Any]]) -> list[str]:
    """Format a headline and one line per check."""
    rows = [("ok" if check["ok"] else "FAIL", check["name"], check["detail"]) for check in checks]
    return [headline, *(f"  {line}" for line in output.table(rows))]


def _lines(report: dict[str, Any]) -> list[str]:
    headline = f"System Status: {report['verdict'].upper()}{'' if report['running'] else ', NOT RUNNING'}"
    headline, *checks = check_lines(headline, report["checks"])
    lines = [headline, *_reason_lines(report["reasons"]), *checks]
    if service := report["service"]:
        facts = ("uptime_seconds", "queue_depth", "plugins_loaded", "oldest_claimable_seconds", "version")
        lines.append("  " + ", ".join(f"{name} {service[name]}" for name in facts))
    lines += [
        f"  breaker {entry['plugin']}.{entry['command']}: {entry['state']}, failures {entry['failure_count']}"
        for entry in report["breakers"]
    ]
    if report["last_runs"]:
        lines += [
            "Last runs",
            *(f"  {line}" for line in output.table([_run_row(entry) for entry in report["last_runs"]])),
        ]
    if report["plugins"]:
        rows = [
            ("healthy" if entry["ok"] else "UNHEALTHY", entry["plugin"], entry["detail"]) for entry in report["plugins"]
        ]
        lines += ["Plugins", *(f"  {line}" for line in output.table(rows))]
    is_startable = not report["running"] and report["verdict"] != "failed"
    is_named = any(reason["fix"] == START for reason in report["reasons"])
    return [*lines, f"  next: {START}"] if is_startable and not is_named else lines


def _reason_lines(reasons: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        line
        for reason in reasons
        for line in (f"  {reason['verdict']}: {reason['words']}", f"    next: {reason['fix']}")
    ]


def _run_row(run: Mapping[str, Any]) -> tuple[str, ...]:
    from ductile.core.format_time import format_when
    from ductile.explain.orphaned import display_status

    what, error = f"{run['plugin']}.{run['command']}", (run["last_error"] or "").partition("\n")[0]
    return (display_status(run), what, format_when(run["completed_at"]), run["job_id"], error)


# ── selfcheck ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command("selfcheck")
@options.config
@options.as_json
def selfcheck(config_path: Path | None, config_dir: Path | None, as_json: bool) -> int:
    """Check the invariants of the configuration and the ledger. Exit 1 if one is violated.

    Reads every row of the ledger, also while the service runs, and changes nothing. The duration depends on the size of
    the ledger.

    Example: ductile system selfcheck
    """
    report = _selfcheck_report(options.selected_config(config_path, config_dir))
    output.show(report, as_json=as_json, human=_selfcheck_lines)
    return 0 if report["healthy"] else 1


def _selfcheck_report(explicit: Path | None) -> dict[str, Any]:
    from ductile.ops.checks.check import Severity, Where
    from ductile.ops.checks.registry import run_checks

    checks = Checks()
    if (root := find_config(checks, explicit)) and (ledger := find_ledger(checks, root)):
        installation = load_config(checks, root)
        check_lock(checks, ledger)
        for finding in run_checks(installation, Where.LEDGER):
            checks.add(finding.name, finding.severity is not Severity.PROBLEM, finding.detail)
    return {"healthy": checks.all_passed, "checks": checks.results}


def _selfcheck_lines(report: dict[str, Any]) -> list[str]:
    return check_lines(f"Selfcheck: {'PASS' if report['healthy'] else 'FAIL'}", report["checks"])
