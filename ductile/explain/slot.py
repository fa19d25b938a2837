"""What became of one slot of a schedule: from its job, and from what the journal says was decided instead.

Reads the ledger and tells; decides nothing. `ductile schedule why` shows it.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any

from attrs import evolve, frozen

from ductile.calendar.definition import After, Definition, History
from ductile.calendar.due import MOST_CATCH_UPS
from ductile.calendar.firing import Timetable, timetable
from ductile.calendar.reasons import SkipReason
from ductile.calendar.slots import TICK
from ductile.calendar.zones import local_text
from ductile.config.sections.schedules import definition_hash, definition_of
from ductile.config.sections.settings import Schedule
from ductile.core.clock import from_text, to_text
from ductile.ledger.reports import job_details
from ductile.ledger.reports.pagination import NEWEST
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal, schedules
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry

ON_TIME = timedelta(seconds=1)
PAGE = 500
MOST_ROWS = 50_000


@frozen(kw_only=True)
class Fate:
    """`verdict` in one word: fired, skipped, held, paused, not_due, undecided, unknown; `words` for people.

    `story` is what the journal has about the slot, oldest first.
    """

    slot_at: datetime | None
    verdict: str
    words: str
    reason: str | None = None
    job: dict[str, Any] | None = None
    until: datetime | None = None
    story: tuple[journal.JournalEntry, ...] = ()


def fate_of(
    db: Db, plugin: str, schedule: Schedule, at: datetime, now: datetime, *, unavailable: str | None = None
) -> Fate:
    """What became of the last slot that was planned until `at`; `unavailable` is why the plugin cannot run now."""
    entry = schedules.get(db, plugin, schedule.id)
    if entry is None or entry.anchored_at is None:
        return Fate(slot_at=None, verdict="unknown", words="no service has seen this schedule yet")
    if entry.definition_hash != definition_hash(schedule):
        return Fate(slot_at=None, verdict="unknown", words="it was edited since a service last saw it")
    if entry.held_reason == SkipReason.SCHEDULE_FAULT and (fate := _faulty(db, entry, at)):
        return fate
    definition = definition_of(plugin, schedule)
    table = timetable(definition, History(anchored_at=entry.anchored_at))
    rows = list(_rows(db, plugin, schedule.id))
    slot_at = _slot(table, definition, entry, rows, at)
    if slot_at is None:
        return _not_due(table, entry, at)
    if job_id := schedules.job_of_slot(db, plugin, schedule.id, slot_at):
        return _fired(db, rows, slot_at, job_id)
    if slot_at < entry.anchored_at and not isinstance(definition.when, After):
        since = f"the schedule is what it is only since {to_text(entry.anchored_at)}"
        return Fate(slot_at=slot_at, verdict="unknown", words=since)
    if slot_at > now:
        words = f"this slot has not come yet: it is {to_text(slot_at)}"
        return Fate(slot_at=slot_at, verdict="not_due", words=words, reason=SkipReason.NOT_DUE, until=slot_at)
    fate = _decided(table, entry, slot_at, rows, now)
    if fate.verdict == "undecided" and unavailable is not None:
        return evolve(fate, words=f"nobody looks at it: plugin {plugin} {unavailable}")
    return fate


def _faulty(db: Db, entry: ScheduleEntry, at: datetime) -> Fate | None:
    """What keeps the scheduler from deciding about slots; None if it could at that time."""
    rows = [row for row in _rows(db, entry.plugin, entry.schedule_id) if row.data.get("reason") == entry.held_reason]
    if not rows or at < rows[-1].at:
        return None
    words = f"{SkipReason.SCHEDULE_FAULT.words}: internal error: {rows[-1].data.get('error')}"
    until, reason = entry.next_run_at, SkipReason.SCHEDULE_FAULT
    return Fate(slot_at=None, verdict="held", words=words, reason=reason, until=until, story=(rows[-1],))


def _slot(
    table: Timetable, definition: Definition, entry: ScheduleEntry, rows: list[journal.JournalEntry], at: datetime
) -> datetime | None:
    if not isinstance(definition.when, After):
        return table.latest(at)
    # Counts from each start; the ledger knows only the last one, and the one that waits.
    moments = (entry.last_slot_at, _waiting(entry, rows))
    return max((moment for moment in moments if moment is not None and moment <= at), default=None)


def _waiting(entry: ScheduleEntry, rows: list[journal.JournalEntry]) -> datetime | None:
    """The only slot of a schedule, if its time has come and something keeps it."""
    if entry.status is EntryStatus.PAUSED_MANUAL:
        return entry.next_run_at
    held = [row.data["slot_at"] for row in rows if _is_hold(row)] if entry.held_reason else []
    return from_text(held[-1]) if held and held[-1] else None


def _not_due(table: Timetable, entry: ScheduleEntry, at: datetime) -> Fate:
    coming = entry.next_run_at if isinstance(table.definition.when, After) else table.next_firing(at)
    words = f"no slot had come by then; the next is {to_text(coming)}" if coming else "no slot had come by then"
    return Fate(slot_at=None, verdict="not_due", words=words, reason=SkipReason.NOT_DUE, until=coming)


def _fired(db: Db, rows: list[journal.JournalEntry], slot_at: datetime, job_id: str) -> Fate:
    job = job_details.job(db, job_id).job
    late = max(job.created_at - slot_at, timedelta())
    # What held an earlier slot was over, if this one came on time.
    held = tuple(row for row in rows if late > ON_TIME and _is_hold(row) and _held_slot(row, slot_at))
    words = f"fired {late.total_seconds():.1f} s after its time; the job is {job.status}"
    about = {"job_id": job.id, "status": str(job.status), "created_at": to_text(job.created_at)}
    return Fate(slot_at=slot_at, verdict="fired", words=words, job=about, story=held)


def _rows(db: Db, plugin: str, schedule_id: str) -> Iterator[journal.JournalEntry]:
    """What the journal has about the schedule, oldest first."""
    found: list[journal.JournalEntry] = []
    before = NEWEST
    for _ in range(MOST_ROWS // PAGE):
        page = journal.of_plugin(db, plugin, before=before, limit=PAGE)
        found += [row for row in page if row.data.get("schedule_id") == schedule_id]
        if len(page) < PAGE:
            break
        before = page[-1].seq
    return reversed(found)


def _decided(
    table: Timetable, entry: ScheduleEntry, slot_at: datetime, rows: list[journal.JournalEntry], now: datetime
) -> Fate:
    """The rule that kept the slot from running, as the journal has it."""
    if (paused := _paused(entry, slot_at, rows)) is not None:
        return paused
    skips = [row for row in rows if row.kind == "scheduler.skipped"]
    holds = tuple(row for row in skips if _is_hold(row) and _held_slot(row, slot_at))
    for row in _latest_time_first(skips):
        if not _is_hold(row) and _passed_over(table, row, slot_at):
            reason = row.data["reason"]
            words = f"{words_for(reason)} (one of {row.data['count']})" if row.data["count"] > 1 else words_for(reason)
            return Fate(slot_at=slot_at, verdict="skipped", words=words, reason=reason, story=(*holds, row))
    if holds and entry.held_reason and (entry.last_slot_at or slot_at - TICK) < slot_at:
        reason, until = holds[-1].data["reason"], entry.next_run_at
        return Fate(slot_at=slot_at, verdict="held", words=words_for(reason), reason=reason, until=until, story=holds)
    if (entry.last_slot_at or slot_at - TICK) < slot_at:
        return _undecided(table, slot_at, now)
    return Fate(slot_at=slot_at, verdict="unknown", words="the ledger has nothing about it any more")


def _paused(entry: ScheduleEntry, slot_at: datetime, rows: list[journal.JournalEntry]) -> Fate | None:
    """The pause during which the slot went by, or that the only one waits for; None if there was none.

    The journal may have forgotten when a pause began, and it may still know one that ended with an earlier schedule of
    this name. Then what comes next tells: the end of a pause, or how things stand.
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
    told = [row for row in before if row.data["status"] == EntryStatus.PAUSED_MANUAL][-1:]
    given = told[0].data.get("reason") if told else entry.reason
    words, reason = given or SkipReason.SCHEDULE_PAUSED_MANUAL.words, SkipReason.SCHEDULE_PAUSED_MANUAL
    return Fate(slot_at=slot_at, verdict="paused", words=words, reason=reason, story=tuple(told))


def _latest_time_first(skips: list[journal.JournalEntry]) -> Iterator[journal.JournalEntry]:
    """Oldest first, but what was decided after the clock was set back before what it had decided until then."""
    turns = [number for number, row in enumerate(skips) if row.data["reason"] == SkipReason.CLOCK_SET_BACK]
    for start, end in reversed(list(pairwise([0, *turns, len(skips)]))):
        yield from skips[start:end]


def _undecided(table: Timetable, slot_at: datetime, now: datetime) -> Fate:
    """Closed hours hold a slot without a word in the journal: when it fires was known beforehand."""
    firing, hours = table.firing(slot_at), table.definition.hours
    reason = hours.closed(table.planned(slot_at))
    if reason is not None and (firing is None or firing.fire_at > now):
        words, until = hours.words(table.planned(slot_at)), firing.fire_at if firing else None
        return Fate(slot_at=slot_at, verdict="held", words=words, reason=reason, until=until)
    words = "nobody has decided about it yet: is the service running?"
    return Fate(slot_at=slot_at, verdict="undecided", words=words)


def _is_hold(row: journal.JournalEntry) -> bool:
    return row.kind == "scheduler.skipped" and "count" not in row.data


def _held_slot(row: journal.JournalEntry, slot_at: datetime) -> bool:
    """The slot itself was held, or came while an earlier one was."""
    until = row.data["next_run_at"]
    return row.data["slot_at"] == to_text(slot_at) or (
        row.at <= slot_at and (until is None or slot_at < from_text(until))
    )


def _passed_over(table: Timetable, row: journal.JournalEntry, slot_at: datetime) -> bool:
    """The slot is one of those that the row tells of; the look that passed over them may have fired later ones."""
    last, count = from_text(row.data["slot_at"]), row.data["count"]
    fired = MOST_CATCH_UPS if row.data["reason"] == SkipReason.CATCH_UP_CAPPED else 1
    return bool(count) and slot_at <= last and table.slots.count(slot_at - TICK, last) <= count + fired


def words_for(reason: str) -> str:
    """What a code means; one that this version does not know stands for itself."""
    try:
        return SkipReason(reason).words
    except ValueError:
        return reason


def fate_view(fate: Fate, zone: tzinfo) -> dict[str, Any]:
    def told(row: journal.JournalEntry) -> dict[str, Any]:
        return {"seq": row.seq, "at": to_text(row.at), "local": local_text(row.at, zone), "kind": row.kind, **row.data}

    return {
        "slot_at": to_text(fate.slot_at) if fate.slot_at else None,
        "slot_local": local_text(fate.slot_at, zone) if fate.slot_at else None,
        "verdict": fate.verdict,
        "reason": fate.reason,
        "words": fate.words,
        "job": fate.job,
        "until": to_text(fate.until) if fate.until else None,
        "story": [told(row) for row in fate.story],
    }
