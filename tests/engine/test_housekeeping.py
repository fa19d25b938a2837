"""How much of the past may be forgotten, whatever the clock says."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ductile.engine.housekeeping import Past
from ductile.engine.simulate import VirtualClock
from ductile.ledger import journal
from ductile.ledger.writer import open_ledger

NOON = datetime(2026, 3, 9, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("stopped_for", "then", "believed"),
    [
        (HOUR, timedelta(), NOON + HOUR),
        (HOUR, HOUR, NOON + 2 * HOUR),
        (10 * DAY, timedelta(), NOON + DAY),
        (10 * DAY, HOUR, NOON + 2 * DAY),
        (10 * DAY, 24 * HOUR, NOON + 11 * DAY),
        (3650 * DAY, HOUR, NOON + 2 * DAY),
    ],
)
async def test_the_past_goes_by_no_faster_than_can_be_believed(
    tmp_path: Path, stopped_for: timedelta, then: timedelta, believed: datetime
) -> None:
    """A short stop is believed at once; a long one, or a clock that is wrong by years, a day in every hour."""
    clock = VirtualClock(NOON)
    async with open_ledger(tmp_path / "ledger" / "state.db", synchronous="off") as ledger:
        await ledger.write(journal.append, "run.ended", now=NOON)
        clock.pass_to(NOON + stopped_for)
        past = Past.of(ledger, clock)
        clock.pass_to(clock.now() + then)
        assert past.now(clock) == believed


async def test_a_clock_that_jumps_ahead_while_the_service_runs_is_not_believed(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "ledger" / "state.db", synchronous="off") as ledger:
        clock = VirtualClock(NOON)
        past = Past.of(ledger, clock)
        clock.jump(3650 * DAY)
        assert past.now(clock) == NOON
        clock.jump(-3651 * DAY)
        assert past.now(clock) == NOON - DAY
