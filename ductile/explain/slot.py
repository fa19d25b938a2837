"""What happened to one slot of a schedule: its job, or the decision that the journal has instead.

Reads the ledger and the definition of the schedule. Decides nothing about slots itself.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Annotated, Any, Literal, TypedDict, cast

from attrs import evolve, frozen

from ductile.calendar.cron import CronLine
from ductile.calendar.daylight_saving import CronSlots
from ductile.calendar.definition import After, Definition, History
from ductile.calendar.due import MAX_CATCH_UPS
from ductile.calendar.firing import Timetable, build_timetable
from ductile.calendar.reasons import SkipReason
from ductile.calendar.slots import TICK
from ductile.calendar.zones import format_local
from ductile.config.sections.schedules import build_definition, definition_hash
from ductile.config.sections.settings import Schedule
from ductile.core.clock import from_text, to_text
from ductile.core.formats.json_schema import OPEN, Timestamp
from ductile.core.model import NO_DATA, JobStatus
from ductile.explain.reason import Reason
from ductile.ledger.admin import service_log
from ductile.ledger.jobs import schedule_jobs
from ductile.ledger.reports import job_details
from ductile.ledger.reports.pagination import NEWEST
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal, schedules
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry

ON_TIME = timedelta(seconds=1)
PAGE = 500
MAX_ROWS = 50_000
SlotVerdict = Literal["fired", "skipped", "held", "paused", "not_due", "undecided", "unknown", "planned"]


class SlotJobView(TypedDict):
    """The job of a slot."""

    job_id: str
    status: JobStatus
    created_at: Timestamp


class SlotRowView(TypedDict):
    """A journal row about a slot. Its other members are the data of the kind."""

    seq: int
    at: Timestamp
    local: str
    kind: str


class SlotOutcomeView(TypedDict):
    """What happened to a slot, or will happen."""

    slot_at: Timestamp | None
    slot_local: Annotated[str, "In the time zone of the schedule"] | None
    verdict: SlotVerdict
    reason: Annotated[str, "Code of the decision of the scheduler"] | None
    code: Annotated[str, "Code of the explanation"]
    words: Annotated[str, "The explanation as a sentence"]
    job: SlotJobView | None
    until: Annotated[Timestamp, "The time until which it waits"] | None


class SlotView(SlotOutcomeView):
    """What happened to a slot, with the journal rows about it."""

    journal: Annotated[list[Annotated[SlotRowView, OPEN]], "The journal rows about the slot, oldest first"]
    story: Annotated[list[Annotated[SlotRowView, OPEN]], "Alias of `journal`"]


@frozen(kw_only=True)
class SlotExplanation:
    """What happened to a slot, in one word. `why` has its code and sentence."""

    slot_at: datetime | None
    verdict: SlotVerdict
    why: Reason
    skip_reason: str | None = None
    """The code of the scheduler's decision, if it made one."""
    job: SlotJobView | None = None
    until: datetime | None = None
    rows: tuple[journal.JournalEntry, ...] = ()
    """The journal rows about the slot, oldest first."""


def explain_slot(
    db: Db, plugin: str, schedule: Schedule, at: datetime, now: datetime, *, unavailable: str | None = None
) -> SlotExplanation:
    """Explain the last slot that was planned until `at`. `unavailable` is why the plugin cannot run now."""
    entry = schedules.get(db, plugin, schedule.id)
    if entry is None or entry.anchored_at is None:
        return _unknown("schedule_not_loaded")
    if entry.definition_hash != definition_hash(schedule):
        return _unknown("schedule_edited")
    if entry.held_reason == SkipReason.SCHEDULE_FAULT and (faulty := _faulty(db, entry, at)):
        return faulty
    definition = build_definition(plugin, schedule)
    table = build_timetable(definition, History(anchored_at=entry.anchored_at))
    rows = rows_about(db, plugin, schedule.id)
    slot_at = _slot(table, definition, entry, rows, at)
    excluded_at = _excluded(definition, at)
    if excluded_at and excluded_at >= entry.anchored_at and (slot_at is None or slot_at < excluded_at):
        return _on_excluded_day(table, excluded_at)
    if slot_at is None:
        return _not_due(table, entry, at)
    job_id = schedule_jobs.find_slot_job(db, plugin, schedule.id, slot_at)
    return explain_planned_slot(db, entry, table, rows, slot_at, job_id, now, unavailable=unavailable)


def explain_planned_slot(
    db: Db,
    entry: ScheduleEntry,
    table: Timetable,
    rows: list[journal.JournalEntry],
    slot_at: datetime,
    job_id: str | None,
    now: datetime,
    *,
    unavailable: str | None = None,
) -> SlotExplanation:
    """Explain a slot of the timetable. `rows` are those of `rows_about`, `job_id` is the job of the slot, if any."""
    if job_id is not None:
        return _fired(db, rows, slot_at, job_id)
    if slot_at < table.begins_at and not isinstance(table.definition.when, After):
        return _unknown("before_schedule", slot_at, {"since": to_text(table.begins_at)})
    if slot_at > now:
        why = Reason("slot_ahead", {"slot_at": to_text(slot_at)})
        reason = SkipReason.NOT_DUE
        return SlotExplanation(slot_at=slot_at, verdict="not_due", why=why, skip_reason=reason, until=slot_at)
    found = _decided(table, entry, slot_at, rows, now)
    is_missed = found.skip_reason == SkipReason.MISSED or found.why.code == "not_checked"
    if is_missed and (why_missed := _why_missed(db, entry.plugin, slot_at)):
        return evolve(found, why=why_missed)
    if found.verdict == "undecided" and unavailable is not None:
        data = {"plugin": entry.plugin, "reason": unavailable}
        return evolve(found, why=Reason("schedule_plugin_unavailable", data))
    return found


def _why_missed(db: Db, plugin: str, slot_at: datetime) -> Reason | None:
    """Return what kept the scheduler from the slot when it was due: no service, or a disabled plugin."""
    if downtime := service_log.find_downtime(db, slot_at):
        until = to_text(downtime.ended_at) if downtime.ended_at else None
        data = {"since": to_text(downtime.started_at), "until": until, "stop": downtime.reason}
        return Reason("slot_service_down", data)
    used = service_log.find_config_in_use(db, slot_at)
    if used is None or used.sanitized_config is None:
        return None
    entry = json.loads(used.sanitized_config).get("plugins", {}).get(plugin)
    if entry is None or entry.get("enabled", True):
        return None
    return Reason("slot_plugin_disabled", {"plugin": plugin, "since": to_text(used.loaded_at)})


def _unknown(code: str, slot_at: datetime | None = None, data: Mapping[str, Any] = NO_DATA) -> SlotExplanation:
    return SlotExplanation(slot_at=slot_at, verdict="unknown", why=Reason(code, data))


def _faulty(db: Db, entry: ScheduleEntry, at: datetime) -> SlotExplanation | None:
    """Return the fault that keeps the scheduler from deciding about slots; None if there was none at that time."""
    about = rows_about(db, entry.plugin, entry.schedule_id)
    rows = [row for row in about if row.data.get("reason") == entry.held_reason]
    if not rows or at < rows[-1].at:
        return None
    reason = SkipReason.SCHEDULE_FAULT
    why = Reason("slot_faulty", {"reason": reason, "error": rows[-1].data.get("error")})
    until, last = entry.next_run_at, (rows[-1],)
    return SlotExplanation(slot_at=None, verdict="held", why=why, skip_reason=reason, until=until, rows=last)


def _slot(
    table: Timetable, definition: Definition, entry: ScheduleEntry, rows: list[journal.JournalEntry], at: datetime
) -> datetime | None:
    if not isinstance(definition.when, After):
        return table.latest(at)
    # The slots count from each start; the ledger has only the last one, and the one that waits.
    moments = (entry.last_slot_at, _waiting(entry, rows))
    return max((moment for moment in moments if moment is not None and moment <= at), default=None)


def _excluded(definition: Definition, at: datetime) -> datetime | None:
    """Return the last match of the cron line until `at` if it is on an excluded weekday and therefore no slot."""
    if not isinstance(definition.when, CronLine):
        return None
    found = CronSlots(definition.when, definition.zone).before(at + TICK)
    is_excluded = found and definition.hours.closed_reason(found) is SkipReason.OUTSIDE_DAY_CONSTRAINT
    return found if is_excluded else None


def _on_excluded_day(table: Timetable, at: datetime) -> SlotExplanation:
    coming, reason = table.next_firing(at), SkipReason.OUTSIDE_DAY_CONSTRAINT
    data = {"text": table.definition.hours.describe_closed(at), "next": to_text(coming) if coming else None}
    return SlotExplanation(
        slot_at=at, verdict="skipped", why=Reason("slot_excluded", data), skip_reason=reason, until=coming
    )


def _waiting(entry: ScheduleEntry, rows: list[journal.JournalEntry]) -> datetime | None:
    """Return the only slot of a schedule if it is due and held."""
    if entry.status is EntryStatus.PAUSED_MANUAL:
        return entry.next_run_at
    held = [row.data["slot_at"] for row in rows if _is_hold(row)] if entry.held_reason else []
    return from_text(held[-1]) if held and held[-1] else None


def _not_due(table: Timetable, entry: ScheduleEntry, at: datetime) -> SlotExplanation:
    coming = entry.next_run_at if isinstance(table.definition.when, After) else table.next_firing(at)
    why = Reason("no_slot", {"next": to_text(coming)} if coming else {})
    reason = SkipReason.NOT_DUE
    return SlotExplanation(slot_at=None, verdict="not_due", why=why, skip_reason=reason, until=coming)


def _fired(db: Db, rows: list[journal.JournalEntry], slot_at: datetime, job_id: str) -> SlotExplanation:
    job = job_details.require_job(db, job_id)
    late = max(job.created_at - slot_at, timedelta())
    # A slot that fired on time was not held; rows about earlier slots do not apply.
    held = tuple(row for row in rows if late > ON_TIME and _is_hold(row) and _held_slot(row, slot_at))
    why = Reason("fired", {"late_seconds": late.total_seconds(), "status": str(job.status)})
    about: SlotJobView = {"job_id": job.id, "status": job.status, "created_at": to_text(job.created_at)}
    return SlotExplanation(slot_at=slot_at, verdict="fired", why=why, job=about, rows=held)


def rows_about(db: Db, plugin: str, schedule_id: str) -> list[journal.JournalEntry]:
    """Return the journal rows about the schedule, oldest first."""
    found: list[journal.JournalEntry] = []
    before = NEWEST
    for _ in range(MAX_ROWS // PAGE):
        page = journal.of_plugin(db, plugin, before=before, limit=PAGE)
        found += [row for row in page if row.data.get("schedule_id") == schedule_id]
        if len(page) < PAGE:
            break
        before = page[-1].seq
    return found[::-1]


def _decided(
    table: Timetable, entry: ScheduleEntry, slot_at: datetime, rows: list[journal.JournalEntry], now: datetime
) -> SlotExplanation:
    """Return the rule that kept the slot from running, from the journal."""
    if (paused := _paused(entry, slot_at, rows)) is not None:
        return paused
    skips = [row for row in rows if row.kind == "scheduler.skipped"]
    holds = tuple(row for row in skips if _is_hold(row) and _held_slot(row, slot_at))
    for row in _latest_time_first(skips):
        if not _is_hold(row) and _passed_over(table, row, slot_at):
            reason, used = row.data["reason"], (*holds, row)
            names: tuple[str, ...] = ("reason", "count", "open_job_id")
            why = Reason("slot_skipped", {name: row.data[name] for name in names if name in row.data})
            return SlotExplanation(slot_at=slot_at, verdict="skipped", why=why, skip_reason=reason, rows=used)
    if holds and entry.held_reason and (entry.last_slot_at or slot_at - TICK) < slot_at:
        reason, until = holds[-1].data["reason"], entry.next_run_at
        why = Reason("slot_held", {"reason": reason})
        return SlotExplanation(slot_at=slot_at, verdict="held", why=why, skip_reason=reason, until=until, rows=holds)
    if (entry.last_slot_at or slot_at - TICK) < slot_at:
        return _undecided(table, slot_at, now)
    return _unknown("slot_forgotten", slot_at)


def _paused(entry: ScheduleEntry, slot_at: datetime, rows: list[journal.JournalEntry]) -> SlotExplanation | None:
    """Return the pause that covered the slot, or that the only slot waits for; None if there was none.

    The journal may have lost the row that began a pause, and may still have one of an earlier schedule of this name.
    Then the next row decides, the end of a pause, or else the current status.
    """
    changes = [row for row in rows if row.kind == "scheduler.status_changed"]
    before, after = (
        [row for row in changes if row.at <= slot_at],
        [str(row.data["status"]) for row in changes if row.at > slot_at],
    )
    is_of_this_one = bool(before) and entry.anchored_at is not None and before[-1].at >= entry.anchored_at
    if is_of_this_one:
        is_paused = before[-1].data["status"] == EntryStatus.PAUSED_MANUAL
    else:
        is_paused = after[0] != EntryStatus.PAUSED_MANUAL if after else entry.status is EntryStatus.PAUSED_MANUAL
    is_waiting = entry.status is EntryStatus.PAUSED_MANUAL and entry.next_run_at == slot_at
    if not is_paused and not is_waiting:
        return None
    pauses = [row for row in before if row.data["status"] == EntryStatus.PAUSED_MANUAL][-1:]
    text, reason = pauses[0].data.get("reason") if pauses else entry.reason, SkipReason.SCHEDULE_PAUSED_MANUAL
    data: dict[str, Any] = {"is_paused": entry.status is EntryStatus.PAUSED_MANUAL}
    data |= {"paused_at": to_text(pauses[0].at), "actor": pauses[0].actor} if pauses else {}
    why = Reason("slot_paused", {"reason": reason, "text": text, **data})
    return SlotExplanation(slot_at=slot_at, verdict="paused", why=why, skip_reason=reason, rows=tuple(pauses))


def _latest_time_first(skips: list[journal.JournalEntry]) -> Iterator[journal.JournalEntry]:
    """Yield the rows oldest first, but those after a clock that was set back before those that precede it."""
    turns = [number for number, row in enumerate(skips) if row.data["reason"] == SkipReason.CLOCK_SET_BACK]
    for start, end in reversed(list(pairwise([0, *turns, len(skips)]))):
        yield from skips[start:end]


def _undecided(table: Timetable, slot_at: datetime, now: datetime) -> SlotExplanation:
    """Explain a slot that the journal does not mention: closed hours hold a slot without a journal row."""
    firing, hours = table.firing(slot_at), table.definition.hours
    reason = hours.closed_reason(table.planned(slot_at))
    if reason is not None and (firing is None or firing.fire_at > now):
        why = Reason("slot_held", {"reason": reason, "text": hours.describe_closed(table.planned(slot_at))})
        until = firing.fire_at if firing else None
        return SlotExplanation(slot_at=slot_at, verdict="held", why=why, skip_reason=reason, until=until)
    return SlotExplanation(slot_at=slot_at, verdict="undecided", why=Reason("not_checked"))


def _is_hold(row: journal.JournalEntry) -> bool:
    return row.kind == "scheduler.skipped" and "count" not in row.data


def _held_slot(row: journal.JournalEntry, slot_at: datetime) -> bool:
    """True if the slot was held, or was due while an earlier one was held."""
    until = row.data["next_run_at"]
    return row.data["slot_at"] == to_text(slot_at) or (
        row.at <= slot_at and (until is None or slot_at < from_text(until))
    )


def _passed_over(table: Timetable, row: journal.JournalEntry, slot_at: datetime) -> bool:
    """True if the row covers the slot. The tick that skipped those slots may have fired later ones."""
    last, count = from_text(row.data["slot_at"]), row.data["count"]
    fired = MAX_CATCH_UPS if row.data["reason"] == SkipReason.CATCH_UP_CAPPED else 1
    return bool(count) and slot_at <= last and table.slots.count(slot_at - TICK, last) <= count + fired


def slot_view(found: SlotExplanation, zone: tzinfo) -> SlotView:
    """Return the explanation as JSON data, with local times of `zone`."""
    rows = [_row_view(row, zone) for row in found.rows]
    return {**outcome_view(found, zone), "journal": rows, "story": rows}


def next_commands(plugin: str, schedule_id: str, found: SlotExplanation) -> list[str]:
    """Return the commands that lead from the explanation to its cause or end it."""
    if found.job is not None:
        return [f"ductile job inspect {found.job['job_id']}"]
    if found.why.data.get("open_job_id"):
        return [f"ductile job why {found.why.data['open_job_id']}"]
    commands = {
        SkipReason.SCHEDULE_PAUSED_MANUAL: shlex.join(("ductile", "schedule", "resume", plugin, schedule_id)),
        SkipReason.CIRCUIT_OPEN: shlex.join(("ductile", "system", "breaker", plugin)),
        SkipReason.PLUGIN_UNHEALTHY: shlex.join(("ductile", "plugin", "show", plugin)),
    }
    is_over = found.verdict == "skipped" or not found.why.data.get("is_paused", True)
    command = None if is_over or found.skip_reason is None else commands.get(SkipReason(found.skip_reason))
    return [command] if command else []


def outcome_view(found: SlotExplanation, zone: tzinfo) -> SlotOutcomeView:
    """Return the explanation without the journal rows."""
    return {
        "slot_at": to_text(found.slot_at) if found.slot_at else None,
        "slot_local": format_local(found.slot_at, zone) if found.slot_at else None,
        "verdict": found.verdict,
        "reason": found.skip_reason,
        "code": found.why.code,
        "words": found.why.words,
        "job": found.job,
        "until": to_text(found.until) if found.until else None,
    }


def _row_view(row: journal.JournalEntry, zone: tzinfo) -> SlotRowView:
    moments = {"at": to_text(row.at), "local": format_local(row.at, zone)}
    return cast(SlotRowView, {"seq": row.seq, **moments, "kind": row.kind, **row.data})
