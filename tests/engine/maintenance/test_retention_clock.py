"""How much of the past may be forgotten, whatever the clock says."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ductile.core.model import Completion, Evidence, NewFact, NewJob, Succeeded
from ductile.engine.maintenance.retention_clock import MARKS, RetentionClock
from ductile.engine.scheduling.simulate import VirtualClock
from ductile.ledger.admin.retention import Pruned, RetentionPolicy, prune
from ductile.ledger.completion.record import record
from ductile.ledger.queue.claim import claim
from ductile.ledger.queue.enqueue import enqueue
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import Ledger, open_ledger
from ductile.ledger.tables import journal

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
        past = await RetentionClock.of(ledger, clock)
        clock.pass_to(clock.now() + then)
        assert past.now(clock) == believed


async def test_a_clock_that_jumps_ahead_while_the_service_runs_is_not_believed(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "ledger" / "state.db", synchronous="off") as ledger:
        clock = VirtualClock(NOON)
        past = await RetentionClock.of(ledger, clock)
        clock.jump(3650 * DAY)
        assert past.now(clock) == NOON
        clock.jump(-3651 * DAY)
        assert past.now(clock) == NOON - DAY


IN_1970 = datetime(1970, 1, 1, tzinfo=UTC) - NOON
POLICY = RetentionPolicy(job_queue=DAY, job_log=30 * DAY, journal=30 * DAY, facts=30 * DAY)
JOB = NewJob(plugin="echo", command="poll", submitted_by="test")


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with open_ledger(tmp_path / "ledger" / "state.db", synchronous="off") as ledger:
        yield ledger


async def ask(ledger: Ledger, clock: VirtualClock) -> None:
    await ledger.write(enqueue, JOB, now=clock.now())


async def run(ledger: Ledger, clock: VirtualClock) -> None:
    """The oldest job runs and leaves a fact."""
    now = clock.now()
    claimed = await ledger.write(claim, now=now, run_id="run", free={"echo": 1}, limit=1)
    evidence = Evidence(started_at=now, duration=timedelta(seconds=1))
    facts = (NewFact(fact_type="seen", fact_json="{}"),)
    ending = Completion(job_id=claimed.jobs[0].id, attempt=1, outcome=Succeeded(evidence), facts=facts)
    await ledger.write(record, ending, now=now)


async def forget(ledger: Ledger, clock: VirtualClock, past: RetentionClock) -> Pruned:
    reach = await past.reach(ledger, POLICY, clock)
    return await ledger.write(prune, POLICY, now=past.now(clock), reach=reach)


def pass_by(clock: VirtualClock, span: timedelta) -> None:
    clock.pass_to(clock.now() + span)


@pytest.mark.parametrize("waited", [False, True], ids=["new job", "job from before the start"])
async def test_what_was_written_while_the_clock_stood_far_back_is_not_old_when_it_is_right(
    ledger: Ledger, waited: bool
) -> None:
    clock = VirtualClock(NOON)
    if waited:
        await ask(ledger, clock)
    past = await RetentionClock.of(ledger, clock)
    clock.jump(IN_1970)
    if not waited:
        await ask(ledger, clock)
    await run(ledger, clock)
    clock.jump(-IN_1970)
    for _ in range(3):
        pass_by(clock, timedelta(minutes=1))
        assert (await forget(ledger, clock, past)).total == 0


async def test_it_is_forgotten_when_its_time_has_really_passed(ledger: Ledger) -> None:
    clock = VirtualClock(NOON)
    past = await RetentionClock.of(ledger, clock)
    clock.jump(IN_1970)
    await ask(ledger, clock)
    await run(ledger, clock)
    clock.jump(-IN_1970)
    gone = []
    for hour in range(24 * 32):
        pass_by(clock, HOUR)
        pruned = await forget(ledger, clock, past)
        gone += [(hour // 24, kind) for kind in ("jobs", "attempts", "journal", "facts") if getattr(pruned, kind)]
    assert gone == [(1, "jobs"), (30, "attempts"), (30, "journal"), (30, "facts")]


async def test_what_a_process_before_this_one_wrote_goes_by_its_own_moments(ledger: Ledger) -> None:
    clock = VirtualClock(NOON)
    await ask(ledger, clock)
    await run(ledger, clock)
    pass_by(clock, 2 * DAY)
    past = await RetentionClock.of(ledger, clock)
    pass_by(clock, timedelta(hours=2))  # a long stop is caught up with
    assert (await forget(ledger, clock, past)).jobs == 1


async def test_a_long_life_is_remembered_in_few_marks(ledger: Ledger) -> None:
    clock = VirtualClock(NOON)
    past = await RetentionClock.of(ledger, clock)
    for _ in range(24 * 60):
        pass_by(clock, timedelta(minutes=50))
        await past.reach(ledger, POLICY, clock)
    assert all(len(trail.marks) <= MARKS + 2 for trail in past.trails.values())


def count(db: Db) -> int:
    number: int = db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0]
    return number


async def test_of_many_jobs_each_goes_when_its_time_has_come(ledger: Ledger) -> None:
    """A job an hour for three days, on a clock that is right: a day of them is there, and a step of the marks."""
    clock = VirtualClock(NOON)
    past = await RetentionClock.of(ledger, clock)
    for _ in range(72):
        await ask(ledger, clock)
        await run(ledger, clock)
        pass_by(clock, HOUR)
        await forget(ledger, clock, past)
    assert await ledger.read(count) in (24, 25)
