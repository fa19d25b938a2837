"""The dispatcher on its own: what happens between a claim and its task, and what others leave for its next turn."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from attrs import define, field

from ductile.clock import Clock
from ductile.engine.dispatcher import Dispatcher
from ductile.engine.run_job import Attempt, Surroundings
from ductile.errors import LedgerError
from ductile.hub import Hub, job_topic
from ductile.ledger.claim import Claimed
from ductile.ledger.jobs import enqueue
from ductile.ledger.pauses import EVERYTHING
from ductile.ledger.writer import Ledger, open_ledger
from ductile.model import NewJob
from tests.e2e.service import Home
from tests.engine.builders import a_job, snapshot_of
from tests.engine.stage import NOON, open_log


@define
class Claims:
    """A ledger that gives one job, and lets somebody act between its commit and the dispatcher's next step."""

    meanwhile: Callable[[], None] = lambda: None
    last_was_shared = False

    async def write_last(self, *_: Any, **__: Any) -> tuple[list[Any], Claimed]:
        await trio.lowlevel.checkpoint()
        self.meanwhile()
        return [], Claimed(jobs=(a_job(id="job"),), states={"echo": "{}"})

    def look_up(self, *_: Any, **__: Any) -> Any:
        return False

    def read(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def disk(self) -> Any:
        return self

    def has(self, _: int) -> bool:
        return True

    def when_durable(self, function: Callable[[], None], *, is_awaited: bool) -> None:
        function()


@define
class Tasks:
    """A nursery that only remembers what it was to start."""

    attempts: list[Attempt] = field(factory=list)

    def start_soon(self, _: Any, attempt: Attempt, **__: Any) -> None:
        self.attempts.append(attempt)


@define
class Configured:
    """As much of a snapshot as a turn asks for."""

    max_workers: int = 1
    slots: dict[str, int] = field(factory=lambda: {"echo": 1})
    lanes: dict[str, Any] = field(factory=dict)
    id: str = "cfg"
    config: Any = field(factory=lambda: _anything())


class _Anything:
    def __getattr__(self, _: str) -> Any:
        return self

    def __call__(self) -> Any:
        return self

    def __bool__(self) -> bool:
        return True


def _anything() -> Any:
    return _Anything()


def dispatcher_of(ledger: Any) -> Dispatcher:
    snapshot = Configured()
    return Dispatcher(_anything(), ledger, Hub(), lambda: cast(Any, snapshot), "run", held=lambda: frozenset())


async def test_a_job_that_is_cancelled_in_the_moment_of_its_claim_is_stopped() -> None:
    """Whoever cancels may hear of the claim before the dispatcher does."""
    claims, tasks = Claims(), Tasks()
    dispatcher = dispatcher_of(claims)
    claims.meanwhile = lambda: dispatcher.stop_job("job", "not needed")
    await dispatcher._turn(cast(Any, tasks))
    (attempt,) = tasks.attempts
    assert attempt.stop.reason == "not needed"
    assert dispatcher.to_stop == {}


@define
class Disk:
    """Has the jobs up to `newest`, and everything once it is let."""

    newest: int
    gate: trio.Event = field(factory=trio.Event)
    error: LedgerError | None = None

    @property
    def disk(self) -> "Disk":
        return self

    def has(self, seq: int) -> bool:
        return seq <= self.newest

    async def until_durable(self) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error


NEW, AGAIN, KEYED = a_job(seq=5), a_job(seq=5, attempt=2), a_job(seq=5, dedupe_key="key")


async def test_a_new_job_that_the_disk_has_runs_at_once() -> None:
    assert await dispatcher_of(Disk(newest=5))._is_there_for_good(NEW)


@pytest.mark.parametrize(("job", "newest"), [(NEW, 4), (AGAIN, 9), (KEYED, 9)], ids=["new", "again", "keyed"])
async def test_a_job_that_a_power_cut_could_take_back_waits_for_the_disk(job: Any, newest: int) -> None:
    """One that was queued again, or waited for its key, stands in an old row: its number proves nothing."""
    disk, ran = Disk(newest=newest), []
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            ran.append(await dispatcher_of(disk)._is_there_for_good(job))

        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        assert ran == []
        disk.gate.set()
    assert ran == [True]


async def test_a_job_that_never_comes_to_the_disk_does_not_run() -> None:
    """The next start recovers it."""
    disk = Disk(newest=0, error=LedgerError("the disk is gone"))
    disk.gate.set()
    dispatcher = dispatcher_of(disk)
    attempt = Attempt(NEW, cast(Any, Configured()), "{}")
    dispatcher.attempts[NEW.id] = attempt
    await dispatcher._run_in_slot(attempt)
    assert (dispatcher.attempts, dispatcher.endings, attempt.has_run) == ({}, [], False)


# ── what others leave for its next turn ─────────────────────────────────────────────────────────────────────────────

JOB = NewJob(plugin="echo", command="poll", submitted_by="test")


def queue_one(db: sqlite3.Connection) -> str:
    return enqueue(db, JOB, now=NOON).job_id


@define
class Hall:
    """A real ledger and a dispatcher that can be started on it."""

    ledger: Ledger
    hub: Hub
    dispatcher: Dispatcher
    commits: list[None]
    held: set[str] = field(factory=set)

    def statuses(self) -> list[str]:
        def ask(db: sqlite3.Connection) -> list[str]:
            return [row[0] for row in db.execute("SELECT status FROM job_queue ORDER BY seq")]

        return self.ledger.read(ask)


@asynccontextmanager
async def open_hall(path: Path) -> AsyncIterator[Hall]:
    home = Home.make(path / "ductile")
    home.plugin("echo", '#!/bin/sh\necho \'{"status": "ok", "result": "done"}\'\n', commands="poll: {}")
    home.add("plugins: {echo: {}}\n")
    snapshot, hub, held = snapshot_of(home), Hub(), set[str]()
    commits: list[None] = []
    with open_log(path / "log") as log:
        async with open_ledger(
            path / "ledger" / "state.db",
            synchronous="off",
            on_commit=lambda: commits.append(None),
            call_worker=hub.call_worker,
        ) as ledger:
            around = Surroundings(log=log, clock=Clock(), instance="test", state_of=lambda _: "{}")
            dispatcher = Dispatcher(around, ledger, hub, lambda: snapshot, "run", held=lambda: frozenset(held))
            yield Hall(ledger, hub, dispatcher, commits, held)


async def test_a_job_that_comes_while_the_dispatcher_waits_is_claimed_in_the_commit_that_queues_it(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Two commits for a whole job: one queues and claims it, the other records its end."""
    async with open_hall(tmp_path) as hall:
        await nursery.start(hall.dispatcher.run, trio.Event())
        await trio.testing.wait_all_tasks_blocked()
        hall.commits.clear()
        job_id = await hall.ledger.write_work(queue_one, is_quick=True)
        assert (hall.statuses(), len(hall.commits)) == (["running"], 1)
        with hall.hub.watch(job_topic(job_id)) as hints, trio.fail_after(30):
            await hints.receive()
        assert (hall.statuses(), len(hall.commits)) == (["succeeded"], 2)
        nursery.cancel_scope.cancel()


async def test_whoever_asked_for_a_job_is_answered_before_it_starts(tmp_path: Path, nursery: trio.Nursery) -> None:
    """What a plugin does to the service in its first moment does not keep the sender from hearing that it is queued."""
    async with open_hall(tmp_path) as hall:
        await nursery.start(hall.dispatcher.run, trio.Event())
        for _ in range(20):  # Trio goes through the tasks that are ready now forwards, now backwards
            await trio.testing.wait_all_tasks_blocked()
            job_id = await hall.ledger.write_work(queue_one, is_quick=True)
            assert hall.dispatcher.attempts[job_id].pid is None
            with hall.hub.watch(job_topic(job_id)) as hints, trio.fail_after(30):
                await hints.receive()
        nursery.cancel_scope.cancel()


async def test_what_comes_while_nothing_may_start_is_queued_all_the_same(tmp_path: Path, nursery: trio.Nursery) -> None:
    """A turn without a claim writes what was left for it; many share one commit."""
    async with open_hall(tmp_path) as hall:
        hall.held.add(EVERYTHING)
        await nursery.start(hall.dispatcher.run, trio.Event())
        await trio.testing.wait_all_tasks_blocked()
        hall.commits.clear()
        async with trio.open_nursery() as senders:
            for _ in range(5):
                senders.start_soon(lambda: hall.ledger.write_work(queue_one, is_quick=True))
        assert (hall.statuses(), len(hall.commits)) == (["queued"] * 5, 1)
        nursery.cancel_scope.cancel()


async def test_what_was_left_for_a_turn_that_never_comes_is_written(tmp_path: Path) -> None:
    """A dispatcher that is cancelled while it waits lets nobody wait for ever."""
    async with open_hall(tmp_path) as hall:
        async with trio.open_nursery() as nursery:
            await nursery.start(hall.dispatcher.run, trio.Event())
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            assert hall.hub.call_worker(), "it has not heard yet that it is cancelled"
            await hall.ledger.write_work(queue_one, is_quick=True)
        assert hall.statuses() == ["queued"]
