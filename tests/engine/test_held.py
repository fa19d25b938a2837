"""A breaker that applies to all jobs, on a clock that the test moves and with the real ledger."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from ductile.core.model import BreakerState, Dead, Job, NewJob
from ductile.engine.follow_up_rules import gates_of
from ductile.ledger.queue import breaker_holds
from ductile.ledger.queue.block_reasons import blocked_plugins, forget_block, note_blocked
from ductile.ledger.queue.breaker_holds import HELD
from ductile.ledger.queue.claim import claim
from ductile.ledger.queue.enqueue import enqueue
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import Ledger
from tests.engine.stage import BROKEN, MINUTE, OK, SECOND, Counted, MakeStage, Stage, open_stages

ALL = "  echo: {circuit_breaker: {threshold: 2, reset_after: 30m, applies_to: all}}\n  other: {}"
SCHEDULED = ALL.replace("applies_to: all", "applies_to: scheduled")
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[MakeStage]:
    async with open_stages(tmp_path, ALL) as make:
        yield make


async def ask(one: Stage, times: int = 1, *, plugin: str = "echo", command: str = "poll") -> list[str]:
    """Somebody asks for jobs over the API."""
    new = NewJob(plugin=plugin, command=command, submitted_by="api", max_attempts=1)
    return [(await one.ledger.write(enqueue, new, now=one.clock.now())).job_id for _ in range(times)]


async def start(one: Stage) -> tuple[Job, ...]:
    """What the dispatcher would start now: it asks again at once while it is told that there is more."""
    free = dict.fromkeys(one.snapshot.lanes, 1000)
    jobs: list[Job] = []
    while True:
        claimed = await one.ledger.write(
            claim, now=one.clock.now(), run_id="run", free=free, limit=1000, gates=gates_of(one.snapshot)
        )
        jobs += claimed.jobs
        if not claimed.more:
            return tuple(jobs)


async def opened(one: Stage) -> None:
    """The breaker has seen enough."""
    await ask(one, 2)
    for job in await start(one):
        await one.end(job, BROKEN)
    assert one.breaker().state is OPEN


async def test_an_open_breaker_holds_every_job_of_its_command(stage: MakeStage) -> None:
    """They stay in the queue and say why; other commands and plugins go on; the journal tells it in one row."""
    one = await stage()
    await opened(one)
    waiting = await ask(one, 3)
    free = [*await ask(one, command="sync"), *await ask(one, plugin="other")]
    assert sorted(job.id for job in await start(one)) == sorted(free)
    assert one.jobs("id, status, blocked_reason, attempt", "status = 'queued'") == [
        (job_id, "queued", HELD, 1) for job_id in waiting
    ]
    assert one.rows("SELECT plugin, data ->> 'jobs' FROM journal WHERE kind = 'queue.held'") == [("echo", 3)]


async def test_one_probe_decides_and_a_success_lets_everybody_go(stage: MakeStage) -> None:
    """In the order in which they were asked for."""
    one = await stage()
    await opened(one)
    waiting = await ask(one, 3)
    await start(one)
    one.clock.pass_to(one.clock.now() + 30 * MINUTE)
    (probe,) = await start(one)
    assert (probe.id, one.breaker().state, one.breaker().probe_job_id) == (waiting[0], HALF_OPEN, waiting[0])
    assert await start(one) == ()
    await one.end(probe, OK)
    assert one.breaker().state is CLOSED
    assert [job.id for job in await start(one)] == waiting[1:]


async def test_a_probe_that_fails_holds_the_others_for_another_while(stage: MakeStage) -> None:
    one = await stage()
    await opened(one)
    waiting = await ask(one, 2)
    await start(one)
    one.clock.pass_to(one.clock.now() + 30 * MINUTE)
    (probe,) = await start(one)
    await one.end(probe, BROKEN)
    one.clock.pass_to(one.clock.now() + 29 * MINUTE)
    assert await start(one) == ()
    one.clock.pass_to(one.clock.now() + MINUTE)
    assert [job.id for job in await start(one)] == waiting[1:]


async def test_the_operators_reset_lets_everybody_go_at_once(stage: MakeStage) -> None:
    one = await stage()
    await opened(one)
    waiting = await ask(one, 2)
    await start(one)
    await one.reset()
    assert [job.id for job in await start(one)] == waiting


async def test_a_lost_probe_frees_its_place(stage: MakeStage) -> None:
    """A probe that is cancelled decides nothing; the next job in line becomes the probe."""
    one = await stage()
    await opened(one)
    waiting = await ask(one, 2)
    await start(one)
    one.clock.pass_to(one.clock.now() + 30 * MINUTE)
    (probe,) = await start(one)
    await start(one)
    await one.cancel(probe.id)
    await one.end(probe, Dead("cancelled: operator"))
    one.clock.pass_to(one.clock.now() + SECOND)
    assert [job.id for job in await start(one)] == waiting[1:]
    assert one.breaker().probe_job_id == waiting[1]


async def test_a_scheduled_probe_is_not_held_by_its_own_breaker(stage: MakeStage) -> None:
    """The scheduler names the probe before it is claimed."""
    plugins = ALL.replace("{circuit_breaker", "{schedules: [{every: 1h}], circuit_breaker")
    one = await stage(plugins)
    await opened(one)
    one.clock.pass_to(one.clock.now() + 30 * MINUTE)
    await one.turn()
    (probe,) = await start(one)
    assert probe.schedule_id == "default"
    assert one.breaker().probe_job_id == probe.id


async def test_a_breaker_of_schedules_holds_nobody_else(stage: MakeStage) -> None:
    """Failures of jobs that nobody scheduled do not even count."""
    one = await stage(SCHEDULED)
    await ask(one, 5)
    for job in await start(one):
        await one.end(job, BROKEN)
    assert one.breaker().state is CLOSED
    await ask(one)
    assert len(await start(one)) == 1


async def test_a_long_queue_is_held_in_portions(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim is long, and what waits behind held jobs is found; only the first of them finds out, not all."""
    monkeypatch.setattr(breaker_holds, "MOST_AT_ONCE", 5)
    one = await stage()
    await opened(one)
    await ask(one, 12)
    (last,) = await ask(one, command="sync")
    counted = Counted(one.ledger)
    one.ledger = cast(Ledger, counted)
    assert [job.id for job in await start(one)] == [last]
    assert counted.writes == 4
    assert one.jobs("COUNT(*)", f"blocked_reason = '{HELD}'") == [12]
    assert len(set(one.jobs("next_retry_at", "next_retry_at IS NOT NULL"))) == 2


async def test_a_plugin_that_cannot_be_loaded_meanwhile_does_not_keep_what_the_breaker_held(stage: MakeStage) -> None:
    """They are found again by the reason they were held for, when the breaker closes."""
    one = await stage()
    await opened(one)
    waiting = await ask(one, 2)
    assert await start(one) == ()
    await one.ledger.write(note_blocked, "echo", "plugin echo did not load")
    assert await one.ledger.read(blocked_plugins) == []
    await one.ledger.write(forget_block, "echo")
    await one.reset()
    assert [job.id for job in await start(one)] == waiting


@pytest.mark.parametrize(("column", "value"), [("opened_at", "yesterday"), ("last_failure_at", "x"), ("state", "ajar")])
async def test_a_breaker_that_cannot_be_read_lets_its_jobs_start(stage: MakeStage, column: str, value: str) -> None:
    """What nobody can read holds nobody, costs no job that went well, and is written anew."""
    one = await stage()
    await opened(one)

    def spoil(db: Db) -> None:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE circuit_breakers SET {column} = ?", (value,))

    await one.ledger.write(spoil)
    one.clock.pass_to(one.clock.now() + 60 * MINUTE)
    await ask(one)
    (job,) = await start(one)
    await one.end(job)
    assert one.jobs("status", f"id = '{job.id}'") == ["succeeded"]
    assert (one.breaker().state, one.breaker().opened_at) == (CLOSED, None)
