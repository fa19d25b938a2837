"""The ledger of a running service: one way to write, one way to read.

Transactions run on the event loop's thread, one after the other. One task syncs the write-ahead log; a sync makes every
commit before it durable. The same task makes the checkpoints. Knows nothing of tables.
"""

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import Concatenate, ParamSpec, TypeVar

import trio
from attrs import define, field

from ductile.core.errors import DuctileError, LedgerError
from ductile.core.instance.failpoints import failpoint
from ductile.core.instance.threads import run_in_thread
from ductile.core.metrics import Histogram
from ductile.ledger.storage import connections, path_checks
from ductile.ledger.storage.connections import BEGIN, Synchronous, connect_reader, snapshot
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.storage.sqlite_errors import breaks_ledger, is_busy, translate, translating

P = ParamSpec("P")
T = TypeVar("T")

MAX_READERS = 4
BUSY_RETRY_SECONDS = 0.01
SYNC_TIMEOUT = 60.0
"""After this time a caller gets an error instead of a longer wait. Its commit may still become durable."""
UNAWAITED_SYNC_SECONDS = 0.02
"""How long commits that no caller waits for may gather before they are synced."""
CHECKPOINT_ROWS = 1_000
"""A row in a commit of its own adds at most ten pages of 2 KiB to the log: this keeps the log below 64 MiB."""


@define(eq=False)
class Ledger:
    """The writing connection and a few reading ones. When `broken` is set, every write is refused."""

    path: Path
    _db: sqlite3.Connection
    _log: int
    """Descriptor of the `-wal` file. It stays open: the kernel reports lost pages once to each open descriptor."""
    _anchor: sqlite3.Connection
    """A reader that stays open to the end, so that closing a broken ledger does not checkpoint the log."""
    _waits_for_disk: bool
    _on_durable: Callable[[], None]
    broken: trio.Event = field(factory=trio.Event)
    waited: Histogram = field(factory=Histogram)
    """Seconds from the call of `write` or `transact` until it returns."""
    commits: int = 0
    """Number of the last commit since the ledger was opened."""
    durable: int = 0
    """Number of the last commit that would survive a power cut."""
    _in_thread: bool = False
    """True while a thread runs a transaction. Readers may see its commit before it is counted in `commits`."""
    _failure: LedgerError | None = None
    _is_open: bool = True
    _lock: trio.Lock = field(factory=trio.Lock)
    _pending: dict[object, float] = field(factory=dict)
    """When each unfinished transaction was requested, oldest first."""
    _syncing_since: float = inf
    _locked_since: float = inf
    """When a transaction first found the file locked by another process, until one begins again."""
    _changes_at_commit: int = 0
    _changes_at_checkpoint: int = 0
    _has_maintenance: trio.Event = field(factory=trio.Event)
    """Set when there is something to sync or to checkpoint."""
    _is_awaited: trio.Event = field(factory=trio.Event)
    """Set when a caller waits for the next sync."""
    _progress: trio.Event = field(factory=trio.Event)
    """Set and replaced when `durable` grows or the ledger breaks."""
    _maintenance: trio.CancelScope = field(factory=lambda: trio.CancelScope(shield=True))
    _idle_readers: list[sqlite3.Connection] = field(factory=list)
    _reader_slots: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MAX_READERS))
    # Own limiters: other work in threads must not hold up a transaction or a sync.
    _write_thread: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))
    _sync_thread: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))

    async def write(self, function: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(db, …)` in one transaction and return its result once that is durable.

        If it is cancelled before the transaction begins, nothing is written. From then on it runs to its end, so that
        "cancelled" always means "not written".
        """
        return await self.transact(lambda db: function(db, *args, **kwargs))

    async def transact(self, work: Callable[[Db], T], *, wait: bool = True, in_thread: bool = False) -> T:
        """Run `work(db)` in one transaction, as `write` does.

        `wait=False` returns at the commit, before it is durable and without a checkpoint in between. `in_thread=True`
        keeps large work off the event loop.
        """
        if not self._is_open:
            raise LedgerError("closed", path=self.path)
        ticket, asked_at = object(), monotonic()
        self._pending[ticket] = asked_at
        try:
            if not (wait and self._waits_for_disk):
                await trio.lowlevel.checkpoint()  # before the commit: afterwards the caller resumes without one
            await self._acquire()
            try:
                result = await self._transact(work, busy_until=asked_at + connections.BUSY_SECONDS, in_thread=in_thread)
                commit = self.commits
            finally:
                self._lock.release()
            if wait and self.durable < commit:
                await self._wait_shielded(commit)
        finally:
            del self._pending[ticket]
        self.waited.observe(monotonic() - asked_at)
        return result

    async def read(self, function: Callable[Concatenate[Db, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function(db, …)` on a read-only snapshot, in a worker thread.

        It sees every commit so far, also those that are not durable yet: see `until_durable`.
        """
        read = partial(self._read_in_thread, lambda db: function(db, *args, **kwargs))
        return await run_in_thread(read, limiter=self._reader_slots)

    async def until_durable(self, commit: int | None = None) -> None:
        """Wait until that commit (default: all so far) and everything before it would survive a power cut.

        Raises LedgerError if they never will.
        """
        wanted = self.commits + self._in_thread if commit is None else commit
        while self.durable < wanted:
            self._require_sound()
            self._is_awaited.set()
            await self._progress.wait()

    def stuck_seconds(self) -> float:
        """Return how long the oldest unfinished transaction or sync has been waiting."""
        oldest = next(iter(self._pending.values()), inf)
        return max(0.0, monotonic() - min(oldest, self._syncing_since))

    def unwritable_seconds(self) -> float:
        """Return how long the ledger has accepted no write, also while no caller waits."""
        if self._locked_since < inf and not self._lock.locked():
            with suppress(sqlite3.Error):
                self._try_begin()
                self._db.execute("ROLLBACK")
        return max(self.stuck_seconds(), monotonic() - self._locked_since)

    # ── transactions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _acquire(self) -> None:
        """Acquire the lock, without a checkpoint if it is free: callers that resume together share a sync."""
        if self._lock.locked():
            await self._lock.acquire()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._lock.acquire_nowait()

    async def _transact(self, work: Callable[[Db], T], *, busy_until: float, in_thread: bool) -> T:
        self._require_sound()
        try:
            await self._begin(busy_until)
            if in_thread:
                return await self._run_in_thread(work)
            result = self._run(work)
        except sqlite3.Error as error:
            raise self._translated(error) from error
        if self._db.total_changes > self._changes_at_commit:
            self._count_commit()
        return result

    async def _run_in_thread(self, work: Callable[[Db], T]) -> T:
        self._in_thread = True
        try:
            with trio.CancelScope(shield=True):  # as long as the work takes: a thread cannot be cancelled
                result = await run_in_thread(partial(self._run, work), limiter=self._write_thread)
        finally:
            self._in_thread = False
            self._count_commit()  # also after an error: `until_durable` may wait for this number already
        return result

    async def _begin(self, busy_until: float) -> None:
        """Begin a transaction. Wait until `busy_until` while another process writes; the event loop runs meanwhile."""
        while True:
            try:
                return self._try_begin()
            except sqlite3.Error as error:
                if not is_busy(error) or monotonic() >= busy_until:
                    raise
            await trio.sleep(BUSY_RETRY_SECONDS)

    def _try_begin(self) -> None:
        try:
            self._db.execute(BEGIN)
        except sqlite3.Error as error:
            if is_busy(error):
                self._locked_since = min(self._locked_since, monotonic())
            raise
        self._locked_since = inf

    @trio.lowlevel.enable_ki_protection
    def _run(self, work: Callable[[Db], T]) -> T:
        """Run `work` in the transaction that has begun and commit it. On any error nothing of it is written."""
        try:
            result = work(self._db)
            failpoint("commit.before")
            self._db.execute("COMMIT")
            failpoint("commit.after")
        except BaseException:
            if self._db.in_transaction:  # after some errors SQLite has rolled back by itself
                self._db.execute("ROLLBACK")
            raise
        return result

    def _count_commit(self) -> None:
        self.commits += 1
        self._changes_at_commit = self._db.total_changes
        if not self._waits_for_disk:
            self._note_durable(self.commits)
        if self._waits_for_disk or self._is_checkpoint_due():
            self._has_maintenance.set()

    async def _wait_shielded(self, commit: int) -> None:
        with trio.move_on_after(SYNC_TIMEOUT, shield=True) as scope:
            await self.until_durable(commit)
        if scope.cancelled_caught:
            raise LedgerError(f"the disk has not confirmed a write for {SYNC_TIMEOUT:.0f} seconds", path=self.path)

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise LedgerError(self._failure.reason, path=self._failure.path) from self._failure

    def _translated(self, error: sqlite3.Error) -> LedgerError:
        meaning = translate(error, self.path)
        if breaks_ledger(error) or self._db.in_transaction:  # the second: it could not be rolled back
            self._break(meaning, error)
        return meaning

    def _break(self, failure: LedgerError, cause: Exception) -> None:
        """Refuse all transactions from now on: it is unknown which writes reached the disk."""
        failure.__cause__ = cause
        self._failure = self._failure or failure
        self.broken.set()
        self._announce_progress()

    # ── durability and checkpoints ──────────────────────────────────────────────────────────────────────────────────

    async def maintain(self) -> None:
        """Sync commits and make checkpoints until the ledger breaks or is closed."""
        with self._maintenance:
            try:
                while self._failure is None:
                    await self._maintain_once()
            except Exception as error:
                self._break(LedgerError(f"internal error: {error!r}", path=self.path), error)  # no caller waits forever
                raise

    async def _maintain_once(self) -> None:
        await self._has_maintenance.wait()
        if self._waits_for_disk and not self._is_awaited.is_set():
            with trio.move_on_after(UNAWAITED_SYNC_SECONDS):
                await self._is_awaited.wait()
        self._has_maintenance, self._is_awaited = trio.Event(), trio.Event()
        if self._waits_for_disk:
            await self._sync()
        if self._failure is None and self._is_checkpoint_due():
            await self._checkpoint()

    async def _sync(self) -> None:
        """Make every commit so far durable."""
        commit, self._syncing_since = self.commits, monotonic()
        try:
            await run_in_thread(self._sync_log, limiter=self._sync_thread)
        except OSError as error:
            self._break(LedgerError(f"cannot be synced: {error.strerror}", path=f"{self.path}-wal"), error)
        else:
            self._note_durable(commit)
        finally:
            self._syncing_since = inf

    def _sync_log(self) -> None:
        """Sync in a thread. No transaction begins after a failure, also before the event loop resumes.

        A failure is final: the kernel reports lost pages once, and the next sync would succeed without them.
        """
        try:
            os.fdatasync(self._log)
        except OSError as error:
            self._failure = LedgerError(f"cannot be synced: {error.strerror}", path=f"{self.path}-wal")
            raise

    def _note_durable(self, commit: int) -> None:
        self.durable = commit
        self._announce_progress()
        self._on_durable()

    def _announce_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    def _is_checkpoint_due(self) -> bool:
        """True after many rows, or after a few large ones."""
        if self._db.total_changes - self._changes_at_checkpoint >= CHECKPOINT_ROWS:
            return True
        return os.fstat(self._log).st_size > connections.MAX_WAL_BYTES

    async def _checkpoint(self) -> None:
        # On the writing connection and under the lock, although SQLite allows a second connection to do it meanwhile:
        # before 3.51.3 a commit that restarts the log during a checkpoint can corrupt the file ("WAL-reset bug").
        async with self._lock:
            self._changes_at_checkpoint = self._db.total_changes
            failpoint("checkpoint.before")
            try:
                await run_in_thread(partial(connections.checkpoint, self._db), limiter=self._write_thread)
            except sqlite3.Error as error:
                self._translated(error)  # breaks the ledger, or is retried: a full disk, a reader that uses the log
            failpoint("checkpoint.after")

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_in_thread(self, work: Callable[[Db], T]) -> T:
        with translating(self.path):
            db = self._pop_reader()
            try:
                with snapshot(db):
                    result = work(db)
            except DuctileError:
                self._idle_readers.append(db)
                raise
            except BaseException:
                db.close()
                raise
            self._idle_readers.append(db)
            return result

    def _pop_reader(self) -> sqlite3.Connection:
        try:
            return self._idle_readers.pop()  # atomic; a check before it would not be
        except IndexError:
            return connect_reader(self.path)

    # ── closing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def finish(self) -> None:
        """Refuse new transactions, wait for those that are queued and for the disk, and end `maintain`."""
        self._is_open = False
        with trio.move_on_after(SYNC_TIMEOUT, shield=True), suppress(LedgerError):
            async with self._lock:  # FIFO: transactions queued before have finished
                pass
            await self.until_durable()
        self._maintenance.cancel()

    def close(self) -> None:
        """Checkpoint the log and close every connection. The files of a broken ledger stay unchanged, for recovery."""
        try:
            if self._failure is None:
                connections.set_busy_timeout(self._db, connections.BUSY_SECONDS)
                connections.checkpoint_and_truncate(self._db)
        except sqlite3.Error as error:
            self._failure = translate(error, self.path)
        readers = (*self._idle_readers, self._anchor)
        # Only the writer can checkpoint and remove the log, and only if it closes last.
        for db in (self._db, *readers) if self._failure else (*readers, self._db):
            try:
                db.close()
            except sqlite3.Error as error:
                os.write(2, f"{self.path}: {error}\n".encode())
        os.close(self._log)


def _open(path: Path, synchronous: Synchronous, on_commit: Callable[[], None]) -> Ledger:
    # SQLite itself does not wait for the disk: `maintain` does, once for many commits.
    with ExitStack() as opened:
        db = opened.enter_context(
            closing(open_writer(path, synchronous="normal" if synchronous == "full" else synchronous))
        )
        connections.set_busy_timeout(db, 0)  # the event loop does not wait for another process
        target = path.resolve()
        anchor = opened.enter_context(closing(connect_reader(target)))
        try:
            anchor.execute("SELECT 1 FROM sqlite_schema").fetchone()  # a connection locks nothing before its first read
            log = os.open(f"{target}-wal", os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, log)
            # SQLite keeps the log under this name while a connection is open.
            path_checks.sync_directory(target.parent)
        except OSError as error:
            raise LedgerError(error.strerror, path=path) from error
        opened.pop_all()
        return Ledger(target, db, log, anchor, synchronous == "full", on_commit)


@asynccontextmanager
async def open_ledger(
    path: Path, *, synchronous: Synchronous = "full", on_commit: Callable[[], None] = lambda: None
) -> AsyncIterator[Ledger]:
    """Open the ledger at `path` for the length of the block. At its end all requested writes are durable.

    `on_commit` is called on the event loop when more commits are durable; it must be quick and must not fail.
    """
    ledger = await run_in_thread(partial(_open, path, synchronous, on_commit))
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ledger.maintain, name="ledger")
            try:
                yield ledger
            except BaseException as error:
                failure = error  # raised below, outside the nursery, which would wrap it in a group
            nursery.cancel_scope.shield = True  # bounded: `finish` ends the one task
            await ledger.finish()
        if failure is not None:
            raise failure
    finally:
        with trio.CancelScope(shield=True):  # bounded by the disk
            await run_in_thread(ledger.close)
