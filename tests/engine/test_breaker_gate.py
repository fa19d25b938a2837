"""A breaker that applies to all jobs, with a virtual clock and a real ledger."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from ductile.core.model import BreakerState, Dead, Job, NewJob
from ductile.engine.follow_up_rules import gates_of
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.queue.claim import claim
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import blocked_jobs
from ductile.ledger.tables.blocked_jobs import BREAKER_OPEN, blocked_plugins, clear_block_reason, set_block_reason
from tests.engine.scheduler_service import (
    FAILED,
    MINUTE,
    OK,
    SECOND,
    CountingLedger,
    SchedulerService,
    StartService,
    scheduler_services,
)

ALL = "  echo: {circuit_breaker: {threshold: 2, reset_after: 30m, applies_to: all}}\n  other: {}"
SCHEDULED = ALL.replace("applies_to: all", "applies_to: scheduled")
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.fixture
async def start_service(tmp_path: Path) -> AsyncIterator[StartService]:
    async with scheduler_services(tmp_path, ALL) as make:
        yield make


async def enqueue_jobs(
    service: SchedulerService, times: int = 1, *, plugin: str = "echo", command: str = "poll"
) -> list[str]:
    """Enqueue jobs as the API does."""
    new = NewJob(plugin=plugin, command=command, submitted_by="api", max_attempts=1)
    return [(await service.ledger.write(enqueue, new, now=service.clock.now())).job_id for _ in range(times)]


async def start_jobs(service: SchedulerService) -> tuple[Job, ...]:
    """Claim all jobs that can start, as the dispatcher does."""
    free = dict.fromkeys(service.snapshot.plugins, 1000)
    jobs: list[Job] = []
    while True:
        claimed = await service.ledger.write(
            claim, now=service.clock.now(), run_id="run", free=free, limit=1000, gates=gates_of(service.snapshot)
        )
        jobs += claimed.jobs
        if not claimed.more:
            return tuple(jobs)


async def open_breaker(service: SchedulerService) -> None:
    """Let two jobs fail, which opens the breaker."""
    await enqueue_jobs(service, 2)
    for job in await start_jobs(service):
        await service.complete(job, FAILED)
    assert service.breaker().state is OPEN


async def test_an_open_breaker_blocks_every_job_of_its_command(start_service: StartService) -> None:
    """They stay queued with the reason. Other commands and plugins run. The journal has one row."""
    service = await start_service()
    await open_breaker(service)
    waiting = await enqueue_jobs(service, 3)
    free = [*await enqueue_jobs(service, command="sync"), *await enqueue_jobs(service, plugin="other")]
    assert sorted(job.id for job in await start_jobs(service)) == sorted(free)
    assert service.jobs("id, status, blocked_reason, attempt", "status = 'queued'") == [
        (job_id, "queued", BREAKER_OPEN, 1) for job_id in waiting
    ]
    assert service.rows("SELECT plugin, data ->> 'jobs' FROM journal WHERE kind = 'queue.held'") == [("echo", 3)]


async def test_the_success_of_the_probe_unblocks_all_jobs(start_service: StartService) -> None:
    """They start in the order of the queue."""
    service = await start_service()
    await open_breaker(service)
    waiting = await enqueue_jobs(service, 3)
    await start_jobs(service)
    service.clock.advance_to(service.clock.now() + 30 * MINUTE)
    (probe,) = await start_jobs(service)
    assert (probe.id, service.breaker().state, service.breaker().probe_job_id) == (waiting[0], HALF_OPEN, waiting[0])
    assert await start_jobs(service) == ()
    await service.complete(probe, OK)
    assert service.breaker().state is CLOSED
    assert [job.id for job in await start_jobs(service)] == waiting[1:]


async def test_the_failure_of_the_probe_blocks_the_others_for_another_cooldown(start_service: StartService) -> None:
    service = await start_service()
    await open_breaker(service)
    waiting = await enqueue_jobs(service, 2)
    await start_jobs(service)
    service.clock.advance_to(service.clock.now() + 30 * MINUTE)
    (probe,) = await start_jobs(service)
    await service.complete(probe, FAILED)
    service.clock.advance_to(service.clock.now() + 29 * MINUTE)
    assert await start_jobs(service) == ()
    service.clock.advance_to(service.clock.now() + MINUTE)
    assert [job.id for job in await start_jobs(service)] == waiting[1:]


async def test_a_reset_unblocks_all_jobs_immediately(start_service: StartService) -> None:
    service = await start_service()
    await open_breaker(service)
    waiting = await enqueue_jobs(service, 2)
    await start_jobs(service)
    await service.reset()
    assert [job.id for job in await start_jobs(service)] == waiting


async def test_the_job_after_a_lost_probe_becomes_the_probe(start_service: StartService) -> None:
    """A cancelled probe decides nothing."""
    service = await start_service()
    await open_breaker(service)
    waiting = await enqueue_jobs(service, 2)
    await start_jobs(service)
    service.clock.advance_to(service.clock.now() + 30 * MINUTE)
    (probe,) = await start_jobs(service)
    await start_jobs(service)
    await service.cancel(probe.id)
    await service.complete(probe, Dead("cancelled: operator"))
    service.clock.advance_to(service.clock.now() + SECOND)
    assert [job.id for job in await start_jobs(service)] == waiting[1:]
    assert service.breaker().probe_job_id == waiting[1]


async def test_a_scheduled_probe_is_not_blocked_by_its_own_breaker(start_service: StartService) -> None:
    """The scheduler sets the probe before it is claimed."""
    plugins = ALL.replace("{circuit_breaker", "{schedules: [{every: 1h}], circuit_breaker")
    service = await start_service(plugins)
    await open_breaker(service)
    service.clock.advance_to(service.clock.now() + 30 * MINUTE)
    await service.tick()
    (probe,) = await start_jobs(service)
    assert probe.schedule_id == "default"
    assert service.breaker().probe_job_id == probe.id


async def test_a_breaker_for_schedules_does_not_block_other_jobs(start_service: StartService) -> None:
    """Failures of other jobs do not count."""
    service = await start_service(SCHEDULED)
    await enqueue_jobs(service, 5)
    for job in await start_jobs(service):
        await service.complete(job, FAILED)
    assert service.breaker().state is CLOSED
    await enqueue_jobs(service)
    assert len(await start_jobs(service)) == 1


async def test_a_long_queue_is_blocked_in_batches(start_service: StartService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim is short, and jobs behind the blocked ones are found."""
    monkeypatch.setattr(blocked_jobs, "MAX_BLOCKED_AT_ONCE", 5)
    service = await start_service()
    await open_breaker(service)
    await enqueue_jobs(service, 12)
    (last,) = await enqueue_jobs(service, command="sync")
    counted = CountingLedger(service.ledger)
    service.ledger = cast(Ledger, counted)
    assert [job.id for job in await start_jobs(service)] == [last]
    assert counted.writes == 4
    assert service.jobs("COUNT(*)", f"blocked_reason = '{BREAKER_OPEN}'") == [12]
    assert len(set(service.jobs("next_retry_at", "next_retry_at IS NOT NULL"))) == 2


async def test_a_plugin_that_fails_to_load_does_not_replace_the_block_reason_of_the_breaker(
    start_service: StartService,
) -> None:
    """The jobs are unblocked by that reason when the breaker closes."""
    service = await start_service()
    await open_breaker(service)
    waiting = await enqueue_jobs(service, 2)
    assert await start_jobs(service) == ()
    await service.ledger.write(set_block_reason, "echo", "plugin echo did not load")
    assert await service.ledger.read(blocked_plugins) == []
    await service.ledger.write(clear_block_reason, "echo")
    await service.reset()
    assert [job.id for job in await start_jobs(service)] == waiting


@pytest.mark.parametrize(("column", "value"), [("opened_at", "yesterday"), ("last_failure_at", "x"), ("state", "ajar")])
async def test_a_breaker_that_cannot_be_read_lets_its_jobs_start(
    start_service: StartService, column: str, value: str
) -> None:
    """It blocks no job, and the next completion replaces it."""
    service = await start_service()
    await open_breaker(service)

    def spoil(db: Db) -> None:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE circuit_breakers SET {column} = ?", (value,))

    await service.ledger.write(spoil)
    service.clock.advance_to(service.clock.now() + 60 * MINUTE)
    await enqueue_jobs(service)
    (job,) = await start_jobs(service)
    await service.complete(job)
    assert service.jobs("status", f"id = '{job.id}'") == ["succeeded"]
    assert (service.breaker().state, service.breaker().opened_at) == (CLOSED, None)
