"""Open hours: weekdays and times of day, including clock changes."""

import random
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from ductile.calendar.reasons import SkipReason
from ductile.calendar.windows import OpenHours, Window
from tests.calendar.oracle import MINUTE, ZONES, changes

DAY = timedelta(days=1)


def window(text: str) -> Window:
    return Window(*(time.fromisoformat(bound) for bound in text.split("-")))


def hours(*windows: str, not_on: frozenset[int] = frozenset(), zone: str = "UTC") -> OpenHours:
    return OpenHours(zone=ZoneInfo(zone), windows=tuple(map(window, windows)), not_on=not_on)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


SATURDAY, SUNDAY, MONDAY = "2026-03-07", "2026-03-08", "2026-03-09"
WEEKEND = frozenset({0, 6})
DAY_REASON, WINDOW_REASON = SkipReason.OUTSIDE_DAY_CONSTRAINT, SkipReason.OUTSIDE_TIME_WINDOW


@pytest.mark.parametrize(
    ("when", "at", "reason", "opens"),
    [
        (hours(), f"{MONDAY} 03:00", None, f"{MONDAY} 03:00"),
        (hours("08:00-22:00"), f"{MONDAY} 08:00", None, f"{MONDAY} 08:00"),
        (hours("08:00-22:00"), f"{MONDAY} 21:59:59.999999", None, f"{MONDAY} 21:59:59.999999"),
        (hours("08:00-22:00"), f"{SUNDAY} 22:00", WINDOW_REASON, f"{MONDAY} 08:00"),
        (hours("08:00-22:00"), f"{MONDAY} 07:59:59.999999", WINDOW_REASON, f"{MONDAY} 08:00"),
        (hours("22:00-06:00"), f"{MONDAY} 02:00", None, f"{MONDAY} 02:00"),
        (hours("22:00-06:00"), f"{MONDAY} 06:00", WINDOW_REASON, f"{MONDAY} 22:00"),
        (hours(not_on=WEEKEND), f"{SATURDAY} 00:00", DAY_REASON, f"{MONDAY} 00:00"),
        (hours(not_on=WEEKEND), f"{SUNDAY} 23:59:59", DAY_REASON, f"{MONDAY} 00:00"),
        (hours("08:00-22:00", not_on=WEEKEND), f"{SATURDAY} 07:00", DAY_REASON, f"{MONDAY} 08:00"),
        (hours("22:00-06:00", not_on=WEEKEND), f"{SATURDAY} 12:00", DAY_REASON, f"{MONDAY} 00:00"),
        (hours("22:00-06:00", not_on=frozenset({6})), f"{SATURDAY} 02:00", DAY_REASON, f"{SUNDAY} 00:00"),
        (hours("08:00-12:00", "10:00-22:00"), f"{MONDAY} 09:00", WINDOW_REASON, f"{MONDAY} 10:00"),
        (hours("08:00-12:00", "10:00-22:00"), f"{SUNDAY} 12:00", WINDOW_REASON, f"{MONDAY} 10:00"),
        (hours("08:00-22:00", zone="Asia/Kathmandu"), f"{MONDAY} 02:14", WINDOW_REASON, f"{MONDAY} 02:15"),
        (hours(not_on=frozenset({1}), zone="America/New_York"), f"{MONDAY} 02:00", None, f"{MONDAY} 02:00"),
    ],
)
def test_closed_hours_have_a_reason_and_an_opening(
    when: OpenHours, at: str, reason: SkipReason | None, opens: str
) -> None:
    """A window is [start, end) and may cross midnight. The weekday is that of the schedule's zone."""
    assert when.closed_reason(utc(at)) is reason
    assert when.opens_at(utc(at)) == utc(opens)


def test_disjoint_windows_never_open() -> None:
    """All windows must be open."""
    assert hours("08:00-10:00", "10:00-12:00").opens_at(utc(f"{MONDAY} 09:00")) is None
    assert hours(not_on=frozenset(range(7))).opens_at(utc(f"{MONDAY} 09:00")) is None


def test_the_description_of_closed_hours_has_the_local_time() -> None:
    assert hours("08:00-22:00", zone="Europe/Berlin").describe_closed(utc(f"{MONDAY} 05:30")) == (
        "only 08:00-22:00; local time is 06:30"
    )
    assert hours(not_on=WEEKEND).describe_closed(utc(f"{SUNDAY} 05:30")) == "not on Sunday"


TRIED = [
    ("08:00-22:00",),
    ("22:00-06:00",),
    ("02:00-03:00",),
    ("02:15-02:45",),
    ("01:30-02:30",),
    ("00:00-00:30",),
    ("23:30-00:30",),
    ("23:00-03:00", "01:00-23:30"),
]


@pytest.mark.parametrize("zone", [zone for zone in ZONES if changes(zone)])
def test_openings_equal_those_of_a_walk_through_every_minute(zone: str) -> None:
    """For windows that contain a clock change or are inside its gap or repeated hour."""
    rng = random.Random(zone)
    for change in rng.sample(changes(zone), k=2):
        minutes = [change - DAY + number * MINUTE for number in range(4 * 1440)]
        walls = [minute.astimezone(ZoneInfo(zone)) for minute in minutes]
        shown = [(f"{wall.hour:02}:{wall.minute:02}", (wall.weekday() + 1) % 7) for wall in walls]
        for texts in TRIED:
            not_on = frozenset(rng.sample(range(7), k=rng.choice([0, 1])))
            is_open = [
                weekday not in not_on and all(_within(at, *text.split("-")) for text in texts) for at, weekday in shown
            ]
            for index in rng.sample(range(2 * 1440), k=20):
                following = next((number for number in range(index, len(minutes)) if is_open[number]), None)
                if following is not None:
                    assert hours(*texts, not_on=not_on, zone=zone).opens_at(minutes[index]) == minutes[following]


def _within(at: str, start: str, end: str) -> bool:
    return start <= at < end if start < end else at >= start or at < end


def test_a_window_in_the_gap_does_not_open_that_day() -> None:
    """A window in the repeated hour opens twice."""
    spring, autumn = hours("02:00-03:00", zone="Europe/Berlin"), hours("02:00-02:30", zone="Europe/Berlin")
    assert spring.opens_at(utc("2026-03-29 00:59")) == utc("2026-03-30 00:00")
    assert autumn.opens_at(utc("2026-10-24 23:00")) == utc("2026-10-25 00:00")
    assert autumn.opens_at(utc("2026-10-25 00:30")) == utc("2026-10-25 01:00")
    assert autumn.opens_at(utc("2026-10-25 01:30")) == utc("2026-10-26 01:00")
