"""Retention prunes by real time, even if the wall clock is wrong."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ductile.core.model import Completion, Evidence, NewFact, NewJob, Succeeded
from ductile.engine.maintenance.retention_clock import MAX_MARKS, RetentionClock
from ductile.engine.scheduling.simulate import VirtualClock
from ductile.ledger.admin.retention import Pruned, RetentionPolicy, prune
from ductile.ledger.completion.record import record
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.queue.claim import claim
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal, receipts

NOON = datetime(2026, 3, 9, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("stopped_for", "uptime", "expected"),
    [
        (HOUR, timedelta(), NOON + HOUR),
        (HOUR, HOUR, NOON + 2 * HOUR),
        (10 * DAY, timedelta(), NOON + DAY),
        (10 * DAY, HOUR, NOON + 2 * DAY),
        (10 * DAY, 24 * HOUR, NOON + 11 * DAY),
        (3650 * DAY, HOUR, NOON + 2 * DAY),
    ],
)
async def test_the_retention_clock_follows_a_jump_slowly(
    tmp_path: Path, stopped_for: timedelta, uptime: timedelta, expected: datetime
) -> None:
    """It trusts a stop of up to one day. After a longer one it advances a day per hour."""
    clock = VirtualClock(NOON)
    async with open_ledger(tmp_path / "ledger" / "state.db", synchronous="off") as ledger:
        await ledger.write(journal.append, "run.ended", now=NOON)
        clock.advance_to(NOON + stopped_for)
        retention_clock = await RetentionClock.load(ledger, clock)
        clock.advance_to(clock.now() + uptime)
        assert retention_clock.now(clock) == expected


async def test_a_clock_that_jumps_ahead_while_the_service_runs_is_not_trusted(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "ledger" / "state.db", synchronous="off") as ledger:
        clock = VirtualClock(NOON)
        retention_clock = await RetentionClock.load(ledger, clock)
        clock.jump(3650 * DAY)
        assert retention_clock.now(clock) == NOON
        clock.jump(-3651 * DAY)
        assert retention_clock.now(clock) == NOON - DAY


BACK_TO_1970 = datetime(1970, 1, 1, tzinfo=UTC) - NOON
POLICY = RetentionPolicy(job_queue=DAY, job_log=30 * DAY, journal=30 * DAY, facts=30 * DAY)
JOB = NewJob(plugin="echo", command="poll", submitted_by="test")


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with open_ledger(tmp_path / "ledger" / "state.db", synchronous="off") as ledger:
        yield ledger


async def enqueue_job(ledger: Ledger, clock: VirtualClock) -> None:
    await ledger.write(enqueue, JOB, now=clock.now())


async def run_job(ledger: Ledger, clock: VirtualClock) -> None:
    """Run the oldest job, which stores a fact."""
    now = clock.now()
    claimed = await ledger.write(claim, now=now, run_id="run", free={"echo": 1}, limit=1)
    evidence = Evidence(started_at=now, duration=timedelta(seconds=1))
    facts = (NewFact(fact_type="seen", fact_json="{}"),)
    completion = Completion(job_id=claimed.jobs[0].id, attempt=1, outcome=Succeeded(evidence), facts=facts)
    await ledger.write(record, completion, now=now)


async def prune_expired(ledger: Ledger, clock: VirtualClock, retention_clock: RetentionClock) -> Pruned:
    reach = await retention_clock.update_watermarks(ledger, POLICY, clock)
    return await ledger.write(prune, POLICY, now=retention_clock.now(clock), watermarks=reach)


def advance(clock: VirtualClock, span: timedelta) -> None:
    clock.advance_to(clock.now() + span)


@pytest.mark.parametrize("is_old_job", [False, True], ids=["new job", "job from before the start"])
async def test_rows_written_while_the_clock_was_far_behind_do_not_expire_when_it_is_corrected(
    ledger: Ledger, is_old_job: bool
) -> None:
    clock = VirtualClock(NOON)
    if is_old_job:
        await enqueue_job(ledger, clock)
    retention_clock = await RetentionClock.load(ledger, clock)
    clock.jump(BACK_TO_1970)
    if not is_old_job:
        await enqueue_job(ledger, clock)
    await run_job(ledger, clock)
    clock.jump(-BACK_TO_1970)
    for _ in range(3):
        advance(clock, timedelta(minutes=1))
        assert (await prune_expired(ledger, clock, retention_clock)).total == 0


async def put_receipt(ledger: Ledger, clock: VirtualClock) -> bool:
    """Accept a delivery. Returns False for a repeated one."""
    await enqueue_job(ledger, clock)
    return await ledger.write(receipts.put, "webhook:/hook", "d-1", now=clock.now(), ttl=7 * DAY)


@pytest.mark.parametrize("error", [BACK_TO_1970, -30 * DAY, 30 * DAY], ids=["1970", "behind", "ahead"])
async def test_a_delivery_is_accepted_once_when_a_wrong_clock_is_corrected(ledger: Ledger, error: timedelta) -> None:
    clock = VirtualClock(NOON)
    retention_clock = await RetentionClock.load(ledger, clock)
    clock.jump(error)
    assert await put_receipt(ledger, clock)
    clock.jump(-error)
    for _ in range(3):
        advance(clock, timedelta(minutes=1))
        await prune_expired(ledger, clock, retention_clock)
        assert not await put_receipt(ledger, clock)


async def test_a_receipt_from_a_clock_behind_expires_after_its_lifetime_in_real_time(ledger: Ledger) -> None:
    clock = VirtualClock(NOON)
    retention_clock = await RetentionClock.load(ledger, clock)
    clock.jump(-30 * DAY)
    assert await put_receipt(ledger, clock)
    clock.jump(30 * DAY)
    pruned_days = []
    for hour in range(24 * 10):
        advance(clock, HOUR)
        await enqueue_job(ledger, clock)
        if (await prune_expired(ledger, clock, retention_clock)).receipts:
            pruned_days.append(hour // 24)
    assert pruned_days == [7]


async def test_such_rows_expire_after_their_retention_in_real_time(ledger: Ledger) -> None:
    clock = VirtualClock(NOON)
    retention_clock = await RetentionClock.load(ledger, clock)
    clock.jump(BACK_TO_1970)
    await enqueue_job(ledger, clock)
    await run_job(ledger, clock)
    clock.jump(-BACK_TO_1970)
    pruned_kinds = []
    for hour in range(24 * 32):
        advance(clock, HOUR)
        pruned = await prune_expired(ledger, clock, retention_clock)
        pruned_kinds += [
            (hour // 24, kind) for kind in ("jobs", "attempts", "journal", "facts") if getattr(pruned, kind)
        ]
    assert pruned_kinds == [(1, "jobs"), (30, "attempts"), (30, "journal"), (30, "facts")]


async def test_rows_of_an_earlier_process_expire_by_their_timestamps(ledger: Ledger) -> None:
    clock = VirtualClock(NOON)
    await enqueue_job(ledger, clock)
    await run_job(ledger, clock)
    advance(clock, 2 * DAY)
    retention_clock = await RetentionClock.load(ledger, clock)
    advance(clock, timedelta(hours=2))  # the clock catches up after the stop
    assert (await prune_expired(ledger, clock, retention_clock)).jobs == 1


async def test_a_long_uptime_needs_few_marks(ledger: Ledger) -> None:
    clock = VirtualClock(NOON)
    retention_clock = await RetentionClock.load(ledger, clock)
    for _ in range(24 * 60):
        advance(clock, timedelta(minutes=50))
        await retention_clock.update_watermarks(ledger, POLICY, clock)
    assert all(len(history.marks) <= MAX_MARKS + 2 for history in retention_clock.histories.values())


def count(db: Db) -> int:
    number: int = db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0]
    return number


async def test_each_of_many_jobs_expires_after_its_own_retention(ledger: Ledger) -> None:
    """With a job per hour and a correct clock, the jobs of one day remain, plus one step of the marks."""
    clock = VirtualClock(NOON)
    retention_clock = await RetentionClock.load(ledger, clock)
    for _ in range(72):
        await enqueue_job(ledger, clock)
        await run_job(ledger, clock)
        advance(clock, HOUR)
        await prune_expired(ledger, clock, retention_clock)
    assert await ledger.read(count) in (24, 25)
