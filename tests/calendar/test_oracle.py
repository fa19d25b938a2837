"""The calendar equals the brute-force oracle on a fixed sample; `scripts/oracle` compares everything."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from tests.calendar.comparison import compare
from tests.calendar.oracle import DAY, ZONES, MinuteWalk, OracleLine, changes, expressions, windows

DENSE = {"* * * * *", "*/5 * * * *", "*/7 * * * *", "0-10 * * * *"}


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_slots_equal_those_of_the_oracle(zone: str) -> None:
    """Around two clock changes of each zone, in both directions, and on random days."""
    rng = random.Random(f"sample of {zone}")
    around = rng.sample(list(windows(zone))[: len(changes(zone))], k=min(2, len(changes(zone))))
    elsewhere = rng.sample(list(windows(zone))[len(changes(zone)) :], k=1)
    lines = rng.sample([line for line in expressions() if line not in DENSE], k=24)

    result = compare(zone, lines, [*around, *elsewhere])

    assert result.slots > 0
    assert result.differences == ()


@pytest.mark.parametrize("line", sorted(DENSE))
def test_slots_of_dense_lines_equal_those_of_the_oracle(line: str) -> None:
    """Around a clock change of half an hour."""
    change = changes("Australia/Lord_Howe")[0]
    result = compare("Australia/Lord_Howe", [line], [(change - DAY, change + DAY)])

    assert result.slots > 48
    assert result.differences == ()


def test_a_skipped_day_is_a_gap() -> None:
    """Samoa skipped 30 December 2011: slots of that day fire in the first minute of the 31st."""
    start = datetime(2011, 12, 28, tzinfo=UTC)
    lines = ["0 12 30 12 *", "30 9 * * *", "0 12 * * fri", "*/30 * * * *", "0 */6 30 * *", "0 0 31 12 *"]

    assert compare("Pacific/Apia", lines, [(start, start + timedelta(days=6))]).differences == ()
    walk = MinuteWalk.through("Pacific/Apia", start, start + timedelta(days=6))
    assert walk.fires(OracleLine.of("0 12 30 12 *")) == [datetime(2011, 12, 30, 10, tzinfo=UTC)]


def test_the_oracle_implements_the_rule_for_clock_changes() -> None:
    """Berlin 2026: fixed times in the gap and in the repeated hour, and a line of every hour."""
    spring = MinuteWalk.through("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 3, 30, tzinfo=UTC))
    autumn = MinuteWalk.through(
        "Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 10, 25, 5, tzinfo=UTC)
    )

    def hours(walk: MinuteWalk, line: str) -> list[str]:
        return [f"{moment:%H:%M}" for moment in walk.fires(OracleLine.of(line))]

    assert hours(spring, "30 2 * * *") == ["01:00"]
    assert hours(spring, "*/30 2 * * *") == ["01:00"]
    assert hours(autumn, "30 2 * * *") == ["00:30"]
    assert hours(autumn, "*/30 2 * * *") == ["00:00", "00:30"]
    assert hours(autumn, "*/30 * * * *")[:4] == ["00:00", "00:30", "01:00", "01:30"]
    assert len(expressions()) >= 300
    assert len(set(ZONES)) == 20
