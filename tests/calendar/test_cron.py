"""The meaning of the five cron fields, on wall-clock time."""

from datetime import date, datetime, time, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.calendar.cron import CronLine, parse_line
from tests.calendar.oracle import OracleLine, expressions

MINUTE = timedelta(minutes=1)


def first_dates(line: CronLine, count: int = 5, since: date = date(2026, 1, 1)) -> list[str]:
    """Return the first matching dates from 2026 on, as MM-DD in 2026 and with the year afterwards."""
    found: list[date] = []
    while len(found) < count and (at := line.first(datetime.combine(since, time()))):
        found.append(at.date())
        since = date.fromordinal(at.toordinal() + 1)
    return [f"{day:%m-%d}" if day.year == 2026 else str(day) for day in found]


DATES = [
    ("0 0 29 2 *", "2028-02-29 2032-02-29 2036-02-29"),
    ("0 0 31 * *", "01-31 03-31 05-31 07-31 08-31"),
    ("0 0 30 * *", "01-30 03-30 04-30"),
    ("0 0 1 jan,JUL *", "01-01 07-01 2027-01-01"),
    ("0 0 1 nov-feb *", "01-01 02-01 11-01"),
    ("0 0 28-2 * *", "01-01 01-02 01-28 01-29 01-30 01-31 02-01"),
    ("0 0 * * 7", "01-04 01-11"),
    ("0 0 * * sun", "01-04 01-11"),
    ("0 0 * * fri-mon", "01-02 01-03 01-04 01-05 01-09"),
    ("0 0 * * 5-7", "01-02 01-03 01-04 01-09"),
    ("0 0 * * sat-sun", "01-03 01-04 01-10"),
    ("0 0 * * 1-7/2", "01-02 01-04 01-05 01-07"),
    ("0 0 * * */2", "01-01 01-03 01-04 01-06"),
    ("0 0 * * */7", "01-04 01-11"),
    ("0 0 */10 * *", "01-01 01-11 01-21 01-31 02-01"),
    ("0 0 20/5 * *", "01-20 01-25 01-30 02-20"),
    ("0 0 1-10/4 */6 *", "01-01 01-05 01-09 07-01"),
    ("0 0 13 * fri", "01-02 01-09 01-13 01-16"),
    ("0 0 30 2 mon", "02-02 02-09 02-16 02-23 2027-02-01"),
    ("0 0 */2 * mon", "01-05 01-19 02-09 02-23"),
    ("0 0 1-7 * */7", "01-04 02-01 03-01"),
    ("0 0 */100,1-7 * mon", "01-05 02-02 03-02"),
    ("0 0 29 2 */7", "2032-02-29 2060-02-29 2088-02-29 2128-02-29"),
    ("0 0 * * sat-mon/2", "01-03 01-05 01-10 01-12"),
    ("0 0 1,* * mon", "01-01 01-02 01-03"),
    ("0 0 14,*/30 * wed,*", "01-01 01-02 01-03"),
    ("0 0 1 12/3 *", "12-01 2027-12-01"),
]


@pytest.mark.parametrize(("text", "expected"), DATES)
def test_a_line_matches_dates(text: str, expected: str) -> None:
    """Days that some months lack, names, wrapping ranges, steps, 7 for Sunday.

    If day and weekday are both restricted, either is sufficient. A field that starts with `*`, even with a step, is not
    restricted; then both must match, so `*/2` with a weekday is that weekday on odd days.
    """
    assert first_dates(parse_line(text), len(expected.split())) == expected.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/20 8 * * *", "08:00 08:20 08:40"),
        ("50-10/10 3,4 * * *", "03:00 03:10 03:50 04:00 04:10 04:50"),
        ("5/25 22-1 * * *", "00:05 00:30 00:55 01:05"),
        ("1-1 2-2 * * *", "02:01"),
        ("59/7 23/5 * * *", "23:59"),
        ("0 20-5/5 * * *", "01:00 20:00"),
        ("*/90 */23 * * *", "00:00 23:00"),
    ],
)
def test_a_line_matches_times_of_day(text: str, expected: str) -> None:
    """A range of one value is that value; a step longer than the field leaves its first value."""
    day = [datetime(2026, 1, 1) + number * MINUTE for number in range(1440)]
    found = [f"{wall:%H:%M}" for wall in day if parse_line(text).first(wall) == wall]
    assert found[: len(expected.split())] == expected.split()


@pytest.mark.parametrize(
    ("text", "is_fixed"),
    [
        ("30 2 * * *", True),
        ("0,30 1-3 */2 * *", True),
        ("* 2 * * *", True),
        ("*/15 2 * * *", True),
        ("0-45/15 2 * * *", True),
        ("0 1-5/2 * * *", True),
        ("0 0-23 * * *", True),
        ("0 * * * *", False),
        ("*/15 * * * *", False),
        ("0 */2 * * *", False),
        ("30 *,2 * * *", False),
    ],
)
def test_a_line_is_fixed_unless_its_hour_begins_with_an_asterisk(text: str, is_fixed: bool) -> None:
    assert parse_line(text).is_fixed is is_fixed


@pytest.mark.slow
def test_a_line_without_weekdays_matches_the_other_days_of_the_line() -> None:
    """In both directions and counted, also for lines that match by day or weekday."""
    days = [datetime(2026, 1, 1) + number * timedelta(days=1) for number in range(400)]
    failures = []
    for text in ("30 4 * * *", "30 4 1 * mon", "30 4 * * 1-5", "30 4 */2 * *", "30 4 13 * *"):
        for excluded in (frozenset({0, 6}), frozenset({1, 2, 3, 4}), frozenset({5})):
            line, full = parse_line(text).without(excluded), parse_line(text)
            expected = [
                day + 270 * MINUTE
                for day in days[:-1]
                if full.matches(day + 270 * MINUTE) and day.isoweekday() % 7 not in excluded
            ]
            ahead = sorted({at for day in days if (at := line.first(day)) and at < days[-1]})
            back = sorted({at for day in days if (at := line.last(day)) and at >= days[0]})
            if not ahead == back == expected or line.count(days[0], days[-1]) != len(expected):
                failures.append(f"{text} without {sorted(excluded)}")
    assert failures == []


def test_a_line_whose_weekdays_are_all_excluded_never_matches() -> None:
    for text, excluded in (("0 0 * * mon", {1}), ("0 0 31 4 sun", {0}), ("0 0 * * 1-5", {1, 2, 3, 4, 5})):
        line = parse_line(text).without(frozenset(excluded))
        assert (line.first(datetime(2026, 1, 1)), line.last(datetime(2026, 1, 1))) == (None, None), text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("* * * *", "it has 4"),
        ("* * * * * *", "it has 6"),
        ("", "it has 0"),
        ("1," * 150 + "1 * * * *", "longer than 256"),
        ("60 * * * *", "the minute must be 0-59"),
        ("* 24 * * *", "the hour must be 0-23"),
        ("* * 0 * *", "the day must be 1-31"),
        ("* * 1-32 * *", "the day must be 1-31"),
        ("* * 0-0 * *", "the day must be 1-31"),
        ("@daily * * * *", "the minute must be *"),
        ("h * * * *", "the minute must be *"),
        ("* * * 13 *", "the month must be 1-12 or jan-dec"),
        ("* * * mon *", "the month must be 1-12 or jan-dec"),
        ("* * * * 8", "the weekday must be 0-7 or sun-sat"),
        ("*/0 * * * *", "a step of the minute must be 1 or more"),
        ("* 1- * * *", "the hour must be *"),
        ("* 1,, * * *", "the hour must be *"),
        ("* *-5 * * *", "the hour must be *"),
        ("* ** * * *", "the hour must be *"),
        ("* * L * *", "the day must be *"),
        ("* * * * 5#1", "the weekday must be *"),
        ("1/2/3 * * * *", "the minute must be *"),
        ("0 0 30 2 *", "names a date that never occurs"),
        ("0 0 31 4,6,9,11 *", "names a date that never occurs"),
        ("0 0 30,31 2 */2", "names a date that never occurs"),
    ],
)
def test_an_invalid_line_is_refused_with_its_field_and_allowed_values(text: str, reason: str) -> None:
    """A date that never occurs is refused as well."""
    with pytest.raises(ValueError, match=r"cron line|never occurs") as refused:
        parse_line(text)
    assert reason in str(refused.value)


WALLS = st.datetimes(datetime(1996, 1, 1), datetime(2108, 1, 1))


@given(st.sampled_from(expressions()), WALLS)
def test_first_and_last_are_adjacent_matches(text: str, wall: datetime) -> None:
    line, oracle_line = parse_line(text), OracleLine.of(text)
    first, last = line.first(wall), line.last(wall)
    assert first
    assert last
    assert last < wall <= first
    for found in (first, last):
        assert oracle_line.times[found.hour * 60 + found.minute]
        assert oracle_line.on(found.date())
    assert line.count(last, first) == 1
    assert line.last(first) == last


@settings(deadline=None)
@given(st.sampled_from(expressions()), WALLS, st.integers(1, 150))
def test_a_count_is_the_number_of_matches(text: str, start: datetime, steps: int) -> None:
    line, end = parse_line(text), start
    for _ in range(steps):
        at = line.first(end)
        assert at
        end = at + timedelta(seconds=30)
    assert line.count(start, end) == steps
    assert line.count(end, start) == 0
