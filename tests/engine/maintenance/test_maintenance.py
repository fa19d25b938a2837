"""What is done from time to time, and what it costs when there is nothing to do."""

from pathlib import Path
from typing import Any, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ductile.engine.maintenance.maintenance import keep_house
from ductile.engine.maintenance.retention_clock import RetentionClock
from tests.engine.builders import snapshot_of
from tests.engine.stage import DAY, Counted, Stage, open_stage

TICK_SECONDS = 60


async def start(one: Stage, nursery: trio.Nursery) -> Counted:
    """Housekeeping goes on behind a ledger that counts its writes."""
    counted = Counted(one.ledger)
    past, asked = await RetentionClock.of(one.ledger, one.clock), cast("Any", counted)
    nursery.start_soon(keep_house, asked, lambda: one.snapshot, one.log, one.clock, past)
    await wait_all_tasks_blocked()
    return counted


async def tick(mock_clock: MockClock) -> None:
    """One round is over, also the part of it that a thread reads: the next one is a whole tick away."""
    mock_clock.jump(TICK_SECONDS)
    while trio.lowlevel.current_statistics().seconds_to_next_deadline != TICK_SECONDS:
        await wait_all_tasks_blocked(cushion=0.001)


async def test_a_tidy_ledger_is_only_looked_at(tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery) -> None:
    """An idle service does not write."""
    async with open_stage(tmp_path, "  echo: {schedules: [{every: 5m}]}") as one:
        await one.turn()
        await one.work()
        counted = await start(one, nursery)
        for _ in range(3):
            await tick(mock_clock)
        assert (counted.writes, len(one.jobs())) == (0, 1)
        nursery.cancel_scope.cancel()


async def test_a_round_keeps_what_the_configuration_of_its_moment_keeps(
    tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Not what the one kept that was there when the wait for the round began."""
    async with open_stage(tmp_path, "  echo: {schedules: [{every: 5m}]}") as one:
        await one.turn()
        await one.work()
        await start(one, nursery)
        text = (one.home.path / "config.yaml").read_text()
        one.home.write("config.yaml", text.replace("service:\n", "service:\n  job_queue_retention: 30d\n"))
        one.snapshot = snapshot_of(one.home)
        one.clock.pass_to(one.clock.now() + 2 * DAY)
        await tick(mock_clock)
        assert len(one.jobs()) == 1
        nursery.cancel_scope.cancel()


async def test_what_is_old_goes_with_the_next_round(
    tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    """A write for it, and none to find out that nothing is left."""
    async with open_stage(tmp_path, "  echo: {schedules: [{every: 5m}]}") as one:
        await one.turn()
        await one.work()
        counted = await start(one, nursery)
        one.clock.pass_to(one.clock.now() + 2 * DAY)
        await tick(mock_clock)
        assert (counted.writes, one.jobs()) == (1, [])
        nursery.cancel_scope.cancel()
