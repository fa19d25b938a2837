"""Schedules and breakers as the JSON that the API and the commands answer with.

Without the event loop, so that commands show the same while no service runs. What is shown comes from a configuration
and from the ledger; nothing is reckoned here that the scheduler has decided.
"""

from collections.abc import Iterable
from datetime import datetime, tzinfo
from typing import Any

from ductile.calendar.zones import local_text
from ductile.config.sections.relay import BREAKER
from ductile.config.sections.schedules import HOST_ZONE, definition_hash, definition_of
from ductile.config.sections.settings import PluginEntry, Schedule
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean
from ductile.core.model import Breaker, BreakerState
from ductile.core.units import format_duration
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers
from ductile.ledger.tables.breakers import Transition
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry
from ductile.pipeline.compile.plan import RELAY

MODES = ("every", "cron", "at", "after")
UNSEEN = "no service has seen it yet"
EDITED = "edited since a service last saw it"


def schedules_view(snapshot: Snapshot, entries: Iterable[ScheduleEntry]) -> list[dict[str, Any]]:
    """Every schedule that is written, in the order of the configuration."""
    known = {(entry.plugin, entry.schedule_id): entry for entry in entries}
    return [
        schedule_view(snapshot, plugin, schedule, known.get((plugin, schedule.id)))
        for plugin, entry in snapshot.config.settings.plugins.items()
        for schedule in entry.schedules
    ]


def written_schedule(snapshot: Snapshot, plugin: str, schedule_id: str | None) -> Schedule:
    """The schedule of that name; without one, the only one that the plugin has."""
    entry = snapshot.config.settings.plugins.get(plugin)
    if entry is None:
        snapshot.lane(plugin)  # says what is wrong with the name
    written = {schedule.id: schedule for schedule in entry.schedules} if entry else {}
    ids = ", ".join(written)
    if schedule_id is None and len(written) == 1:
        return next(iter(written.values()))
    if schedule_id in written:
        return written[schedule_id]
    if not written:
        raise NotFound(f"plugin {plugin} has no schedules", hint=f"write some under plugins.{plugin}.schedules")
    if schedule_id is None:
        raise UsageInvalid(f"plugin {plugin} has several schedules", hint=f"name one of them: {ids}")
    close = did_you_mean(schedule_id, written)
    raise NotFound(f"plugin {plugin} has no schedule {schedule_id[:80]!r}{close}", hint=f"it has {ids}")


def when_text(schedule: Schedule) -> str:
    """`every 5m`, `cron 0 2 * * *`, `at 2026-03-01T07:00:00Z` or `after 10m`."""
    if schedule.every is not None:
        return f"every {format_duration(schedule.every)}"
    if schedule.at is not None:
        return f"at {to_text(schedule.at).replace('.000000Z', 'Z')}"
    return f"after {format_duration(schedule.after)}" if schedule.after is not None else f"cron {schedule.cron}"


def zone_of(schedule: Schedule) -> tzinfo:
    return definition_of("", schedule).zone


def schedule_view(snapshot: Snapshot, plugin: str, schedule: Schedule, entry: ScheduleEntry | None) -> dict[str, Any]:
    """One schedule and what the ledger remembers of it; what is not known is left out."""
    status, reason = _status(snapshot, plugin, schedule, entry)
    content: dict[str, Any] = {
        "plugin": plugin,
        "schedule_id": schedule.id,
        "command": schedule.command,
        "mode": next(mode for mode in MODES if getattr(schedule, mode) is not None),
        "when": when_text(schedule),
        "status": status,
        "reason": reason,
        "timezone": schedule.timezone or HOST_ZONE.tzname(None),
    }
    if entry is not None and reason != EDITED:
        content |= _times(entry, zone_of(schedule), is_coming=status == "scheduled")
    return {name: value for name, value in content.items() if value is not None}


def _status(snapshot: Snapshot, plugin: str, schedule: Schedule, entry: ScheduleEntry | None) -> tuple[str, str | None]:
    """In one word whether it will fire; and why not, or what else there is to know."""
    unavailable = snapshot.why_unavailable(plugin)
    if unavailable is not None:
        return "invalid", f"plugin {plugin} {unavailable}"
    if entry is None:
        return "scheduled", UNSEEN
    if entry.status is EntryStatus.PAUSED_MANUAL:
        return "paused", entry.reason
    if entry.definition_hash != definition_hash(schedule):
        return "scheduled", EDITED
    if entry.status is EntryStatus.EXHAUSTED:
        return "exhausted", "one_shot_exhausted"
    return "scheduled", None


def _times(entry: ScheduleEntry, zone: tzinfo, *, is_coming: bool) -> dict[str, Any]:
    coming = entry.next_run_at if is_coming else None
    return {
        "next_run_at": _moment(coming),
        "next_run_local": local_text(coming, zone) if coming else None,
        "held_reason": entry.held_reason if is_coming else None,
        "last_fired_at": _moment(entry.last_fired_at),
        "last_fired_local": local_text(entry.last_fired_at, zone) if entry.last_fired_at else None,
        "last_slot_at": _moment(entry.last_slot_at),
        "last_job_id": entry.last_job_id,
        "last_success_at": _moment(entry.last_success_at),
        "last_success_job_id": entry.last_success_job_id,
    }


def breakers_view(db: Db, snapshot: Snapshot, plugin: str, command: str | None, *, transitions: int) -> dict[str, Any]:
    """The breaker of every command of the plugin that is scheduled or was counted, each with its latest history."""
    shown = []
    for name in _commands(db, snapshot, plugin, command):
        history = breakers.history(db, plugin, name, limit=transitions)
        view = _breaker(snapshot, breakers.get(db, plugin, name))
        shown.append({**view, "transitions": [_transition(one) for one in history]})
    return {"plugin": plugin, "breakers": shown}


def all_breakers_view(db: Db, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Every breaker that has counted something, by plugin and command."""
    return [{"plugin": one.plugin, **_breaker(snapshot, one)} for one in breakers.all_breakers(db)]


def resettable(db: Db, snapshot: Snapshot, plugin: str, command: str | None) -> list[Breaker]:
    """The breakers of the plugin, or of its command, that a reset changes."""
    found = [breakers.get(db, plugin, name) for name in _commands(db, snapshot, plugin, command)]
    return [one for one in found if one.state is not BreakerState.CLOSED or one.failure_count]


def _commands(db: Db, snapshot: Snapshot, plugin: str, command: str | None) -> list[str]:
    if plugin == RELAY:
        return _instances(db, snapshot, command)
    entry = snapshot.config.settings.plugins.get(plugin)
    if entry is None or command is not None:
        lane = snapshot.lane(plugin)  # says what is wrong with the name
        if command is not None:
            return [lane.command(command).name]
    scheduled = [schedule.command for schedule in entry.schedules] if entry else []
    return sorted({*scheduled, *(one.command for one in breakers.all_breakers(db) if one.plugin == plugin)})


def _instances(db: Db, snapshot: Snapshot, name: str | None) -> list[str]:
    """A relay has no commands; each instance has a breaker of its own."""
    written = {instance.name for instance in snapshot.config.settings.instances}
    if name is None:
        return sorted({*written, *(one.command for one in breakers.all_breakers(db) if one.plugin == RELAY)})
    if name not in written:
        close = did_you_mean(name, written)
        raise NotFound(f"there is no instance {name[:80]!r}{close}", hint=f"known: {', '.join(sorted(written))}")
    return [name]


def _breaker(snapshot: Snapshot, breaker: Breaker) -> dict[str, Any]:
    entry = snapshot.config.settings.plugins.get(breaker.plugin, PluginEntry())
    rules = BREAKER if breaker.plugin == RELAY else entry.circuit_breaker
    opened_at = breaker.opened_at if breaker.state is BreakerState.OPEN else None
    content = {
        "command": breaker.command,
        "state": str(breaker.state),
        "failure_count": breaker.failure_count,
        "threshold": rules.threshold,
        "opened_at": _moment(breaker.opened_at),
        "probe_from": _moment(opened_at + rules.reset_after) if opened_at else None,
        "probe_job_id": breaker.probe_job_id,
        "last_failure_at": _moment(breaker.last_failure_at),
        "last_job_id": breaker.last_job_id,
    }
    return {name: value for name, value in content.items() if value is not None}


def _transition(one: Transition) -> dict[str, Any]:
    return {
        "id": one.id,
        "from_state": one.from_state,
        "to_state": one.to_state,
        "failure_count": one.failure_count,
        "reason": one.reason,
        "job_id": one.job_id,
        "created_at": to_text(one.created_at),
    }


def _moment(moment: datetime | None) -> str | None:
    return to_text(moment) if moment else None
