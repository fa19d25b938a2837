"""Compute how a reload changes the next runs of schedules. Pure.

Covers only schedules that are added, removed or changed; all others keep their next run.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from ductile.calendar.definition import After, Definition, History
from ductile.calendar.due import evaluate
from ductile.config.sections.schedules import build_definition, definition_hash
from ductile.config.snapshot import Snapshot
from ductile.config.views.changes import NextRun
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry

ScheduleKey = tuple[str, str]


def next_runs(old: Snapshot, new: Snapshot, entries: Iterable[ScheduleEntry], *, now: datetime) -> dict[str, NextRun]:
    """Return `plugin/schedule` → its next run under the old and the new configuration; None if there is none."""
    before, after = _definitions(old), _definitions(new)
    known = {(entry.plugin, entry.schedule_id): entry for entry in entries}
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {f"{key[0]}/{key[1]}": _next_run(key, before, after, known.get(key), now) for key in changed}


def _definitions(snapshot: Snapshot) -> dict[ScheduleKey, tuple[str, Definition]]:
    """Return the schedules that can run, each with the hash of its definition."""
    return {
        (configured.name, schedule.id): (definition_hash(schedule), build_definition(configured.name, schedule))
        for configured in snapshot.plugins.values()
        for schedule in configured.entry.schedules
    }


def _next_run(
    key: ScheduleKey,
    before: Mapping[ScheduleKey, tuple[str, Definition]],
    after: Mapping[ScheduleKey, tuple[str, Definition]],
    entry: ScheduleEntry | None,
    now: datetime,
) -> NextRun:
    is_paused = entry is not None and entry.status is EntryStatus.PAUSED_MANUAL
    current = entry.next_run_at if entry is not None and key in before and not is_paused else None
    if key not in after or is_paused:
        return NextRun(before=current, after=None)
    hash_, definition = after[key]
    is_same = entry is not None and entry.definition_hash == hash_
    if entry is None or not is_same:
        return NextRun(before=current, after=_next_fire_at(definition, History(anchored_at=now, started_at=now), now))
    if isinstance(definition.when, After):
        return NextRun(before=current, after=current)
    history = History(
        anchored_at=entry.anchored_at or now,
        last_slot_at=entry.last_slot_at,
        last_fired_at=entry.last_fired_at,
        started_at=now,
        exhausted=entry.status is EntryStatus.EXHAUSTED,
    )
    return NextRun(before=current, after=_next_fire_at(definition, history, now))


def _next_fire_at(definition: Definition, history: History, now: datetime) -> datetime | None:
    evaluation = evaluate(definition, history, now)
    return now if evaluation.due else evaluation.next_at
