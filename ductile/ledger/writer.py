"""The ledger for async code: one thread owns the writing connection, and whatever waits shares one commit.

Requests that share one have a savepoint each, so one that fails does so alone. A caller goes on only after its commit
is durable. A failed write or fsync breaks the ledger for good: nobody may believe anything written after it.
"""

import os
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import outcome
import trio
from attrs import define, field, frozen

from ductile.errors import DuctileError, LedgerError
from ductile.failpoints import failpoint
from ductile.ledger.connections import Synchronous, connect_reader, snapshot
from ductile.ledger.faults import breaks_the_ledger, translated, translating
from ductile.ledger.store import open_writer
from ductile.meters import Histogram

P = ParamSpec("P")
T = TypeVar("T")

MOST_IN_ONE_COMMIT = 128
READERS = 4
CHECKPOINT_AFTER_ROWS = 500
CHECKPOINT_AT_LATEST_AFTER_ROWS = 2_000
"""A row in a commit of its own costs about ten pages of log: this keeps the log below 64 MiB."""


@frozen(eq=False)
class _Request:
    work: Callable[[sqlite3.Connection], Any]
    task: trio.lowlevel.Task
    is_last: bool
    """Whether it wants to see what the others of its commit have written."""


@define(eq=False)
class Ledger:
    """The ledger of a running service. `broken` is set when it can no longer be written; the service must end then."""

    path: Path
    broken: trio.Event
    _requests: "queue.SimpleQueue[_Request | None]"
    _reader: sqlite3.Connection
    _idle_readers: list[sqlite3.Connection]
    _reader_slots: trio.CapacityLimiter
    waited: Histogram = field(factory=Histogram)
    """From the wish to write something to its commit."""
    _is_open: bool = True

    async def write(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What `function(db, …)` returned inside a transaction that is now durable.

        Cancelled before it is queued, it never starts; after that it is awaited to its end, so that "cancelled" always
        means "not written".
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        return await self._ask(lambda db: function(db, *args, **kwargs), is_last=False)

    async def write_last(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Behind everything else of the same commit: a claim finds the jobs that share it. Not even a cancelled caller
        goes without: what a plugin did is not forgotten because the service is told to stop."""
        return await self._ask(lambda db: function(db, *args, **kwargs), is_last=True)

    async def _ask(self, work: Callable[[sqlite3.Connection], T], *, is_last: bool) -> T:
        if not self._is_open:
            raise LedgerError(f"{self.path}: closed")
        asked_at = time.monotonic()
        self._requests.put(_Request(work, trio.lowlevel.current_task(), is_last))
        result: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        self.waited.observe(time.monotonic() - asked_at)
        return result

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
        with translating(self.path):
            return function(self._reader, *args, **kwargs)

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
    path: Path, *, synchronous: Synchronous = "full", on_commit: Callable[[], None] = lambda: None
) -> AsyncIterator[Ledger]:
    """The ledger at `path` for as long as the block lasts; at its end everything asked for is written and closed.

    `on_commit` is called on the event loop after each commit; it must be quick and must not fail.
    """
    db = await trio.to_thread.run_sync(lambda: open_writer(path, synchronous=synchronous))
    target = await trio.to_thread.run_sync(path.resolve)
    requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
    ledger = Ledger(target, trio.Event(), requests, connect_reader(target), [], trio.CapacityLimiter(READERS))
    writer = _Writer(db, target, requests, trio.lowlevel.current_trio_token(), ledger.broken, on_commit)
    thread = threading.Thread(target=writer.run, name="ledger-writer", daemon=True)
    thread.start()
    try:
        yield ledger
    finally:
        ledger._is_open = False
        requests.put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(thread.join)
            await trio.to_thread.run_sync(writer.close, (ledger._reader, *ledger._idle_readers))


@define(eq=False)
class _Writer:
    """The thread's side: takes what waits, commits it together, answers, and checkpoints when it has time."""

    db: sqlite3.Connection
    path: Path
    requests: "queue.SimpleQueue[_Request | None]"
    token: trio.lowlevel.TrioToken
    broken: trio.Event
    on_commit: Callable[[], None]
    failure: LedgerError | None = None
    rows_at_checkpoint: int = 0

    def run(self) -> None:
        try:
            while batch := self._take():
                self._serve(batch)
        finally:
            self._fold()

    def _take(self) -> list[_Request]:
        """Everything that waits, up to a limit; empty when the ledger is to be closed."""
        batch: list[_Request] = []
        while len(batch) < MOST_IN_ONE_COMMIT and not (batch and self.requests.empty()):
            request = self.requests.get()
            if request is None:
                if batch:
                    self.requests.put(None)
                break
            batch.append(request)
        batch.sort(key=_is_last)  # stable: otherwise in the order they were asked for
        return batch

    def _serve(self, batch: list[_Request]) -> None:
        """Everybody in the batch has an answer. A fault of the writer itself is one too, and breaks the ledger."""
        try:
            results = self._commit(batch)
        except Exception as error:
            results = self._give_up(batch, error)
        self._answer(batch, results)
        try:
            self._checkpoint_if_due()
        except Exception as error:
            self._answer([], self._give_up([], error))

    def _give_up(self, batch: list[_Request], error: Exception) -> list[outcome.Outcome[Any]]:
        failure = self.failure = _caused(LedgerError(f"{self.path}: the writer failed: {error!r}"), error)
        with suppress(sqlite3.Error):
            self.db.rollback()
        return self._refused(batch, failure)

    def _refused(self, batch: list[_Request], failure: LedgerError) -> list[outcome.Outcome[Any]]:
        return [outcome.Error(LedgerError(str(failure))) for _ in batch]

    def _commit(self, batch: list[_Request]) -> list[outcome.Outcome[Any]]:
        if self.failure:
            return self._refused(batch, self.failure)
        try:
            self.db.execute("BEGIN IMMEDIATE")
            results = [self._savepoint(request) for request in batch] if len(batch) > 1 else [self._result(batch[0])]
            if len(batch) == 1 and isinstance(results[0], outcome.Error):  # nobody else has written anything
                self.db.execute("ROLLBACK")
                return results
            failpoint("commit.before")
            self.db.execute("COMMIT")
            failpoint("commit.after")
        except sqlite3.Error as error:
            return self._nobody(batch, error)
        return results

    def _savepoint(self, request: _Request) -> outcome.Outcome[Any]:
        """One request's result; or its error, and nothing that it has written."""
        self.db.execute("SAVEPOINT request")
        result = self._result(request)
        if isinstance(result, outcome.Error):
            self.db.execute("ROLLBACK TO request")
        self.db.execute("RELEASE request")
        return result

    def _result(self, request: _Request) -> outcome.Outcome[Any]:
        """What the request came to; an error that takes the whole transaction with it is raised instead."""
        got: outcome.Outcome[Any] = outcome.capture(request.work, self.db)
        if not isinstance(got, outcome.Error) or not isinstance(got.error, sqlite3.Error):
            return got
        if not self.db.in_transaction or breaks_the_ledger(got.error):
            raise got.error
        return outcome.Error(_caused(translated(got.error, self.path), got.error))

    def _nobody(self, batch: list[_Request], error: sqlite3.Error) -> list[outcome.Outcome[Any]]:
        """Nothing of the batch was committed, and everybody in it hears why."""
        meaning = _caused(translated(error, self.path), error)
        if breaks_the_ledger(error):
            self.failure = meaning
        try:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        except sqlite3.Error as rollback_error:
            self.failure = _caused(translated(rollback_error, self.path), rollback_error)
        return [outcome.Error(_caused(type(meaning)(str(meaning), hint=meaning.hint), error)) for _ in batch]

    def _answer(self, batch: list[_Request], results: list[outcome.Outcome[Any]]) -> None:
        def deliver() -> None:
            if self.failure:
                self.broken.set()
            for request, result in zip(batch, results, strict=True):
                trio.lowlevel.reschedule(request.task, result)
            self.on_commit()

        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(deliver)

    def _checkpoint_if_due(self) -> None:
        """Moves the log into the file while nobody waits, or at the latest when it has grown long."""
        if self.failure:
            return
        rows = self.db.total_changes - self.rows_at_checkpoint
        if rows < CHECKPOINT_AFTER_ROWS:
            return
        if self.requests.empty() or rows >= CHECKPOINT_AT_LATEST_AFTER_ROWS:
            self.rows_at_checkpoint = self.db.total_changes
            failpoint("checkpoint.before")
            try:
                self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:
                if breaks_the_ledger(error):
                    self.failure = _caused(translated(error, self.path), error)
                    self._answer([], [])
            failpoint("checkpoint.after")

    def _fold(self) -> None:
        """The log is in the file; that of a broken ledger is left for recovery as it is."""
        if not self.failure:
            try:
                self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                self.failure = _caused(translated(error, self.path), error)

    def close(self, readers: tuple[sqlite3.Connection, ...]) -> None:
        """Every connection is closed, and nothing is written to a broken ledger."""
        # A writer that closes last folds the log into the file by itself and removes it; a reader cannot.
        for connection in (self.db, *readers) if self.failure else (*readers, self.db):
            try:
                connection.close()
            except sqlite3.Error as error:
                os.write(2, f"{self.path}: {error}\n".encode())


def _is_last(request: _Request) -> bool:
    return request.is_last


def _caused(error: LedgerError, cause: BaseException) -> LedgerError:
    error.__cause__ = cause
    return error
