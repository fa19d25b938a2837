"""The ends of the calendar: whatever can be written, and whatever the clock shows, there is an answer."""

from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.calendar.bounds import FIRST, LAST
from ductile.calendar.cron import parse_line
from ductile.calendar.definition import After, At, CatchUp, Definition, Every, History
from ductile.calendar.due import look, slots_between
from ductile.calendar.firing import timetable
from ductile.calendar.windows import Window
from ductile.config.sections.schedules import HOST_ZONE
from ductile.core.units import LONGEST
from tests.calendar.oracle import expressions

NOW = datetime(2026, 3, 9, 12, tzinfo=UTC)
ENDLESS = datetime.max.replace(tzinfo=UTC)
ZERO, NEVER = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
EAST, WEST = ZoneInfo("Pacific/Kiritimati"), ZoneInfo("America/Los_Angeles")
MORNING = (Window(time(8), time(9)),)


def once(moment: datetime, zone: tzinfo = UTC, **more: object) -> Definition:
    return Definition(plugin="echo", schedule_id="x", when=At(moment), zone=zone, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("moment", [ZERO, ZERO + timedelta(microseconds=1), datetime(1, 1, 2, 3, tzinfo=UTC)])
@pytest.mark.parametrize("zone", [UTC, EAST, WEST, HOST_ZONE])
def test_a_moment_before_the_calendar_has_passed(moment: datetime, zone: tzinfo) -> None:
    """Go writes the first of January of the year 1 for no time at all. As any moment that was missed it fires once."""
    history = History(anchored_at=NOW)
    seen = look(once(moment, zone), history, NOW)
    assert [slot.at for slot in seen.due] == [FIRST]
    assert look(once(moment, zone), History(anchored_at=NOW, last_slot_at=seen.decided_to), NOW).due == ()


@pytest.mark.parametrize("zone", [UTC, EAST, WEST, HOST_ZONE])
def test_a_moment_after_the_calendar_never_comes(zone: tzinfo) -> None:
    """The last second of the year 9999 is the usual way to write that; it counts as the calendar's own end."""
    seen = look(once(NEVER, zone), History(anchored_at=NOW), NOW)
    assert (seen.due, seen.next_at) == ((), LAST)
    coming = slots_between(once(NEVER, zone), History(anchored_at=NOW), NOW, ENDLESS, 3)
    assert [slot.at for slot in coming] == [LAST]


@pytest.mark.parametrize(
    "definition",
    [
        once(NEVER, UTC, not_on=frozenset({5, 6})),
        once(NEVER, EAST, windows=MORNING),
        once(datetime(1, 1, 2, 3, tzinfo=UTC), WEST, windows=MORNING),
    ],
)
def test_closed_hours_reach_beyond_both_ends(definition: Definition) -> None:
    """A moment at the end waits for the opening as any other does."""
    seen = look(definition, History(anchored_at=NOW), NOW)
    assert seen.due or seen.next_at


MOMENTS = st.one_of(
    st.sampled_from([FIRST, FIRST + timedelta.resolution, NOW, LAST - timedelta.resolution, LAST]),
    st.datetimes(FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None)).map(lambda one: one.replace(tzinfo=UTC)),
)
WRITTEN = st.one_of(
    st.sampled_from([ZERO, NEVER, datetime.max.replace(tzinfo=UTC)]),
    st.datetimes().map(lambda one: one.replace(tzinfo=UTC)),
)
SPANS = st.timedeltas(timedelta.resolution, LONGEST)
HALF_HOURS = st.integers(0, 47).map(lambda number: time(number // 2, number % 2 * 30))
DEFINITIONS = st.builds(
    Definition,
    plugin=st.just("echo"),
    schedule_id=st.just("x"),
    when=st.one_of(
        WRITTEN.map(At), SPANS.map(Every), SPANS.map(After), st.sampled_from([*expressions()]).map(parse_line)
    ),
    zone=st.sampled_from([UTC, EAST, WEST, HOST_ZONE, *(timezone(timedelta(minutes=sign * 1439)) for sign in (-1, 1))]),
    jitter=st.one_of(st.just(timedelta()), SPANS),
    windows=st.lists(st.builds(Window, HALF_HOURS, HALF_HOURS), max_size=2).map(tuple),
    not_on=st.frozensets(st.integers(0, 6)),
    catch_up=st.sampled_from(CatchUp),
)
HISTORIES = st.builds(
    History,
    anchored_at=MOMENTS,
    last_slot_at=st.none() | MOMENTS,
    last_fired_at=st.none() | MOMENTS,
    started_at=st.none() | MOMENTS,
    exhausted=st.booleans(),
)


@settings(deadline=None, max_examples=300)
@given(DEFINITIONS, HISTORIES, MOMENTS)
def test_every_question_within_the_calendar_has_an_answer(
    definition: Definition, history: History, now: datetime
) -> None:
    """None of them is an exception, and every answer is a moment that any zone can show."""
    if isinstance(definition.when, Every) and definition.when.interval < timedelta(days=30):
        definition = Definition(plugin="echo", schedule_id="x", when=Every(timedelta(days=30)), zone=definition.zone)
    seen = look(definition, history, now)
    table = timetable(definition, history)
    coming = list(slots_between(definition, history, now, ENDLESS, 3))
    answers = [seen.next_at, seen.decided_to, table.latest(now), *(slot.fire_at for slot in coming)]
    assert all(moment.astimezone(zone) for moment in answers if moment for zone in (EAST, WEST))
