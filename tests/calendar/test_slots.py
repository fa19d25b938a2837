"""Slots when the clocks change: the rule itself, at real changes in every zone that has them."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from ductile.calendar.cron import parse_line
from ductile.calendar.slots import Dial, Grid, Once, Slots
from ductile.calendar.zones import Stretch, stretches
from tests.calendar.comparison import backward, forward
from tests.calendar.oracle import ZONES, changes

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
Change = tuple[Stretch, Stretch]


def clocks_at(zone: str, change: datetime) -> Change:
    """The time before a change of the clocks, and the time after it."""
    before, after = stretches(ZoneInfo(zone), change - DAY, change + DAY)
    return before, after


CHANGES = [(zone, *clocks_at(zone, change)) for zone in ZONES for change in changes(zone)[:5]]
GAPS = [pytest.param(zone, before, after, id=zone) for zone, before, after in CHANGES if before.offset < after.offset]
FOLDS = [pytest.param(zone, before, after, id=zone) for zone, before, after in CHANGES if before.offset > after.offset]


def around(zone: str, line: str, change: datetime) -> list[datetime]:
    """What fires within six hours of the change."""
    return list(forward(Dial(parse_line(line), ZoneInfo(zone)), change - 6 * HOUR, change + 6 * HOUR))


def distances(moments: list[datetime]) -> set[timedelta]:
    return {later - earlier for earlier, later in pairwise(moments)}


def test_every_zone_with_changing_clocks_has_a_gap_and_a_repeated_hour() -> None:
    """The tables below leave no zone out but the two whose clocks stand."""
    assert {case.id for case in GAPS} == {case.id for case in FOLDS} == {*ZONES} - {"UTC", "Asia/Kathmandu"}


def test_a_time_that_ends_with_a_change_of_the_clocks_does_not_know_of_it() -> None:
    """Wherever the change lies; that of Gaza in 2023 lies where one step of the search ends and the next begins."""
    gaza, change = ZoneInfo("Asia/Gaza"), datetime(2023, 4, 29, tzinfo=UTC)
    for zone, end in [(gaza, change), *((ZoneInfo(zone), after.start) for zone, _, after in CHANGES)]:
        (stretch,) = stretches(zone, end - DAY, end)
        assert stretch.offset == (end - HOUR).astimezone(zone).utcoffset()
    every_minute = Dial(parse_line("0-59 2 * * *"), gaza)
    assert every_minute.after(change - 3 * DAY) == change - 3 * DAY + MINUTE


@pytest.mark.parametrize(("zone", "before", "after"), GAPS)
def test_a_time_in_the_gap_fires_once_right_after_it(zone: str, before: Stretch, after: Stretch) -> None:
    """At the first minute that exists; several times in one gap are one slot; the next day is as ever."""
    lost = before.wall(before.end) + (after.offset - before.offset) / 2
    daily = f"{lost.minute} {lost.hour} * * *"

    assert around(zone, daily, after.start) == [after.start]
    assert around(zone, f"{lost.minute},{(lost + MINUTE).minute} {lost.hour} * * *", after.start)[0] == after.start
    slots = Dial(parse_line(daily), ZoneInfo(zone))
    assert slots.after(after.start) == after.moment(lost + DAY)
    assert slots.before(after.start) == before.moment(lost - DAY)


@pytest.mark.parametrize(("zone", "before", "after"), GAPS)
def test_a_rhythm_skips_the_minutes_that_do_not_exist(zone: str, before: Stretch, after: Stretch) -> None:
    """Every ten minutes stays every ten minutes of real time; a rhythm inside a lost hour does not fire."""
    every_ten = around(zone, "*/10 * * * *", after.start)
    assert distances(every_ten) == {10 * MINUTE}
    lost = before.wall(before.end)
    if after.offset - before.offset == HOUR and lost.minute == 0:
        assert around(zone, f"*/10 {lost.hour} * * *", after.start) == []


@pytest.mark.parametrize(("zone", "before", "after"), FOLDS)
def test_a_time_in_the_repeated_hour_fires_only_the_first_time(zone: str, before: Stretch, after: Stretch) -> None:
    """Once, and the same a day later."""
    twice = after.wall(after.start) + (before.offset - after.offset) / 2
    daily = f"{twice.minute} {twice.hour} * * *"

    assert around(zone, daily, after.start) == [before.moment(twice)]
    slots = Dial(parse_line(daily), ZoneInfo(zone))
    assert slots.after(before.moment(twice)) == after.moment(twice + DAY)
    assert slots.before(after.moment(twice) + MINUTE) == before.moment(twice)


@pytest.mark.parametrize(("zone", "before", "after"), FOLDS)
def test_a_rhythm_fires_in_both_passes_of_the_repeated_hour(zone: str, before: Stretch, after: Stretch) -> None:
    """By real minutes: nothing is left out and nothing comes twice at once."""
    twice = after.wall(after.start) + (before.offset - after.offset) / 2
    both = [before.moment(twice), after.moment(twice)]

    assert [at for at in around(zone, f"{twice.minute} * * * *", after.start) if at in both] == both
    every_ten = around(zone, "*/10 * * * *", after.start)
    assert distances(every_ten) == {10 * MINUTE}


@pytest.mark.parametrize(("zone", "before", "after"), [*GAPS, *FOLDS])
def test_an_interval_is_real_elapsed_time(zone: str, before: Stretch, after: Stretch) -> None:
    """`every: 2h` does not know of clocks on walls."""
    slots = list(forward(Grid(before.start, 2 * HOUR), after.start - 6 * HOUR, after.start + 6 * HOUR))
    assert len(slots) == 6
    assert distances(slots) == {2 * HOUR}


START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("slots", [Grid(START, 7 * MINUTE), Dial(parse_line("*/7 * * * *"), UTC), Once(START + HOUR)])
def test_slots_are_the_same_forward_and_backward_and_counted(slots: Slots) -> None:
    """Three ways to ask, one answer."""
    there = list(forward(slots, START - HOUR, START + DAY))
    assert there[::-1] == list(backward(slots, START - HOUR, START + DAY))
    assert slots.count(START - HOUR - timedelta.resolution, START + DAY - timedelta.resolution) == len(there)


def test_a_grid_has_no_drift() -> None:
    """The millionth slot is where the first one says it is; there are slots before the anchor too."""
    grid = Grid(START, timedelta(microseconds=300_001))
    assert grid.after(START + 999_999 * grid.interval) == START + 1_000_000 * grid.interval
    assert grid.before(START) == START - grid.interval
    assert grid.count(START, START + 1_000_000 * grid.interval) == 1_000_000
    assert Grid(START, timedelta(days=36_500)).after(datetime(9990, 1, 1, tzinfo=UTC)) is None


def test_rare_dates_are_found_far_away() -> None:
    """29 February on a Sunday: 40 years across a century without a leap day, in both directions."""
    leap_sunday = Dial(parse_line("30 2 29 2 */7"), ZoneInfo("Europe/Berlin"))
    found = datetime(2088, 2, 29, 1, 30, tzinfo=UTC)
    assert leap_sunday.after(found) == datetime(2128, 2, 29, 1, 30, tzinfo=UTC)
    assert leap_sunday.before(datetime(2128, 2, 29, 1, 30, tzinfo=UTC)) == found
    assert leap_sunday.after(datetime(9997, 1, 1, tzinfo=UTC)) is None


def test_long_times_are_counted_exactly() -> None:
    """A daily job from 1970 to 2026: one per day, gaps and repeated hours included."""
    daily = Dial(parse_line("30 2 * * *"), ZoneInfo("Europe/Berlin"))
    start, end = datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    assert daily.count(start, end) == (end - start).days
