"""What commands about schedules read: the configuration, the ledger if there is one, and what comes next."""

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ductile.calendar.definition import History
from ductile.calendar.due import slots_between
from ductile.calendar.firing import Slot
from ductile.calendar.zones import local_text
from ductile.config.checks.doctor import examine
from ductile.config.load.load import load
from ductile.config.load.sources import find
from ductile.config.sections.schedules import definition_hash, definition_of
from ductile.config.sections.settings import Schedule
from ductile.config.snapshot import Snapshot, take_snapshot
from ductile.core.clock import to_text
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.tables import schedules
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry
from ductile.web.views.schedules import schedule_view, written_schedule, zone_of

P = ParamSpec("P")
T = TypeVar("T")
FOR_EVER = datetime.max.replace(tzinfo=UTC)


def snapshot_of(explicit: Path | None) -> Snapshot:
    """The configuration as a service that starts now would use it."""
    return take_snapshot(examine(load(find(explicit, os.environ).path)), os.environ)


def schedule_of(explicit: Path | None, plugin: str, schedule_id: str | None) -> tuple[Snapshot, Schedule]:
    snapshot = snapshot_of(explicit)
    return snapshot, written_schedule(snapshot, plugin, schedule_id)


def read_ledger(
    snapshot: Snapshot, function: Callable[Concatenate[Db, P], T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """What `function(db, …)` finds; None if there is no ledger yet."""
    path = snapshot.config.settings.state.path
    if not path.exists():
        return None
    with open_reader(path) as db:
        return function(db, *args, **kwargs)


def entry_of(snapshot: Snapshot, plugin: str, schedule: Schedule) -> ScheduleEntry | None:
    """What the ledger remembers of the schedule, if it has the definition that is written now."""
    entry = read_ledger(snapshot, schedules.get, plugin, schedule.id)
    return entry if entry and entry.definition_hash == definition_hash(schedule) else None


def coming_view(snapshot: Snapshot, plugin: str, schedule: Schedule, count: int, *, now: datetime) -> dict[str, Any]:
    """The next `count` runs, if nothing holds them."""
    entry, zone = entry_of(snapshot, plugin, schedule), zone_of(schedule)
    shown = schedule_view(snapshot, plugin, schedule, entry)
    if schedule.after is not None:
        shown.setdefault("reason", "counts from each start of the service")
    head = ("plugin", "schedule_id", "when", "timezone", "status", "reason")
    return {
        **{name: shown[name] for name in head if name in shown},
        "runs": [
            {
                "slot_at": to_text(slot.at),
                "fires_at": to_text(slot.fire_at),
                "fires_local": local_text(slot.fire_at, zone),
            }
            for slot in _coming(plugin, schedule, entry, count, now)
        ],
    }


def _coming(plugin: str, schedule: Schedule, entry: ScheduleEntry | None, count: int, now: datetime) -> Iterable[Slot]:
    if schedule.after is not None:  # only a running service knows when it started
        at = entry.next_run_at if entry else None
        return [Slot(at=at, fire_at=at)] if at and at > now else []
    history = History(
        anchored_at=entry.anchored_at if entry and entry.anchored_at else now,
        last_slot_at=entry.last_slot_at if entry else None,
        last_fired_at=entry.last_fired_at if entry else None,
        exhausted=entry is not None and entry.status is EntryStatus.EXHAUSTED,
    )
    return slots_between(definition_of(plugin, schedule), history, now, FOR_EVER, count)
