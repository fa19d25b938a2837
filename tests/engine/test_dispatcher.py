"""The dispatcher on its own: what happens between a claim and its task, and what others leave for its next turn."""

import errno
import os
import select
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from attrs import Factory, define, field

from ductile.clock import Clock
from ductile.engine.dispatcher import (
    LEDGER_PATIENCE_SECONDS,
    Dispatcher,
)
from ductile.engine.launch import SpawnFailed
from ductile.engine.processes import identify, is_same
from ductile.engine.run_job import Attempt, Surroundings
from ductile.engine.running import Running
from ductile.engine.slots import Slots
from ductile.engine.sweep import house
from ductile.engine.young import Young
from ductile.errors import LedgerError, LedgerFull
from ductile.hub import Hub, job_topic
from ductile.ledger.claim import Claimed
from ductile.ledger.disk import Disk as RealDisk
from ductile.ledger.jobs import enqueue
from ductile.ledger.journal import newest_moment
from ductile.ledger.pauses import EVERYTHING
from ductile.ledger.writer import Ledger, open_ledger
from ductile.model import Budget, Dead, Ending, Evidence, NewJob, Succeeded
from tests.e2e.service import Home
from tests.engine.builders import a_job, snapshot_of
from tests.engine.stage import NOON, open_log


@define
class Claims:
    """A ledger that gives one job, and lets somebody act between its commit and the dispatcher's next step."""

    meanwhile: Callable[[], None] = lambda: None
    somebody_goes_first = False

    async def write_last(self, *_: Any, **__: Any) -> tuple[list[Any], Claimed]:
        await trio.lowlevel.checkpoint()
        self.meanwhile()
        return [], Claimed(jobs=(a_job(id="job"),), states={"echo": "{}"})

    def look_up(self, *_: Any, **__: Any) -> Any:
        return False

    def read(self, *_: Any, **__: Any) -> bool:
        return True

    disk: Any = field(default=Factory(lambda self: self, takes_self=True))

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
    budget: Budget = field(factory=Budget)
    config: Any = field(factory=lambda: _anything())


class _Anything:
    def __getattr__(self, _: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __bool__(self) -> bool:
        return True


def _anything() -> Any:
    return _Anything()


def dispatcher_of(ledger: Any) -> Dispatcher:
    snapshot = Configured()
    slots = Slots(_anything(), ledger, Hub(), lambda: cast(Any, snapshot))
    return Dispatcher(slots, "run", held=lambda: frozenset())


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
    somebody_goes_first = False

    @property
    def disk(self) -> "Disk":
        return self

    def has(self, seq: int) -> bool:
        return seq <= self.newest

    async def until_durable(self) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    async def until_they_went_on(self) -> None:
        pass


NEW, AGAIN, KEYED = a_job(seq=5), a_job(seq=5, attempt=2), a_job(seq=5, dedupe_key="key")


async def test_a_new_job_that_the_disk_has_runs_at_once() -> None:
    assert await dispatcher_of(Disk(newest=5)).slots._is_there_for_good(NEW)


@pytest.mark.parametrize(("job", "newest"), [(NEW, 4), (AGAIN, 9), (KEYED, 9)], ids=["new", "again", "keyed"])
async def test_a_job_that_a_power_cut_could_take_back_waits_for_the_disk(job: Any, newest: int) -> None:
    """One that was queued again, or waited for its key, stands in an old row: its number proves nothing."""
    disk, ran = Disk(newest=newest), []
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            ran.append(await dispatcher_of(disk).slots._is_there_for_good(job))

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
    dispatcher.slots.attempts[NEW.id] = attempt
    await dispatcher.slots.run(attempt)
    assert (dispatcher.slots.attempts, dispatcher.slots.endings, attempt.has_run) == ({}, [], False)


# ── between its claim and its start ─────────────────────────────────────────────────────────────────────────────────


async def test_a_job_that_is_told_to_stop_before_its_start_is_never_spawned(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever cancels it between the claim and the spawn does not want it to do anything."""
    write_last, spawned = Ledger.write_last, list[int]()

    async def claimed_and_cancelled(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
        written = await write_last(ledger, *args, **kwargs)
        for job in written[1].jobs:
            hall.dispatcher.stop_job(job.id, "not needed")
        return written

    monkeypatch.setattr(Ledger, "write_last", claimed_and_cancelled)
    monkeypatch.setattr(Attempt, "note_start", lambda _, pid: spawned.append(pid))
    async with open_hall(tmp_path) as hall:
        job_id = await hall.run_one(nursery)
        await hall.until_ended(job_id)
        assert hall.ask("SELECT status, last_error FROM job_queue") == [("dead", "cancelled: not needed")]
        assert spawned == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("column", "value"),
    [("created_at", "yesterday"), ("slot_at", "x"), ("dedupe_ttl_seconds", 1e300), ("payload", b'{"a": "\xff"}')],
)
async def test_a_row_that_cannot_be_read_ends_its_own_job_and_no_other(
    column: str, value: object, tmp_path: Path, nursery: trio.Nursery
) -> None:
    """It is set apart with the reason; what stands behind it in the lane runs."""
    async with open_hall(tmp_path) as hall:
        bad, good = [await hall.ledger.write(queue_one) for _ in range(2)]

        def spoil(db: sqlite3.Connection) -> None:
            as_text = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
            db.execute(f"UPDATE job_queue SET {column} = {as_text} WHERE id = ?", (value, bad))

        await hall.ledger.write(spoil)
        with hall.hub.watch(job_topic(good)) as hints, trio.fail_after(30):
            await nursery.start(hall.dispatcher.run, trio.Event())
            while hall.statuses() != ["dead", "succeeded"]:
                await hints.receive()
        ((reason,),) = hall.ask("SELECT last_error FROM job_queue WHERE status = 'dead'")
        assert reason.startswith("cannot be started: ")
        assert hall.ask("SELECT job_id FROM journal WHERE kind = 'job.quarantined'") == [(bad,)]
        nursery.cancel_scope.cancel()


async def test_a_fault_that_is_not_in_its_row_kills_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours, or in a row of somebody else, ends the service if need be; what waits goes on waiting."""

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("a bug")

    async with open_hall(tmp_path) as hall:
        await hall.ledger.write(queue_one)
        monkeypatch.setattr("ductile.ledger.claim.journal.append", broken)
        with pytest.raises(ExceptionGroup):
            await hall.dispatcher.run(trio.Event())
        assert hall.statuses() == ["queued"]


async def test_a_delay_that_cannot_be_read_is_over(tmp_path: Path, nursery: trio.Nursery) -> None:
    """A job whose next moment is none would wait for ever, and nobody could say for how long."""
    async with open_hall(tmp_path) as hall:
        job_id = await hall.ledger.write(queue_one)

        def spoil(db: sqlite3.Connection) -> None:
            db.execute("UPDATE job_queue SET lane = NULL, next_retry_at = 'soon', failed_at = created_at")

        await hall.ledger.write(spoil)
        await nursery.start(hall.dispatcher.run, trio.Event())
        await hall.until_ended(job_id)
        assert hall.statuses() == ["succeeded"]
        nursery.cancel_scope.cancel()


# ── a ledger that keeps it waiting ──────────────────────────────────────────────────────────────────────────────────


async def test_who_is_paused_while_the_disk_is_full_does_not_start_when_it_is_not_full_any_more(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may start is asked anew, not carried along through the wait."""
    write_last, tries, has_written = Ledger.write_last, list[None](), trio.Event()

    async def full_at_first(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
        tries.append(None)
        if len(tries) == 1:
            hall.held.add(EVERYTHING)
            raise LedgerFull("no space")
        written = await write_last(ledger, *args, **kwargs)
        has_written.set()
        return written

    monkeypatch.setattr(Ledger, "write_last", full_at_first)
    async with open_hall(tmp_path) as hall:
        job_id = await hall.run_one(nursery)
        with trio.fail_after(30):
            await has_written.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert hall.statuses() == ["queued"]
        hall.held.clear()
        hall.hub.announce_work()
        await hall.until_ended(job_id)
        assert hall.statuses() == ["succeeded"]
        nursery.cancel_scope.cancel()


async def test_who_is_paused_while_a_claim_waits_for_its_commit_does_not_start(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A claim that comes behind a pause in one commit sees it."""
    async with open_hall(tmp_path) as hall:
        await nursery.start(hall.dispatcher.run, trio.Event())
        await trio.testing.wait_all_tasks_blocked()
        at_it, go_on = threading.Event(), threading.Event()

        def queue_slowly(db: sqlite3.Connection) -> str:
            at_it.set()
            go_on.wait(30)
            return queue_one(db)

        async with trio.open_nursery() as writing:
            writing.start_soon(hall.ledger.write, queue_slowly)
            await trio.to_thread.run_sync(at_it.wait, 30)
            hall.hub.announce_work()
            await trio.testing.wait_all_tasks_blocked()
            hall.held.add("echo")
            go_on.set()
        await hall.ledger.write(newest_moment)
        assert hall.statuses() == ["queued"]
        nursery.cancel_scope.cancel()


async def test_a_full_disk_does_not_keep_a_cancelled_service_alive_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What has run is kept for as long as a drain would wait, whatever it is that ends the service."""

    class Full(Claims):
        path, broken = Path("state.db"), trio.Event()

        async def write_last(self, *_: Any, **__: Any) -> Any:
            raise LedgerFull("no space")

        def stuck_seconds(self) -> float:
            return 0.0

    began, dispatcher = trio.current_time(), dispatcher_of(Full())
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(LedgerFull):
            await dispatcher._turn(cast(Any, Tasks()))
    assert LEDGER_PATIENCE_SECONDS < trio.current_time() - began < 2 * LEDGER_PATIENCE_SECONDS


async def test_what_has_ended_is_written_though_the_service_ends_while_a_process_is_noted(tmp_path: Path) -> None:
    """An ending is never taken in hand before something that can be cancelled."""
    async with open_hall(tmp_path, "exec sleep 600") as hall:
        slots = hall.dispatcher.slots
        async with trio.open_nursery() as nursery:
            first = await hall.run_one(nursery)
            await hall.pid_of(first)
            second = await hall.ledger.write(queue_one)
            hall.hub.announce_work()
            await hall.pid_of(second)
            for attempt in slots.attempts.values():
                attempt.since -= 5  # old enough to be noted
            ended = slots.attempts[second]
            evidence = Evidence(started_at=NOON, duration=NOON - NOON)
            slots._put_down(ended, Ending(job_id=second, attempt=1, outcome=Succeeded(evidence)))
            assert ended.pid is not None
            os.killpg(ended.pid, signal.SIGKILL)
            nursery.cancel_scope.cancel()
        assert hall.statuses()[1] == "succeeded"


async def test_processes_are_noted_together(tmp_path: Path, nursery: trio.Nursery) -> None:
    """One commit for all of them: the next turn waits for one, however many there are."""
    async with open_hall(tmp_path, "exec sleep 600") as hall:
        jobs = [await hall.ledger.write(queue_one) for _ in range(2)]
        await nursery.start(hall.dispatcher.run, trio.Event())
        pids = {await hall.pid_of(job_id) for job_id in jobs}
        for attempt in hall.dispatcher.slots.attempts.values():
            attempt.since -= 5
        hall.hub.announce_work()
        with trio.fail_after(30):
            while (noted := {pid for (pid,) in hall.ask("SELECT pid FROM job_queue")}) == {None}:
                await trio.lowlevel.checkpoint()
        assert noted == pids
        nursery.cancel_scope.cancel()


# ── what others leave for its next turn ─────────────────────────────────────────────────────────────────────────────

JOB = NewJob(plugin="echo", command="poll", submitted_by="test")
ANSWER = """echo '{"status": "ok", "result": "done"}'"""


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

    async def run_one(self, nursery: trio.Nursery) -> str:
        """A job that waits when the dispatcher starts, and is claimed in its first turn."""
        job_id = await self.ledger.write(queue_one)
        await nursery.start(self.dispatcher.run, trio.Event())
        return job_id

    async def until_ended(self, job_id: str) -> None:
        with self.hub.watch(job_topic(job_id)) as hints, trio.fail_after(30):
            while self.statuses() in (["queued"], ["running"]):
                await hints.receive()

    async def pid_of(self, job_id: str) -> int:
        with trio.fail_after(30):
            while (attempt := self.dispatcher.slots.attempts.get(job_id)) is None or attempt.pid is None:
                await trio.lowlevel.checkpoint()
        return attempt.pid

    def statuses(self) -> list[str]:
        return [status for (status,) in self.ask("SELECT status FROM job_queue ORDER BY seq")]

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda db: db.execute(statement).fetchall())


@asynccontextmanager
async def open_hall(path: Path, script: str = ANSWER) -> AsyncIterator[Hall]:
    home = Home.make(path / "ductile")
    home.plugin("echo", f"#!/bin/sh\n{script}\n", commands="poll: {}")
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
            slots = Slots(around, ledger, hub, lambda: snapshot)
            dispatcher = Dispatcher(slots, "run", held=lambda: frozenset(held))
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
            assert hall.dispatcher.slots.attempts[job_id].pid is None
            with hall.hub.watch(job_topic(job_id)) as hints, trio.fail_after(30):
                await hints.receive()
        nursery.cancel_scope.cancel()


async def test_a_job_whose_end_is_waited_for_starts_in_the_turn_that_claims_it(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Whoever asked for it answers nobody before that end; somebody else in the same commit still goes first."""
    async with open_hall(tmp_path, "exec sleep 600") as hall:
        await nursery.start(hall.dispatcher.run, trio.Event())
        await trio.testing.wait_all_tasks_blocked()
        job_id = await hall.ledger.write_work(queue_one, is_quick=True, answers_at_once=False)
        assert hall.dispatcher.slots.attempts[job_id].pid is not None
        hall.dispatcher.stop_job(job_id, "not needed")
        await hall.until_ended(job_id)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as senders:
            senders.start_soon(lambda: hall.ledger.write_work(queue_one, is_quick=True, answers_at_once=False))
            await trio.lowlevel.checkpoint()  # both ask in the same pass of the event loop
            await hall.ledger.write_work(queue_one, is_quick=True)
            assert [attempt.pid for attempt in hall.dispatcher.slots.attempts.values()] == [None, None]
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


async def test_an_end_that_nobody_waits_for_is_counted(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with open_hall(tmp_path) as hall:
        await nursery.start(hall.dispatcher.run, trio.Event())
        await hall.ledger.write_work(queue_one, is_quick=True)
        with trio.fail_after(30):
            while not hall.dispatcher.slots.meters.jobs:
                await trio.lowlevel.checkpoint()
        assert list(hall.dispatcher.slots.meters.jobs.values()) == [1]
        nursery.cancel_scope.cancel()


STALE = Ending(job_id="of another time", attempt=1, outcome=Dead("whatever"))


@pytest.mark.parametrize("_", range(10))  # Trio goes through the tasks that are ready now forwards, now backwards
async def test_a_sender_who_was_told_in_an_earlier_turn_is_answered_first(tmp_path: Path, _: int) -> None:
    """Its job may be claimed in the next turn only, one pass of the event loop later, which is its own as well."""
    answered = trio.Event()
    async with open_hall(tmp_path, FOREVER) as hall, trio.open_nursery() as nursery:
        hall.ledger._call_worker = lambda: True  # the turns are taken here

        async def send() -> None:
            await hall.ledger.write_work(queue_one, is_quick=True)
            answered.set()

        hall.dispatcher.slots.watch_the_young(nursery)
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        hall.held.add("echo")
        hall.dispatcher.slots.endings.append(STALE)
        await hall.dispatcher._turn(nursery)  # commits the sender's job, which no slot is free for
        hall.held.clear()
        await trio.lowlevel.checkpoint()
        await hall.dispatcher._turn(nursery)
        (attempt,) = hall.dispatcher.slots.attempts.values()
        assert answered.is_set() or attempt.pid is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("sync_is_early", [True, False])
async def test_a_sender_who_waits_for_the_same_sync_is_answered_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, sync_is_early: bool
) -> None:
    """Also when that is over before the job's own task has begun, or in the moment in which it begins."""
    happened: list[str] = []

    def start(*_: Any) -> bool:
        happened.append("started")
        return True

    monkeypatch.setattr(Slots, "_start_at_once", start)
    for number in range(20):
        happened.clear()
        disk = RealDisk(tmp_path / f"{number}.db", trio.Event(), lambda: None)
        disk._thread = cast(Any, "somebody else's")
        disk.note_commit(job_seq=99)
        claims = Claims()
        claims.disk = disk
        slots = dispatcher_of(claims).slots

        async def send(disk: RealDisk = disk) -> None:
            await disk.until_durable()
            happened.append("answered")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            slots.start(Attempt(a_job(seq=99), cast(Any, Configured())), nursery, in_a_task=False)
            if not sync_is_early:
                await trio.lowlevel.checkpoint()
            disk._note_sync(disk._written, 0.0)
        assert happened == ["answered", "started"]


# ── the first moments of a process ──────────────────────────────────────────────────────────────────────────────────

FOREVER = "exec sleep 600"


@pytest.fixture
def always_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody grows out of the first moments."""
    monkeypatch.setattr("ductile.engine.spawn.BRIEF_SECONDS", 600.0)


@pytest.fixture
def no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is watched by a task of its own."""

    async def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("it needs no task")

    monkeypatch.setattr("ductile.engine.spawn.Run.to_its_end", refuse)


@pytest.mark.usefixtures("always_young", "no_tasks")
@pytest.mark.parametrize("is_there", [True, False], ids=["is_there", "comes"])
async def test_a_plugin_that_is_soon_done_is_watched_with_others(
    is_there: bool, tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Whether its job is claimed alone or in the commit of somebody else."""
    async with open_hall(tmp_path) as hall:
        if is_there:
            job_id = await hall.run_one(nursery)
        else:
            await nursery.start(hall.dispatcher.run, trio.Event())
            await trio.testing.wait_all_tasks_blocked()
            job_id = await hall.ledger.write_work(queue_one, is_quick=True)
        await hall.until_ended(job_id)
        assert (hall.statuses(), hall.dispatcher.slots.attempts) == (["succeeded"], {})
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("always_young")
async def test_a_young_plugin_can_be_stopped(tmp_path: Path, nursery: trio.Nursery) -> None:
    """As any other: it gets SIGTERM, and its job says why it ended."""
    async with open_hall(tmp_path, FOREVER) as hall:
        job_id = await hall.run_one(nursery)
        process = identify(await hall.pid_of(job_id))
        hall.dispatcher.stop_job(job_id, "not needed")
        await hall.until_ended(job_id)
        assert process is not None
        assert (hall.statuses(), is_same(process)) == (["dead"], False)
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("always_young")
async def test_cancellation_ends_the_young_before_it_goes_on(tmp_path: Path) -> None:
    """What was running is recovered by the next start; its process is gone by then."""
    async with open_hall(tmp_path, FOREVER) as hall:
        async with trio.open_nursery() as nursery:
            process = identify(await hall.pid_of(await hall.run_one(nursery)))
            nursery.cancel_scope.cancel()
        assert process is not None
        assert (hall.statuses(), is_same(process), hall.dispatcher.slots.young) == (["running"], False, None)


async def test_who_is_young_no_longer_is_watched_alone(tmp_path: Path, nursery: trio.Nursery) -> None:
    """What it says from then on is heard while it runs."""
    async with open_hall(tmp_path, f"echo here >&2; {FOREVER}") as hall:
        job_id = await hall.run_one(nursery)
        with trio.fail_after(30):
            while hall.dispatcher.slots.live_stderr(job_id) != "here\n":
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("always_young")
@pytest.mark.parametrize(
    "script",
    [f"(setsid sleep 600 </dev/null >/dev/null 2>&1 &)\n{ANSWER}", f"{ANSWER}\nsleep 600 &"],
    ids=["stray", "holds_pipes"],
)
async def test_what_a_young_plugin_leaves_behind_is_ended(script: str, tmp_path: Path, nursery: trio.Nursery) -> None:
    async with open_hall(tmp_path, script) as hall:
        await hall.until_ended(await hall.run_one(nursery))
        assert hall.statuses() == ["succeeded"]
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("always_young")
async def test_a_fault_at_the_end_of_a_young_plugin_leaves_no_process_behind(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong with reading what it said, it is reaped and its group is ended."""
    read, faults = Running.read_what_is_there, [MemoryError("no room")]

    def read_or_fail(self: Running) -> None:
        if faults and self.exited:
            raise faults.pop()
        read(self)

    monkeypatch.setattr(Running, "read_what_is_there", read_or_fail)
    async with open_hall(tmp_path, f"sleep 600 </dev/null >/dev/null 2>&1 &\n{ANSWER}") as hall:
        await hall.until_ended(await hall.run_one(nursery))
        assert (faults, hall.statuses(), house().leaders) == ([], ["succeeded"], {})
        nursery.cancel_scope.cancel()


async def test_a_plugin_that_cannot_start_is_tried_once(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a file that somebody is still writing is worth a second look in the same attempt."""
    tries: list[str] = []

    def refuse(argv: Sequence[str], *_: Any, **__: Any) -> SpawnFailed:
        tries.append(argv[0])
        return SpawnFailed("no such interpreter", errno.ENOENT)

    monkeypatch.setattr("ductile.engine.run_job.launch", refuse)
    async with open_hall(tmp_path) as hall:
        await hall.run_one(nursery)
        with trio.fail_after(30):
            while not tries or hall.statuses() != ["queued"]:  # for its second attempt
                await trio.lowlevel.checkpoint()
        assert len(tries) == 1
        nursery.cancel_scope.cancel()


async def test_a_process_that_cannot_be_watched_with_others_is_watched_alone(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have no room for one more."""

    class Full:
        """An epoll that takes nothing in."""

        def __init__(self) -> None:
            self._real = select.epoll()
            self.fileno, self.poll, self.close = self._real.fileno, self._real.poll, self._real.close

        def register(self, *_: int) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("ductile.engine.spawn.BRIEF_SECONDS", 600.0)
    async with open_hall(tmp_path) as hall:
        monkeypatch.setattr("ductile.engine.slots.Young", lambda: Young(exits=cast(Any, Full())))
        await hall.until_ended(await hall.run_one(nursery))
        assert hall.statuses() == ["succeeded"]
        nursery.cancel_scope.cancel()
