"""`ductile schedule`: list, explain, simulate, run, pause and resume schedules."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid

if TYPE_CHECKING:
    from ductile.cli.base.client import Client

MAX_SLOTS, MAX_AGENDA_SLOTS = 1000, 200
MAX_SIMULATION = timedelta(days=3660)
DEFAULT_SIMULATION = timedelta(days=7)
REST_OF_SECOND = timedelta(microseconds=999_999)
"""Slots are shown to the second, so such a time includes the slots of its second."""


@click.group("schedule")
def group() -> None:
    """List, explain, simulate, run and pause schedules."""


def _schedule_arguments(command: options.Command) -> options.Command:
    """Add PLUGIN and an optional SCHEDULE_ID. `PLUGIN/ID`, as some commands print it, is both."""
    command = click.argument("schedule_id", required=False)(command)
    return click.argument("plugin", metavar="PLUGIN[/ID]")(command)


def _split_name(plugin: str, schedule_id: str | None) -> tuple[str, str | None]:
    """Return plugin and schedule id. Names of plugins contain no slash."""
    name, slash, rest = plugin.partition("/")
    return (name, rest) if slash and schedule_id is None else (plugin, schedule_id)


# ── list, next, why, simulate ─────────────────────────────────────────────────────────────────────────────────────────


@group.command("list")
@options.config
@options.service
@options.as_json
def list_schedules(
    config_path: Path | None, config_dir: Path | None, api_url: str | None, api_key: str | None, as_json: bool
) -> None:
    """List the schedules with status, last run and next run, in local time and in UTC.

    Reads the configuration and the ledger while the service is stopped. --api-url queries a remote service.

    Example: ductile schedule list
    """
    from ductile.cli.base.connect import client, running_client

    explicit = options.selected_config(config_path, config_dir)
    if service := client(explicit, api_url, api_key) if api_url else running_client(explicit):
        shown = service.request("GET", "/scheduler/jobs")["jobs"]
    else:
        from ductile.cli.base.connect import load_snapshot, read_ledger
        from ductile.ledger.tables import schedules
        from ductile.web.views.schedules import schedules_view

        snapshot = load_snapshot(explicit)
        shown = schedules_view(snapshot, read_ledger(snapshot, schedules.all_entries) or [])
    output.show({"jobs": shown}, as_json=as_json, human=_list_lines)


def _list_lines(result: dict[str, Any]) -> list[str]:
    if not result["jobs"]:
        return ["no schedules; add them under plugins.NAME.schedules"]
    head = ("PLUGIN", "SCHEDULE", "RUNS", "STATUS", "LAST", "LAST (UTC)", "NEXT", "NEXT (UTC)", "")
    return output.table([head, *map(_list_row, result["jobs"])])


def _list_row(job: dict[str, Any]) -> tuple[str, ...]:
    from ductile.core.format_time import format_when

    why = f"held: {job['held_reason']}" if "held_reason" in job else job.get("reason", "")
    return (
        job["plugin"],
        job["schedule_id"],
        job["when"],
        job["status"],
        _short(job.get("last_fired_local")),
        format_when(job.get("last_fired_at")),
        _short(job.get("next_run_local")),
        format_when(job.get("next_run_at")),
        why,
    )


def _short(moment: str | None) -> str:
    """Format a time to the second."""
    return moment[:19] + (moment[19:] if "." not in moment else "Z") if moment else "-"


@group.command("next")
@_schedule_arguments
@click.option("--count", type=click.IntRange(1, MAX_SLOTS), default=10, show_default=True, help="Number of runs.")
@options.config
@options.as_json
def next_runs(
    plugin: str, schedule_id: str | None, count: int, config_path: Path | None, config_dir: Path | None, as_json: bool
) -> None:
    """Show the next runs of a schedule, including jitter, time windows and daylight saving changes.

    Running jobs, breakers and future pauses are not taken into account. SCHEDULE_ID is optional if the plugin has only
    one schedule.

    Example: ductile schedule next backup nightly --count 5
    """
    from ductile.cli.schedule.views import load_schedule, upcoming_view

    plugin, schedule_id = _split_name(plugin, schedule_id)
    snapshot, schedule = load_schedule(options.selected_config(config_path, config_dir), plugin, schedule_id)
    view = upcoming_view(snapshot, plugin, schedule, count, now=datetime.now(UTC))
    output.show(view, as_json=as_json, human=_next_lines)


def _next_lines(view: dict[str, Any]) -> list[str]:
    lines = [f"{view['plugin']} {view['schedule_id']}: {view['when']}, {view['status']}"]
    lines += [f"  {view['reason']}"] if view.get("reason") else []
    from ductile.core.format_time import format_when

    rows = [(_short(run["fires_local"]), format_when(run["fires_at"]), _lag(run)) for run in view["runs"]]
    return [*lines, *(f"  {line}" for line in output.table(rows))] if rows else [*lines, "  no further runs"]


def _lag(run: dict[str, Any]) -> str:
    return "" if run["slot_at"] == run["fires_at"] else f"slot {_short(run['slot_at'])}"


@group.command("why")
@_schedule_arguments
@click.option("--at", "moment", help="Time of the slot: 02:00, 2026-03-29T02:00, or with Z. Default: now.")
@options.config
@options.as_json
def why(
    plugin: str,
    schedule_id: str | None,
    moment: str | None,
    config_path: Path | None,
    config_dir: Path | None,
    as_json: bool,
) -> None:
    """Explain why a slot of a schedule fired or did not. Names the job that it started, or the rule that prevented it.

    The slot is the last one before now or before --at. A time of day means its last occurrence; a time without an
    offset is in the time zone of the schedule. SCHEDULE_ID is optional if the plugin has only one schedule.

    Example: ductile schedule why backup nightly --at 02:00
    """
    from ductile.cli.base.connect import read_ledger
    from ductile.cli.base.local_time import parse_time
    from ductile.cli.schedule.views import load_schedule
    from ductile.web.views.agenda import schedule_why
    from ductile.web.views.schedules import get_zone

    plugin, schedule_id = _split_name(plugin, schedule_id)
    snapshot, schedule = load_schedule(options.selected_config(config_path, config_dir), plugin, schedule_id)
    now = datetime.now(UTC)
    at = now if moment is None else parse_time(moment, "--at", get_zone(schedule), now=now, is_past=True)
    at += REST_OF_SECOND if at.microsecond == 0 else timedelta()
    view = read_ledger(snapshot, schedule_why, snapshot, plugin, schedule.id, at=at, now=now)
    view = view or schedule_why(None, snapshot, plugin, schedule.id, at=at, now=now)
    output.show(view, as_json=as_json, human=_why_lines)


def _why_lines(view: dict[str, Any]) -> list[str]:
    slot = f"slot {_short(view['slot_local'])} ({_short(view['slot_at'])})" if view.get("slot_at") else "no slot"
    lines = [f"{view['plugin']} {view['schedule_id']}, {slot}: {view['verdict']}", f"  {view['words']}"]
    for row in view["journal"]:
        what = row.get("status") or f"{row['reason']}" + (f", {row['count']} slots" if row.get("count", 1) > 1 else "")
        lines.append(f"  {_short(row['local'])}  {what}")
    lines += [f"  waiting until {_short(view['until'])}"] if view.get("until") and view["verdict"] == "held" else []
    return [*lines, *(f"  next: {command}" for command in view["next"])]


@group.command("agenda")
@click.option("--from", "start", help="Start time: 2026-03-29, 2026-03-29T01:30, 02:00. Default: a day ago.")
@click.option("--to", "end", help="End time. Default: a day from now.")
@click.option("--plugin", help="Only schedules of this plugin.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_AGENDA_SLOTS),
    default=50,
    show_default=True,
    help="Maximum number of past and of coming slots of one schedule.",
)
@options.config
@options.as_json
def agenda(
    start: str | None,
    end: str | None,
    plugin: str | None,
    limit: int,
    config_path: Path | None,
    config_dir: Path | None,
    as_json: bool,
) -> None:
    """List the slots of all schedules: fired, skipped or missed with the reason, held, and planned.

    Times without an offset are in the time zone of the host. Running jobs, breakers and future pauses are not taken
    into account for coming slots. Works while the service is stopped.

    Example: ductile schedule agenda --from 00:00
    """
    from ductile.cli.base.connect import load_snapshot, read_ledger
    from ductile.cli.base.local_time import parse_time
    from ductile.config.sections.schedules import HOST_ZONE
    from ductile.web.views.agenda import AgendaRange, agenda_view

    snapshot, now = load_snapshot(options.selected_config(config_path, config_dir)), datetime.now(UTC)
    first = parse_time(start, "--from", HOST_ZONE, now=now) if start else None
    last = parse_time(end, "--to", HOST_ZONE, now=now) if end else None
    span = AgendaRange.of(first, last, now=now, limit=limit)
    view = read_ledger(snapshot, agenda_view, snapshot, span, plugin=plugin)
    output.show(view or agenda_view(None, snapshot, span, plugin=plugin), as_json=as_json, human=_agenda_lines)


def _agenda_lines(view: dict[str, Any]) -> list[str]:
    if not view["schedules"]:
        return ["no schedules; add them under plugins.NAME.schedules"]
    rows = [
        (_short(slot["slot_local"]), f"{slot['plugin']} {slot['schedule_id']}", slot["verdict"], _slot_note(slot))
        for slot in view["slots"]
    ]
    lines = output.table([("SLOT", "SCHEDULE", "", ""), *rows]) if rows else ["no slots"]
    for one in view["schedules"]:
        name = f"{one['plugin']} {one['schedule_id']}"
        lines += [f"{name}: {one['status']}, {one['reason']}"] if "reason" in one else []
        lines += [f"{name}: {one['left_out']} older slots; raise --limit"] if one["left_out"] else []
    return lines


def _slot_note(slot: dict[str, Any]) -> str:
    """Return the job of the slot and its status, or why it has none."""
    if slot["job"]:
        return f"job {slot['job']['job_id']} {slot['job']['status']}"
    if slot["verdict"] == "planned":
        return "" if slot["fires_at"] == slot["slot_at"] else f"fires {_short(slot['fires_at'])}"
    why = f"{slot['reason']}: {slot['words']}" if slot["reason"] else str(slot["words"])
    return f"{why}; until {slot['until'][:19]}Z" if slot["verdict"] == "held" and slot["until"] else why


@group.command("simulate")
@_schedule_arguments
@click.option("--from", "start", default=None, help="Start time: 2026-03-29, 2026-03-29T01:30, 02:00. Default: now.")
@click.option("--to", "end", help="End time. Default: seven days after --from.")
@click.option("--down", multiple=True, help="Downtime of the service, daily (02:00..05:00) or once; repeatable.")
@click.option("--takes", default="0s", show_default=True, help="Duration of each job. All jobs succeed.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Maximum number of slots."
)
@options.config
@options.as_json
def simulate_schedule(
    plugin: str,
    schedule_id: str | None,
    start: str | None,
    end: str | None,
    down: tuple[str, ...],
    takes: str,
    limit: int,
    config_path: Path | None,
    config_dir: Path | None,
    as_json: bool,
) -> None:
    """Simulate a schedule and show which slots fire, are skipped or wait, and why.

    Runs the code of the scheduler on a virtual clock, including catch-up and daylight saving changes. Enqueues nothing
    and does not use the service. Times without an offset are in the time zone of the schedule. SCHEDULE_ID is optional
    if the plugin has only one schedule.

    Example: ductile schedule simulate backup nightly --from 2026-03-28 --to 2026-03-31 --down 02:00..05:00
    """
    from ductile.cli.base.local_time import parse_duration_option, parse_ranges, parse_time
    from ductile.cli.schedule.views import current_entry, load_schedule, simulation_lines, simulation_view
    from ductile.engine.scheduling.simulate import SimulationRequest, simulate
    from ductile.web.views.schedules import get_zone

    plugin, schedule_id = _split_name(plugin, schedule_id)
    snapshot, schedule = load_schedule(options.selected_config(config_path, config_dir), plugin, schedule_id)
    now, zone = datetime.now(UTC), get_zone(schedule)
    first = parse_time(start, "--from", zone, now=now) if start else now
    last = parse_time(end, "--to", zone, now=now) if end else first + DEFAULT_SIMULATION
    if not first < last <= first + MAX_SIMULATION:
        raise UsageInvalid("--to must be after --from, by at most ten years")
    entry = current_entry(snapshot, plugin, schedule)
    question = SimulationRequest(
        snapshot=snapshot,
        plugin=plugin,
        schedule=schedule,
        start=first,
        end=last,
        down=parse_ranges(down, "--down", zone, first, last),
        job_duration=parse_duration_option(takes, "--takes"),
        max_events=limit,
        anchored_at=entry.anchored_at if entry else None,
    )
    view = simulation_view(question, simulate(question))
    output.show(view, as_json=as_json, human=simulation_lines)


# ── pause, resume, run ────────────────────────────────────────────────────────────────────────────────────────────────


def _change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options of commands that change a schedule."""
    for option in (options.as_json, options.dry_run, options.service, options.config):
        command = option(command)
    return _schedule_arguments(command)


@group.command("pause")
@click.option("--reason", help="Reason to record and show.")
@_change_options
def pause(plugin: str, schedule_id: str | None, reason: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Pause a schedule and skip its slots until it is resumed.

    Skipped slots are not caught up. A one-time schedule (`at`, `after`) waits for the end of the pause. Running jobs
    continue. The pause survives restarts and reloads.

    Example: ductile schedule pause backup nightly --reason "the disk is being replaced"
    """
    answer = _post(plugin, schedule_id, "pause", where, dry_run=dry_run, body={"reason": reason} if reason else None)
    output.show(answer, as_json=as_json, human=_changed_lines)


@group.command("resume")
@_change_options
def resume(plugin: str, schedule_id: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Resume a paused schedule.

    Example: ductile schedule resume backup nightly
    """
    answer = _post(plugin, schedule_id, "resume", where, dry_run=dry_run)
    output.show(answer, as_json=as_json, human=_changed_lines)


def _changed_lines(answer: dict[str, Any]) -> list[str]:
    verb = "would be" if answer["dry_run"] else "is"
    already = "" if answer["changed"] else " already"
    return [f"{answer['plugin']} {answer['schedule_id']} {verb} {answer['status']}{already}"]


@group.command("run")
@click.option("--wait", "waits", is_flag=True, help="Wait until the job has ended; exit 1 if it failed.")
@click.option("--timeout", default="5m", show_default=True, help="Timeout of --wait.")
@_change_options
def run_now(
    plugin: str, schedule_id: str | None, waits: bool, timeout: str, dry_run: bool, as_json: bool, **where: Any
) -> int:
    """Run the command of a schedule now, with its payload.

    Pauses, time windows, breakers and `if_running` do not apply, and the next slot is not affected. The job counts for
    the breaker only if the breaker applies to all jobs.

    Example: ductile schedule run backup nightly --wait
    """
    from ductile.cli.base.long_poll import naming_job, parse_timeout, wait_for_job

    seconds = parse_timeout(timeout)
    job = _post(plugin, schedule_id, "run", where, dry_run=dry_run)
    if waits and not dry_run:
        with naming_job(job["job_id"]):
            job = wait_for_job(_client(where), job["job_id"], seconds)
    output.show(job, as_json=as_json, human=_planned_lines if dry_run else _job_lines)
    return 1 if waits and not dry_run and job["status"] != "succeeded" else 0


def _job_lines(job: dict[str, Any]) -> list[str]:
    lines = [f"job {job['job_id']} ({job['plugin']}.{job['command']}): {job['status']}"]
    lines += [f"  error: {job['last_error']}"] if job.get("last_error") else []
    return [*lines, f"  next: ductile job inspect {job['job_id']}"]


def _planned_lines(answer: dict[str, Any]) -> list[str]:
    return [f"{answer['plugin']} {answer['schedule_id']}: would run {answer['plugin']}.{answer['command']}"]


def _post(
    plugin: str, schedule_id: str | None, action: str, where: dict[str, Any], *, dry_run: bool, body: Any = None
) -> dict[str, Any]:
    plugin, schedule_id = _split_name(plugin, schedule_id)
    if schedule_id is None:
        raise UsageInvalid("SCHEDULE_ID is missing", hint="Name the schedule: `ductile schedule list` shows them.")
    path = f"/schedule/{quote(plugin, safe='')}/{quote(schedule_id, safe='')}/{action}"
    return _client(where).request("POST", f"{path}?dry_run=true" if dry_run else path, body)


def _client(where: dict[str, Any]) -> "Client":
    from ductile.cli.base.connect import client

    explicit = options.selected_config(where["config_path"], where["config_dir"])
    return client(explicit, where["api_url"], where["api_key"])
