"""The async ledger: group commit, one failing alone, cancellation, and what breaks it for good."""

import errno
import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ductile.errors import LedgerBusy, LedgerError, LedgerFull, NotFound
from ductile.ledger.connections import connect_writer, transaction
from ductile.ledger.jobs import enqueue
from ductile.ledger.store import open_reader, open_writer
from ductile.ledger.writer import Ledger, open_ledger
from ductile.lock import instance_lock
from ductile.model import NewJob

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = NewJob(plugin="echo", command="poll", submitted_by="test")


def count(db: sqlite3.Connection) -> int:
    number: int = db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0]
    return number


async def test_what_was_written_is_there_for_everybody(path: Path) -> None:
    """A write that returned is durable: this process, another reader and the next start see it."""
    async with open_ledger(path) as ledger:
        await ledger.write(enqueue, JOB, now=NOW)
        assert ledger.read(count) == 1
        assert await ledger.read_slowly(count) == 1
        with open_reader(path) as reader:
            assert count(reader) == 1
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "the log was folded into the file"
    with open_reader(path) as reader:
        assert count(reader) == 1


async def test_writers_that_wait_share_a_commit(path: Path) -> None:
    """While one commit is made, the others gather for the next."""
    gate, commits = threading.Event(), []

    def hold(db: sqlite3.Connection) -> None:
        gate.wait(30)

    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        def note(db: sqlite3.Connection) -> None:
            enqueue(db, JOB, now=NOW)
            commits.append(db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0])

        nursery.start_soon(ledger.write, hold)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(50):
            nursery.start_soon(ledger.write, note)
        await trio.testing.wait_all_tasks_blocked()
        seen_before = ledger.read(count)
        gate.set()
    assert seen_before == 0
    assert commits == list(range(1, 51))


async def test_who_wants_to_be_last_sees_what_the_others_of_its_commit_wrote(path: Path) -> None:
    """A claim that was asked for before the job it claims finds it, if both are in one commit."""
    gate, order = threading.Event(), []

    def hold(db: sqlite3.Connection) -> None:
        gate.wait(30)

    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        nursery.start_soon(ledger.write, hold)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ledger.write_last, lambda db: order.append(f"last sees {count(db)}"))
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            nursery.start_soon(ledger.write, lambda db: order.append(enqueue(db, JOB, now=NOW).status.value))
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
    assert order == ["queued", "queued", "last sees 2"]


async def test_what_makes_work_is_written_with_the_claim_of_a_worker_whose_turn_is_near(path: Path) -> None:
    """Many senders and the claim of what they send share one commit, in which each of them can fail alone."""
    commits: list[int] = []
    told: list[str] = []

    def fails(db: sqlite3.Connection) -> None:
        enqueue(db, JOB, now=NOW)
        raise RuntimeError("mine alone")

    async with (
        open_ledger(path, synchronous="off", on_commit=lambda: commits.append(1), call_worker=lambda: True) as ledger,
        trio.open_nursery() as nursery,
    ):

        async def send(work: Callable[[sqlite3.Connection], object], name: str) -> None:
            try:
                await ledger.write_work(work, is_quick=True)
                told.append(name)
            except RuntimeError as error:
                told.append(str(error))

        for name in ("first", "second"):
            nursery.start_soon(send, lambda db: enqueue(db, JOB, now=NOW), name)
        nursery.start_soon(send, fails, "bad")
        await trio.testing.wait_all_tasks_blocked()
        assert (ledger.read(count), told, commits) == (0, [], [])
        assert await ledger.write_last(count, is_quick=True) == 2
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(told) == ["first", "mine alone", "second"]
    assert len(commits) == 1


async def test_what_was_left_for_a_turn_can_be_written_without_one(path: Path) -> None:
    """A worker that has nothing to claim lets the others go on."""
    async with (
        open_ledger(path, synchronous="off", call_worker=lambda: True) as ledger,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lambda: ledger.write_work(lambda db: enqueue(db, JOB, now=NOW), is_quick=True))
        await trio.testing.wait_all_tasks_blocked()
        assert ledger.read(count) == 0
        ledger.write_what_waits()
        assert ledger.read(count) == 1


async def test_what_makes_work_is_written_although_its_sender_has_left(path: Path) -> None:
    """A client that sends its request and hangs up has asked for it all the same."""
    async with open_ledger(path) as ledger:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ledger.write_work(lambda db: enqueue(db, JOB, now=NOW), is_quick=True)
        assert ledger.read(count) == 1


async def test_a_look_sees_what_was_written_last_wherever_the_connection_is(path: Path) -> None:
    """Whether the writing connection is here or away with the thread, the last commit is seen and nothing else."""
    gate = threading.Event()

    def hold(db: sqlite3.Connection) -> None:
        enqueue(db, JOB, now=NOW)
        gate.wait(30)

    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        await ledger.write(enqueue, JOB, now=NOW)
        assert ledger.look_up(count) == 1
        nursery.start_soon(ledger.write, hold)
        await trio.testing.wait_all_tasks_blocked()
        assert ledger.look_up(count) == 1
        gate.set()
    assert count(connect_writer(path, "off")) == 2


async def test_one_bad_request_fails_alone(path: Path) -> None:
    """What the others of its commit wrote is undone with it and done again: 250 of 500 fail and 250 are written."""

    def fails(db: sqlite3.Connection) -> None:
        enqueue(db, JOB, now=NOW)
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
                nursery.start_soon(lambda: ledger.write(enqueue, JOB, now=NOW))
        assert ledger.read(count) == 250
    assert len(failures) == 250


async def test_what_fails_is_done_again_with_care(path: Path) -> None:
    """Of the careless way nothing is left, whether others were in its commit or not."""

    def fails(db: sqlite3.Connection) -> str:
        enqueue(db, JOB, now=NOW)
        raise RuntimeError("careless")

    def succeeds(db: sqlite3.Connection) -> str:
        enqueue(db, JOB, now=NOW)
        return "with care"

    async with open_ledger(path) as ledger:
        assert await ledger.write_last(fails, with_care=succeeds) == "with care"
        assert (ledger.read(count), ledger.redone) == (1, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: ledger.write(enqueue, JOB, now=NOW))
            nursery.start_soon(lambda: ledger.write(enqueue, JOB, now=NOW))
            assert await ledger.write_last(fails, with_care=succeeds) == "with care"
        assert ledger.read(count) == 4


async def test_what_sqlite_has_undone_by_itself_is_done_again_too(path: Path) -> None:
    """Where memory is short it gives up the whole transaction, and Python raises what is no error of SQLite."""

    def fails(db: sqlite3.Connection) -> str:
        enqueue(db, JOB, now=NOW)
        db.execute("ROLLBACK")
        raise MemoryError

    def succeeds(db: sqlite3.Connection) -> str:
        enqueue(db, JOB, now=NOW)
        return "with care"

    async with open_ledger(path) as ledger:
        assert await ledger.write_last(fails, with_care=succeeds) == "with care"
        assert ledger.read(count) == 1


async def test_who_fails_with_care_as_well_fails_alone(path: Path) -> None:
    """It hears of its last failure, and nothing of it is written."""

    def fails(db: sqlite3.Connection, how: str) -> None:
        enqueue(db, JOB, now=NOW)
        raise RuntimeError(how)

    async with open_ledger(path) as ledger:
        with pytest.raises(RuntimeError, match="with care"):
            await ledger.write_last(partial(fails, how="careless"), with_care=partial(fails, how="with care"))
        await ledger.write(enqueue, JOB, now=NOW)
        assert ledger.read(count) == 1


async def test_while_all_goes_well_no_page_is_copied_for_an_undo(path: Path) -> None:
    """A savepoint costs a copy of every page that is changed; requests of one commit do without until one fails."""
    asked: list[str] = []
    async with open_ledger(path) as ledger:
        await ledger.write(lambda db: db.set_trace_callback(asked.append))
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(lambda: ledger.write(enqueue, JOB, now=NOW))
        await ledger.write(lambda db: db.set_trace_callback(None))
    assert sum("INSERT INTO job_queue" in statement for statement in asked) == 5
    assert not [statement for statement in asked if "SAVEPOINT" in statement]


async def test_a_constraint_is_a_ledger_error_for_its_caller_only(path: Path) -> None:
    """Nobody outside sees a sqlite3.Error."""
    async with open_ledger(path) as ledger:
        with pytest.raises(LedgerError, match="CHECK"):
            await ledger.write(enqueue, NewJob(plugin="e", command="c", submitted_by="t", max_attempts=0), now=NOW)
        await ledger.write(enqueue, JOB, now=NOW)
        assert not ledger.broken.is_set()


async def test_cancelled_before_it_is_queued_it_never_starts(path: Path) -> None:
    """Cancelled means not written."""
    async with open_ledger(path) as ledger:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ledger.write(enqueue, JOB, now=NOW)
        assert scope.cancelled_caught
        assert ledger.read(count) == 0


async def test_once_queued_it_is_awaited_to_its_end(path: Path) -> None:
    """A caller that is cancelled while the thread works still learns what happened."""
    gate, got = threading.Event(), []

    def slow(db: sqlite3.Connection) -> str:
        gate.wait(30)
        enqueue(db, JOB, now=NOW)
        return "written"

    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:

        async def impatient() -> None:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_and_open_the_gate, scope)
                got.append(await ledger.write(slow))

        async def cancel_and_open_the_gate(scope: trio.CancelScope) -> None:
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            gate.set()

        nursery.start_soon(impatient)
    assert got == ["written"]


async def test_a_full_disk_acknowledges_nobody_and_recovers(path: Path) -> None:
    """LedgerFull for the callers; after space returns the same ledger works, without a restart."""
    big = NewJob(plugin="echo", command="poll", submitted_by="test", payload='"' + "x" * 200_000 + '"')

    def limit(db: sqlite3.Connection, pages: int) -> None:
        db.execute(f"PRAGMA max_page_count = {pages}")

    async with open_ledger(path) as ledger:
        await ledger.write(enqueue, JOB, now=NOW)
        await ledger.write(limit, 60)
        refused: list[BaseException] = []

        async def attempt() -> None:
            try:
                await ledger.write(enqueue, big, now=NOW)
            except LedgerFull as full:
                refused.append(full)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(attempt)
        assert len(refused) == 20
        assert ledger.read(count) == 1
        assert not ledger.broken.is_set()
        await ledger.write(limit, 1 << 30)
        await ledger.write(enqueue, big, now=NOW)
        assert ledger.read(count) == 2


async def test_a_foreign_write_lock_is_busy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that writes makes us wait a bounded time, then say so."""
    monkeypatch.setattr("ductile.ledger.connections.BUSY_SECONDS", 0.05)
    async with open_ledger(path) as ledger:
        stranger = connect_writer(path, "off")
        with transaction(stranger), pytest.raises(LedgerBusy):
            await ledger.write(enqueue, JOB, now=NOW)
        stranger.close()
        await ledger.write(enqueue, JOB, now=NOW)


BROKEN = """
import resource, sqlite3, sys
from datetime import UTC, datetime
from pathlib import Path
import trio, signal
from ductile.errors import LedgerError, LedgerFull
from ductile.ledger.jobs import enqueue
from ductile.ledger.writer import open_ledger
from ductile.model import NewJob

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


def test_a_failed_write_breaks_the_ledger_for_good(path: Path) -> None:
    """After an I/O error nothing is believed any more: every later write is refused until the process is replaced.

    The limit on file sizes makes the kernel fail a write inside COMMIT.
    """
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", BROKEN, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["LedgerError", "LedgerError", "broken", "refused"], done.stderr
    with open_reader(path) as db:
        assert count(db) == 1
    open_writer(path).close()


def last_change(path: Path) -> tuple[int, int]:
    """Looked at from outside: opening the file would let go of SQLite's locks."""
    seen = path.stat()
    return seen.st_mtime_ns, seen.st_size


async def test_nothing_is_written_to_a_broken_ledger_not_even_at_its_end(path: Path) -> None:
    """The log is not folded into the file by a service that cannot trust its disk: the next start recovers from it."""

    def fails(db: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    log = path.with_name(f"{path.name}-wal")
    async with open_ledger(path) as ledger:
        await ledger.write(enqueue, JOB, now=NOW)
        with pytest.raises(LedgerError):
            await ledger.write(fails)
        before = last_change(path), last_change(log)

    assert (last_change(path), last_change(log)) == before
    async with open_ledger(path) as ledger:
        assert ledger.read(count) == 1
    assert not log.exists(), "a ledger that was closed in order has no log"


async def test_a_closed_ledger_says_so(path: Path) -> None:
    """No write waits for a thread that is gone."""
    async with open_ledger(path) as ledger:
        pass
    with pytest.raises(LedgerError, match="closed"):
        await ledger.write(enqueue, JOB, now=NOW)


async def test_everything_asked_for_before_the_end_is_written(path: Path) -> None:
    """Closing waits for what is queued."""
    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(lambda: ledger.write(enqueue, JOB, now=NOW))
    with open_reader(path) as db:
        assert count(db) == 300


async def test_large_rows_do_not_let_the_log_grow_without_end(path: Path) -> None:
    """However few they are: a log of more than 32 MiB is taken up again from its start after the next commit or two."""
    large = NewJob(plugin="echo", command="poll", submitted_by="test", payload=json.dumps({"filler": "x" * (6 << 20)}))
    longest = 0
    async with open_ledger(path, synchronous="off") as ledger:
        for _ in range(16):
            await ledger.write(enqueue, large, now=NOW)
            longest = max(longest, path.with_name(f"{path.name}-wal").stat().st_size)
    assert 6 << 20 < longest <= 64 << 20


async def test_the_log_is_checkpointed_by_the_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log does not grow with the work, however busy the writer is, while readers come and go."""
    monkeypatch.setattr("ductile.ledger.checkpoints.AT_LATEST_AFTER_ROWS", 40)
    monkeypatch.setattr("ductile.ledger.checkpoints.AFTER_ROWS", 20)
    sizes = []
    async with open_ledger(path, synchronous="off") as ledger:
        for _ in range(400):
            await ledger.write(enqueue, JOB, now=NOW)
            ledger.read(count)
            sizes.append(os.stat(f"{path}-wal").st_size)
    assert max(sizes) < 2_000_000


async def test_nobody_waits_while_a_checkpoint_is_made_ready(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is synced beside the work, and the connection leaves only for what is left to do."""
    monkeypatch.setattr("ductile.ledger.checkpoints.AFTER_ROWS", 4)
    gate, begun = threading.Event(), threading.Event()

    def sync(_: int) -> None:
        begun.set()
        gate.wait(30)

    monkeypatch.setattr("ductile.ledger.disk.os.fdatasync", sync)
    async with open_ledger(path, synchronous="normal") as ledger:
        while not begun.is_set():
            await ledger.write_work(lambda db: enqueue(db, JOB, now=NOW), is_quick=True)
            await trio.lowlevel.checkpoint()
        before = ledger.look_up(count)
        for _ in range(5):
            await ledger.write_work(lambda db: enqueue(db, JOB, now=NOW), is_quick=True)
        assert ledger.look_up(count) == before + 5
        gate.set()
    with open_reader(path) as db:
        assert count(db) == before + 5


async def test_a_log_that_cannot_be_synced_before_a_checkpoint_breaks_the_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells of lost pages once: whoever hears it may not let the next sync succeed without them."""
    monkeypatch.setattr("ductile.ledger.checkpoints.AFTER_ROWS", 4)

    def sync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("ductile.ledger.disk.os.fdatasync", sync)
    async with open_ledger(path, synchronous="normal") as ledger:

        async def write_on() -> None:
            while True:
                await ledger.write_work(lambda db: enqueue(db, JOB, now=NOW), is_quick=True)
                await trio.lowlevel.checkpoint()

        with trio.fail_after(30):
            with pytest.raises(LedgerError, match="cannot be synced"):
                await write_on()
            await ledger.broken.wait()


async def test_reads_do_not_wait_for_the_writer(path: Path) -> None:
    """A reader sees the last commit while a write is in progress."""
    gate, begun = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        enqueue(db, JOB, now=NOW)
        begun.set()
        gate.wait(30)

    async with open_ledger(path) as ledger, trio.open_nursery() as nursery:
        nursery.start_soon(ledger.write, slow)
        await trio.to_thread.run_sync(begun.wait)
        assert ledger.read(count) == 0
        assert await ledger.read_slowly(count) == 0
        gate.set()


class TakenMeanwhile(list[sqlite3.Connection]):
    """Looks as if it held a connection, as it does when another thread takes the last one after the look."""

    def __bool__(self) -> bool:
        return True


async def test_two_reads_that_want_the_last_idle_connection_both_get_one(path: Path) -> None:
    """Between looking and taking another thread may be faster."""
    async with open_ledger(path) as ledger:
        ledger._idle_readers = TakenMeanwhile()
        assert await ledger.read_slowly(count) == 0


async def test_a_connection_that_failed_is_not_used_again(path: Path) -> None:
    """The next read gets another one; what was merely not found costs no connection."""

    def fail(db: sqlite3.Connection) -> None:
        db.close()

    def find_nothing(db: sqlite3.Connection) -> None:
        raise NotFound("nobody")

    async with open_ledger(path) as ledger:
        with pytest.raises(LedgerError):
            await ledger.read_slowly(fail)
        assert await ledger.read_slowly(count) == 0
        (idle,) = ledger._idle_readers
        with pytest.raises(NotFound):
            await ledger.read_slowly(find_nothing)
        assert ledger._idle_readers == [idle]


def bug(*_: object) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(("place", "fault"), [("commits.translated", bug), ("checkpoints.AFTER_ROWS", None)])
async def test_a_fault_of_the_writer_itself_is_told_to_everybody(
    path: Path, monkeypatch: pytest.MonkeyPatch, place: str, fault: Any
) -> None:
    """Nobody waits for ever: who asked gets an answer, the ledger is broken, later requests are refused."""
    refused: list[BaseException] = []

    async def ask(ledger: Ledger, job: NewJob) -> None:
        try:
            await ledger.write(enqueue, job, now=NOW)
        except LedgerError as error:
            refused.append(error)

    with trio.fail_after(60):
        async with open_ledger(path) as ledger:
            monkeypatch.setattr(f"ductile.ledger.{place}", fault)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, ledger, NewJob(plugin="e", command="c", submitted_by="t", max_attempts=0))
                nursery.start_soon(ask, ledger, JOB)
            await ledger.broken.wait()
            with pytest.raises(LedgerError, match="the writer failed"):
                await ledger.write(enqueue, JOB, now=NOW)
    assert refused
    assert all("the writer failed" in str(error) or "CHECK" in str(error) for error in refused)


HAMMER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.errors import AlreadyRunning
from ductile.lock import instance_lock
path = Path(sys.argv[1])
for _ in range(5):
    try:
        with instance_lock(path.parent, path, now=datetime.now(UTC)):
            print("locked")
    except AlreadyRunning as refused:
        print(refused.exit_code)
from ductile.ledger.store import open_reader
for _ in range(30):
    with open_reader(path) as db:
        last = db.execute("SELECT COUNT(*), COALESCE(MAX(seq), 0) FROM job_queue").fetchone()
        assert last[0] == last[1], last
print("read", last[0] >= 0)
"""


async def test_two_processes_on_one_file_one_writes_the_other_reads(path: Path) -> None:
    """The second cannot take the lock; its reads are consistent and never make a write wait or fail."""
    path.parent.mkdir()
    with instance_lock(path.parent, path, now=NOW):
        async with open_ledger(path, synchronous="normal") as ledger, trio.open_nursery() as nursery:
            results: list[Any] = []

            async def second() -> None:
                process = await trio.run_process([sys.executable, "-c", HAMMER, str(path)], capture_stdout=True)
                results.append(process.stdout.decode().split())

            nursery.start_soon(second)
            written = 0
            while not results:
                await ledger.write(enqueue, JOB, now=NOW)
                written += 1
    assert results == [["75"] * 5 + ["read", "True"]]
    with open_reader(path) as db:
        assert count(db) == written
