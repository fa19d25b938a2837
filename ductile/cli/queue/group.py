"""`ductile queue`: what waits and why, pausing it, and emptying it."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import DefaultActionGroup
from ductile.core.errors import UsageInvalid

MOST_LISTED = 200


@click.group("queue", cls=DefaultActionGroup, usual="status")
def group() -> None:
    """See what waits and why, pause it, resume it and empty it; without an action: the status."""


# ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@group.command("status")
@options.config
@options.as_json
def status(as_json: bool, **where: Any) -> None:
    """Say how much waits and runs, what is paused, and what has waited longest although it may start.

    Reads the ledger, so it works while the service does not run.

    Example: ductile queue status --json
    """
    output.show(_read(_status, where), as_json=as_json, human=_status_lines)


def _status(db: Any, around: Any) -> dict[str, Any]:
    from ductile.core.clock import to_text
    from ductile.ledger.admin.pauses import EVERYTHING
    from ductile.ledger.reports import queue_status, wait_reasons

    queue = queue_status.queue(db)
    may_start = [] if EVERYTHING in around.paused else [lane.plugin for lane in queue.lanes if lane.ready]
    oldest = wait_reasons.oldest_ready(db, [name for name in may_start if name not in around.paused])
    return {
        "service_running": around.is_running,
        "depth": queue.queued + queue.running,
        "queued": queue.queued,
        "running": queue.running if around.is_running else 0,
        "orphaned": 0 if around.is_running else queue.running,
        "delayed": queue.delayed,
        "held": queue.waiting_for_key,
        "joins": queue.waiting_joins,
        "blocked": wait_reasons.count_blocked(db),
        "dead": queue.dead,
        "max_workers": around.max_workers,
        "paused": [
            {"plugin": one.plugin, "reason": one.reason, "paused_at": to_text(one.paused_at)}
            for one in around.paused.values()
        ],
        "oldest_claimable": oldest and {"job_id": oldest[0], "plugin": oldest[1], "created_at": to_text(oldest[2])},
        "plugins": [
            {
                "plugin": lane.plugin,
                "ready": lane.ready,
                "running": lane.running if around.is_running else 0,
                "slots": around.slots.get(lane.plugin),
                "paused": lane.plugin in around.paused or EVERYTHING in around.paused,
                "oldest_ready_at": to_text(lane.oldest_ready_at) if lane.oldest_ready_at else None,
            }
            for lane in queue.lanes
        ],
    }


def _status_lines(shown: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import told
    from ductile.explain.waiting import orphaned_words

    service = "" if shown["service_running"] else "; the service is not running"
    lines = [f"{shown['queued']} queued, {shown['running']} running, {shown['dead']} dead{service}"]
    lines += [f"  {orphaned_words(shown['orphaned'])}"] if shown["orphaned"] else []
    words = {"delayed": "wait for their retry or a breaker", "held": "wait for their key", "joins": "join others"}
    words["blocked"] = "are held: a breaker, or a plugin that cannot run"
    lines += [f"  {shown[name]} {text}" for name, text in words.items() if shown[name]]
    for one in shown["paused"]:
        what = "everything" if one["plugin"] == "*" else one["plugin"]
        lines.append(f"  paused: {what}, {told(one['paused_at'])}: {one['reason']}")
    if oldest := shown["oldest_claimable"]:
        lines.append(f"  oldest that may start: {oldest['job_id']} ({oldest['plugin']}), {told(oldest['created_at'])}")
    if shown["plugins"]:
        head = ("PLUGIN", "READY", "RUNNING", "AT ONCE", "OLDEST", "")
        rows = [head, *map(_lane_row, shown["plugins"])]
        lines += [f"  {line}" for line in output.table(rows)]
    return lines


def _lane_row(lane: Mapping[str, Any]) -> tuple[str, ...]:
    from ductile.core.format_time import told

    slots = "-" if lane["slots"] is None else str(lane["slots"])
    paused = "paused" if lane["paused"] else ""
    return (lane["plugin"], str(lane["ready"]), str(lane["running"]), slots, told(lane["oldest_ready_at"]), paused)


@group.command("list")
@click.option("--plugin", help="Only of this plugin.")
@click.option("--limit", type=click.IntRange(1, MOST_LISTED), default=50, show_default=True, help="How many to show.")
@options.config
@options.as_json
def list_waiting(plugin: str | None, limit: int, as_json: bool, **where: Any) -> None:
    """List what waits, the oldest first, each with what keeps it from starting.

    Reads the ledger, so it works while the service does not run.

    Example: ductile queue list --plugin backup
    """

    def read(db: Any, around: Any) -> dict[str, Any]:
        from ductile.explain.waiting import reasons
        from ductile.ledger.reports import wait_reasons
        from ductile.web.views.jobs import listed_job

        found = wait_reasons.all_waiting(db, plugin, limit=limit + 1)
        jobs = [
            listed_job(one.job, shows_result=True) | {"why": [why.as_data() for why in reasons(db, one, around)]}
            for one in found[:limit]
        ]
        return {"jobs": jobs, "more": len(found) > limit}

    output.show(_read(read, where), as_json=as_json, human=_list_lines)


def _list_lines(shown: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import told

    if not shown["jobs"]:
        return ["nothing waits"]
    rows = [
        (job["job_id"], f"{job['plugin']}.{job['command']}", told(job["created_at"]), job["why"][0]["words"])
        for job in shown["jobs"]
    ]
    more = [f"and more; see further with --limit (up to {MOST_LISTED})"] if shown["more"] else []
    return [*output.table([("JOB", "WHAT", "ASKED FOR", "WAITS BECAUSE"), *rows]), *more]


def _read(function: Callable[..., dict[str, Any]], where: Mapping[str, Any]) -> dict[str, Any]:
    from ductile.cli.base.connect import ledger_for
    from ductile.explain.waiting import circumstances
    from ductile.ledger.storage.open_file import open_reader

    path = ledger_for(where)
    with open_reader(path) as db:
        return function(db, circumstances(db, path))


# ── changing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _changing(command: Callable[..., Any]) -> Callable[..., Any]:
    """What commands that change the queue take."""
    for option in (options.as_json, options.dry_run, options.service, options.config):
        command = option(command)
    return command


@group.command("pause")
@click.option("--plugin", help="Only this plugin.")
@click.option("--reason", help="Why, for whoever wonders.")
@_changing
def pause(plugin: str | None, reason: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service start nothing more, or nothing of one plugin. Jobs are still taken; what runs goes on.

    A pause survives restarts.

    Example: ductile queue pause --reason "the disk is being replaced"
    """
    from ductile.cli.queue.pause import pause_lines, post_pause

    answer = post_pause("pause", plugin, where, dry_run=dry_run, reason=reason)
    output.show(answer, as_json=as_json, human=pause_lines)


@group.command("resume")
@click.option("--plugin", help="Only this plugin.")
@_changing
def resume(plugin: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service start jobs again. A plugin that was paused by itself stays so until it is resumed.

    Example: ductile queue resume
    """
    from ductile.cli.queue.pause import pause_lines, post_pause

    answer = post_pause("resume", plugin, where, dry_run=dry_run)
    output.show(answer, as_json=as_json, human=pause_lines)


@group.command("purge")
@click.option("--plugin", help="End the waiting jobs of this plugin.")
@click.option("--all", "everything", is_flag=True, help="End every waiting job.")
@click.option("--status", type=click.Choice(["queued"]), expose_value=False, help="Only waiting jobs can be purged.")
@click.option("--reason", help="Why, for whoever looks later.")
@_changing
def purge(
    plugin: str | None,
    everything: bool,
    reason: str | None,
    dry_run: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Have the running service cancel what waits, of one plugin or of all. What runs goes on.

    It goes portion by portion, and leaves jobs alone that are asked for meanwhile; a purge that was stopped can be
    begun again.

    Example: ductile queue purge --plugin backup --dry-run
    """
    from ductile.cli.base.connect import client_for

    if (plugin is None) is not everything:
        raise UsageInvalid("say whose jobs: --plugin NAME, or --all")
    service, cancelled = client_for(where), 0
    body: dict[str, Any] = {"plugin": plugin or "*"} | ({"reason": reason} if reason else {})
    while True:
        answer = service.ask("POST", f"/queue/purge?dry_run={'true' if dry_run else 'false'}", body)
        cancelled += answer["cancelled"]
        if dry_run or not answer["remaining"] or not answer["cancelled"]:
            break
        body["up_to"] = answer["up_to"]
    output.show({**answer, "cancelled": cancelled}, as_json=as_json, human=_purge_lines)


def _purge_lines(answer: dict[str, Any]) -> list[str]:
    whose = "" if answer["plugin"] == "*" else f" of {answer['plugin']}"
    if answer["dry_run"]:
        return [f"{answer['remaining']} waiting jobs{whose} would be cancelled"]
    left = f"; {answer['remaining']} are left" if answer["remaining"] else ""
    return [f"{answer['cancelled']} waiting jobs{whose} cancelled{left}"]
