"""From slots to firings: when each slot really goes off, after jitter and closed hours.

Jitter is drawn from the slot itself, so a restart does not draw again. Slots that wait for the same opening are one
firing, that of the latest. Order is kept: jitter never reaches half way to the neighbouring slot.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import blake2b

from attrs import evolve, frozen

from ductile.calendar.bounds import LAST, within
from ductile.calendar.definition import After, At, Definition, Every, History
from ductile.calendar.slots import TICK, Dial, Grid, Once, Slots
from ductile.core.clock import to_text

GRACE = timedelta(seconds=60)
"""A firing that is later than this was missed."""


@frozen(kw_only=True)
class Slot:
    """A slot that goes off: its nominal time, which makes it unique, and when it fires."""

    at: datetime
    fire_at: datetime
    is_catch_up: bool = False


@frozen
class Timetable:
    """The firings of one schedule."""

    definition: Definition
    slots: Slots
    begins_at: datetime
    """When the schedule was first seen: nothing is planned before."""

    def planned(self, at: datetime) -> datetime:
        """The slot's own time with its jitter, which never pushes an open slot into closed hours."""
        if not self.definition.jitter:
            return at
        draw = self._draw(at)
        neighbour = self.slots.before(at) if draw < 0 else self.slots.after(at)
        room = min(self.definition.jitter, abs(at - neighbour)) if neighbour else self.definition.jitter
        # Towards zero, so that half of the room is never exceeded.
        microseconds = (room // TICK * abs(draw)) >> 64
        moved = at + (TICK if draw > 0 else -TICK) * microseconds
        if moved < self.begins_at <= at:
            moved = self.begins_at
        hours = self.definition.hours
        return at if hours.closed(moved) and not hours.closed(at) else moved

    def latest(self, moment: datetime) -> datetime | None:
        """The last slot that is planned at or before `moment`."""
        coming = self.slots.after(moment) if self.definition.jitter else None
        if coming and self.planned(coming) <= moment:
            return coming
        at = self.slots.before(moment + TICK)
        return self.slots.before(at) if at and self.planned(at) > moment else at

    def firing(self, at: datetime) -> Slot | None:
        """The firing that the slot is part of; None if it can never fire."""
        planned = self.planned(at)
        opening = self.definition.hours.opens_at(planned)
        if opening is None:
            return None
        return Slot(at=at if opening == planned else self.latest(opening) or at, fire_at=opening)

    def firings(self, after: datetime) -> Iterator[Slot]:
        """The firings of all slots later than `after`, in order, as far as the calendar reaches."""
        at = self.slots.after(after)
        while at and at <= LAST and (firing := self.firing(at)):
            yield firing
            at = self.slots.after(firing.at)

    def next_firing(self, after: datetime) -> datetime | None:
        """When the first slot later than `after` fires."""
        return next((firing.fire_at for firing in self.firings(after)), None)

    def judged(self, firing: Slot, now: datetime) -> Slot:
        """The firing, marked as catch-up if its time had passed. Hours that close within the grace stop its clock."""
        deadline: datetime | None = firing.fire_at + GRACE
        if now > firing.fire_at + GRACE and self.definition.hours.closed(firing.fire_at + GRACE):
            opening = self.definition.hours.opens_at(firing.fire_at + GRACE)
            deadline = opening and opening + GRACE
        return evolve(firing, is_catch_up=deadline is not None and now > deadline)

    def _draw(self, at: datetime) -> int:
        """From -2**63 to 2**63 - 1, evenly, always the same for this slot."""
        seed = "\0".join((self.definition.plugin, self.definition.schedule_id, to_text(at)))
        return int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "big", signed=True)


def timetable(definition: Definition, history: History) -> Timetable:
    """The firings of the schedule, given where its history anchors it."""
    match definition.when:
        case Every(interval):
            slots: Slots = Grid(history.anchored_at, interval)
        case At(moment):
            slots = Once(within(moment))
        case After(delay):
            slots = Once((history.started_at or history.anchored_at) + delay)
        case line:
            slots = Dial(line, definition.zone)
    return Timetable(definition, slots, history.anchored_at)
