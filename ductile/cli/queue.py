"""`ductile queue`: list, pause, resume and purge queued jobs."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import DefaultActionGroup
from ductile.core.errors import UsageInvalid

MAX_LISTED = 200


@click.group("queue", cls=DefaultActionGroup, default="status")
def group() -> None:
    """List, pause, resume and purge queued jobs. Without an action, show the status."""


# ── status and list ───────────────────────────────────────────────────────────────────────────────────────────────────


@group.command("status")
@options.config
@options.as_json
def status(as_json: bool, **where: Any) -> None:
    """Show the number of queued and running jobs, pauses, and the oldest job that is ready to start.

    Reads the ledger, so it works while the service is stopped.

    Example: ductile queue status --json
    """
    output.show(_read(_status, where), as_json=as_json, human=_status_lines)


def _status(db: Any, conditions: Any) -> dict[str, Any]:
    from ductile.core.clock import to_text
    from ductile.ledger.admin.pauses import ALL_PLUGINS
    from ductile.ledger.reports import queue_status, wait_reasons

    queue = queue_status.queue(db)
    may_start = [] if ALL_PLUGINS in conditions.paused else [lane.plugin for lane in queue.plugins if lane.ready]
    blocked = {*conditions.paused, *conditions.unhealthy, *conditions.drifted}
    oldest = wait_reasons.oldest_ready(db, [name for name in may_start if name not in blocked])
    return {
        "service_running": conditions.is_running,
        "depth": queue.queued + queue.running,
        "queued": queue.queued,
        "running": queue.running if conditions.is_running else 0,
        "orphaned": 0 if conditions.is_running else queue.running,
        "delayed": queue.delayed,
        "held": queue.waiting_for_key,
        "joins": queue.waiting_joins,
        "blocked": wait_reasons.count_blocked(db),
        "dead": queue.dead,
        "cancelled": queue.cancelled,
        "max_workers": conditions.max_workers,
        "paused": [
            {
                "plugin": pause.plugin,
                "reason": pause.reason,
                "paused_at": to_text(pause.paused_at),
                "actor": pause.actor,
            }
            for pause in conditions.paused.values()
        ],
        "oldest_claimable": oldest and {"job_id": oldest[0], "plugin": oldest[1], "created_at": to_text(oldest[2])},
        "plugins": [
            {
                "plugin": lane.plugin,
                "ready": lane.ready,
                "running": lane.running if conditions.is_running else 0,
                "slots": conditions.slots.get(lane.plugin),
                "paused": lane.plugin in conditions.paused or ALL_PLUGINS in conditions.paused,
                "oldest_ready_at": to_text(lane.oldest_ready_at) if lane.oldest_ready_at else None,
            }
            for lane in queue.plugins
        ],
    }


def _status_lines(shown: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when
    from ductile.explain.waiting import orphaned_message

    service = "" if shown["service_running"] else "; the service is not running"
    dead = output.format_dead(shown["dead"], shown["cancelled"])
    lines = [f"{shown['queued']} queued, {shown['running']} running, {dead}{service}"]
    lines += [f"  {orphaned_message(shown['orphaned'])}"] if shown["orphaned"] else []
    states = {
        "delayed": "waiting for a retry or a breaker",
        "held": "waiting for their dedupe key",
        "joins": "waiting for a join",
    }
    states["blocked"] = "blocked by a breaker or an unusable plugin"
    lines += [f"  {shown[name]} {text}" for name, text in states.items() if shown[name]]
    for entry in shown["paused"]:
        what = "everything" if entry["plugin"] == "*" else entry["plugin"]
        by = f" by {entry['actor']}" if entry["actor"] else ""
        lines.append(f"  paused: {what}, {format_when(entry['paused_at'])}{by}: {entry['reason']}")
    if oldest := shown["oldest_claimable"]:
        lines.append(
            f"  oldest ready job: {oldest['job_id']} ({oldest['plugin']}), {format_when(oldest['created_at'])}"
        )
    if shown["plugins"]:
        head = ("PLUGIN", "READY", "RUNNING", "LIMIT", "OLDEST", "")
        rows = [head, *map(_plugin_row, shown["plugins"])]
        lines += [f"  {line}" for line in output.table(rows)]
    return lines


def _plugin_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    from ductile.core.format_time import format_when

    slots = "-" if entry["slots"] is None else str(entry["slots"])
    paused = "paused" if entry["paused"] else ""
    return (
        entry["plugin"],
        str(entry["ready"]),
        str(entry["running"]),
        slots,
        format_when(entry["oldest_ready_at"]),
        paused,
    )


@group.command("list")
@click.option("--plugin", help="Only this plugin.")
@click.option(
    "--limit", type=click.IntRange(1, MAX_LISTED), default=50, show_default=True, help="Maximum number of jobs."
)
@options.config
@options.as_json
def list_waiting(plugin: str | None, limit: int, as_json: bool, **where: Any) -> None:
    """List queued jobs, oldest first, with the reason why each is waiting.

    Reads the ledger, so it works while the service is stopped.

    Example: ductile queue list --plugin backup
    """

    from ductile.cli.base.connect import ledger_for
    from ductile.ledger.storage.open_file import open_reader
    from ductile.web.views.queue import waiting_jobs_view

    path = ledger_for(where)
    with open_reader(path) as db:
        view = waiting_jobs_view(db, path, plugin=plugin, limit=limit)
    output.show(view, as_json=as_json, human=_list_lines)


def _list_lines(shown: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when

    if not shown["jobs"]:
        return ["no queued jobs"]
    rows = [
        (job["job_id"], f"{job['plugin']}.{job['command']}", format_when(job["created_at"]), job["why"][0]["words"])
        for job in shown["jobs"]
    ]
    more = [f"more jobs are queued; raise --limit (up to {MAX_LISTED})"] if shown["more"] else []
    return [*output.table([("JOB", "COMMAND", "CREATED", "REASON"), *rows]), *more]


def _read(function: Callable[..., dict[str, Any]], where: Mapping[str, Any]) -> dict[str, Any]:
    from ductile.cli.base.connect import ledger_for
    from ductile.explain.waiting import read_queue_conditions
    from ductile.ledger.storage.open_file import open_reader

    path = ledger_for(where)
    with open_reader(path) as db:
        return function(db, read_queue_conditions(db, path))


# ── pause, resume, purge ──────────────────────────────────────────────────────────────────────────────────────────────


def _change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that change the queue."""
    for option in (options.as_json, options.dry_run, options.service, options.config):
        command = option(command)
    return command


@group.command("pause")
@click.option("--plugin", help="Only this plugin.")
@click.option("--reason", help="Reason to record and show.")
@_change_options
def pause(plugin: str | None, reason: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Stop starting queued jobs, for one plugin or for all.

    New jobs are still accepted, and running jobs continue. The pause survives restarts.

    Example: ductile queue pause --reason "the disk is being replaced"
    """
    answer = post_pause("pause", plugin, where, dry_run=dry_run, reason=reason)
    output.show(answer, as_json=as_json, human=pause_lines)


@group.command("resume")
@click.option("--plugin", help="Only this plugin.")
@_change_options
def resume(plugin: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Start queued jobs again. A plugin with a pause of its own stays paused until it is resumed.

    Example: ductile queue resume
    """
    answer = post_pause("resume", plugin, where, dry_run=dry_run)
    output.show(answer, as_json=as_json, human=pause_lines)


def post_pause(
    act: str, plugin: str | None, where: Mapping[str, Any], *, dry_run: bool, reason: str | None = None
) -> dict[str, Any]:
    """Send the request and return the response. `plugin` None means the whole queue."""
    from ductile.cli.base.connect import client_for

    path = f"/plugins/{quote(plugin, safe='')}/{act}" if plugin is not None else f"/queue/{act}"
    body = {"reason": reason} if reason else None
    return client_for(where).request("POST", f"{path}?dry_run=true" if dry_run else path, body)


def pause_lines(answer: dict[str, Any]) -> list[str]:
    """Format the response of a pause or resume request."""
    what = "the queue" if answer["plugin"] == "*" else f"plugin {answer['plugin']}"
    if not answer["changed"]:
        return [f"no change: {what} is {'already' if answer['paused'] else 'not'} paused"]
    verb = "would be" if answer["dry_run"] else "is"
    return [f"{what} {verb} {'paused' if answer['paused'] else 'resumed'}"]


@group.command("purge")
@click.option("--plugin", help="Cancel the queued jobs of this plugin.")
@click.option("--all", "everything", is_flag=True, help="Cancel every queued job.")
@click.option("--status", type=click.Choice(["queued"]), expose_value=False, help="Only queued jobs can be purged.")
@click.option("--reason", help="Reason to record.")
@_change_options
def purge(
    plugin: str | None,
    everything: bool,
    reason: str | None,
    dry_run: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Cancel queued jobs, of one plugin or of all. Running jobs continue.

    Jobs are cancelled in batches; jobs enqueued meanwhile are not affected. An interrupted purge can be repeated.

    Example: ductile queue purge --plugin backup --dry-run
    """
    from ductile.cli.base.connect import client_for

    if (plugin is None) is not everything:
        raise UsageInvalid("--plugin NAME or --all is required")
    service, cancelled = client_for(where), 0
    body: dict[str, Any] = {"plugin": plugin or "*"} | ({"reason": reason} if reason else {})
    while True:
        answer = service.request("POST", f"/queue/purge?dry_run={'true' if dry_run else 'false'}", body)
        cancelled += answer["cancelled"]
        if dry_run or not answer["remaining"] or not answer["cancelled"]:
            break
        body["up_to"] = answer["up_to"]
    output.show({**answer, "cancelled": cancelled}, as_json=as_json, human=_purge_lines)


def _purge_lines(answer: dict[str, Any]) -> list[str]:
    whose = "" if answer["plugin"] == "*" else f" of {answer['plugin']}"
    if answer["dry_run"]:
        return [f"{output.format_count(answer['remaining'], 'queued job')}{whose} would be cancelled"]
    left = f"; {answer['remaining']} remain" if answer["remaining"] else ""
    return [f"{output.format_count(answer['cancelled'], 'queued job')}{whose} cancelled{left}"]
