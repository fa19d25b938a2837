"""What a new configuration does to the next runs of schedules, told before it is in use. Pure.

Only schedules whose definition comes, goes or changes; all others keep their next run. The runtime asks for the answer
to a reload.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from ductile.calendar.definition import After, Definition, History
from ductile.calendar.due import look
from ductile.config.sections.schedules import definition_hash, definition_of
from ductile.config.snapshot import Snapshot
from ductile.config.views.changes import NextRun
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry

Key = tuple[str, str]


def next_runs(old: Snapshot, new: Snapshot, entries: Iterable[ScheduleEntry], *, now: datetime) -> dict[str, NextRun]:
    """`plugin/schedule` → when it runs next under the old configuration and under the new one; None: not at all."""
    before, after = _definitions(old), _definitions(new)
    known = {(entry.plugin, entry.schedule_id): entry for entry in entries}
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {f"{key[0]}/{key[1]}": _next_run(key, before, after, known.get(key), now) for key in changed}


def _definitions(snapshot: Snapshot) -> dict[Key, tuple[str, Definition]]:
    """The schedules that can run, each with the hash that says whether it is still the same one."""
    return {
        (lane.name, schedule.id): (definition_hash(schedule), definition_of(lane.name, schedule))
        for lane in snapshot.lanes.values()
        for schedule in lane.entry.schedules
    }


def _next_run(
    key: Key,
    before: Mapping[Key, tuple[str, Definition]],
    after: Mapping[Key, tuple[str, Definition]],
    entry: ScheduleEntry | None,
    now: datetime,
) -> NextRun:
    is_paused = entry is not None and entry.status is EntryStatus.PAUSED_MANUAL
    was = entry.next_run_at if entry is not None and key in before and not is_paused else None
    if key not in after or is_paused:
        return NextRun(before=was, after=None)
    hash_, definition = after[key]
    is_same = entry is not None and entry.definition_hash == hash_
    if entry is None or not is_same:
        return NextRun(before=was, after=_coming(definition, History(anchored_at=now, started_at=now), now))
    if isinstance(definition.when, After):
        return NextRun(before=was, after=was)
    history = History(
        anchored_at=entry.anchored_at or now,
        last_slot_at=entry.last_slot_at,
        last_fired_at=entry.last_fired_at,
        started_at=now,
        exhausted=entry.status is EntryStatus.EXHAUSTED,
    )
    return NextRun(before=was, after=_coming(definition, history, now))


def _coming(definition: Definition, history: History, now: datetime) -> datetime | None:
    found = look(definition, history, now)
    return now if found.due else found.next_at
