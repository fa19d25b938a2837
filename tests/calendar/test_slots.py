"""Slots around clock changes: the rule itself, at real changes in every zone that has them."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from attrs import frozen

from ductile.calendar.cron import parse_line
from ductile.calendar.daylight_saving import CronSlots
from ductile.calendar.slots import IntervalSlots, SingleSlot, Slots
from ductile.calendar.zones import OffsetPeriod, offset_periods
from tests.calendar.comparison import backward, forward
from tests.calendar.oracle import ZONES, changes

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@frozen
class ClockChange:
    """A clock change in a zone, with the offset periods before and after it."""

    zone: str
    before: OffsetPeriod
    after: OffsetPeriod

    @property
    def difference(self) -> timedelta:
        return self.after.offset - self.before.offset

    def slots(self, line: str) -> CronSlots:
        return CronSlots(parse_line(line), ZoneInfo(self.zone))

    def nearby(self, slots: Slots) -> list[datetime]:
        """Return the slots within six hours of the change."""
        return list(forward(slots, self.after.start - 6 * HOUR, self.after.start + 6 * HOUR))

    def __str__(self) -> str:
        return f"{self.zone} at {self.after.start}"


CHANGES = [
    ClockChange(zone, *offset_periods(ZoneInfo(zone), change - DAY, change + DAY))
    for zone in ZONES
    for change in changes(zone)[:5]
]
GAPS = [change for change in CHANGES if change.difference > timedelta()]
FOLDS = [change for change in CHANGES if change.difference < timedelta()]


def distances(moments: list[datetime]) -> set[timedelta]:
    return {later - earlier for earlier, later in pairwise(moments)}


def test_every_zone_with_clock_changes_has_a_gap_and_a_repeated_hour() -> None:
    """The other two of the zones never change their clocks."""
    expected = {*ZONES} - {"UTC", "Asia/Kathmandu"}
    assert {change.zone for change in GAPS} == {change.zone for change in FOLDS} == expected


def test_a_clock_change_at_the_end_of_a_span_is_not_part_of_it() -> None:
    """The change of Gaza in 2023 is exactly between two steps of the search."""
    gaza, change = ZoneInfo("Asia/Gaza"), datetime(2023, 4, 29, tzinfo=UTC)
    for zone, end in [(gaza, change), *((ZoneInfo(change.zone), change.after.start) for change in CHANGES)]:
        (period,) = offset_periods(zone, end - DAY, end)
        assert period.offset == (end - HOUR).astimezone(zone).utcoffset()
    every_minute = CronSlots(parse_line("0-59 2 * * *"), gaza)
    assert every_minute.after(change - 3 * DAY) == change - 3 * DAY + MINUTE


def test_a_fixed_time_in_a_gap_fires_once_right_after_it() -> None:
    """Several times in one gap are one slot. The days before and after are not affected."""
    failures = []
    for change in GAPS:
        before, after = change.before, change.after
        lost = before.wall(before.end) + change.difference / 2
        daily = change.slots(f"{lost.minute} {lost.hour} * * *")
        twice = change.slots(f"{lost.minute},{(lost + MINUTE).minute} {lost.hour} * * *")
        found = (
            change.nearby(daily),
            change.nearby(twice)[0],
            daily.after(after.start),
            daily.before(after.start),
        )
        expected = ([after.start], after.start, after.moment(lost + DAY), before.moment(lost - DAY))
        failures += [f"{change}: {found}"] if found != expected else []
    assert failures == []


def test_a_line_of_every_hour_skips_a_gap_and_one_of_the_lost_hour_fires_once_after_it() -> None:
    """Every ten minutes stays every ten minutes of elapsed time."""
    failures = []
    for change in GAPS:
        lost = change.before.wall(change.before.end)
        if distances(change.nearby(change.slots("*/10 * * * *"))) != {10 * MINUTE}:
            failures.append(f"{change}: not every ten minutes")
        is_whole_hour = change.difference == HOUR and lost.minute == 0
        if is_whole_hour and change.nearby(change.slots(f"*/10 {lost.hour} * * *")) != [change.after.start]:
            failures.append(f"{change}: does not fire once after the lost hour")
    assert failures == []


def test_lines_with_the_same_meaning_fire_alike() -> None:
    """A step, a range and a list of the same times are the same slots, also at every clock change."""
    alike = [
        ("30 0-4/2 * * *", "30 0,2,4 * * *"),
        ("*/15 2 * * *", "0,15,30,45 2 * * *"),
        ("0-59/20 1-3 * * *", "0,20,40 1,2,3 * * *"),
        ("* 2 * * *", "0-59 2 * * *"),
        ("*/30 0 * * sun", "0,30 0 * * 7"),
    ]
    failures = []
    for change in CHANGES:
        for one, other in alike:
            found, expected = change.nearby(change.slots(one)), change.nearby(change.slots(other))
            failures += [f"{change}: {one} differs from {other}"] if found != expected else []
    assert failures == []


def test_a_fixed_time_in_a_repeated_hour_fires_only_the_first_time() -> None:
    """The next day is not affected."""
    failures = []
    for change in FOLDS:
        before, after = change.before, change.after
        repeated = after.wall(after.start) - change.difference / 2
        daily = change.slots(f"{repeated.minute} {repeated.hour} * * *")
        first = before.moment(repeated)
        found = (change.nearby(daily), daily.after(first), daily.before(after.moment(repeated) + MINUTE))
        failures += [f"{change}: {found}"] if found != ([first], after.moment(repeated + DAY), first) else []
    assert failures == []


def test_a_step_fires_in_both_passes_of_a_repeated_hour() -> None:
    """It follows elapsed minutes."""
    failures = []
    for change in FOLDS:
        repeated = change.after.wall(change.after.start) - change.difference / 2
        both = [change.before.moment(repeated), change.after.moment(repeated)]
        found = [at for at in change.nearby(change.slots(f"{repeated.minute} * * * *")) if at in both]
        if found != both or distances(change.nearby(change.slots("*/10 * * * *"))) != {10 * MINUTE}:
            failures.append(f"{change}: {found}")
    assert failures == []


def test_an_interval_is_elapsed_time() -> None:
    """Clock changes do not affect `every: 2h`."""
    failures = []
    for change in [*GAPS, *FOLDS]:
        found = change.nearby(IntervalSlots(change.before.start, 2 * HOUR))
        if len(found) != 6 or distances(found) != {2 * HOUR}:
            failures.append(f"{change}: {found}")
    assert failures == []


START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "slots", [IntervalSlots(START, 7 * MINUTE), CronSlots(parse_line("*/7 * * * *"), UTC), SingleSlot(START + HOUR)]
)
def test_forward_backward_and_count_agree(slots: Slots) -> None:
    there = list(forward(slots, START - HOUR, START + DAY))
    assert there[::-1] == list(backward(slots, START - HOUR, START + DAY))
    assert slots.count(START - HOUR - timedelta.resolution, START + DAY - timedelta.resolution) == len(there)


def test_an_interval_does_not_drift() -> None:
    """There are slots before the anchor too."""
    slots = IntervalSlots(START, timedelta(microseconds=300_001))
    assert slots.after(START + 999_999 * slots.interval) == START + 1_000_000 * slots.interval
    assert slots.before(START) == START - slots.interval
    assert slots.count(START, START + 1_000_000 * slots.interval) == 1_000_000
    assert IntervalSlots(START, timedelta(days=36_500)).after(datetime(9990, 1, 1, tzinfo=UTC)) is None


def test_rare_dates_are_found() -> None:
    """29 February on a Sunday: 40 years across a century without a leap day, in both directions."""
    leap_sunday = CronSlots(parse_line("30 2 29 2 */7"), ZoneInfo("Europe/Berlin"))
    found = datetime(2088, 2, 29, 1, 30, tzinfo=UTC)
    assert leap_sunday.after(found) == datetime(2128, 2, 29, 1, 30, tzinfo=UTC)
    assert leap_sunday.before(datetime(2128, 2, 29, 1, 30, tzinfo=UTC)) == found
    assert leap_sunday.after(datetime(9997, 1, 1, tzinfo=UTC)) is None


def test_long_spans_are_counted_exactly() -> None:
    """A daily slot from 1970 to 2026: one per day, including gaps and repeated hours."""
    daily = CronSlots(parse_line("30 2 * * *"), ZoneInfo("Europe/Berlin"))
    start, end = datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    assert daily.count(start, end) == (end - start).days
