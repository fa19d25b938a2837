"""What holds for every schedule, every history and every sequence of looks, however the clock jumps."""

from datetime import UTC, datetime, time, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.calendar.cron import parse_line
from ductile.calendar.definition import CatchUp, Definition, Every, History
from ductile.calendar.due import MOST_CATCH_UPS, Look, look, slots_between
from ductile.calendar.firing import timetable
from ductile.calendar.windows import Window
from tests.calendar.comparison import forward
from tests.calendar.oracle import ZONES, expressions

TICK = timedelta.resolution
LINES = [line for line in expressions() if " 29 2 " not in line]
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))
SPANS = st.sampled_from([1, 30, 59, 61, 300, 3600, 7200, 86400, 40 * 86400]).map(
    lambda number: timedelta(seconds=number)
)
JUMPS = st.sampled_from([0, 0, 0, 1, -1, 61, -61, 3600, -3600, 86400, -86400, 315_576_000, -315_576_000]).map(
    lambda number: timedelta(seconds=number)
)
WHENS = st.one_of(
    st.integers(1, 3 * 86400).map(lambda number: Every(timedelta(seconds=number))),
    st.sampled_from(LINES).map(parse_line),
)
HOURS = st.sampled_from(
    [(), (), (Window(time(8), time(22)),), (Window(time(22), time(6)),), (Window(time(2), time(3)),)],
)
DEFINITIONS = st.builds(
    Definition,
    plugin=st.just("echo"),
    schedule_id=st.sampled_from(["default", "other"]),
    when=WHENS,
    zone=st.sampled_from(ZONES).map(ZoneInfo),
    jitter=st.sampled_from([0, 0, 1, 90, 7200]).map(lambda number: timedelta(seconds=number)),
    windows=HOURS,
    not_on=st.sampled_from([frozenset[int](), frozenset({0, 6})]),
    catch_up=st.sampled_from(CatchUp),
)


def applied(history: History, seen: Look, now: datetime) -> History:
    """The history after a scheduler has done what the look asks for."""
    if seen.decided_to is not None:
        history = evolve(history, last_slot_at=seen.decided_to)
    return evolve(history, last_fired_at=now) if seen.due else history


@settings(deadline=None)
@given(DEFINITIONS, MOMENTS)
def test_firings_come_in_order(definition: Definition, start: datetime) -> None:
    """Slots and their firings strictly increase, and nothing fires in closed hours."""
    history = History(anchored_at=start)
    coming = list(islice(timetable(definition, history).firings(start), 25))
    assert all(one.at < next_one.at and one.fire_at < next_one.fire_at for one, next_one in pairwise(coming))
    assert all(definition.hours.closed(slot.fire_at) is None for slot in coming)


@settings(deadline=None)
@given(DEFINITIONS, MOMENTS)
def test_jitter_is_bounded(definition: Definition, start: datetime) -> None:
    """By half of itself, and by half the way to the neighbouring slot."""
    table = timetable(definition, History(anchored_at=start))
    slots = list(islice(forward(table.slots, start, start + timedelta(days=4000)), 10))
    for before, at, after in zip(slots, slots[1:], slots[2:], strict=False):
        moved = table.planned(at) - at
        assert abs(moved) <= definition.jitter / 2
        assert (before - at) / 2 <= moved < (after - at) / 2


@settings(deadline=None)
@given(DEFINITIONS, MOMENTS, SPANS, SPANS)
def test_a_look_that_was_acted_upon_has_nothing_more_to_say(
    definition: Definition, start: datetime, pause: timedelta, later: timedelta
) -> None:
    """The same question has the same answer; after doing what it says, the answer is to wait until `next_at`."""
    history = History(anchored_at=start, last_slot_at=start)
    for now in (start + pause, start + pause + later):
        seen = look(definition, history, now)
        assert seen == look(definition, history, now)
        history = applied(history, seen, now)
        again = look(definition, history, now)
        assert (again.due, again.skipped, again.held, again.next_at) == ((), 0, seen.held, seen.next_at)
        assert seen.next_at is None or seen.next_at > now


@settings(deadline=None)
@given(DEFINITIONS, MOMENTS, SPANS)
def test_the_next_firing_is_neither_early_nor_late(definition: Definition, start: datetime, pause: timedelta) -> None:
    """Just before `next_at` nothing is due, then something is: the first of the coming slots, or one held before."""
    now = start + pause
    history = applied(History(anchored_at=start), look(definition, History(anchored_at=start), now), now)
    next_at = look(definition, history, now).next_at
    assert next_at is not None
    assert look(definition, history, next_at - TICK).due == ()
    due = look(definition, history, next_at).due
    assert due
    coming = list(slots_between(definition, history, next_at, next_at + TICK))
    assert coming == [slot for slot in due[-1:] if slot.fire_at == next_at]


@settings(deadline=None)
@given(DEFINITIONS, MOMENTS, SPANS)
def test_every_slot_is_fired_or_counted(definition: Definition, start: datetime, pause: timedelta) -> None:
    """What a look decides is exactly the slots of that time: those due and those passed over."""
    definition = evolve(definition, when=definition.when if pause < timedelta(days=2) else Every(pause / 700))
    history = History(anchored_at=start, last_slot_at=start)
    seen = look(definition, history, start + pause)
    if seen.decided_to is None:
        assert (seen.due, seen.skipped) == ((), 0)
        return
    slots = list(forward(timetable(definition, history).slots, start + TICK, seen.decided_to + TICK))
    assert len(seen.due) + seen.skipped == len(slots)
    assert {slot.at for slot in seen.due} <= {*slots}
    if definition.catch_up is CatchUp.RUN_ALL and not definition.windows and not definition.not_on:
        assert [slot.at for slot in seen.due] == slots[-MOST_CATCH_UPS:]
        assert seen.capped == (len(slots) > MOST_CATCH_UPS)


@define
class Memory:
    """Which slots have fired. A clock that is set back takes back what it had shown, once something fires again."""

    fired: set[datetime] = field(factory=set)
    set_back_to: datetime | None = None

    def note(self, seen: Look, now: datetime) -> None:
        if seen.clock_set_back:
            self.set_back_to = min(now, self.set_back_to or now)
        if seen.due and self.set_back_to:
            self.fired = {at for at in self.fired if at <= self.set_back_to}
            self.set_back_to = None
        for slot in seen.due:
            assert slot.at not in self.fired, "a slot fired twice"
            self.fired.add(slot.at)


@settings(deadline=None, max_examples=200)
@given(DEFINITIONS, MOMENTS, st.lists(st.tuples(SPANS, JUMPS), max_size=14))
def test_no_slot_fires_twice_however_the_clock_jumps(
    definition: Definition, now: datetime, steps: list[tuple[timedelta, timedelta]]
) -> None:
    """Looks in any rhythm, jumps ahead and back from a second to ten years, restarts in between."""
    history, memory = History(anchored_at=now), Memory()
    for pause, jump in steps:
        now += min(pause, timedelta(days=2)) + jump
        if not 1985 < now.year < 2090:
            return
        seen = look(definition, history, now)
        memory.note(seen, now)
        assert len(seen.due) <= (MOST_CATCH_UPS if definition.catch_up is CatchUp.RUN_ALL else 1)
        history = applied(history, seen, now)


@settings(deadline=None)
@given(DEFINITIONS, MOMENTS, st.lists(st.tuples(SPANS, JUMPS), max_size=8))
def test_no_schedule_stalls_for_longer_than_an_interval(
    definition: Definition, now: datetime, steps: list[tuple[timedelta, timedelta]]
) -> None:
    """After any jumps the next firing is that of one of the next two slots on the clock."""
    history = History(anchored_at=now)
    for pause, jump in steps:
        now += min(pause, timedelta(days=2)) + jump
        if not 1985 < now.year < 2090:
            return
        seen = look(definition, history, now)
        history = applied(history, seen, now)
        table = timetable(definition, history)
        first = table.slots.after(now)
        second = first and table.slots.after(first)
        assert second is not None
        firing = table.firing(second)
        assert firing is not None
        assert seen.next_at is not None
        assert seen.next_at <= firing.fire_at
