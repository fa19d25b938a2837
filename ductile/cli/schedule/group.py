"""`ductile schedule`: when schedules fire and why not; pause, resume, run and simulate them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output

if TYPE_CHECKING:
    from ductile.cli.base.client import Client

MOST_SLOTS = 1000
LONGEST_SIMULATION = timedelta(days=3660)
USUAL_SIMULATION = timedelta(days=7)


@click.group("schedule")
def group() -> None:
    """See when schedules fire and why not, pause, resume, run and simulate them."""


# ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@group.command("list")
@options.config
@options.service
@options.as_json
def list_schedules(
    config_path: Path | None, config_dir: Path | None, api_url: str | None, api_key: str | None, as_json: bool
) -> None:
    """List every schedule: whether it will fire, when it did last and when it will next, in its own time and in UTC.

    While the service does not run, the configuration and the ledger tell the same; --api-url asks another service.

    Example: ductile schedule list
    """
    from ductile.cli.base.connect import client, running

    explicit = options.chosen(config_path, config_dir)
    if service := client(explicit, api_url, api_key) if api_url else running(explicit):
        shown = service.ask("GET", "/scheduler/jobs")["jobs"]
    else:
        from ductile.cli.schedule.facts import read_ledger, snapshot_of
        from ductile.ledger.tables import schedules
        from ductile.web.views.schedules import schedules_view

        snapshot = snapshot_of(explicit)
        shown = schedules_view(snapshot, read_ledger(snapshot, schedules.all_entries) or [])
    output.show({"jobs": shown}, as_json=as_json, human=_list_lines)


def _list_lines(result: dict[str, Any]) -> list[str]:
    if not result["jobs"]:
        return ["no schedules; write some under plugins.NAME.schedules"]
    head = ("PLUGIN", "SCHEDULE", "RUNS", "STATUS", "LAST", "LAST (UTC)", "NEXT", "NEXT (UTC)", "")
    return output.table([head, *map(_list_row, result["jobs"])])


def _list_row(job: dict[str, Any]) -> tuple[str, ...]:
    from ductile.core.format_time import told

    why = f"held: {job['held_reason']}" if "held_reason" in job else job.get("reason", "")
    return (
        job["plugin"],
        job["schedule_id"],
        job["when"],
        job["status"],
        _short(job.get("last_fired_local")),
        told(job.get("last_fired_at")),
        _short(job.get("next_run_local")),
        told(job.get("next_run_at")),
        why,
    )


def _short(moment: str | None) -> str:
    """A moment to the second."""
    return moment[:19] + (moment[19:] if "." not in moment else "Z") if moment else "-"


@group.command("next")
@click.argument("plugin")
@click.argument("schedule_id", required=False)
@click.option("--count", type=click.IntRange(1, MOST_SLOTS), default=10, show_default=True, help="How many runs.")
@options.config
@options.as_json
def next_runs(
    plugin: str, schedule_id: str | None, count: int, config_path: Path | None, config_dir: Path | None, as_json: bool
) -> None:
    """Say when a schedule fires next, as the scheduler reckons: with jitter, closed hours and changing clocks.

    What running jobs, a breaker or a pause will do to these runs is not known beforehand. SCHEDULE_ID may be left out
    if the plugin has only one.

    Example: ductile schedule next backup nightly --count 5
    """
    from ductile.cli.schedule.facts import coming_view, schedule_of

    snapshot, schedule = schedule_of(options.chosen(config_path, config_dir), plugin, schedule_id)
    view = coming_view(snapshot, plugin, schedule, count, now=datetime.now(UTC))
    output.show(view, as_json=as_json, human=_next_lines)


def _next_lines(view: dict[str, Any]) -> list[str]:
    lines = [f"{view['plugin']} {view['schedule_id']}: {view['when']}, {view['status']}"]
    lines += [f"  {view['reason']}"] if view.get("reason") else []
    from ductile.core.format_time import told

    rows = [(_short(run["fires_local"]), told(run["fires_at"]), _lag(run)) for run in view["runs"]]
    return [*lines, *(f"  {line}" for line in output.table(rows))] if rows else [*lines, "  no run is coming"]


def _lag(run: dict[str, Any]) -> str:
    return "" if run["slot_at"] == run["fires_at"] else f"slot {_short(run['slot_at'])}"


@group.command("why")
@click.argument("plugin")
@click.argument("schedule_id")
@click.option("--at", "moment", help="When it should have run: 02:00, 2026-03-29T02:00, or with Z. Default: now.")
@options.config
@options.as_json
def why(
    plugin: str, schedule_id: str, moment: str | None, config_path: Path | None, config_dir: Path | None, as_json: bool
) -> None:
    """Say what became of a slot: the job it became, or the rule that held it, from the ledger.

    The slot is the last one until now, or until the given moment. A time of day is the last one that has passed.

    Example: ductile schedule why backup nightly --at 02:00
    """
    from ductile.cli.base.local_time import read_moment
    from ductile.cli.schedule.facts import read_ledger, schedule_of
    from ductile.explain.slot import fate_of, fate_view
    from ductile.web.views.schedules import when_text, zone_of

    snapshot, schedule = schedule_of(options.chosen(config_path, config_dir), plugin, schedule_id)
    now, zone = datetime.now(UTC), zone_of(schedule)
    at = read_moment(moment, "--at", zone, now=now, is_past=True) if moment else now
    unavailable = snapshot.why_unavailable(plugin)
    fate = read_ledger(snapshot, fate_of, plugin, schedule, at, now, unavailable=unavailable)
    head = {"plugin": plugin, "schedule_id": schedule.id, "when": when_text(schedule)}
    view = fate_view(fate, zone) if fate else {"verdict": "unknown", "words": "there is no ledger yet", "story": []}
    output.show({**head, **view}, as_json=as_json, human=_why_lines)


def _why_lines(view: dict[str, Any]) -> list[str]:
    slot = f"slot {_short(view['slot_local'])} ({_short(view['slot_at'])})" if view.get("slot_at") else "no slot"
    lines = [f"{view['plugin']} {view['schedule_id']}, {slot}: {view['verdict']}", f"  {view['words']}"]
    for row in view["story"]:
        what = row.get("status") or f"{row['reason']}" + (f", {row['count']} slots" if row.get("count", 1) > 1 else "")
        lines.append(f"  {_short(row['local'])}  {what}")
    lines += [f"  waits until {_short(view['until'])}"] if view.get("until") and view["verdict"] == "held" else []
    return lines + ([f"  next: ductile job inspect {view['job']['job_id']}"] if view.get("job") else [])


@group.command("simulate")
@click.argument("plugin")
@click.argument("schedule_id", required=False)
@click.option(
    "--from", "start", default=None, help="Where to begin: 2026-03-29, 2026-03-29T01:30, 02:00. Default: now."
)
@click.option("--to", "end", help="Where to end. Default: seven days later.")
@click.option(
    "--down", multiple=True, help="A time without service, every day (02:00..05:00) or once; may be repeated."
)
@click.option("--takes", default="0s", show_default=True, help="How long each job runs; it always succeeds.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=200, show_default=True, help="How many slots to tell.")
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
    """Play a schedule through a time: what fires, what is skipped or waits and why, catch-up, changing clocks.

    The code is that of the running scheduler, on a clock that jumps. Nothing is enqueued and the service is not asked.
    Moments without an offset are on the clocks of the schedule's zone. SCHEDULE_ID may be left out if the plugin has
    only one.

    Example: ductile schedule simulate backup nightly --from 2026-03-28 --to 2026-03-31 --down 02:00..05:00
    """
    from ductile.cli.base.local_time import read_duration, read_moment, read_spans
    from ductile.cli.schedule.facts import entry_of, schedule_of
    from ductile.cli.schedule.simulate import lines, simulation_view
    from ductile.core.errors import UsageInvalid
    from ductile.engine.scheduling.simulate import Question, simulate
    from ductile.web.views.schedules import zone_of

    snapshot, schedule = schedule_of(options.chosen(config_path, config_dir), plugin, schedule_id)
    now, zone = datetime.now(UTC), zone_of(schedule)
    first = read_moment(start, "--from", zone, now=now) if start else now
    last = read_moment(end, "--to", zone, now=now) if end else first + USUAL_SIMULATION
    if not first < last <= first + LONGEST_SIMULATION:
        raise UsageInvalid("--to must come after --from, and not more than ten years later")
    entry = entry_of(snapshot, plugin, schedule)
    question = Question(
        snapshot=snapshot,
        plugin=plugin,
        schedule=schedule,
        start=first,
        end=last,
        down=read_spans(down, "--down", zone, first, last),
        takes=read_duration(takes, "--takes"),
        most=limit,
        anchored_at=entry.anchored_at if entry else None,
    )
    view = simulation_view(question, simulate(question))
    output.show(view, as_json=as_json, human=lines)


# ── changing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _changing(command: Callable[..., Any]) -> Callable[..., Any]:
    """What commands that change a schedule take."""
    for option in (options.as_json, options.dry_run, options.service, options.config):
        command = option(command)
    return click.argument("plugin")(click.argument("schedule_id")(command))


@group.command("pause")
@click.option("--reason", help="Why, for whoever wonders.")
@_changing
def pause(plugin: str, schedule_id: str, reason: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service let the slots of a schedule go by, until it is resumed.

    They never run, also not afterwards; a single moment (`at`, `after`) waits for the end of the pause. Jobs that are
    running go on. A pause survives restarts and reloads.

    Example: ductile schedule pause backup nightly --reason "the disk is being replaced"
    """
    answer = _post(plugin, schedule_id, "pause", where, dry_run=dry_run, body={"reason": reason} if reason else None)
    output.show(answer, as_json=as_json, human=_changed_lines)


@group.command("resume")
@_changing
def resume(plugin: str, schedule_id: str, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service go on with a schedule that was paused.

    Example: ductile schedule resume backup nightly
    """
    answer = _post(plugin, schedule_id, "resume", where, dry_run=dry_run)
    output.show(answer, as_json=as_json, human=_changed_lines)


def _changed_lines(answer: dict[str, Any]) -> list[str]:
    verb = "would be" if answer["dry_run"] else "is"
    already = "" if answer["changed"] else " already"
    return [f"{answer['plugin']} {answer['schedule_id']} {verb} {answer['status']}{already}"]


@group.command("run")
@click.option("--wait", "waits", is_flag=True, help="Wait until the job is over; exit 1 if it did not succeed.")
@click.option("--timeout", default="5m", show_default=True, help="How long --wait waits.")
@_changing
def run_now(
    plugin: str, schedule_id: str, waits: bool, timeout: str, dry_run: bool, as_json: bool, **where: Any
) -> int:
    """Have the running service run a schedule's command now, with its payload, outside of its slots.

    It is an ordinary job: no pause, window, breaker or `if_running` holds it, the next slot fires as it would have,
    and the job does not count for the breaker unless that applies to all jobs.

    Example: ductile schedule run backup nightly --wait
    """
    from ductile.cli.base.long_poll import job_when_over, on_record, patience

    seconds = patience(timeout)
    job = _post(plugin, schedule_id, "run", where, dry_run=dry_run)
    if waits and not dry_run:
        with on_record(job["job_id"]):
            job = job_when_over(_client(where), job["job_id"], seconds)
    output.show(job, as_json=as_json, human=_planned_lines if dry_run else _job_lines)
    return 1 if waits and not dry_run and job["status"] != "succeeded" else 0


def _job_lines(job: dict[str, Any]) -> list[str]:
    lines = [f"job {job['job_id']} ({job['plugin']}.{job['command']}): {job['status']}"]
    lines += [f"  error: {job['last_error']}"] if job.get("last_error") else []
    return [*lines, f"  next: ductile job inspect {job['job_id']}"]


def _planned_lines(answer: dict[str, Any]) -> list[str]:
    return [f"{answer['plugin']} {answer['schedule_id']}: would run {answer['plugin']}.{answer['command']} now"]


def _post(
    plugin: str, schedule_id: str, action: str, where: dict[str, Any], *, dry_run: bool, body: Any = None
) -> dict[str, Any]:
    path = f"/schedule/{quote(plugin, safe='')}/{quote(schedule_id, safe='')}/{action}"
    return _client(where).ask("POST", f"{path}?dry_run=true" if dry_run else path, body)


def _client(where: dict[str, Any]) -> "Client":
    from ductile.cli.base.connect import client

    explicit = options.chosen(where["config_path"], where["config_dir"])
    return client(explicit, where["api_url"], where["api_key"])
