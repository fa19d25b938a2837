"""The story of a simulated schedule, as JSON and for people."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from ductile.calendar.firing import GRACE
from ductile.calendar.zones import local_text
from ductile.cli.base import output
from ductile.core.clock import to_text
from ductile.core.units import format_duration
from ductile.engine.scheduling.simulate import Happening, Question, Simulation
from ductile.explain.slot import words_for
from ductile.web.views.schedules import when_text, zone_of

SECOND = timedelta(seconds=1)


def simulation_view(question: Question, simulation: Simulation) -> dict[str, Any]:
    story = simulation.happenings
    return {
        "plugin": question.plugin,
        "schedule_id": question.schedule.id,
        "when": when_text(question.schedule),
        "timezone": question.schedule.timezone,
        "from": to_text(question.start),
        "to": to_text(question.end),
        "first_seen_at": to_text(question.anchored_at or question.start),
        "complete": simulation.is_complete,
        "fired": sum(one.kind == "fired" for one in story),
        "skipped": sum(one.count for one in story if one.kind == "skipped"),
        "events": [_event(one, question) for one in story],
    }


def _event(one: Happening, question: Question) -> dict[str, Any]:
    zone = zone_of(question.schedule)
    content = {
        "at": to_text(one.at),
        "local": local_text(one.at, zone),
        "event": one.kind,
        "slot_at": to_text(one.slot_at) if one.slot_at else None,
        "slot_local": local_text(one.slot_at, zone) if one.slot_at else None,
        "late": format_duration(one.late // SECOND * SECOND) if one.late > GRACE else None,
        "count": one.count if one.kind == "skipped" else None,
        "reason": one.reason,
        "words": words_for(one.reason) if one.reason else None,
        "until": to_text(one.until) if one.until else None,
        "utc_offsets": [_offset(offset) for offset in one.offsets] if one.offsets else None,
    }
    return {name: value for name, value in content.items() if value is not None}


def _offset(offset: timedelta) -> str:
    minutes = offset // timedelta(minutes=1)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def lines(view: dict[str, Any]) -> Iterator[str]:
    yield f"{view['plugin']} {view['schedule_id']}: {view['when']}, from {view['from']} to {view['to']}"
    yield from (f"  {line}" for line in output.table([_row(event) for event in view["events"]]))
    yield f"{view['fired']} runs, {view['skipped']} slots skipped"
    if not view["complete"]:
        yield "cut short: there is more to tell; raise --limit, or choose a shorter time"


def _row(event: dict[str, Any]) -> tuple[str, ...]:
    local = event["local"]
    return f"{local[:10]} {local[11:19]} {local[19:]}", f"{event['at'][:19]}Z", _words(event)


def _words(event: dict[str, Any]) -> str:
    match event["event"]:
        case "fired":
            return f"fired{', late by ' + event['late'] + ', slot ' + event['slot_local'] if 'late' in event else ''}"
        case "skipped":
            return f"skipped {event['count']}: {event['reason']}, {event['words']}"
        case "held":
            return f"waits: {event['reason']}" + (f", until {event['until'][:19]}Z" if "until" in event else "")
        case "clocks":
            return "clocks change: " + " → ".join(event["utc_offsets"])
        case kind:
            return f"service {kind}"
