"""From slots to firings: the time at which each slot fires, after jitter and open hours.

Jitter is derived from the slot, so it survives restarts, and never moves a slot more than half way to the next one, so
slots stay in order. Slots that wait for the same opening are one firing, that of the latest.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import blake2b

from attrs import evolve, frozen

from ductile.calendar.bounds import CALENDAR_END, clamp
from ductile.calendar.daylight_saving import CronSlots
from ductile.calendar.definition import After, At, Definition, Every, History
from ductile.calendar.slots import TICK, IntervalSlots, SingleSlot, Slots
from ductile.core.clock import to_text

GRACE = timedelta(seconds=60)
"""A firing that is later than this is missed."""


@frozen(kw_only=True)
class Slot:
    """A slot that fires: its nominal time, which identifies it, and the time at which it fires."""

    at: datetime
    fire_at: datetime
    is_catch_up: bool = False


@frozen
class Timetable:
    """The firings of one schedule."""

    definition: Definition
    slots: Slots
    begins_at: datetime
    """When the schedule was first seen. Jitter moves no slot before it."""

    def planned(self, at: datetime) -> datetime:
        """Return the slot's time plus its jitter, which never moves an open slot into closed hours."""
        if not self.definition.jitter:
            return at
        number = self._random(at)
        adjacent = self.slots.before(at) if number < 0 else self.slots.after(at)
        span = min(self.definition.jitter, abs(at - adjacent)) if adjacent else self.definition.jitter
        # Rounded towards zero, so that half of the span is never exceeded.
        microseconds = (span // TICK * abs(number)) >> 64
        moved = at + (TICK if number > 0 else -TICK) * microseconds
        if moved < self.begins_at <= at:
            moved = self.begins_at
        hours = self.definition.hours
        return at if hours.closed_reason(moved) and not hours.closed_reason(at) else moved

    def latest(self, moment: datetime) -> datetime | None:
        """Return the last slot that is planned at or before `moment`."""
        upcoming = self.slots.after(moment) if self.definition.jitter else None
        if upcoming and self.planned(upcoming) <= moment:
            return upcoming
        at = self.slots.before(moment + TICK)
        return self.slots.before(at) if at and self.planned(at) > moment else at

    def firing(self, at: datetime) -> Slot | None:
        """Return the firing that includes the slot; None if it can never fire."""
        planned = self.planned(at)
        opening = self.definition.hours.opens_at(planned)
        if opening is None:
            return None
        return Slot(at=at if opening == planned else self.latest(opening) or at, fire_at=opening)

    def firings(self, after: datetime) -> Iterator[Slot]:
        """Yield the firings of all slots later than `after`, in order, up to the end of the supported range."""
        at = self.slots.after(after)
        while at and at <= CALENDAR_END and (firing := self.firing(at)):
            yield firing
            at = self.slots.after(firing.at)

    def next_firing(self, after: datetime) -> datetime | None:
        """Return when the first slot later than `after` fires."""
        return next((firing.fire_at for firing in self.firings(after)), None)

    def mark_catch_up(self, firing: Slot, now: datetime) -> Slot:
        """Mark the firing as catch-up if its grace has passed. Closed hours within the grace extend it."""
        deadline: datetime | None = firing.fire_at + GRACE
        if now > firing.fire_at + GRACE and self.definition.hours.closed_reason(firing.fire_at + GRACE):
            opening = self.definition.hours.opens_at(firing.fire_at + GRACE)
            deadline = opening and opening + GRACE
        return evolve(firing, is_catch_up=deadline is not None and now > deadline)

    def _random(self, at: datetime) -> int:
        """Return a uniform number from -2**63 to 2**63 - 1 that is always the same for this slot."""
        seed = "\0".join((self.definition.plugin, self.definition.schedule_id, to_text(at)))
        return int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "big", signed=True)


def build_timetable(definition: Definition, history: History) -> Timetable:
    """Build the timetable of the schedule, anchored by its history."""
    match definition.when:
        case Every(interval):
            slots: Slots = IntervalSlots(history.anchored_at, interval)
        case At(moment):
            slots = SingleSlot(clamp(moment))
        case After(delay):
            slots = SingleSlot((history.started_at or history.anchored_at) + delay)
        case line:
            slots = CronSlots(line.without(definition.not_on), definition.zone)
    return Timetable(definition, slots, history.anchored_at)
