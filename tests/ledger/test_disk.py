"""What is durable, who waits for it, and what happens when it cannot be."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define, field

from ductile.errors import LedgerError
from ductile.ledger.commits import Request
from ductile.ledger.connections import connect_writer, transaction
from ductile.ledger.disk import Disk, Extent, _Wish
from ductile.ledger.jobs import enqueue, newest_seq
from ductile.ledger.store import open_reader
from ductile.ledger.writer import Ledger, open_ledger
from ductile.model import NewJob

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = NewJob(plugin="echo", command="poll", submitted_by="test")


def count(db: sqlite3.Connection) -> int:
    number: int = db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0]
    return number


def queue_one(db: sqlite3.Connection) -> None:
    enqueue(db, JOB, now=NOW)


async def write_one(ledger: Ledger) -> None:
    """One job is queued, on the event loop."""
    await ledger.write_work(queue_one, is_quick=True)


@define
class SlowDisk:
    """Syncs when it is let, and counts how often."""

    gate: threading.Event = field(factory=threading.Event)
    begun: threading.Semaphore = field(factory=lambda: threading.Semaphore(0))
    syncs: int = 0
    error: OSError | None = None

    def sync(self, descriptor: int) -> None:
        self.begun.release()
        assert self.gate.wait(30)
        self.syncs += 1
        if self.error is not None:
            raise self.error
        os.fsync(descriptor)

    async def has_begun(self) -> None:
        await trio.to_thread.run_sync(self.begun.acquire)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    one = SlowDisk()
    monkeypatch.setattr("ductile.ledger.disk.os.fdatasync", one.sync)
    yield one
    one.gate.set()


async def test_nobody_hears_of_a_write_before_the_disk_has_it(path: Path, slow: SlowDisk) -> None:
    """The row is committed and can be read, but its writer goes on only after the sync."""
    told: list[str] = []
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        async def write(name: str) -> None:
            await ledger.write_work(queue_one, is_quick=name == "on the loop")
            told.append(name)

        for name in ("in the thread", "on the loop"):
            nursery.start_soon(write, name)
        await slow.has_begun()
        await trio.testing.wait_all_tasks_blocked()
        assert told == []
        assert ledger.read(count) >= 1
        slow.gate.set()
    assert sorted(told) == ["in the thread", "on the loop"]


async def test_commits_that_wait_for_the_disk_share_a_sync(path: Path, slow: SlowDisk) -> None:
    """Fifty commits while one sync is on its way wait for one more."""
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        nursery.start_soon(write_one, ledger)
        await slow.has_begun()
        for _ in range(50):
            nursery.start_soon(write_one, ledger)
        await trio.testing.wait_all_tasks_blocked()
        assert ledger.read(count) == 51
        slow.gate.set()
    assert slow.syncs == 2


async def test_a_failed_sync_acknowledges_nobody_and_breaks_the_ledger(path: Path, slow: SlowDisk) -> None:
    """What the disk has kept can no longer be known: everybody who waits is told so, and later writes are refused."""
    refused: list[str] = []
    slow.error = OSError(5, "Input/output error")
    announced: list[str] = []
    async with open_ledger(path) as ledger:

        async def write() -> None:
            try:
                await write_one(ledger)
            except LedgerError as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(write)
            await slow.has_begun()
            await trio.testing.wait_all_tasks_blocked()
            ledger.disk.when_durable(lambda: announced.append("told"), is_awaited=True)
            slow.gate.set()
            await ledger.broken.wait()
        await write()
    assert refused == [f"{path}-wal: cannot be synced: Input/output error"] * 4
    assert announced == []


async def test_a_job_that_a_power_cut_could_take_back_is_told_apart(path: Path, slow: SlowDisk) -> None:
    """Jobs that were there when the ledger was opened are durable; a new one is only after the sync."""
    slow.gate.set()
    async with open_ledger(path) as ledger:
        await ledger.write(enqueue, JOB, now=NOW)
    slow.gate.clear()
    slow.begun = threading.Semaphore(0)
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        old = ledger.read(newest_seq)
        assert ledger.disk.has(old)
        nursery.start_soon(write_one, ledger)
        await slow.has_begun()
        new = ledger.read(newest_seq)
        assert new > old
        assert not ledger.disk.has(new)
        slow.gate.set()
        await ledger.disk.until_durable()
        assert ledger.disk.has(new)


async def test_what_nobody_waits_for_is_synced_all_the_same(path: Path, slow: SlowDisk) -> None:
    """The writer that goes on before the sync has its commit on the disk soon after."""
    slow.gate.set()
    durable = trio.Event()
    async with open_ledger(path) as ledger:
        await ledger.write_last(lambda db: enqueue(db, JOB, now=NOW), is_quick=True)
        ledger.disk.when_durable(durable.set, is_awaited=False)
        with trio.fail_after(30):
            await durable.wait()
    assert slow.syncs == 1


async def test_a_commit_that_is_waited_for_calls_the_thread_once(path: Path, nursery: trio.Nursery) -> None:
    """Not first to take its time and then to hurry: whoever writes on the loop competes with every call."""
    disk = Disk(path, trio.Event(), lambda: None)
    disk._thread = threading.Thread()  # the test stands in for it
    disk.note_commit(1, is_awaited=True)
    disk.when_durable(lambda: None, is_awaited=True)
    nursery.start_soon(disk.until_durable)
    await trio.testing.wait_all_tasks_blocked()
    assert disk._wishes.get() is _Wish.AT_ONCE
    assert disk._wishes.empty()
    disk.note_commit(2)
    disk.note_commit(3, is_awaited=True)
    disk._note_sync(Extent(1, 1), 1.0)
    assert disk._wishes.get() is _Wish.AT_ONCE, "the one that nobody waits for goes with the next"
    disk._note_sync(Extent(3, 3), 1.0)
    disk.note_commit(4)
    assert disk._wishes.get() is _Wish.AT_LEISURE
    disk.note_commit(5, is_awaited=True)
    assert disk._wishes.get() is _Wish.AT_ONCE, "one that takes its time is hurried"
    assert disk._wishes.empty()


async def test_a_transaction_that_writes_nothing_asks_nothing_of_the_disk(path: Path, slow: SlowDisk) -> None:
    """A claim that finds no job is no commit; who reads in a transaction still waits for what it may have read."""
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        assert await ledger.write_work(count, is_quick=True) == 0
        assert slow.syncs == 0
        nursery.start_soon(write_one, ledger)
        await slow.has_begun()
        seen: list[int] = []

        async def look() -> None:
            seen.append(await ledger.write_work(count, is_quick=True))

        nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        slow.gate.set()
    assert seen == [1]
    assert slow.syncs == 1


async def test_without_full_durability_nobody_waits_for_the_disk(path: Path, slow: SlowDisk) -> None:
    """`synchronous: normal` means that a commit counts when it is written."""
    async with open_ledger(path, synchronous="normal") as ledger:
        await write_one(ledger)
        assert ledger.disk.has(ledger.read(newest_seq))
    assert slow.syncs == 0


async def test_everything_is_on_the_disk_when_the_ledger_is_closed(path: Path, slow: SlowDisk) -> None:
    """Closing does not forget a sync that takes its time."""
    slow.gate.set()
    async with open_ledger(path) as ledger:
        await ledger.write_last(lambda db: enqueue(db, JOB, now=NOW), is_quick=True)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "the log was folded into the file"
    with open_reader(path) as db:
        assert count(db) == 1


async def test_a_foreign_write_lock_does_not_hold_up_the_event_loop(path: Path) -> None:
    """What would be written on the loop is waited for elsewhere while another process writes."""
    got: list[int] = []
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        async def write() -> None:
            await write_one(ledger)
            got.append(ledger.read(count))

        stranger = connect_writer(path, "off")
        with transaction(stranger):
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            assert got == [], "the loop went on, and the write waits"
        stranger.close()
    assert got == [1]


async def test_a_sync_that_succeeds_after_one_that_failed_acknowledges_nobody(path: Path, slow: SlowDisk) -> None:
    """The kernel tells of lost pages only once. Whoever waited must not be told of success by the next sync."""
    refused: list[BaseException] = []
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        async def write() -> None:
            try:
                await write_one(ledger)
            except LedgerError as error:
                refused.append(error)

        await ledger.write_last(lambda db: enqueue(db, JOB, now=NOW), is_quick=True)  # is synced at leisure
        await slow.has_begun()
        for _ in range(5):
            nursery.start_soon(write)  # in a hurry, while the sync is on its way
        await trio.testing.wait_all_tasks_blocked()
        slow.error = OSError(5, "Input/output error")
        slow.gate.set()
        await ledger.broken.wait()
        slow.error = None
    assert len(refused) == 5
    assert slow.syncs == 1


async def test_a_commit_made_in_the_thread_can_be_waited_for_as_soon_as_it_can_be_seen(
    path: Path, slow: SlowDisk
) -> None:
    """A reader that sees the row before the loop has heard of the commit does not take it for durable."""
    committed, told = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> None:
        enqueue(db, JOB, now=NOW)
        committed.set()

    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: ledger.write(hold))
        while not ledger._writer.is_away:
            await trio.lowlevel.checkpoint()
        assert committed.wait(30)
        while not ledger.read(count):  # the loop itself looks, so it cannot have heard
            pass

        async def wait() -> None:
            await ledger.disk.until_durable()
            told.set()

        nursery.start_soon(wait)
        await slow.has_begun()
        await trio.testing.wait_all_tasks_blocked()
        assert not told.is_set()
        slow.gate.set()
    assert told.is_set()


@define
class Watched:
    """A disk that tells which syncs the event loop made; each takes as long as it is told, on the disk's own clock."""

    by_loop: list[bool] = field(factory=list)
    seconds: float = 0.0
    error: OSError | None = None
    now: float = 0.0
    _loop: int = field(factory=threading.get_ident)

    def sync(self, descriptor: int) -> None:
        self.by_loop.append(threading.get_ident() == self._loop)
        self.now += self.seconds
        if self.error is not None:
            raise self.error
        os.fsync(descriptor)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    one = Watched()
    monkeypatch.setattr("ductile.ledger.disk.os.fdatasync", one.sync)
    monkeypatch.setattr("ductile.ledger.disk.monotonic", lambda: one.now)
    return one


async def test_a_quick_disk_is_synced_on_the_event_loop_once_the_thread_has_seen_that_it_is(
    path: Path, watched: Watched
) -> None:
    """Nobody knows how long the first sync will take, so it holds up nobody."""
    async with open_ledger(path) as ledger:
        for _ in range(3):
            await write_one(ledger)
        assert watched.by_loop == [False, True, True]
        assert ledger.disk.has(ledger.read(newest_seq))


async def test_a_slow_disk_is_left_to_the_thread(path: Path, watched: Watched) -> None:
    """The event loop may lose a hundredth of its time to syncs that take longer than it expected."""
    async with open_ledger(path) as ledger:
        await write_one(ledger)
        watched.seconds = 0.5
        await write_one(ledger)  # nobody could know
        assert watched.by_loop == [False, True]
        await write_one(ledger)
        assert watched.by_loop == [False, True, False]
        watched.seconds = 0.0
        for _ in range(3):
            await write_one(ledger)
        assert not any(watched.by_loop[2:]), "it may have become quick, but not for long"
        watched.now += 100 * 0.5
        await write_one(ledger)
        assert watched.by_loop[-1]


async def test_a_sync_that_fails_on_the_event_loop_acknowledges_nobody(path: Path, watched: Watched) -> None:
    """As in the thread: whoever waits is told so, later writes are refused, and nothing is announced."""
    announced: list[str] = []
    async with open_ledger(path) as ledger:
        await write_one(ledger)
        watched.error = OSError(5, "Input/output error")
        for _ in range(2):
            with pytest.raises(LedgerError, match="cannot be synced: Input/output error"):
                await write_one(ledger)
        ledger.disk.when_durable(lambda: announced.append("told"), is_awaited=True)
        assert ledger.broken.is_set()
        assert watched.by_loop == [False, True]
    assert announced == []


async def test_a_sync_of_the_thread_takes_nothing_back_that_the_event_loop_has_synced(
    path: Path, watched: Watched
) -> None:
    """One that takes its time may have begun before a commit that somebody was in a hurry about."""
    async with open_ledger(path) as ledger:
        await write_one(ledger)
        before = ledger.disk._durable
        await write_one(ledger)
        newest = ledger.read(newest_seq)
        assert ledger.disk.has(newest)
        ledger.disk._note_sync(before, 0.0)
        assert ledger.disk.has(newest)


async def test_nobody_waits_for_a_commit_that_is_made_after_its_own(path: Path, watched: Watched) -> None:
    """A sender that is told of its commit answers, though another one is on its way by then: its job may start now."""
    answered, may_end = trio.Event(), threading.Event()

    async with open_ledger(path, call_worker=lambda: True) as ledger, trio.open_nursery() as nursery:

        async def send() -> None:
            await ledger.write_work(queue_one, is_quick=True)
            answered.set()

        def hold(db: sqlite3.Connection) -> None:
            enqueue(db, JOB, now=NOW)
            assert may_end.wait(30)

        await ledger.write(enqueue, JOB, now=NOW)  # the disk is known to be quick
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        ledger.write_what_waits()
        ledger._writer.ask(Request(hold, is_quick=False))
        assert ledger._writer.is_away
        try:
            with trio.fail_after(10):
                await answered.wait()
        finally:
            may_end.set()


async def test_a_log_that_the_event_loop_cannot_open_is_synced_by_the_thread(
    path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment without descriptors is no fault of the disk: nothing was lost."""
    opened = Disk._open_log
    answers = [True, False]

    def open_log(disk: Disk) -> int:
        if answers.pop(0):
            return opened(disk)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Disk, "_open_log", open_log)
    async with open_ledger(path) as ledger:
        for _ in range(3):
            await write_one(ledger)
        assert watched.by_loop == [False, False, False]
        assert not ledger.broken.is_set()


async def test_who_waits_for_a_commit_that_is_on_its_way_is_not_kept_waiting(path: Path, nursery: trio.Nursery) -> None:
    """Its maker may have all the time in the world."""
    disk = Disk(path, trio.Event(), lambda: None)
    disk._thread = threading.Thread()  # the test stands in for it
    disk.expect_commit()
    nursery.start_soon(disk.until_durable)
    await trio.testing.wait_all_tasks_blocked()
    assert disk._wishes.empty(), "there is nothing to sync yet"
    disk.note_commit(1)
    assert disk._wishes.get() is _Wish.AT_ONCE
    disk._note_sync(Extent(1, 1), 1.0)
