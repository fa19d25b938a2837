"""One look at one schedule: from its definition, its history and the time to what is due, held, missed and next.

Pure: no clock, no ledger; `now` lies within the `bounds`. The scheduler fires everything `due` in one transaction and
stores `decided_to`; it alone knows of breakers and running jobs. A slot may be a minute late and is still on time;
later it counts as missed, and `catch_up` decides.
"""

from collections.abc import Iterator
from datetime import datetime
from itertools import dropwhile, islice, takewhile

from attrs import frozen

from ductile.calendar.definition import At, CatchUp, Definition, History
from ductile.calendar.firing import Slot, Timetable, timetable
from ductile.calendar.reasons import SkipReason
from ductile.calendar.slots import TICK, Once
from ductile.calendar.zones import wall_time

MOST_CATCH_UPS = 100


@frozen(kw_only=True)
class HeldSlot:
    """A slot whose time has come waits for `until`; None if that never comes."""

    slot_at: datetime
    reason: SkipReason
    words: str
    until: datetime | None


@frozen(kw_only=True)
class Look:
    """What the scheduler has to do about a schedule now, and when to look again.

    `due`: oldest first; with `catch_up: run_all` several, at most 100 (the latest; `capped` if there were more).
    `skipped`: slots that are passed over for ever by this look, because of `skip_reason`.
    `decided_to`: to be stored as `last_slot_at`, also when nothing is due; None leaves it alone.
    `clock_set_back`: the last slot lies in a future that was withdrawn. Its slots count as not yet decided.
    `next_at`: when the next firing after those due comes, or the held one may go.
    """

    due: tuple[Slot, ...] = ()
    held: HeldSlot | None = None
    next_at: datetime | None = None
    skipped: int = 0
    skip_reason: SkipReason | None = None
    capped: bool = False
    decided_to: datetime | None = None
    clock_set_back: bool = False


def look(definition: Definition, history: History, now: datetime) -> Look:
    """What is due, held, missed and next at `now`; the same question has always the same answer."""
    table = timetable(definition, history)
    if (coming := _nothing_but_coming(table, history, now)) is not None:
        firing = table.firing(coming)
        return Look(next_at=firing.fire_at if firing else None)
    following = table.slots.after(now)
    floor = _floor(table, history, following)
    if _is_set_back(floor, following):
        return Look(clock_set_back=True, decided_to=now, next_at=table.next_firing(now))
    latest = table.latest(now)
    if latest is None or latest <= floor:
        return Look(next_at=table.next_firing(floor))
    firing = table.firing(latest)
    if firing is None or firing.fire_at > now:
        return _held(definition, latest, now)
    due, capped = _due(table, floor, table.judged(firing, now), now)
    if due and definition.hours.closed(now):
        return _held(definition, latest, now)
    skipped = table.slots.count(floor, latest) - len(due)
    return Look(
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
    """What will fire in [start, end), if nobody misses it: the answer to "when next?"."""
    table = timetable(definition, history)
    following = table.slots.after(start)
    floor = _floor(table, history, following)
    waiting = table.latest(start)
    begin = start if waiting is None else waiting - TICK
    if not _is_set_back(floor, following):
        begin = max(begin, floor)
    coming = dropwhile(lambda slot: slot.fire_at < start, table.firings(begin))
    return islice(takewhile(lambda slot: slot.fire_at < end, coming), limit)


def _nothing_but_coming(table: Timetable, history: History, now: datetime) -> datetime | None:
    """The next slot, if none lies between the last decided one and now, whichever of the two is earlier.

    So it is with nearly every look, and then one search of the calendar answers what otherwise takes three or four.
    Jitter moves slots across `now`, and a schedule with a single slot has rules of its own: None for these.
    """
    if table.definition.jitter or isinstance(table.slots, Once):
        return None
    decided = _decided(history)
    coming = table.slots.after(min(decided, now))
    return coming if coming and coming > max(decided, now) else None


def _decided(history: History) -> datetime:
    return history.last_slot_at or history.anchored_at - TICK


def _floor(table: Timetable, history: History, following: datetime | None) -> datetime:
    """Slots up to here are decided; `following` is the next one by the clock."""
    if isinstance(table.slots, Once):
        was_fired = isinstance(table.definition.when, At) and history.last_slot_at == table.slots.moment
        is_over = history.exhausted or was_fired
        return table.slots.moment if is_over else table.slots.moment - TICK
    floor = _decided(history)
    fired_at = history.last_fired_at
    if fired_at is None or (following and following <= fired_at):
        return floor
    # Stands even when the last slot was forgotten by a clock that was wrong for a while.
    return max(floor, table.latest(fired_at) or floor)


def _is_set_back(floor: datetime, following: datetime | None) -> bool:
    """Whether a whole slot lies between now and the last decided one. Less than that is waited for."""
    return following is not None and following < floor


def _due(table: Timetable, floor: datetime, firing: Slot, now: datetime) -> tuple[tuple[Slot, ...], bool]:
    """What fires now, oldest first, and whether there would have been more."""
    catch_up = CatchUp.RUN_ONCE if isinstance(table.slots, Once) else table.definition.catch_up
    if catch_up is CatchUp.RUN_ALL:
        missed = _last_firings(table, floor, firing.at, now, MOST_CATCH_UPS + 1)
        return tuple(missed[-MOST_CATCH_UPS:]), len(missed) > MOST_CATCH_UPS
    if firing.is_catch_up and catch_up is CatchUp.SKIP:
        return (), False
    return (firing,), False


def _last_firings(table: Timetable, floor: datetime, latest: datetime, now: datetime, most: int) -> list[Slot]:
    """Up to `most` firings until now, the latest ones; looks back further and further until there are enough."""
    reach = 2 * most * (latest - (table.slots.before(latest) or floor))
    while True:
        start = now - min(reach, now - floor)
        found = list(takewhile(lambda slot: slot.fire_at <= now, table.firings(start)))
        if len(found) >= most or start == floor:
            return [table.judged(slot, now) for slot in found[-most:]]
        reach *= 4


def _skip_reason(table: Timetable, floor: datetime, due: tuple[Slot, ...], now: datetime) -> SkipReason:
    oldest = next(table.firings(floor))
    is_late = table.judged(oldest, now).is_catch_up
    return SkipReason.MISSED if is_late and oldest.at not in [slot.at for slot in due] else SkipReason.SUPERSEDED


def _held(definition: Definition, slot_at: datetime, now: datetime) -> Look:
    reason, until = definition.hours.closed(now), definition.hours.opens_at(now)
    assert reason is not None, "a slot whose time has come is held by closed hours only"
    opens = f"opens {wall_time(definition.zone, until):%Y-%m-%d %H:%M}" if until else "never opens"
    held = HeldSlot(slot_at=slot_at, reason=reason, words=f"{definition.hours.words(now)}; {opens}", until=until)
    return Look(held=held, next_at=until)
