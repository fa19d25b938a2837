"""Every schedule can be evaluated up to the ends of the supported time range."""

from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.calendar.bounds import CALENDAR_END, CALENDAR_START
from ductile.calendar.cron import parse_line
from ductile.calendar.definition import After, At, CatchUp, Definition, Every, History
from ductile.calendar.due import evaluate, slots_between
from ductile.calendar.firing import build_timetable
from ductile.calendar.windows import Window
from ductile.config.sections.schedules import HOST_ZONE
from ductile.core.units import MAX_DURATION
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
def test_a_time_before_the_range_has_passed(moment: datetime, zone: tzinfo) -> None:
    """Go writes 0001-01-01 for "no time". It fires once, like any missed time."""
    history = History(anchored_at=NOW)
    result = evaluate(once(moment, zone), history, NOW)
    assert [slot.at for slot in result.due] == [CALENDAR_START]
    assert evaluate(once(moment, zone), History(anchored_at=NOW, last_slot_at=result.decided_to), NOW).due == ()


@pytest.mark.parametrize("zone", [UTC, EAST, WEST, HOST_ZONE])
def test_a_time_after_the_range_counts_as_its_end(zone: tzinfo) -> None:
    """9999-12-31T23:59:59 is a common way to write "never"."""
    result = evaluate(once(NEVER, zone), History(anchored_at=NOW), NOW)
    assert (result.due, result.next_at) == ((), CALENDAR_END)
    upcoming = slots_between(once(NEVER, zone), History(anchored_at=NOW), NOW, ENDLESS, 3)
    assert [slot.at for slot in upcoming] == [CALENDAR_END]


@pytest.mark.parametrize(
    "definition",
    [
        once(NEVER, UTC, not_on=frozenset({5, 6})),
        once(NEVER, EAST, windows=MORNING),
        once(datetime(1, 1, 2, 3, tzinfo=UTC), WEST, windows=MORNING),
    ],
)
def test_closed_hours_apply_at_both_ends_of_the_range(definition: Definition) -> None:
    result = evaluate(definition, History(anchored_at=NOW), NOW)
    assert result.due or result.next_at


TIMES = st.one_of(
    st.sampled_from(
        [CALENDAR_START, CALENDAR_START + timedelta.resolution, NOW, CALENDAR_END - timedelta.resolution, CALENDAR_END]
    ),
    st.datetimes(CALENDAR_START.replace(tzinfo=None), CALENDAR_END.replace(tzinfo=None)).map(
        lambda value: value.replace(tzinfo=UTC)
    ),
)
TEXTS = st.one_of(
    st.sampled_from([ZERO, NEVER, datetime.max.replace(tzinfo=UTC)]),
    st.datetimes().map(lambda value: value.replace(tzinfo=UTC)),
)
SPANS = st.timedeltas(timedelta.resolution, MAX_DURATION)
HALF_HOURS = st.integers(0, 47).map(lambda number: time(number // 2, number % 2 * 30))
DEFINITIONS = st.builds(
    Definition,
    plugin=st.just("echo"),
    schedule_id=st.just("x"),
    when=st.one_of(
        TEXTS.map(At), SPANS.map(Every), SPANS.map(After), st.sampled_from([*expressions()]).map(parse_line)
    ),
    zone=st.sampled_from([UTC, EAST, WEST, HOST_ZONE, *(timezone(timedelta(minutes=sign * 1439)) for sign in (-1, 1))]),
    jitter=st.one_of(st.just(timedelta()), SPANS),
    windows=st.lists(st.builds(Window, HALF_HOURS, HALF_HOURS), max_size=2).map(tuple),
    not_on=st.frozensets(st.integers(0, 6)),
    catch_up=st.sampled_from(CatchUp),
)
HISTORIES = st.builds(
    History,
    anchored_at=TIMES,
    last_slot_at=st.none() | TIMES,
    last_fired_at=st.none() | TIMES,
    started_at=st.none() | TIMES,
    exhausted=st.booleans(),
)


@pytest.mark.timeout(600)
@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(DEFINITIONS, HISTORIES, TIMES)
def test_any_schedule_can_be_evaluated_at_any_time_in_the_range(
    definition: Definition, history: History, now: datetime
) -> None:
    """Without an exception, and every result can be converted to any zone."""
    if isinstance(definition.when, Every) and definition.when.interval < timedelta(days=30):
        definition = Definition(plugin="echo", schedule_id="x", when=Every(timedelta(days=30)), zone=definition.zone)
    result = evaluate(definition, history, now)
    table = build_timetable(definition, history)
    upcoming = list(slots_between(definition, history, now, ENDLESS, 3))
    times = [result.next_at, result.decided_to, table.latest(now), *(slot.fire_at for slot in upcoming)]
    assert all(moment.astimezone(zone) for moment in times if moment for zone in (EAST, WEST))
