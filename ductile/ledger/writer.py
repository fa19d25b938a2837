"""The ledger for async code: one connection writes (`commits`), and many commits share one sync (`disk`).

A caller goes on only after its commit is durable. Reading needs neither: whatever connection it uses sees the last
commit.
"""

import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import outcome
import trio

from ductile.errors import DuctileError, LedgerError
from ductile.ledger.checkpoints import Checkpoints
from ductile.ledger.commits import Request, Writer
from ductile.ledger.connections import Synchronous, connect_reader, snapshot
from ductile.ledger.disk import Disk, to_its_end
from ductile.ledger.faults import translated, translating
from ductile.ledger.jobs import newest_seq
from ductile.ledger.store import open_writer
from ductile.meters import Histogram
from ductile.values import define, field

P = ParamSpec("P")
T = TypeVar("T")

READERS = 4


@define(eq=False)
class Ledger:
    """The ledger of a running service. `broken` is set when it can no longer be written; the service must end then."""

    path: Path
    broken: trio.Event
    disk: Disk
    _writer: Writer
    _reader: sqlite3.Connection
    _idle_readers: list[sqlite3.Connection]
    _reader_slots: trio.CapacityLimiter
    _call_worker: Callable[[], bool]
    waited: Histogram = field(factory=Histogram)
    """From the wish to write something until its caller went on."""
    _is_open: bool = True

    async def write(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What `function(db, …)` returned inside a transaction that is now durable; it may have been undone and called
        again before, if another one of the same transaction failed.

        Cancelled before it is queued, it never starts; after that it is awaited to its end, so that "cancelled" always
        means "not written".
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        request = Request(lambda db: function(db, *args, **kwargs), is_quick=False, answers_at_once=True)
        result = await self._write_durably(request)
        written: T = result.unwrap()
        return written

    async def write_work(
        self, function: Callable[[sqlite3.Connection], T], *, is_quick: bool, answers_at_once: bool = True
    ) -> T:
        """`write` for what gives the worker something to do, which it hears of. A few rows (`is_quick`) are written on
        the event loop, and together with its claim if its turn is near. Whoever `answers_at_once` goes on before the
        work begins; who waits for its end has no reason to.

        Cannot be cancelled: a client that sends its request and leaves has asked for it all the same.
        """
        request = Request(function, is_quick=is_quick, answers_at_once=answers_at_once)
        result = await self._write_durably(request, makes_work=True)
        written: T = result.unwrap()
        return written

    @property
    def redone(self) -> int:
        """How often what shared a commit was undone and done again, because one request failed."""
        return self._writer.redone

    def write_what_waits(self) -> None:
        """What was left for a turn of the worker is written without one."""
        self._writer.go_on()

    async def write_last(
        self,
        function: Callable[[sqlite3.Connection], T],
        *,
        is_quick: bool = False,
        is_awaited: Callable[[T], bool] = lambda _: False,
        with_care: Callable[[sqlite3.Connection], T] | None = None,
    ) -> T:
        """Behind everything else of the same commit, and returns before that is durable: `disk` tells when it is. Not
        even a cancelled caller goes without: what a plugin did is not forgotten because the service is told to stop.

        `is_awaited` says whether somebody will ask the disk for that at once; it must be quick and must not fail. If
        `function` fails, nothing of it is written and `with_care` is done instead.
        """
        asked_at = time.monotonic()
        request = Request(function, is_quick=is_quick, is_last=True, is_awaited=is_awaited, with_care=with_care)
        result = await self._ask(request)
        self.waited.observe(time.monotonic() - asked_at)
        written: T = result.unwrap()
        return written

    async def _write_durably(self, request: Request, *, makes_work: bool = False) -> outcome.Outcome[Any]:
        asked_at = time.monotonic()
        result = await self._ask(request, makes_work=makes_work)
        await self.disk.until_durable(request.commit)
        self.waited.observe(time.monotonic() - asked_at)
        return result

    async def _ask(self, request: Request, *, makes_work: bool = False) -> outcome.Outcome[Any]:
        if not self._is_open:
            raise LedgerError(f"{self.path}: closed")
        # Called before the commit: whoever takes a turn from now on writes behind us.
        if makes_work and self._call_worker():
            self._writer.leave(request)
        else:
            self._writer.ask(request)
        if request.result is None:
            request.task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(to_its_end)
            self.disk.gone_on += request.answers_at_once
            assert request.result is not None
        return request.result

    def read(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`function(db, …)` on a read-only connection, at once and on the event loop: for lookups of microseconds."""
        with translating(self.path), snapshot(self._reader):
            return function(self._reader, *args, **kwargs)

    def look_up(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`read` for a function that runs a single statement, which sees one moment by itself."""
        # The writing connection has the pages in its cache; a reader forgets them with every commit.
        db = self._reader if self._writer.is_away else self._writer.db
        try:
            return function(db, *args, **kwargs)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    async def read_slowly(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`function(db, …)` on a read-only connection in a thread: for lists and reports."""

        def in_thread() -> T:
            with translating(self.path):
                db = self._take_reader()
                try:
                    with snapshot(db):
                        result = function(db, *args, **kwargs)
                except DuctileError:
                    self._idle_readers.append(db)
                    raise
                except BaseException:
                    db.close()
                    raise
                self._idle_readers.append(db)
                return result

        return await trio.to_thread.run_sync(in_thread, limiter=self._reader_slots)

    def _take_reader(self) -> sqlite3.Connection:
        """A connection that no other thread uses."""
        # Looking first would not help: between a look and the taking another thread may be faster.
        try:
            return self._idle_readers.pop()
        except IndexError:
            return connect_reader(self.path)


@asynccontextmanager
async def open_ledger(
    path: Path,
    *,
    synchronous: Synchronous = "full",
    on_commit: Callable[[], None] = lambda: None,
    call_worker: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Ledger]:
    """The ledger at `path` for as long as the block lasts; at its end everything asked for is written and closed.

    `on_commit` is called on the event loop when more is durable; it must be quick and must not fail. `call_worker`
    tells the worker that there is something to do, or soon will be; True if it takes a turn in the next pass of the
    event loop, in which it writes what waits.
    """
    # The disk is waited for here and not in SQLite, so that many commits wait for it together.
    sqlites_own: Synchronous = "normal" if synchronous == "full" else synchronous
    db = await trio.to_thread.run_sync(lambda: open_writer(path, synchronous=sqlites_own))
    target = await trio.to_thread.run_sync(path.resolve)
    broken = trio.Event()
    disk = Disk(target, broken, on_commit)
    writer = Writer(db, target, disk, Checkpoints(db, target), newest_seq(db))
    writer.be_patient(0)  # the event loop waits for nobody
    reader = connect_reader(target)
    ledger = Ledger(target, broken, disk, writer, reader, [], trio.CapacityLimiter(READERS), call_worker)
    thread = threading.Thread(target=writer.run_errands, name="ledger-writer", daemon=True)
    thread.start()
    if synchronous == "full":
        disk.start(writer.newest_seq)
    try:
        yield ledger
    finally:
        ledger._is_open = False
        with trio.CancelScope(shield=True):
            await writer.until_idle()
            writer.errands.put(None)
            await trio.to_thread.run_sync(thread.join)
            await disk.stop()
            await trio.to_thread.run_sync(writer.close, (ledger._reader, *ledger._idle_readers))
