"""The ledger of a service: transactions, durability, cancellation, checkpoints, and fatal errors."""

import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from attrs import define, field

from ductile.core.errors import LedgerBusy, LedgerError, LedgerFull, NotFound
from ductile.core.instance.lock import instance_lock
from ductile.core.model import NewJob
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.storage.connections import connect_writer, transaction
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_reader, open_reader_beside_writer, open_writer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = NewJob(plugin="echo", command="poll", submitted_by="test")


def count(db: Db) -> int:
    number: int = db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0]
    return number


def queue_one(db: Db) -> None:
    enqueue(db, JOB, now=NOW)


def raise_io_error(_: Db) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    raise error


def limit_pages(db: Db, pages: int) -> None:
    db.execute(f"PRAGMA max_page_count = {pages}")


@define
class SlowDisk:
    """A disk that syncs only while `gate` is set, and counts the syncs."""

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
    disk = SlowDisk()
    monkeypatch.setattr("ductile.ledger.storage.async_ledger.os.fdatasync", disk.sync)
    yield disk
    disk.gate.set()


# ── transactions ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_reader_sees_a_committed_write(path: Path) -> None:
    """This process, another reader and the next start."""
    async with open_ledger(path) as ledger:
        await ledger.write(enqueue, JOB, now=NOW)
        assert await ledger.read(count) == 1
        with open_reader(path) as reader:
            assert count(reader) == 1
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "the log was checkpointed and removed"
    with open_reader(path) as reader:
        assert count(reader) == 1


async def test_a_failed_transaction_does_not_affect_others(path: Path) -> None:
    """250 of 500 concurrent writes fail. The other 250 are written."""

    def fails(db: Db) -> None:
        queue_one(db)
        raise RuntimeError("mine alone")

    failures = []
    async with open_ledger(path, synchronous="normal") as ledger:

        async def attempt() -> None:
            try:
                await ledger.write(fails)
            except RuntimeError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(250):
                nursery.start_soon(attempt)
                nursery.start_soon(ledger.write, queue_one)
        assert await ledger.read(count) == 250
    assert len(failures) == 250


async def test_transactions_run_one_after_the_other(path: Path) -> None:
    """Those on the event loop wait for one in a thread."""
    gate, seen = threading.Event(), []

    def block(db: Db) -> None:
        queue_one(db)
        gate.wait(30)

    def note(db: Db) -> None:
        seen.append(count(db))
        queue_one(db)

    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: ledger.transact(block, in_thread=True))
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(5):
            nursery.start_soon(ledger.write, note)
        await trio.testing.wait_all_tasks_blocked()
        assert await ledger.read(count) == 0, "a reader does not wait for the writer"
        gate.set()
    assert seen == [1, 2, 3, 4, 5]


async def test_the_ledger_is_usable_after_sqlite_rolled_back_by_itself(path: Path) -> None:
    """Without memory, SQLite rolls back by itself and Python raises MemoryError."""

    def fails(db: Db) -> None:
        queue_one(db)
        db.execute("ROLLBACK")
        raise MemoryError

    async with open_ledger(path) as ledger:
        with pytest.raises(MemoryError):
            await ledger.write(fails)
        await ledger.write(queue_one)
        assert await ledger.read(count) == 1


async def test_a_violated_constraint_is_a_ledger_error(path: Path) -> None:
    """A sqlite3.Error never leaves the ledger."""
    async with open_ledger(path) as ledger:
        with pytest.raises(LedgerError, match="CHECK"):
            await ledger.write(enqueue, NewJob(plugin="e", command="c", submitted_by="t", max_attempts=0), now=NOW)
        await ledger.write(queue_one)
        assert not ledger.broken.is_set()


async def test_a_write_cancelled_before_it_begins_writes_nothing(path: Path) -> None:
    """Also while it waits for another transaction or another process."""
    gate = threading.Event()
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ledger.write(queue_one)
        assert scope.cancelled_caught
        nursery.start_soon(lambda: ledger.transact(lambda _: gate.wait(30), in_thread=True))
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as scope:
            await ledger.write(queue_one)
        assert scope.cancelled_caught
        gate.set()
        await ledger.write(lambda _: None)
        other = connect_writer(path, "off")
        with transaction(other), trio.move_on_after(0.05) as scope:
            await ledger.write(queue_one)
        assert scope.cancelled_caught
        other.close()
        assert await ledger.read(count) == 0


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_write_cancelled_after_it_began_is_completed(path: Path, slow: SlowDisk, in_thread: bool) -> None:
    """The caller gets the result: cancelled always means not written."""
    got = []
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        async def write() -> None:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_during_sync, scope)
                await ledger.transact(queue_one, in_thread=in_thread)
                got.append("written")

        async def cancel_during_sync(scope: trio.CancelScope) -> None:
            await slow.has_begun()
            scope.cancel()
            slow.gate.set()

        nursery.start_soon(write)
    assert got == ["written"]


async def test_a_full_disk_refuses_writes_until_there_is_space(path: Path) -> None:
    """Callers get LedgerFull. The same ledger then works without a restart."""
    big = NewJob(plugin="echo", command="poll", submitted_by="test", payload='"' + "x" * 200_000 + '"')
    async with open_ledger(path) as ledger:
        await ledger.write(queue_one)
        await ledger.write(limit_pages, 60)
        refused: list[BaseException] = []

        async def attempt(*, in_thread: bool) -> None:
            try:
                await ledger.transact(lambda db: enqueue(db, big, now=NOW), in_thread=in_thread)
            except LedgerFull as full:
                refused.append(full)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(lambda in_thread: attempt(in_thread=in_thread), number % 2 == 0)
        assert len(refused) == 20
        assert await ledger.read(count) == 1
        assert not ledger.broken.is_set()
        await ledger.write(limit_pages, 1 << 30)
        await ledger.write(enqueue, big, now=NOW)
        assert await ledger.read(count) == 2


async def test_a_write_gives_up_if_another_process_writes_too_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With LedgerBusy. The next write works."""
    monkeypatch.setattr("ductile.ledger.storage.connections.BUSY_SECONDS", 0.05)
    async with open_ledger(path) as ledger:
        other = connect_writer(path, "off")
        with transaction(other), pytest.raises(LedgerBusy):
            await ledger.write(queue_one)
        other.close()
        await ledger.write(queue_one)


async def test_a_ledger_that_another_process_has_locked_is_unwritable_also_while_no_caller_waits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first write that fails until the lock is released."""
    monkeypatch.setattr("ductile.ledger.storage.connections.BUSY_SECONDS", 0.05)
    async with open_ledger(path) as ledger:
        other = connect_writer(path, "off")
        assert ledger.unwritable_seconds() == 0
        with transaction(other):
            with pytest.raises(LedgerBusy):
                await ledger.write(queue_one)
            assert ledger.stuck_seconds() == 0
            assert ledger.unwritable_seconds() >= 0.05
        other.close()
        assert ledger.unwritable_seconds() == 0
        await ledger.write(queue_one)
        assert await ledger.read(count) == 1


async def test_callers_that_wait_for_another_process_do_not_wait_for_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them get the error after the same time."""
    monkeypatch.setattr("ductile.ledger.storage.connections.BUSY_SECONDS", 0.4)
    async with open_ledger(path) as ledger:
        other = connect_writer(path, "off")

        async def write() -> None:
            with pytest.raises(LedgerBusy):
                await ledger.write(queue_one)

        with transaction(other), trio.fail_after(2):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(write)
        other.close()
        await ledger.write(queue_one)


async def test_another_process_that_writes_does_not_block_the_event_loop(path: Path) -> None:
    """Other tasks run, and `stuck_seconds` shows the wait."""
    done = trio.Event()
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        async def write() -> None:
            await ledger.write(queue_one)
            done.set()

        assert ledger.stuck_seconds() == 0
        other = connect_writer(path, "off")
        with transaction(other):
            nursery.start_soon(write)
            while ledger.stuck_seconds() == 0:
                await trio.lowlevel.checkpoint()
            assert not done.is_set()
        other.close()
        await done.wait()
        assert await ledger.read(count) == 1
        assert ledger.stuck_seconds() == 0


# ── durability ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_write_returns_after_the_sync(path: Path, slow: SlowDisk) -> None:
    """The row is committed and readable before, but the writer waits for the disk."""
    returned: list[bool] = []
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        async def write(in_thread: bool) -> None:
            await ledger.transact(queue_one, in_thread=in_thread)
            returned.append(in_thread)

        for in_thread in (True, False):
            nursery.start_soon(write, in_thread)
        await slow.has_begun()
        await trio.testing.wait_all_tasks_blocked()
        assert returned == []
        assert await ledger.read(count) >= 1
        assert ledger.stuck_seconds() > 0
        slow.gate.set()
    assert sorted(returned) == [False, True]


async def test_one_sync_covers_all_commits_before_it(path: Path, slow: SlowDisk) -> None:
    """Fifty commits during one sync wait for one more."""
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        nursery.start_soon(ledger.write, queue_one)
        await slow.has_begun()
        for _ in range(50):
            nursery.start_soon(ledger.write, queue_one)
        await trio.testing.wait_all_tasks_blocked()
        assert await ledger.read(count) == ledger.commits == 51
        slow.gate.set()
    assert slow.syncs == 2


async def test_a_commit_without_wait_is_synced_later(path: Path, slow: SlowDisk) -> None:
    """`until_durable` waits for it, by number or for all commits so far."""
    durable: list[int | None] = []
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        await ledger.transact(queue_one, wait=False)
        assert ledger.commits == 1

        async def wait(commit: int | None) -> None:
            await ledger.until_durable(commit)
            durable.append(commit)

        await ledger.until_durable(0)
        await slow.has_begun()
        nursery.start_soon(wait, None)
        nursery.start_soon(wait, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert durable == []
        slow.gate.set()
    assert set(durable) == {None, 1}
    assert slow.syncs == 1


async def test_a_transaction_that_writes_nothing_is_not_synced(path: Path, slow: SlowDisk) -> None:
    """It still waits for the commits that it may have read."""
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        assert await ledger.write(count) == 0
        assert slow.syncs == 0
        nursery.start_soon(ledger.write, queue_one)
        await slow.has_begun()
        seen: list[int] = []

        async def read_count() -> None:
            seen.append(await ledger.write(count))

        nursery.start_soon(read_count)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        slow.gate.set()
    assert seen == [1]
    assert slow.syncs == 1


async def test_until_durable_covers_a_commit_in_a_thread_that_is_visible(path: Path, slow: SlowDisk) -> None:
    """A reader may see the row before the event loop has counted the commit."""
    begun, durable = threading.Event(), trio.Event()

    def queue_in_thread(db: Db) -> None:
        begun.set()
        queue_one(db)

    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: ledger.transact(queue_in_thread, in_thread=True))
        while not begun.is_set():
            await trio.lowlevel.checkpoint()
        is_seen = False
        while not is_seen:  # without an await, so that the event loop cannot count the commit meanwhile
            with open_reader_beside_writer(path) as db:
                is_seen = count(db) == 1

        async def wait() -> None:
            await ledger.until_durable()
            durable.set()

        nursery.start_soon(wait)
        await slow.has_begun()
        await trio.testing.wait_all_tasks_blocked()
        assert not durable.is_set()
        slow.gate.set()
    assert durable.is_set()


@pytest.mark.parametrize("synchronous", ["normal", "off"])
async def test_without_full_durability_no_write_waits_for_the_disk(
    path: Path, slow: SlowDisk, synchronous: Any
) -> None:
    """A commit counts as durable when it is written, and is announced."""
    announced: list[int] = []
    async with open_ledger(path, synchronous=synchronous, on_commit=lambda: announced.append(1)) as ledger:
        await ledger.write(queue_one)
        await ledger.until_durable()
        assert announced == [1]
    assert slow.syncs == 0


async def test_commits_are_announced_when_they_are_durable(path: Path, slow: SlowDisk) -> None:
    """Event streams show nothing that a power failure could undo."""
    announced = trio.Event()
    async with open_ledger(path, on_commit=announced.set) as ledger, trio.open_nursery() as nursery:
        nursery.start_soon(ledger.write, queue_one)
        await slow.has_begun()
        await trio.testing.wait_all_tasks_blocked()
        assert not announced.is_set()
        slow.gate.set()
        await announced.wait()


# ── fatal errors ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_failed_sync_breaks_the_ledger(path: Path, slow: SlowDisk) -> None:
    """It is unknown what reached the disk: every waiting caller gets the error, and later writes are refused."""
    refused: list[str] = []
    slow.error = OSError(5, "Input/output error")
    announced: list[int] = []
    async with open_ledger(path, on_commit=lambda: announced.append(1)) as ledger:

        async def write() -> None:
            try:
                await ledger.write(queue_one)
            except LedgerError as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(write)
            await slow.has_begun()
            await trio.testing.wait_all_tasks_blocked()
            slow.gate.set()
            await ledger.broken.wait()
        await write()
    assert refused == [f"{path}-wal: cannot be synced: Input/output error"] * 4
    assert announced == []


async def test_no_sync_follows_a_failed_one(path: Path, slow: SlowDisk) -> None:
    """The kernel reports lost pages once: the next sync would succeed without them."""
    refused: list[BaseException] = []
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        async def write() -> None:
            try:
                await ledger.write(queue_one)
            except LedgerError as error:
                refused.append(error)

        await ledger.transact(queue_one, wait=False)
        await slow.has_begun()
        for _ in range(5):
            nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        slow.error = OSError(5, "Input/output error")
        slow.gate.set()
        await ledger.broken.wait()
        slow.error = None
    assert len(refused) == 5
    assert slow.syncs == 1


async def test_a_sync_that_takes_too_long_is_an_error(
    path: Path, slow: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every shield has a time limit."""
    monkeypatch.setattr("ductile.ledger.storage.async_ledger.SYNC_TIMEOUT", 0.05)
    async with open_ledger(path) as ledger:
        with pytest.raises(LedgerError, match="not confirmed"):
            await ledger.write(queue_one)
        slow.gate.set()
        await ledger.until_durable()


BROKEN = """
import resource, sqlite3, sys
from datetime import UTC, datetime
from pathlib import Path
import trio, signal
from ductile.core.errors import LedgerError, LedgerFull
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.storage.async_ledger import open_ledger
from ductile.core.model import NewJob

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
job = NewJob(plugin="echo", command="poll", submitted_by="test", payload='"' + "x" * 100_000 + '"')
async def main():
    async with open_ledger(Path(sys.argv[1])) as ledger:
        await ledger.write(enqueue, job, now=datetime.now(UTC))
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
        for _ in range(2):
            try:
                await ledger.write(enqueue, job, now=datetime.now(UTC))
            except LedgerError as error:
                print(type(error).__name__, flush=True)
        with trio.move_on_after(5):
            await ledger.broken.wait()
        print("broken" if ledger.broken.is_set() else "whole", flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            await ledger.write(enqueue, job, now=datetime.now(UTC))
        except LedgerError as error:
            print("refused", flush=True)
trio.run(main)
"""


@pytest.mark.process
def test_an_io_error_breaks_the_ledger_until_the_process_ends(path: Path) -> None:
    """Every later write is refused.

    The limit on file sizes makes the kernel fail a write inside COMMIT.
    """
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", BROKEN, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["LedgerError", "LedgerError", "broken", "refused"], done.stderr
    with open_reader(path) as db:
        assert count(db) == 1
    open_writer(path).close()


def last_change(path: Path) -> tuple[int, int]:
    """Return mtime and size, without opening the file: closing it would drop SQLite's locks."""
    seen = path.stat()
    return seen.st_mtime_ns, seen.st_size


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_broken_ledger_is_not_written_even_when_it_closes(path: Path, in_thread: bool) -> None:
    """The log stays for the next start to recover from."""
    log = path.with_name(f"{path.name}-wal")
    async with open_ledger(path) as ledger:
        await ledger.write(queue_one)
        with pytest.raises(LedgerError):
            await ledger.transact(raise_io_error, in_thread=in_thread)
        assert ledger.broken.is_set()
        before = last_change(path), last_change(log)

    assert (last_change(path), last_change(log)) == before
    async with open_ledger(path) as ledger:
        assert await ledger.read(count) == 1
    assert not log.exists(), "a ledger that was closed normally has no log"


async def test_a_rollback_that_fails_breaks_the_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next transaction would be part of the old one."""

    class NoRollback:
        """A connection that cannot roll back."""

        def __init__(self, db: sqlite3.Connection) -> None:
            self.db = db

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql == "ROLLBACK":
                raise sqlite3.OperationalError("cannot rollback")
            return self.db.execute(sql, *parameters)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.db, name)

    def fails(db: Db) -> None:
        queue_one(db)
        raise RuntimeError

    async with open_ledger(path) as ledger:
        monkeypatch.setattr(ledger, "_db", NoRollback(ledger._db))
        with pytest.raises(LedgerError, match="cannot rollback"):
            await ledger.write(fails)
        assert ledger.broken.is_set()
    with open_reader(path) as db:
        assert count(db) == 0


async def test_an_error_in_the_maintenance_task_fails_all_writers(path: Path) -> None:
    """It also ends the block."""

    def bug() -> None:
        raise RuntimeError("a bug")

    with trio.fail_after(30), pytest.RaisesGroup(RuntimeError):
        async with open_ledger(path, on_commit=bug) as ledger:
            with pytest.raises(LedgerError, match="a bug"):
                await ledger.write(queue_one)
            await trio.sleep_forever()


# ── closing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_closed_ledger_refuses_writes(path: Path) -> None:
    """No write waits for a task that has ended."""
    async with open_ledger(path) as ledger:
        pass
    with pytest.raises(LedgerError, match="closed"):
        await ledger.write(queue_one)


async def test_an_error_in_the_block_is_not_wrapped_in_a_group(path: Path) -> None:
    """Also if the block is cancelled at the same time."""

    async def fail(scope: trio.CancelScope) -> None:
        async with open_ledger(path):
            scope.cancel()
            raise NotFound("mine")

    with trio.CancelScope() as scope, pytest.raises(NotFound, match="mine"):
        await fail(scope)


async def test_closing_waits_for_all_queued_writes(path: Path, nursery: trio.Nursery) -> None:
    """Also for commits that no caller waits for."""
    gate = threading.Event()
    async with open_ledger(path) as ledger:
        nursery.start_soon(lambda: ledger.transact(lambda _: gate.wait(30), in_thread=True))
        for number in range(300):
            nursery.start_soon(lambda wait: ledger.transact(queue_one, wait=wait), number % 2 == 0)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "the log was checkpointed and removed"
    with open_reader(path) as db:
        assert count(db) == 300


async def test_a_cancelled_block_still_makes_its_last_commits_durable(path: Path, slow: SlowDisk) -> None:
    """A completion is recorded in a shield while the service is cancelled."""
    done: list[str] = []

    async def record(ledger: Ledger) -> None:
        with trio.CancelScope(shield=True):
            await slow.has_begun()
            slow.gate.set()
            await ledger.write(queue_one)
            done.append("recorded")

    with trio.CancelScope() as scope:
        async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
            await ledger.transact(queue_one, wait=False)
            nursery.start_soon(record, ledger)
            scope.cancel()
    assert done == ["recorded"]
    with open_reader(path) as db:
        assert count(db) == 2


# ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("synchronous", ["full", "off"])
async def test_the_log_stays_bounded_with_large_rows(path: Path, synchronous: Any) -> None:
    """A log of more than 32 MiB restarts after one or two more commits."""
    large = NewJob(plugin="echo", command="poll", submitted_by="test", payload=json.dumps({"filler": "x" * (6 << 20)}))
    longest = 0
    async with open_ledger(path, synchronous=synchronous) as ledger:
        for _ in range(16):
            await ledger.transact(lambda db: enqueue(db, large, now=NOW), in_thread=True)
            longest = max(longest, path.with_name(f"{path.name}-wal").stat().st_size)
    assert 6 << 20 < longest <= 64 << 20


@pytest.mark.parametrize("synchronous", ["full", "off"])
async def test_the_log_stays_bounded_under_load(path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: Any) -> None:
    """With busy writers and readers. Without checkpoints it would be 24 MB."""
    monkeypatch.setattr("ductile.ledger.storage.async_ledger.CHECKPOINT_ROWS", 40)
    sizes = []
    async with open_ledger(path, synchronous=synchronous) as ledger:

        async def write() -> None:
            for _ in range(150):
                await ledger.write(queue_one)
                sizes.append(os.stat(f"{path}-wal").st_size)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(write)
            for _ in range(20):
                await ledger.read(count)
    assert max(sizes) < 12_000_000  # a slow reader on a busy host keeps the log for a while


async def test_a_checkpoint_with_an_io_error_breaks_the_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that finds no space is retried."""
    monkeypatch.setattr("ductile.ledger.storage.async_ledger.CHECKPOINT_ROWS", 1)
    errors = [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR]

    def fail(_: Db) -> None:
        error = sqlite3.OperationalError("no")
        error.sqlite_errorcode = errors.pop(0)
        raise error

    monkeypatch.setattr("ductile.ledger.storage.connections.checkpoint", fail)
    with trio.fail_after(30):
        async with open_ledger(path) as ledger:
            with suppress(LedgerError):
                while not ledger.broken.is_set():
                    await ledger.transact(queue_one, wait=False)
            await ledger.broken.wait()
    assert errors == []


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_read_cannot_write(path: Path) -> None:
    """Reading connections are read-only."""
    async with open_ledger(path) as ledger:
        with pytest.raises(LedgerError, match="readonly"):
            await ledger.read(queue_one)


async def test_a_read_sees_one_snapshot(path: Path) -> None:
    """Later commits are not visible."""
    begun, gate = threading.Event(), threading.Event()

    def twice(db: Db) -> tuple[int, int]:
        first = count(db)
        begun.set()
        gate.wait(30)
        return first, count(db)

    seen = []
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        async def read() -> None:
            seen.append(await ledger.read(twice))

        nursery.start_soon(read)
        await trio.to_thread.run_sync(begun.wait)
        await ledger.write(queue_one)
        gate.set()
    assert seen == [(0, 0)]


async def test_a_failed_reader_connection_is_replaced(path: Path) -> None:
    """An ordinary NotFound keeps the connection."""

    def fail(db: Db) -> None:
        assert isinstance(db, sqlite3.Connection)
        db.close()

    def find_nothing(db: Db) -> None:
        raise NotFound("unknown")

    async with open_ledger(path) as ledger:
        with pytest.raises(LedgerError):
            await ledger.read(fail)
        assert await ledger.read(count) == 0
        with pytest.raises(NotFound):
            await ledger.read(find_nothing)
        assert await ledger.read(count) == 0


SECOND_PROCESS = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.core.errors import AlreadyRunning
from ductile.core.instance.lock import instance_lock
path = Path(sys.argv[1])
for _ in range(5):
    try:
        with instance_lock(path.parent, path, now=datetime.now(UTC)):
            print("locked")
    except AlreadyRunning as refused:
        print(refused.exit_code)
from ductile.ledger.storage.open_file import open_reader
for _ in range(30):
    with open_reader(path) as db:
        last = db.execute("SELECT COUNT(*), COALESCE(MAX(seq), 0) FROM job_queue").fetchone()
        assert last[0] == last[1], last
print("read", last[0] >= 0)
"""


@pytest.mark.process
async def test_a_second_process_can_only_read(path: Path) -> None:
    """It cannot get the lock. Its reads are consistent and never block or fail a write."""
    path.parent.mkdir()
    with instance_lock(path.parent, path, now=NOW):
        async with open_ledger(path, synchronous="normal") as ledger, trio.open_nursery() as nursery:
            results: list[Any] = []

            async def second() -> None:
                process = await trio.run_process([sys.executable, "-c", SECOND_PROCESS, str(path)], capture_stdout=True)
                results.append(process.stdout.decode().split())

            nursery.start_soon(second)
            written = 0
            while not results:
                await ledger.write(enqueue, JOB, now=NOW)
                written += 1
    assert results == [["75"] * 5 + ["read", "True"]]
    with open_reader(path) as db:
        assert count(db) == written
