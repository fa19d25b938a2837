"""Evaluate one schedule: from definition, history and time to the slots that are due, held, missed and next.

Pure functions; `now` must be within the `bounds`. The scheduler fires all `due` slots in one transaction and stores
`decided_to`; it also checks breakers and running jobs. A slot up to a minute late is on time; a later one is missed,
and `catch_up` applies.
"""

from collections.abc import Iterator
from datetime import datetime
from itertools import dropwhile, islice, takewhile

from attrs import frozen

from ductile.calendar.definition import At, CatchUp, Definition, History
from ductile.calendar.firing import Slot, Timetable, build_timetable
from ductile.calendar.reasons import SkipReason
from ductile.calendar.slots import TICK, SingleSlot
from ductile.calendar.zones import wall_time

MAX_CATCH_UPS = 100


@frozen(kw_only=True)
class HeldSlot:
    """A due slot that waits until `until`; None if the schedule never opens."""

    slot_at: datetime
    reason: SkipReason
    message: str
    until: datetime | None


@frozen(kw_only=True)
class Evaluation:
    """What the scheduler has to do for a schedule now, and when to evaluate it again.

    `due`: oldest first; with `catch_up: run_all` up to the latest 100 (`capped` if there were more).
    `skipped`: number of slots that will never fire, because of `skip_reason`.
    `decided_to`: the new `last_slot_at`, even if nothing is due; None leaves it unchanged.
    `clock_set_back`: the clock was set back before the last slot. Later slots count as not yet decided.
    `next_at`: the time of the next firing, or at which the held slot may fire.
    """

    due: tuple[Slot, ...] = ()
    held: HeldSlot | None = None
    next_at: datetime | None = None
    skipped: int = 0
    skip_reason: SkipReason | None = None
    capped: bool = False
    decided_to: datetime | None = None
    clock_set_back: bool = False


def evaluate(definition: Definition, history: History, now: datetime) -> Evaluation:
    """Return what is due, held, missed and next at `now`. Deterministic."""
    table = build_timetable(definition, history)
    if (upcoming := _next_if_idle(table, history, now)) is not None:
        firing = table.firing(upcoming)
        return Evaluation(next_at=firing.fire_at if firing else None)
    following = table.slots.after(now)
    floor = _floor(table, history, following)
    if _is_set_back(floor, following):
        return Evaluation(clock_set_back=True, decided_to=now, next_at=table.next_firing(now))
    latest = table.latest(now)
    if latest is None or latest <= floor:
        return Evaluation(next_at=table.next_firing(floor))
    firing = table.firing(latest)
    if firing is None or firing.fire_at > now:
        return _held(definition, latest, now)
    due, capped = _due(table, floor, table.mark_catch_up(firing, now), now)
    if due and definition.hours.closed_reason(now):
        return _held(definition, latest, now)
    skipped = table.slots.count(floor, latest) - len(due)
    return Evaluation(
        due=due,
        next_at=table.next_firing(latest),
        skipped=skipped,
        skip_reason=_skip_reason(table, floor, due, now) if skipped else None,
        capped=capped,
        decided_to=latest,
    )


def slots_between(
    definition: Definition, history: History, start: datetime, end: datetime, limit: int | None = None
) -> Iterator[Slot]:
    """Yield the slots that will fire in [start, end), assuming that none is missed."""
    table = build_timetable(definition, history)
    following = table.slots.after(start)
    floor = _floor(table, history, following)
    waiting = table.latest(start)
    begin = start if waiting is None else waiting - TICK
    if not _is_set_back(floor, following):
        begin = max(begin, floor)
    coming = dropwhile(lambda slot: slot.fire_at < start, table.firings(begin))
    return islice(takewhile(lambda slot: slot.fire_at < end, coming), limit)


def _next_if_idle(table: Timetable, history: History, now: datetime) -> datetime | None:
    """Return the next slot if there is none between the last decided one and now.

    A fast path for most evaluations: one search of the slots instead of three or four. Returns None for a schedule
    with jitter, which moves slots across `now`, and for one with a single slot, which has its own rules.
    """
    if table.definition.jitter or isinstance(table.slots, SingleSlot):
        return None
    decided = _decided(history)
    upcoming = table.slots.after(min(decided, now))
    return upcoming if upcoming and upcoming > max(decided, now) else None


def _decided(history: History) -> datetime:
    return history.last_slot_at or history.anchored_at - TICK


def _floor(table: Timetable, history: History, following: datetime | None) -> datetime:
    """Return the time up to which slots are decided. `following` is the next slot after now."""
    if isinstance(table.slots, SingleSlot):
        was_fired = isinstance(table.definition.when, At) and history.last_slot_at == table.slots.moment
        is_over = history.exhausted or was_fired
        return table.slots.moment if is_over else table.slots.moment - TICK
    floor = _decided(history)
    fired_at = history.last_fired_at
    if fired_at is None or (following and following <= fired_at):
        return floor
    # Applies even if `last_slot_at` was reset while the clock was wrong.
    return max(floor, table.latest(fired_at) or floor)


def _is_set_back(floor: datetime, following: datetime | None) -> bool:
    """True if a whole slot is between now and the last decided one. A smaller set-back is waited out."""
    return following is not None and following < floor


def _due(table: Timetable, floor: datetime, firing: Slot, now: datetime) -> tuple[tuple[Slot, ...], bool]:
    """Return the slots that fire now, oldest first, and whether the cap dropped some."""
    catch_up = CatchUp.RUN_ONCE if isinstance(table.slots, SingleSlot) else table.definition.catch_up
    if catch_up is CatchUp.RUN_ALL:
        missed = _last_firings(table, floor, firing.at, now, MAX_CATCH_UPS + 1)
        return tuple(missed[-MAX_CATCH_UPS:]), len(missed) > MAX_CATCH_UPS
    if firing.is_catch_up and catch_up is CatchUp.SKIP:
        return (), False
    return (firing,), False


def _last_firings(table: Timetable, floor: datetime, latest: datetime, now: datetime, limit: int) -> list[Slot]:
    """Return the latest `limit` firings up to now. Searches back in growing steps until there are enough."""
    span = 2 * limit * (latest - (table.slots.before(latest) or floor))
    while True:
        start = now - min(span, now - floor)
        found = list(takewhile(lambda slot: slot.fire_at <= now, table.firings(start)))
        if len(found) >= limit or start == floor:
            return [table.mark_catch_up(slot, now) for slot in found[-limit:]]
        span *= 4


def _skip_reason(table: Timetable, floor: datetime, due: tuple[Slot, ...], now: datetime) -> SkipReason:
    oldest = next(table.firings(floor))
    is_late = table.mark_catch_up(oldest, now).is_catch_up
    return SkipReason.MISSED if is_late and oldest.at not in [slot.at for slot in due] else SkipReason.SUPERSEDED


def _held(definition: Definition, slot_at: datetime, now: datetime) -> Evaluation:
    reason, until = definition.hours.closed_reason(now), definition.hours.opens_at(now)
    assert reason is not None, "a due slot is held only outside open hours"
    opens = f"opens {wall_time(definition.zone, until):%Y-%m-%d %H:%M}" if until else "never opens"
    held = HeldSlot(
        slot_at=slot_at, reason=reason, message=f"{definition.hours.describe_closed(now)}; {opens}", until=until
    )
    return Evaluation(held=held, next_at=until)
