"""The slots of schedules as JSON data, for the API and the CLI: why one fired or not, and the agenda of all schedules.

Reads the configuration and the ledger. Decides nothing about when a schedule fires.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Annotated, TypedDict

from attrs import frozen

from ductile.calendar.definition import After, History
from ductile.calendar.due import slots_between
from ductile.calendar.firing import Slot, Timetable, build_timetable
from ductile.calendar.reasons import SkipReason
from ductile.calendar.slots import TICK
from ductile.config.sections.schedules import build_definition, definition_hash
from ductile.config.sections.settings import Schedule
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.errors import UsageInvalid
from ductile.core.formats.json_schema import Count, Omittable, Timestamp, without_none
from ductile.explain.reason import Reason
from ductile.explain.slot import (
    SlotExplanation,
    SlotOutcomeView,
    SlotView,
    explain_planned_slot,
    explain_slot,
    next_commands,
    outcome_view,
    rows_about,
    slot_view,
)
from ductile.ledger.jobs.schedule_jobs import job_of_slot, slot_jobs
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import schedules
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry
from ductile.web.views.schedules import ScheduleStatus, find_schedule, format_trigger, get_zone, schedule_view

MAX_SLOTS, DEFAULT_SLOTS = 200, 50
"""Slots of one schedule before now, and after now."""
MAX_RANGE, DEFAULT_RANGE = timedelta(days=366), timedelta(days=1)
"""How far an agenda goes back and ahead."""


class SlotWhyView(SlotView):
    """Why a slot of a schedule fired or did not."""

    plugin: str
    schedule_id: str
    when: str
    next: Annotated[list[str], "Commands that help"]


class AgendaScheduleView(TypedDict):
    """A schedule in an agenda."""

    plugin: str
    schedule_id: str
    when: str
    timezone: str
    status: ScheduleStatus
    reason: Omittable[Annotated[str, "Why it is not scheduled"]]
    past: Annotated[Count, "Its slots before now, also those that the agenda leaves out"]
    left_out: Annotated[Count, "Older slots that the agenda leaves out"]


class AgendaSlotView(SlotOutcomeView):
    """A slot in an agenda."""

    plugin: str
    schedule_id: str
    fires_at: Annotated[Timestamp, "When a planned slot fires, after jitter and open hours"] | None


class AgendaView(TypedDict):
    """The slots of all schedules in a range of time."""

    now: Timestamp
    start: Timestamp
    end: Timestamp
    schedules: list[AgendaScheduleView]
    slots: Annotated[list[AgendaSlotView], "In order of time"]


def schedule_why(
    db: Db | None, snapshot: Snapshot, plugin: str, schedule_id: str | None, *, at: datetime, now: datetime
) -> SlotWhyView:
    """Explain the last slot of a schedule that was planned until `at`. Raises NotFound for an unknown schedule."""
    schedule = find_schedule(snapshot, plugin, schedule_id)
    if db is None:
        found = SlotExplanation(slot_at=None, verdict="unknown", why=Reason("no_ledger"))
    else:
        found = explain_slot(db, plugin, schedule, at, now, unavailable=snapshot.why_unavailable(plugin))
    view = slot_view(found, get_zone(schedule))
    return {
        "plugin": plugin,
        "schedule_id": schedule.id,
        "when": format_trigger(schedule),
        **view,
        "next": next_commands(plugin, schedule.id, found),
    }


# ── agenda ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class AgendaRange:
    """The time that an agenda covers, and the slots of one schedule that it has before and after now."""

    start: datetime
    end: datetime
    now: datetime
    limit: int = DEFAULT_SLOTS

    @classmethod
    def of(cls, start: datetime | None, end: datetime | None, *, now: datetime, limit: int) -> "AgendaRange":
        """Return the range; by default the day before and after now. Raises UsageInvalid for an invalid one."""
        first = start or min(now, end or now) - DEFAULT_RANGE
        last = end or max(now, first) + DEFAULT_RANGE
        if not first < last <= first + MAX_RANGE:
            raise UsageInvalid(
                f"the end of an agenda must be after its start, by at most {MAX_RANGE.days} days",
                hint="Choose a shorter range.",
            )
        return cls(start=first, end=last, now=now, limit=limit)


def agenda_view(db: Db | None, snapshot: Snapshot, span: AgendaRange, *, plugin: str | None = None) -> AgendaView:
    """Return the slots of the schedules of all plugins, or of one."""
    entries = {(one.plugin, one.schedule_id): one for one in (schedules.all_entries(db) if db else ())}
    heads: list[AgendaScheduleView] = []
    slots: list[AgendaSlotView] = []
    for name, configured in snapshot.config.settings.plugins.items():
        for schedule in configured.schedules if plugin in (None, name) else ():
            head, found = _of_schedule(db, snapshot, name, schedule, entries.get((name, schedule.id)), span)
            heads.append(head)
            slots += found
    return {
        "now": to_text(span.now),
        "start": to_text(span.start),
        "end": to_text(span.end),
        "schedules": heads,
        "slots": sorted(slots, key=lambda slot: slot.get("fires_at") or slot["slot_at"] or ""),
    }


def _of_schedule(
    db: Db | None, snapshot: Snapshot, plugin: str, schedule: Schedule, entry: ScheduleEntry | None, span: AgendaRange
) -> tuple[AgendaScheduleView, list[AgendaSlotView]]:
    shown, zone = schedule_view(snapshot, plugin, schedule, entry), get_zone(schedule)
    known = entry if entry and entry.definition_hash == definition_hash(schedule) else None
    past = _read_past(db, plugin, schedule, known, span, snapshot.why_unavailable(plugin)) if db and known else _Past()
    start = max(span.now, span.start)
    coming = upcoming_slots(plugin, schedule, known, start, span.end, span.limit)
    decided = {found.slot_at for found in past.slots}
    planned = [slot for slot in coming if slot.at not in decided] if shown["status"] == "scheduled" else []
    head: AgendaScheduleView = {
        "plugin": plugin,
        "schedule_id": schedule.id,
        "when": shown["when"],
        "timezone": shown["timezone"],
        "status": shown["status"],
        "reason": shown.get("reason"),
        "past": past.count,
        "left_out": past.count - len(past.slots),
    }
    outcomes: list[tuple[SlotOutcomeView, str | None]] = [(outcome_view(found, zone), None) for found in past.slots]
    for slot in planned:
        explained = _coming(slot, known)
        fires_at = to_text(slot.fire_at) if explained.verdict == "planned" else None
        outcomes.append((outcome_view(explained, zone), fires_at))
    return without_none(head), [
        {"plugin": plugin, "schedule_id": schedule.id, **outcome, "fires_at": fires_at}
        for outcome, fires_at in outcomes
    ]


@frozen
class _Past:
    """The explained slots before now, and the number of all of them."""

    slots: tuple[SlotExplanation, ...] = ()
    count: int = 0


def _read_past(
    db: Db, plugin: str, schedule: Schedule, entry: ScheduleEntry, span: AgendaRange, unavailable: str | None
) -> _Past:
    if entry.anchored_at is None:
        return _Past()
    table = build_timetable(build_definition(plugin, schedule), History(anchored_at=entry.anchored_at))
    moments, count = _moments(table, entry, span)
    if not moments:
        return _Past(count=count)
    jobs, rows = slot_jobs(db, plugin, schedule.id, moments[0], span.end), rows_about(db, plugin, schedule.id)
    explained = (
        explain_planned_slot(
            db, entry, table, rows, moment, job_of_slot(jobs, moment), span.now, unavailable=unavailable
        )
        for moment in moments
    )
    return _Past(tuple(explained), count)


def _moments(table: Timetable, entry: ScheduleEntry, span: AgendaRange) -> tuple[list[datetime], int]:
    """Return the latest slots that were planned before now, oldest first, and the number of all of them."""
    start, end = max(span.start, table.begins_at), min(span.end, span.now + TICK)
    if isinstance(table.definition.when, After):
        # Its slots count from each start of the service; the ledger has only the last one.
        found = [at for at in (entry.last_slot_at,) if at is not None and start <= at < end]
        return found, len(found)
    newest = list(islice(takewhile(lambda at: at >= start, _backwards(table, end)), span.limit + 1))
    waiting = sum(table.planned(at) > span.now for at in newest)  # jitter moves it after now
    count = table.slots.count(start - TICK, end - TICK) - waiting if start < end else 0
    return [at for at in newest if table.planned(at) <= span.now][: span.limit][::-1], count


def _backwards(table: Timetable, end: datetime) -> Iterator[datetime]:
    """Yield the slots before `end`, latest first."""
    while (at := table.slots.before(end)) is not None:
        yield at
        end = at


def _coming(slot: Slot, entry: ScheduleEntry | None) -> SlotExplanation:
    """Return whether a slot after now fires on time, or is held by the breaker or the health that hold earlier ones."""
    reason = entry.held_reason if entry else None
    until = entry.next_run_at if entry and reason == SkipReason.CIRCUIT_OPEN else None
    if reason == SkipReason.PLUGIN_UNHEALTHY or (until and slot.fire_at < until):
        why = Reason("slot_held", {"reason": reason})
        return SlotExplanation(slot_at=slot.at, verdict="held", why=why, skip_reason=reason, until=until)
    why = Reason("slot_ahead", {"slot_at": to_text(slot.at)})
    return SlotExplanation(slot_at=slot.at, verdict="planned", why=why, until=slot.fire_at)


def upcoming_slots(
    plugin: str, schedule: Schedule, entry: ScheduleEntry | None, start: datetime, end: datetime, limit: int
) -> Iterable[Slot]:
    """Return the next slots in [start, end), assuming that nothing blocks them. `start` is not before now."""
    if schedule.after is not None:  # the start time is known only to the running service
        at = entry.next_run_at if entry else None
        return [Slot(at=at, fire_at=at)] if at and start < at < end else []
    history = History(
        anchored_at=entry.anchored_at if entry and entry.anchored_at else start,
        last_slot_at=entry.last_slot_at if entry else None,
        last_fired_at=entry.last_fired_at if entry else None,
        exhausted=entry is not None and entry.status is EntryStatus.EXHAUSTED,
    )
    return slots_between(build_definition(plugin, schedule), history, start, end, limit)
