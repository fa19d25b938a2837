"""The one writing connection: whatever waits for it shares one commit.

A few rows are written on the event loop, where no other thread disputes the interpreter; much is left to a thread.
Requests that share a commit fail alone: if one does, all are undone and done again with a savepoint each. A failed
write breaks the ledger for good: nobody may believe anything written after it. `writer` asks; when a commit is durable
is for `disk`.
"""

import os
import queue
import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import outcome
import trio

from ductile.errors import LedgerError
from ductile.failpoints import failpoint
from ductile.ledger import connections
from ductile.ledger.checkpoints import Checkpoints
from ductile.ledger.disk import Disk
from ductile.ledger.faults import breaks_the_ledger, is_busy, translated
from ductile.ledger.jobs import newest_seq
from ductile.values import define, field

MOST_IN_ONE_COMMIT = 128


@define(eq=False)
class Request:
    """Something to be written, and what came of it."""

    work: Callable[[sqlite3.Connection], Any]
    """Depends on nothing but the ledger, for it may be undone and done again."""
    is_quick: bool
    """Whether it may be done on the event loop."""
    is_last: bool = False
    """Whether it wants to see what the others of its commit have written."""
    answers_at_once: bool = False
    """Whether its sender may tell somebody of it as soon as it is durable."""
    is_awaited: Callable[[Any], bool] | None = None
    """Whether anybody waits until its result is durable; without it, whoever asks does."""
    with_care: Callable[[sqlite3.Connection], Any] | None = None
    """What is done instead once `work` has failed, if there is a way to fail less."""
    result: outcome.Outcome[Any] | None = None
    commit: int = 0
    """The last commit that it can have seen: its own, if it has written anything."""
    task: trio.lowlevel.Task | None = None
    """Who waits for the result."""


_IS_QUICK, _IS_LAST = map(attrgetter, ("is_quick", "is_last"))

_Batch: TypeAlias = list[Request]
_Results: TypeAlias = list[outcome.Outcome[Any]]


@define(eq=False)
class Writer:
    """The writing connection, which is either here on the event loop or away with the thread, never both.

    Requests come and are answered on the loop. What the thread is given it does to its end, and then it comes back.
    """

    db: sqlite3.Connection
    path: Path
    disk: Disk
    checkpoints: Checkpoints
    newest_seq: int
    """The place of the newest job that is committed; only followed while the disk is waited for."""
    token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token)
    waiting: deque[Request] = field(factory=deque)
    is_away: bool = False
    is_preparing: bool = False
    """Whether the thread makes a checkpoint ready while the connection is still here."""
    errands: "queue.SimpleQueue[Callable[[], None] | None]" = field(factory=queue.SimpleQueue)
    rows_at_commit: int = 0
    redone: int = 0
    """How often what shared a commit was undone and done again, because one request failed."""
    has_written: bool = False
    """Whether the last commit has anything in it that the disk could lose."""
    _idle: trio.Event | None = None

    @property
    def failure(self) -> LedgerError | None:
        return self.disk.failure

    # ── on the event loop ───────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, request: Request) -> None:
        """The request has its result, or will have it when the connection is back."""
        self.leave(request)
        self.go_on()

    def leave(self, request: Request) -> None:
        """The request will have its result when somebody asks or goes on, which its sender knows to be soon."""
        self.waiting.append(request)

    def go_on(self) -> None:
        """What was left is written, or will be when the connection is back."""
        if not self.is_away:
            self._go_on()

    async def until_idle(self) -> None:
        """Nobody waits for anything."""
        while self.is_away or self.is_preparing or self.waiting:
            self._idle = trio.Event()
            await self._idle.wait()

    @trio.lowlevel.enable_ki_protection
    def _go_on(self) -> None:
        """Nobody waits any longer, or the connection is on its way for them."""
        while self.waiting and not self.is_away:
            batch = self._take()
            results = self._begin_and_do(batch, patience=0.0) if all(map(_IS_QUICK, batch)) else None
            if results is None:  # it is much, or somebody else is writing: that is done elsewhere
                self.disk.expect_commit()
                self._send(partial(self._serve, batch))
            else:
                results = self._committed(batch, results)
                if self.has_written or self.failure:
                    self._note_commit(batch, results)
                self._tell(batch, results)
                if self._checkpoint_is_due() and not self.is_preparing:
                    self.is_preparing = True
                    self.errands.put(self._prepare_checkpoint)
        if self._idle is not None and not self.is_away:
            self._idle.set()

    def _begin_checkpoint(self) -> None:
        self.is_preparing = False
        if self.failure:
            self.disk.note_commit(self.newest_seq)
        elif not self.is_away:
            self._send(self._checkpoint_and_return)
        self.go_on()

    def _send(self, errand: Callable[[], None]) -> None:
        self.is_away = True
        self.errands.put(errand)

    def _come_back(self) -> None:
        self.is_away = False
        self._go_on()

    def _take(self) -> _Batch:
        """Everything that waits, up to a limit."""
        batch = [self.waiting.popleft() for _ in range(min(len(self.waiting), MOST_IN_ONE_COMMIT))]
        batch.sort(key=_IS_LAST)  # stable: otherwise in the order they were asked for
        return batch

    def _note_commit(self, batch: _Batch, results: _Results) -> None:
        is_awaited = self.disk.is_waited_for and _anybody_waits(batch, results)
        self.disk.note_commit(self.newest_seq, is_awaited=is_awaited)

    def _tell(self, batch: _Batch, results: _Results) -> None:
        self.has_written = False
        for request, result in zip(batch, results, strict=True):
            request.result, request.commit = result, self.disk.last_commit
            if request.task is not None:
                self.disk.woken += request.answers_at_once
                trio.lowlevel.reschedule(request.task)

    # ── in the thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def run_errands(self) -> None:
        try:
            while errand := self.errands.get():
                errand()
        finally:
            self._fold()

    def _serve(self, batch: _Batch) -> None:
        """Everybody in the batch has an answer, and the connection is back."""
        results = self._begin_and_do(batch, patience=connections.BUSY_SECONDS)
        assert results is not None, "only who has no patience goes without an answer"
        results = self._committed(batch, results)
        # What is large only comes here.
        is_due = self._checkpoint_is_due() or (not self.failure and self.checkpoints.log_is_long())

        def answer() -> None:
            self._note_commit(batch, results)
            self._tell(batch, results)
            if not is_due:
                self._come_back()

        self._on_the_loop(answer)
        if is_due:
            self._checkpoint_and_return()

    def _prepare_checkpoint(self) -> None:
        """The log is synced, which is half of a checkpoint, and nobody has to wait for the connection meanwhile."""
        self.disk.sync_log()
        self._on_the_loop(self._begin_checkpoint)

    def _checkpoint_and_return(self) -> None:
        self._checkpoint()

        def come_back() -> None:
            if self.failure:
                self.disk.note_commit(self.newest_seq)
            self._come_back()

        self._on_the_loop(come_back)

    def _on_the_loop(self, function: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(function)

    # ── wherever the connection is ──────────────────────────────────────────────────────────────────────────────────

    def _begin_and_do(self, batch: _Batch, *, patience: float) -> _Results | None:
        """What each request came to, in a transaction that is still open unless nobody has written anything; None if
        another process is writing and that takes longer than `patience` seconds, unless that is a long time."""
        if self.failure:
            return self._refused(batch, self.failure)
        try:
            if not self._begin(patience):
                return None
            results = self._do_all(batch)
            if results is not None:
                return results
            self.redone += 1
            if self.db.in_transaction:  # for want of memory SQLite undoes everything by itself
                self.db.execute("ROLLBACK")
            return [self._savepoint(request) for request in batch] if self._begin(patience) else None
        except sqlite3.Error as error:
            return self._nobody(batch, error)
        except Exception as error:
            return self._give_up(batch, error)

    def _do_all(self, batch: _Batch) -> _Results | None:
        """What each request came to, without a savepoint, which would keep a copy of every page; None if one failed
        that others may not suffer from, or that can be done with more care."""
        results: _Results = []
        for request in batch:
            result = self._result(request.work)
            results.append(result)
            if _has_failed(result) and (len(batch) > 1 or request.with_care is not None):
                return None
        return results

    def _begin(self, patience: float) -> bool:
        if patience:
            self.be_patient(patience)
        try:
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if patience or not is_busy(error):
                raise
            return False
        finally:
            if patience:
                self.be_patient(0)
        return True

    def be_patient(self, seconds: float) -> None:
        """How long a statement may wait for another process from now on."""
        self.db.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    def _committed(self, batch: _Batch, results: _Results) -> _Results:
        """The results, now committed; or why they are not."""
        try:
            if not self.db.in_transaction:
                return results
            if self.failure:  # also of a sync that was on its way meanwhile
                self.db.execute("ROLLBACK")
                return self._refused(batch, self.failure)
            if len(batch) == 1 and _has_failed(results[0]):  # nobody else has written anything
                self.db.execute("ROLLBACK")
                return results
            newest = newest_seq(self.db) if self.disk.is_waited_for else 0
            failpoint("commit.before")
            self.db.execute("COMMIT")
            self.newest_seq = newest
            self.has_written |= self.db.total_changes > self.rows_at_commit
            self.rows_at_commit = self.db.total_changes
            failpoint("commit.after")
        except sqlite3.Error as error:
            return self._nobody(batch, error)
        except Exception as error:
            return self._give_up(batch, error)
        return results

    def _give_up(self, batch: _Batch, error: Exception) -> _Results:
        """A fault of the writer itself is an answer too, and breaks the ledger."""
        failure = self.disk.failure = _caused(LedgerError(f"{self.path}: the writer failed: {error!r}"), error)
        with suppress(sqlite3.Error):
            self.db.rollback()
        return self._refused(batch, failure)

    def _refused(self, batch: _Batch, failure: LedgerError) -> _Results:
        return [outcome.Error(LedgerError(str(failure))) for _ in batch]

    def _savepoint(self, request: Request) -> outcome.Outcome[Any]:
        """One request's result; or its error, and nothing that it has written."""
        self.db.execute("SAVEPOINT request")
        result = self._result(request.with_care or request.work)
        if _has_failed(result):
            self.db.execute("ROLLBACK TO request")
        self.db.execute("RELEASE request")
        return result

    def _result(self, work: Callable[[sqlite3.Connection], Any]) -> outcome.Outcome[Any]:
        """What the work came to; an error that takes the whole transaction with it is raised instead."""
        got: outcome.Outcome[Any] = outcome.capture(work, self.db)
        if not _has_failed(got) or not isinstance(got.error, sqlite3.Error):
            return got
        if not self.db.in_transaction or breaks_the_ledger(got.error):
            raise got.error
        return outcome.Error(_caused(translated(got.error, self.path), got.error))

    def _nobody(self, batch: _Batch, error: sqlite3.Error) -> _Results:
        """Nothing of the batch was committed, and everybody in it hears why."""
        meaning = _caused(translated(error, self.path), error)
        if breaks_the_ledger(error):
            self.disk.failure = meaning
        try:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        except sqlite3.Error as rollback_error:
            self.disk.failure = _caused(translated(rollback_error, self.path), rollback_error)
        return [outcome.Error(_caused(type(meaning)(str(meaning), hint=meaning.hint), error)) for _ in batch]

    def _checkpoint_is_due(self) -> bool:
        try:
            return not self.failure and self.checkpoints.is_due(is_waited_for=bool(self.waiting))
        except Exception as error:
            self._give_up([], error)
            return False

    def _checkpoint(self) -> None:
        try:
            self.checkpoints.make()
        except sqlite3.Error as error:
            self.disk.failure = _caused(translated(error, self.path), error)
        except Exception as error:
            self._give_up([], error)

    def _fold(self) -> None:
        """The log is in the file; that of a broken ledger is left for recovery as it is."""
        if not self.failure:
            try:
                self.be_patient(connections.BUSY_SECONDS)
                self.checkpoints.make_the_last()
            except sqlite3.Error as error:
                self.disk.failure = _caused(translated(error, self.path), error)

    def close(self, readers: tuple[sqlite3.Connection, ...]) -> None:
        """Every connection is closed, and nothing is written to a broken ledger."""
        # A writer that closes last folds the log into the file by itself and removes it; a reader cannot.
        for connection in (self.db, *readers) if self.failure else (*readers, self.db):
            try:
                connection.close()
            except sqlite3.Error as error:
                os.write(2, f"{self.path}: {error}\n".encode())


def _anybody_waits(batch: _Batch, results: _Results) -> bool:
    return any(
        request.is_awaited is None or (isinstance(result, outcome.Value) and request.is_awaited(result.value))
        for request, result in zip(batch, results, strict=True)
    )


def _has_failed(result: outcome.Outcome[Any]) -> TypeGuard[outcome.Error]:
    # By type: `isinstance` asks these classes, which are abstract, in Python.
    return type(result) is outcome.Error


def _caused(error: LedgerError, cause: BaseException) -> LedgerError:
    error.__cause__ = cause
    return error
