"""Schedules and breakers as JSON data, for the API and the CLI.

Synchronous, so that the CLI can show the same data without a running service. Computes no due times: those are the
scheduler's, read from the ledger.
"""

from collections.abc import Iterable
from datetime import tzinfo
from typing import Annotated, Literal, TypedDict

from ductile.calendar.zones import format_local
from ductile.config.sections.relay import BREAKER
from ductile.config.sections.schedules import HOST_ZONE, build_definition, definition_hash
from ductile.config.sections.settings import PluginEntry, Schedule
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text, to_text_or_none
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean
from ductile.core.formats.json_schema import Count, Omittable, Timestamp, without_none
from ductile.core.model import Breaker, BreakerState
from ductile.core.units import format_duration
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers
from ductile.ledger.tables.breakers import BreakerTransition
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry
from ductile.pipeline.compile.plan import RELAY

Mode = Literal["every", "cron", "at", "after"]
ScheduleStatus = Literal["scheduled", "paused", "exhausted", "invalid"]
MODES: tuple[Mode, ...] = ("every", "cron", "at", "after")
NOT_LOADED = "not loaded by a service yet"
CHANGED = "changed since a service last loaded it"


class _ScheduleTimes(TypedDict, total=False):
    next_run_at: Omittable[Timestamp]
    next_run_local: Omittable[str]
    held_reason: Omittable[str]
    last_fired_at: Omittable[Timestamp]
    last_fired_local: Omittable[str]
    last_slot_at: Omittable[Timestamp]
    last_job_id: Omittable[str]
    last_success_at: Omittable[Timestamp]
    last_success_job_id: Omittable[str]


class ScheduleView(_ScheduleTimes):
    plugin: str
    schedule_id: str
    command: str
    mode: Mode
    when: str
    status: ScheduleStatus
    timezone: str
    reason: Omittable[str]


class BreakerView(TypedDict):
    command: str
    state: BreakerState
    failure_count: Count
    threshold: Count
    opened_at: Omittable[Timestamp]
    probe_from: Omittable[Timestamp]
    probe_job_id: Omittable[str]
    last_failure_at: Omittable[Timestamp]
    last_job_id: Omittable[str]


class ListedBreakerView(BreakerView):
    plugin: str


class TransitionView(TypedDict):
    id: str
    from_state: str | None
    to_state: str
    failure_count: Count
    reason: str | None
    job_id: str | None
    actor: Annotated[str, "Who reset it; null for other changes"] | None
    created_at: Timestamp


class BreakerHistoryView(BreakerView):
    transitions: list[TransitionView]


class PluginBreakersView(TypedDict):
    plugin: str
    breakers: list[BreakerHistoryView]


def schedules_view(snapshot: Snapshot, entries: Iterable[ScheduleEntry]) -> list[ScheduleView]:
    """Return every configured schedule, in the order of the configuration."""
    known = {(entry.plugin, entry.schedule_id): entry for entry in entries}
    return [
        schedule_view(snapshot, plugin, schedule, known.get((plugin, schedule.id)))
        for plugin, entry in snapshot.config.settings.plugins.items()
        for schedule in entry.schedules
    ]


def find_schedule(snapshot: Snapshot, plugin: str, schedule_id: str | None) -> Schedule:
    """Return the schedule with this id; without an id, the only schedule of the plugin.

    Raises NotFound, or UsageInvalid if the plugin has several schedules and no id is given.
    """
    entry = snapshot.config.settings.plugins.get(plugin)
    if entry is None:
        snapshot.plugin(plugin)  # raises the error for an unknown name
    schedules = {schedule.id: schedule for schedule in entry.schedules} if entry else {}
    ids = ", ".join(schedules)
    if schedule_id is None and len(schedules) == 1:
        return next(iter(schedules.values()))
    if schedule_id in schedules:
        return schedules[schedule_id]
    if not schedules:
        raise NotFound(f"plugin {plugin} has no schedules", hint=f"Add one under plugins.{plugin}.schedules.")
    if schedule_id is None:
        raise UsageInvalid(f"plugin {plugin} has several schedules", hint=f"Select one of: {ids}.")
    close = did_you_mean(schedule_id, schedules)
    raise NotFound(f"plugin {plugin} has no schedule {schedule_id[:80]!r}{close}", hint=f"Its schedules: {ids}.")


def format_trigger(schedule: Schedule) -> str:
    """Return `every 5m`, `cron 0 2 * * *`, `at 2026-03-01T07:00:00Z` or `after 10m`."""
    if schedule.every is not None:
        return f"every {format_duration(schedule.every)}"
    if schedule.at is not None:
        return f"at {to_text(schedule.at).replace('.000000Z', 'Z')}"
    return f"after {format_duration(schedule.after)}" if schedule.after is not None else f"cron {schedule.cron}"


def get_zone(schedule: Schedule) -> tzinfo:
    return build_definition("", schedule).zone


def schedule_view(snapshot: Snapshot, plugin: str, schedule: Schedule, entry: ScheduleEntry | None) -> ScheduleView:
    """Return a schedule with its ledger state. Unknown members are omitted."""
    status, reason = _status(snapshot, plugin, schedule, entry)
    view: ScheduleView = {
        "plugin": plugin,
        "schedule_id": schedule.id,
        "command": schedule.command,
        "mode": next(mode for mode in MODES if getattr(schedule, mode) is not None),
        "when": format_trigger(schedule),
        "status": status,
        "reason": reason,
        "timezone": schedule.timezone or HOST_ZONE.tzname(None),
    }
    if entry is not None and reason != CHANGED:
        view = {**view, **_times(entry, get_zone(schedule), is_scheduled=status == "scheduled")}
    return without_none(view)


def _status(
    snapshot: Snapshot, plugin: str, schedule: Schedule, entry: ScheduleEntry | None
) -> tuple[ScheduleStatus, str | None]:
    """Return the status of a schedule, and the reason for it if there is one."""
    unavailable = snapshot.why_unavailable(plugin)
    if unavailable is not None:
        return "invalid", f"plugin {plugin} {unavailable}"
    if entry is None:
        return "scheduled", NOT_LOADED
    if entry.status is EntryStatus.PAUSED_MANUAL:
        return "paused", entry.reason
    if entry.definition_hash != definition_hash(schedule):
        return "scheduled", CHANGED
    if entry.status is EntryStatus.EXHAUSTED:
        return "exhausted", "one_shot_exhausted"
    return "scheduled", None


def _times(entry: ScheduleEntry, zone: tzinfo, *, is_scheduled: bool) -> _ScheduleTimes:
    next_run_at = entry.next_run_at if is_scheduled else None
    return {
        "next_run_at": to_text_or_none(next_run_at),
        "next_run_local": format_local(next_run_at, zone) if next_run_at else None,
        "held_reason": entry.held_reason if is_scheduled else None,
        "last_fired_at": to_text_or_none(entry.last_fired_at),
        "last_fired_local": format_local(entry.last_fired_at, zone) if entry.last_fired_at else None,
        "last_slot_at": to_text_or_none(entry.last_slot_at),
        "last_job_id": entry.last_job_id,
        "last_success_at": to_text_or_none(entry.last_success_at),
        "last_success_job_id": entry.last_success_job_id,
    }


def breakers_view(
    db: Db, snapshot: Snapshot, plugin: str, command: str | None, *, transitions: int
) -> PluginBreakersView:
    """Return the breakers of a plugin's scheduled or counted commands, each with its latest transitions."""
    views: list[BreakerHistoryView] = []
    for name in _breaker_commands(db, snapshot, plugin, command):
        history = breakers.history(db, plugin, name, limit=transitions)
        view = _breaker_view(snapshot, breakers.get(db, plugin, name))
        views.append({**view, "transitions": [_transition_view(transition) for transition in history]})
    return {"plugin": plugin, "breakers": views}


def all_breakers_view(db: Db, snapshot: Snapshot) -> list[ListedBreakerView]:
    """Return every breaker with a recorded failure or success, by plugin and command."""
    return [{"plugin": breaker.plugin, **_breaker_view(snapshot, breaker)} for breaker in breakers.all_breakers(db)]


def find_resettable(db: Db, snapshot: Snapshot, plugin: str, command: str | None) -> list[Breaker]:
    """Return the breakers of a plugin, or of one command, that a reset would change."""
    found = [breakers.get(db, plugin, name) for name in _breaker_commands(db, snapshot, plugin, command)]
    return [breaker for breaker in found if breaker.state is not BreakerState.CLOSED or breaker.failure_count]


def _breaker_commands(db: Db, snapshot: Snapshot, plugin: str, command: str | None) -> list[str]:
    if plugin == RELAY:
        return _relay_instances(db, snapshot, command)
    entry = snapshot.config.settings.plugins.get(plugin)
    if entry is None or command is not None:
        configured = snapshot.plugin(plugin)  # raises the error for an unknown name
        if command is not None:
            return [configured.command(command).name]
    scheduled = [schedule.command for schedule in entry.schedules] if entry else []
    return sorted({*scheduled, *(breaker.command for breaker in breakers.all_breakers(db) if breaker.plugin == plugin)})


def _relay_instances(db: Db, snapshot: Snapshot, name: str | None) -> list[str]:
    """Return the relay instances that have a breaker: a relay has one breaker per instance instead of per command."""
    names = {instance.name for instance in snapshot.config.settings.instances}
    if name is None:
        return sorted({*names, *(breaker.command for breaker in breakers.all_breakers(db) if breaker.plugin == RELAY)})
    if name not in names:
        close = did_you_mean(name, names)
        raise NotFound(
            f"instance {name[:80]!r} does not exist{close}", hint=f"Known instances: {', '.join(sorted(names))}."
        )
    return [name]


def _breaker_view(snapshot: Snapshot, breaker: Breaker) -> BreakerView:
    entry = snapshot.config.settings.plugins.get(breaker.plugin, PluginEntry())
    rules = BREAKER if breaker.plugin == RELAY else entry.circuit_breaker
    opened_at = breaker.opened_at if breaker.state is BreakerState.OPEN else None
    view: BreakerView = {
        "command": breaker.command,
        "state": breaker.state,
        "failure_count": breaker.failure_count,
        "threshold": rules.threshold,
        "opened_at": to_text_or_none(breaker.opened_at),
        "probe_from": to_text_or_none(opened_at + rules.reset_after) if opened_at else None,
        "probe_job_id": breaker.probe_job_id,
        "last_failure_at": to_text_or_none(breaker.last_failure_at),
        "last_job_id": breaker.last_job_id,
    }
    return without_none(view)


def _transition_view(transition: BreakerTransition) -> TransitionView:
    return {
        "id": transition.id,
        "from_state": transition.from_state,
        "to_state": transition.to_state,
        "failure_count": transition.failure_count,
        "reason": transition.reason,
        "job_id": transition.job_id,
        "actor": transition.actor,
        "created_at": to_text(transition.created_at),
    }
