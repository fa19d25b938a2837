"""The calendar equals the brute-force oracle, on a fixed sample; `scripts/oracle` compares everything."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from tests.calendar.comparison import compare
from tests.calendar.oracle import DAY, ZONES, Reading, Walk, changes, expressions, windows

DENSE = {"* * * * *", "*/5 * * * *", "*/7 * * * *", "0-10 * * * *"}


@pytest.mark.parametrize("zone", ZONES)
def test_fire_times_equal_those_of_a_walk_through_every_minute(zone: str) -> None:
    """Around two changes of the clocks, in both directions, and on random days, for lines of all kinds."""
    dice = random.Random(f"sample of {zone}")
    around = dice.sample(list(windows(zone))[: len(changes(zone))], k=min(2, len(changes(zone))))
    elsewhere = dice.sample(list(windows(zone))[len(changes(zone)) :], k=1)
    lines = dice.sample([line for line in expressions() if line not in DENSE], k=24)

    tally = compare(zone, lines, [*around, *elsewhere])

    assert tally.slots > 0
    assert tally.differences == ()


@pytest.mark.parametrize("line", sorted(DENSE))
def test_dense_lines_equal_the_walk_too(line: str) -> None:
    """Every minute around a change of half an hour."""
    change = changes("Australia/Lord_Howe")[0]
    tally = compare("Australia/Lord_Howe", [line], [(change - DAY, change + DAY)])

    assert tally.slots > 48
    assert tally.differences == ()


def test_a_day_that_never_was_is_a_gap() -> None:
    """Samoa went from 29 to 31 December 2011: what was named for the 30th comes at the first minute of the 31st."""
    start = datetime(2011, 12, 28, tzinfo=UTC)
    lines = ["0 12 30 12 *", "30 9 * * *", "0 12 * * fri", "*/30 * * * *", "0 */6 30 * *", "0 0 31 12 *"]

    assert compare("Pacific/Apia", lines, [(start, start + timedelta(days=6))]).differences == ()
    walk = Walk.through("Pacific/Apia", start, start + timedelta(days=6))
    assert walk.fires(Reading.of("0 12 30 12 *")) == [datetime(2011, 12, 30, 10, tzinfo=UTC)]


def test_the_oracle_knows_the_rule() -> None:
    """It was not made to agree: Berlin 2026, a fixed time in the gap and in the repeated hour, and a rhythm."""
    spring = Walk.through("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 3, 30, tzinfo=UTC))
    autumn = Walk.through("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 10, 25, 5, tzinfo=UTC))

    def hours(walk: Walk, line: str) -> list[str]:
        return [f"{moment:%H:%M}" for moment in walk.fires(Reading.of(line))]

    assert hours(spring, "30 2 * * *") == ["01:00"]
    assert hours(spring, "*/30 2 * * *") == []
    assert hours(autumn, "30 2 * * *") == ["00:30"]
    assert hours(autumn, "*/30 2 * * *") == ["00:00", "00:30", "01:00", "01:30"]
    assert len(expressions()) >= 300
    assert len(set(ZONES)) == 20
