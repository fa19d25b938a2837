"""Properties of every schedule, history and sequence of evaluations, including clock jumps."""

from datetime import UTC, datetime, time, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.calendar.cron import CronLine, parse_line
from ductile.calendar.definition import CatchUp, Definition, Every, History
from ductile.calendar.due import MAX_CATCH_UPS, Evaluation, evaluate, slots_between
from ductile.calendar.firing import build_timetable
from ductile.calendar.windows import Window
from tests.calendar.comparison import forward
from tests.calendar.oracle import ZONES, expressions

TICK = timedelta.resolution
LINES = [line for line in expressions() if " 29 2 " not in line]
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))
SPANS = st.sampled_from([1, 30, 59, 61, 300, 3600, 7200, 86400, 40 * 86400]).map(
    lambda number: timedelta(seconds=number)
)
JUMPS = st.sampled_from([0, 0, 0, 1, -1, 61, -61, 3600, -3600, 86400, -86400, 315_576_000, -315_576_000]).map(
    lambda number: timedelta(seconds=number)
)
TIMINGS = st.one_of(
    st.integers(1, 3 * 86400).map(lambda number: Every(timedelta(seconds=number))),
    st.sampled_from(LINES).map(parse_line),
)
HOURS = st.sampled_from(
    [(), (), (Window(time(8), time(22)),), (Window(time(22), time(6)),), (Window(time(2), time(3)),)],
)


def has_days(definition: Definition) -> bool:
    """True unless `not_on` excludes every weekday of a cron line, which the configuration refuses."""
    when, days = definition.when, set(range(7))
    if isinstance(when, CronLine):
        days = days if when.either else set(when.weekdays)
    return bool(days - definition.not_on)


DEFINITIONS = st.builds(
    Definition,
    plugin=st.just("echo"),
    schedule_id=st.sampled_from(["default", "other"]),
    when=TIMINGS,
    zone=st.sampled_from(ZONES).map(ZoneInfo),
    jitter=st.sampled_from([0, 0, 1, 90, 7200]).map(lambda number: timedelta(seconds=number)),
    windows=HOURS,
    not_on=st.sampled_from([frozenset[int](), frozenset({0, 6})]),
    catch_up=st.sampled_from(CatchUp),
).filter(has_days)


def applied(history: History, result: Evaluation, now: datetime) -> History:
    """Return the history after the scheduler has applied the evaluation."""
    if result.decided_to is not None:
        history = evolve(history, last_slot_at=result.decided_to)
    return evolve(history, last_fired_at=now) if result.due else history


@settings(deadline=None)
@given(DEFINITIONS, TIMES)
def test_firings_are_ordered(definition: Definition, start: datetime) -> None:
    """Slots and firings strictly increase, and none is outside open hours."""
    history = History(anchored_at=start)
    upcoming = list(islice(build_timetable(definition, history).firings(start), 25))
    assert all(slot.at < next_slot.at and slot.fire_at < next_slot.fire_at for slot, next_slot in pairwise(upcoming))
    assert all(definition.hours.closed_reason(slot.fire_at) is None for slot in upcoming)


@settings(deadline=None)
@given(DEFINITIONS, TIMES)
def test_jitter_is_bounded(definition: Definition, start: datetime) -> None:
    """By half of its value, and by half the distance to the adjacent slot."""
    table = build_timetable(definition, History(anchored_at=start))
    slots = list(islice(forward(table.slots, start, start + timedelta(days=4000)), 10))
    for before, at, after in zip(slots, slots[1:], slots[2:], strict=False):
        moved = table.planned(at) - at
        assert abs(moved) <= definition.jitter / 2
        assert (before - at) / 2 <= moved < (after - at) / 2


@settings(deadline=None)
@given(DEFINITIONS, TIMES, SPANS, SPANS)
def test_an_applied_evaluation_leaves_nothing_to_do(
    definition: Definition, start: datetime, pause: timedelta, later: timedelta
) -> None:
    """Evaluation is deterministic. After it was applied, nothing is due until `next_at`."""
    history = History(anchored_at=start, last_slot_at=start)
    for now in (start + pause, start + pause + later):
        result = evaluate(definition, history, now)
        assert result == evaluate(definition, history, now)
        history = applied(history, result, now)
        repeated = evaluate(definition, history, now)
        assert (repeated.due, repeated.skipped, repeated.held, repeated.next_at) == ((), 0, result.held, result.next_at)
        assert result.next_at is None or result.next_at > now


@settings(deadline=None)
@given(DEFINITIONS, TIMES, SPANS)
def test_next_at_is_exact(definition: Definition, start: datetime, pause: timedelta) -> None:
    """Nothing is due just before `next_at`; then the next slot or a held slot is."""
    now = start + pause
    history = applied(History(anchored_at=start), evaluate(definition, History(anchored_at=start), now), now)
    next_at = evaluate(definition, history, now).next_at
    assert next_at is not None
    assert evaluate(definition, history, next_at - TICK).due == ()
    due = evaluate(definition, history, next_at).due
    assert due
    upcoming = list(slots_between(definition, history, next_at, next_at + TICK))
    assert upcoming == [slot for slot in due[-1:] if slot.fire_at == next_at]


@settings(deadline=None)
@given(DEFINITIONS, TIMES, SPANS)
def test_every_slot_is_due_or_counted_as_skipped(definition: Definition, start: datetime, pause: timedelta) -> None:
    definition = evolve(definition, when=definition.when if pause < timedelta(days=2) else Every(pause / 700))
    history = History(anchored_at=start, last_slot_at=start)
    result = evaluate(definition, history, start + pause)
    if result.decided_to is None:
        assert (result.due, result.skipped) == ((), 0)
        return
    slots = list(forward(build_timetable(definition, history).slots, start + TICK, result.decided_to + TICK))
    assert len(result.due) + result.skipped == len(slots)
    assert {slot.at for slot in result.due} <= {*slots}
    if definition.catch_up is CatchUp.RUN_ALL and not definition.windows and not definition.not_on:
        assert [slot.at for slot in result.due] == slots[-MAX_CATCH_UPS:]
        assert result.capped == (len(slots) > MAX_CATCH_UPS)


@define
class FiredSlots:
    """The slots that have fired. After a set-back of the clock, later slots may fire repeated."""

    fired: set[datetime] = field(factory=set)
    set_back_to: datetime | None = None

    def note(self, result: Evaluation, now: datetime) -> None:
        if result.clock_set_back:
            self.set_back_to = min(now, self.set_back_to or now)
        if result.due and self.set_back_to:
            self.fired = {at for at in self.fired if at <= self.set_back_to}
            self.set_back_to = None
        for slot in result.due:
            assert slot.at not in self.fired, "a slot fired twice"
            self.fired.add(slot.at)


@settings(deadline=None, max_examples=200)
@given(DEFINITIONS, TIMES, st.lists(st.tuples(SPANS, JUMPS), max_size=14))
def test_no_slot_fires_twice_despite_clock_jumps(
    definition: Definition, now: datetime, steps: list[tuple[timedelta, timedelta]]
) -> None:
    """Jumps ahead and back from a second to ten years."""
    history, memory = History(anchored_at=now), FiredSlots()
    for pause, jump in steps:
        now += min(pause, timedelta(days=2)) + jump
        if not 1985 < now.year < 2090:
            return
        result = evaluate(definition, history, now)
        memory.note(result, now)
        assert len(result.due) <= (MAX_CATCH_UPS if definition.catch_up is CatchUp.RUN_ALL else 1)
        history = applied(history, result, now)


@settings(deadline=None)
@given(DEFINITIONS, TIMES, st.lists(st.tuples(SPANS, JUMPS), max_size=8))
def test_no_schedule_stalls_for_longer_than_an_interval(
    definition: Definition, now: datetime, steps: list[tuple[timedelta, timedelta]]
) -> None:
    """After any jump, slot of the next two slots on the clock fires."""
    history = History(anchored_at=now)
    for pause, jump in steps:
        now += min(pause, timedelta(days=2)) + jump
        if not 1985 < now.year < 2090:
            return
        result = evaluate(definition, history, now)
        history = applied(history, result, now)
        table = build_timetable(definition, history)
        first = table.slots.after(now)
        second = first and table.slots.after(first)
        assert second is not None
        firing = table.firing(second)
        assert firing is not None
        assert result.next_at is not None
        assert result.next_at <= firing.fire_at
