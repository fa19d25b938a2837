"""Schedules for commands: the next runs, and the report of a simulation, as JSON and as text.

Reads the configuration and the ledger. Decides nothing about when a schedule fires.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ductile.calendar.firing import GRACE
from ductile.calendar.zones import format_local
from ductile.cli.base import output
from ductile.cli.base.connect import load_snapshot, read_ledger
from ductile.config.sections.schedules import definition_hash
from ductile.config.sections.settings import Schedule
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.units import format_duration
from ductile.explain.sentences import skip_message
from ductile.ledger.tables import schedules
from ductile.ledger.tables.schedules import ScheduleEntry
from ductile.web.views.agenda import upcoming_slots
from ductile.web.views.schedules import find_schedule, format_trigger, get_zone, schedule_view

if TYPE_CHECKING:
    from ductile.engine.scheduling.simulate import SimulatedEvent, Simulation, SimulationRequest

END_OF_TIME = datetime.max.replace(tzinfo=UTC)
SECOND = timedelta(seconds=1)


def load_schedule(explicit: Path | None, plugin: str, schedule_id: str | None) -> tuple[Snapshot, Schedule]:
    """Load the configuration and return it with the schedule. Raise NotFound if it does not exist."""
    snapshot = load_snapshot(explicit)
    return snapshot, find_schedule(snapshot, plugin, schedule_id)


def current_entry(snapshot: Snapshot, plugin: str, schedule: Schedule) -> ScheduleEntry | None:
    """Return the ledger entry of the schedule; None if its definition has changed since."""
    entry = read_ledger(snapshot, schedules.get, plugin, schedule.id)
    return entry if entry and entry.definition_hash == definition_hash(schedule) else None


def upcoming_view(snapshot: Snapshot, plugin: str, schedule: Schedule, count: int, *, now: datetime) -> dict[str, Any]:
    """Return the next `count` runs, assuming that nothing blocks them."""
    entry, zone = current_entry(snapshot, plugin, schedule), get_zone(schedule)
    shown: dict[str, Any] = {**schedule_view(snapshot, plugin, schedule, entry)}
    if schedule.after is not None:
        shown.setdefault("reason", "relative to each start of the service")
    head = ("plugin", "schedule_id", "when", "timezone", "status", "reason")
    return {
        **{name: shown[name] for name in head if name in shown},
        "runs": [
            {
                "slot_at": to_text(slot.at),
                "fires_at": to_text(slot.fire_at),
                "fires_local": format_local(slot.fire_at, zone),
            }
            for slot in upcoming_slots(plugin, schedule, entry, now, END_OF_TIME, count)
        ],
    }


# ── simulation ────────────────────────────────────────────────────────────────────────────────────────────────────────


def simulation_view(question: "SimulationRequest", simulation: "Simulation") -> dict[str, Any]:
    simulated = simulation.events
    return {
        "plugin": question.plugin,
        "schedule_id": question.schedule.id,
        "when": format_trigger(question.schedule),
        "timezone": question.schedule.timezone,
        "from": to_text(question.start),
        "to": to_text(question.end),
        "first_seen_at": to_text(question.anchored_at or question.start),
        "complete": simulation.is_complete,
        "fired": sum(event.kind == "fired" for event in simulated),
        "skipped": sum(event.count for event in simulated if event.kind == "skipped"),
        "events": [_event(event, question) for event in simulated],
    }


def _event(event: "SimulatedEvent", question: "SimulationRequest") -> dict[str, Any]:
    zone = get_zone(question.schedule)
    content = {
        "at": to_text(event.at),
        "local": format_local(event.at, zone),
        "event": event.kind,
        "slot_at": to_text(event.slot_at) if event.slot_at else None,
        "slot_local": format_local(event.slot_at, zone) if event.slot_at else None,
        "late": format_duration(event.delay // SECOND * SECOND) if event.delay > GRACE else None,
        "count": event.count if event.kind == "skipped" else None,
        "reason": event.reason,
        "words": skip_message(event.reason) if event.reason else None,
        "until": to_text(event.until) if event.until else None,
        "utc_offsets": [_offset(offset) for offset in event.offsets] if event.offsets else None,
    }
    return {name: value for name, value in content.items() if value is not None}


def _offset(offset: timedelta) -> str:
    minutes = offset // timedelta(minutes=1)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def simulation_lines(view: dict[str, Any]) -> Iterator[str]:
    yield f"{view['plugin']} {view['schedule_id']}: {view['when']}, from {view['from']} to {view['to']}"
    yield from (f"  {line}" for line in output.table([_row(event) for event in view["events"]]))
    yield f"{output.format_count(view['fired'], 'run')}, {output.format_count(view['skipped'], 'slot')} skipped"
    if not view["complete"]:
        yield "incomplete: raise --limit, or choose a shorter period"


def _row(event: dict[str, Any]) -> tuple[str, ...]:
    local = event["local"]
    return f"{local[:10]} {local[11:19]} {local[19:]}", f"{event['at'][:19]}Z", _description(event)


def _description(event: dict[str, Any]) -> str:
    match event["event"]:
        case "fired":
            return f"fired{', late by ' + event['late'] + ', slot ' + event['slot_local'] if 'late' in event else ''}"
        case "skipped":
            return f"skipped {event['count']}: {event['reason']}, {event['words']}"
        case "held":
            return f"waiting: {event['reason']}" + (f", until {event['until'][:19]}Z" if "until" in event else "")
        case "clocks":
            return "clock change: " + " → ".join(event["utc_offsets"])
        case kind:
            return f"service {kind}"
