"""Periodic maintenance prunes expired rows, and writes nothing if there are none."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ductile.core.message import NewMessage, TopicRules
from ductile.engine.maintenance.periodic import run_maintenance
from ductile.engine.maintenance.retention_clock import RetentionClock
from ductile.ledger.exchange.claim import Worker, claim_messages
from ductile.ledger.exchange.message_list import list_messages
from ductile.ledger.exchange.publish import publish
from ductile.ledger.tables import journal
from tests.engine.builders import snapshot_of
from tests.engine.scheduler_service import DAY, CountingLedger, SchedulerService, open_scheduler_service

TICK_SECONDS = 60


async def start_maintenance(service: SchedulerService, nursery: trio.Nursery) -> CountingLedger:
    """Start maintenance with a ledger that counts its writes."""
    counted = CountingLedger(service.ledger)
    retention_clock, as_ledger = await RetentionClock.load(service.ledger, service.clock), cast("Any", counted)
    nursery.start_soon(
        run_maintenance, as_ledger, lambda: service.snapshot, service.log, service.clock, retention_clock
    )
    await wait_all_tasks_blocked()
    return counted


async def run_round(mock_clock: MockClock) -> None:
    """Run one round to its end, when the next one is a whole interval away."""
    mock_clock.jump(TICK_SECONDS)
    while trio.lowlevel.current_statistics().seconds_to_next_deadline != TICK_SECONDS:
        await wait_all_tasks_blocked(cushion=0.001)


async def test_maintenance_does_not_write_if_nothing_has_expired(
    tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    """An idle service does not write."""
    async with open_scheduler_service(tmp_path, "  echo: {schedules: [{every: 5m}]}") as service:
        await service.tick()
        await service.run_jobs()
        counted = await start_maintenance(service, nursery)
        for _ in range(3):
            await run_round(mock_clock)
        assert (counted.writes, len(service.jobs())) == (0, 1)
        nursery.cancel_scope.cancel()


async def test_a_round_uses_the_current_retention(tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery) -> None:
    """Not the retention from before the wait."""
    async with open_scheduler_service(tmp_path, "  echo: {schedules: [{every: 5m}]}") as service:
        await service.tick()
        await service.run_jobs()
        await start_maintenance(service, nursery)
        text = (service.home.path / "config.yaml").read_text()
        service.home.write("config.yaml", text.replace("service:\n", "service:\n  job_queue_retention: 30d\n"))
        service.snapshot = snapshot_of(service.home)
        service.clock.advance_to(service.clock.now() + 2 * DAY)
        await run_round(mock_clock)
        assert len(service.jobs()) == 1
        nursery.cancel_scope.cancel()


async def test_a_round_prunes_conversations_and_journals_unclaimed_messages(
    tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with open_scheduler_service(tmp_path, "  echo: {schedules: [{every: 5m}]}") as service:
        send = partial(publish, actor="test", rules=lambda topic: TopicRules())
        news = [NewMessage(topic="a.request", body="claimed"), NewMessage(topic="a.request", body="ready")]
        await service.ledger.write(send, news, now=service.clock.now())
        worker = Worker(group="g", instance_id="i", actor="test")
        await service.ledger.write(claim_messages, ["a.request"], worker, lease=None, now=service.clock.now())
        await service.ledger.write(send, [NewMessage(topic="inbox", body="old")], now=service.clock.now())
        await start_maintenance(service, nursery)
        service.clock.advance_to(service.clock.now() + 31 * DAY)
        await run_round(mock_clock)
        left = (await service.ledger.read(list_messages)).items
        assert [item.message.body for item in left] == ["claimed", "ready"]
        entries = await service.ledger.read(journal.of_message, left[1].message.id)
        assert [entry.kind for entry in entries] == ["message.unclaimed"]
        nursery.cancel_scope.cancel()


async def test_the_next_round_prunes_expired_rows(tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery) -> None:
    """One write, and none to find that no more has expired."""
    async with open_scheduler_service(tmp_path, "  echo: {schedules: [{every: 5m}]}") as service:
        await service.tick()
        await service.run_jobs()
        counted = await start_maintenance(service, nursery)
        service.clock.advance_to(service.clock.now() + 2 * DAY)
        await run_round(mock_clock)
        assert (counted.writes, service.jobs()) == (1, [])
        nursery.cancel_scope.cancel()
