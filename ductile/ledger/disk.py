"""The wait for the disk: which commits would outlive a power cut, and who waits to hear that.

SQLite writes a commit into the log; one sync of the log makes all commits before it durable. While one is on its way
others gather for the next, and while nobody waits for it, it takes its time. A thread does that; but while the disk is
quick, a sync that somebody waits for is made on the spot. A failed sync is final: what the disk has kept can no longer
be known.
"""

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import trio

from ductile.errors import LedgerError
from ductile.ledger import location
from ductile.values import define, field

LEISURE_SECONDS = 0.02
"""How long a sync that nobody waits for may gather commits."""
QUICK_SECONDS = 0.001
"""A sync that takes no longer holds up the event loop for less than two changes of the thread would."""
SHARE_OF_SLOW_SYNCS = 0.01
"""How much of its time the event loop may lose to syncs that turn out to take longer."""


class Extent(NamedTuple):
    """How far the ledger goes: its commits since it was opened, and the place of its newest job."""

    commits: int = 0
    job_seq: int = 0


NOTHING = Extent()


@define(eq=False)
class Disk:
    """What of a ledger is durable. Until its `start`, every commit counts as durable at once."""

    path: Path
    broken: trio.Event
    on_durable: Callable[[], None]
    failure: LedgerError | None = None
    """Why nothing can be believed any more."""
    woken: int = 0
    """How many have been told to go on who may have something to say to a client."""
    gone_on: int = 0
    """How many of them have done so."""
    _written: Extent = NOTHING
    _coming: int = 0
    """One if a commit is being made elsewhere: whoever sees it must be able to wait for it already."""
    _durable: Extent = NOTHING
    _awaited: int = 0
    """The last commit that somebody waits for."""
    _has_leisure: bool = False
    _syncing_since: float | None = None
    _is_quick: bool = False
    """Whether the last sync was, wherever it was made. Until the thread has shown it, nobody believes it."""
    _slow_until: float = 0.0
    """Until then the event loop makes no sync, because the last one it made took long."""
    _log: int | None = None
    """The log as the event loop syncs it, if it can: of lost pages the kernel tells each who has opened it before."""
    _then: list[tuple[int, Callable[[], None]]] = field(factory=list)
    _parked: list[trio.lowlevel.Task] = field(factory=list)
    _wishes: "queue.SimpleQueue[_Wish]" = field(factory=queue.SimpleQueue)
    _token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token)
    _thread: threading.Thread | None = None

    def start(self, job_seq: int) -> None:
        """From now on a commit is durable when the log has been synced after it. All jobs up to `job_seq` are."""
        self._written = self._durable = Extent(0, job_seq)
        self._thread = threading.Thread(target=self._sync_on_demand, name="ledger-sync", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Nobody waits for the disk any more."""
        if self._thread is not None:
            self._wishes.put(_Wish.END)
            await trio.to_thread.run_sync(self._thread.join)
        if self._log is not None:
            os.close(self._log)
            self._log = None

    @property
    def is_waited_for(self) -> bool:
        return self._thread is not None

    @property
    def last_commit(self) -> int:
        """The number of the last commit that was noted."""
        return self._written.commits

    def expect_commit(self) -> None:
        """A commit is on its way that `note_commit` will tell of, whatever becomes of it."""
        self._coming = 1

    def note_commit(self, job_seq: int, *, is_awaited: bool = False) -> None:
        """Something was committed, and the newest job has this place; or nothing can be committed any more.

        `is_awaited`: somebody is about to wait until it is durable. Told now, it spares the thread a call for nothing.
        """
        self._written, self._coming = Extent(self._written.commits + 1, job_seq), 0
        if self.failure is not None:
            self._let_go()
        elif self._thread is None:
            self._durable = self._written
            self._go_on()
        elif is_awaited or self._durable.commits < self._awaited:
            self._hurry()
        elif self._syncing_since is None:
            self._ask_for_sync(_Wish.AT_LEISURE)

    def has(self, job_seq: int) -> bool:
        """Whether the job of that place would outlive a power cut."""
        return job_seq <= self._durable.job_seq or self._thread is None

    def when_durable(self, function: Callable[[], None], *, is_awaited: bool) -> None:
        """`function` is called when all that is committed now is durable; never, if it cannot be."""
        if self._durable.commits >= self._visible:
            function()
            return
        self._then.append((self._visible, function))
        if is_awaited:
            self._hurry()

    async def until_durable(self, commit: int | None = None) -> None:
        """That commit and all before it are durable, or all that anybody may have seen by now; raises if they cannot
        be. Cannot be cancelled, and is soon over."""
        wanted = self._visible if commit is None else commit
        while self._durable.commits < wanted and self.failure is None:
            self._hurry()
            if self._durable.commits < wanted and self.failure is None:
                self._parked.append(trio.lowlevel.current_task())
                await trio.lowlevel.wait_task_rescheduled(to_its_end)
                self.gone_on += 1
        if self._durable.commits < wanted and self.failure is not None:
            raise LedgerError(str(self.failure)) from self.failure

    @property
    def somebody_goes_first(self) -> bool:
        """Whether somebody was told to go on who has not done so yet."""
        return self.gone_on < self.woken

    async def until_they_went_on(self) -> None:
        """Whoever was told to go on by now has done so. Cannot be cancelled, and is soon over."""
        # They do so in the next pass of the event loop, before us or after us; but not in the one after that.
        for _ in range(2):
            if self.somebody_goes_first:
                await trio.lowlevel.cancel_shielded_checkpoint()

    def stuck_seconds(self) -> float:
        """How long the disk has kept us waiting."""
        return 0.0 if self._syncing_since is None else monotonic() - self._syncing_since

    @property
    def _visible(self) -> int:
        """The last commit that anybody may have seen."""
        return self._written.commits + self._coming

    def _hurry(self) -> None:
        """What is committed is durable, or will be as soon as the thread has synced it."""
        self._awaited = self._visible
        if self._durable.commits == self._written.commits or self.failure is not None:
            return
        if self._log is not None and self._is_quick and monotonic() >= self._slow_until:
            self._sync_here(self._log)
        elif self._syncing_since is None or self._has_leisure:
            self._ask_for_sync(_Wish.AT_ONCE)

    def _sync_here(self, log: int) -> None:
        """What is committed is durable, or never will be."""
        began = monotonic()
        try:
            os.fdatasync(log)
        except OSError as error:
            self._fail(error)
        took = monotonic() - began
        self._is_quick = took <= QUICK_SECONDS
        if not self._is_quick:
            self._slow_until = began + took / SHARE_OF_SLOW_SYNCS
        if self.failure is not None:  # also of a sync in the thread meanwhile
            self._let_go()
        else:
            self._durable = self._written
            self._go_on()

    def _ask_for_sync(self, wish: "_Wish") -> None:
        if self._syncing_since is None:
            self._syncing_since = monotonic()
        self._has_leisure = wish is _Wish.AT_LEISURE
        self._wishes.put(wish)

    def _note_sync(self, extent: Extent, took: float) -> None:
        self._syncing_since, self._has_leisure, self._is_quick = None, False, took <= QUICK_SECONDS
        if self.failure is not None:
            self._let_go()
            return
        self._durable = max(extent, self._durable)  # the loop may have been faster
        if self._durable.commits < self._written.commits:
            self._ask_for_sync(_Wish.AT_ONCE if self._durable.commits < self._awaited else _Wish.AT_LEISURE)
        self._go_on()

    def _go_on(self) -> None:
        """Whoever has waited for what is durable now goes on."""
        self._wake()
        due = [function for commits, function in self._then if commits <= self._durable.commits]
        del self._then[: len(due)]
        for function in due:
            function()
        self.on_durable()

    def _let_go(self) -> None:
        """Nobody waits for what will not come."""
        self._then.clear()
        self.broken.set()
        self._wake()

    def _wake(self) -> None:
        parked, self._parked = self._parked, []
        self.woken += len(parked)
        for task in parked:
            trio.lowlevel.reschedule(task)

    def sync_log(self) -> None:
        """The log as it is now is on the disk, or `failure` says why nothing can be believed. For any thread."""
        try:
            log = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(log)
            finally:
                os.close(log)
        except OSError as error:
            self._fail(error)

    # ── in the thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _sync_on_demand(self) -> None:
        log: int | None = None
        with suppress(trio.RunFinishedError):
            while (wish := self._wishes.get()) is not _Wish.END:
                if wish is _Wish.AT_LEISURE:
                    wish = self._next_wish_within(LEISURE_SECONDS)
                extent = self._written
                try:
                    if log is None:
                        log = self._open_log()
                        with suppress(OSError):  # without it all syncs are made here
                            self._log = self._open_log()
                    began = monotonic()
                    os.fdatasync(log)
                    took = monotonic() - began
                except OSError as error:
                    # The kernel tells of lost pages once; the next sync would succeed without them.
                    self._fail(error)
                    self._token.run_sync_soon(self._let_go)
                    break
                self._token.run_sync_soon(self._note_sync, extent, took)
                if wish is _Wish.END:
                    break
        if log is not None:
            os.close(log)

    def _next_wish_within(self, seconds: float) -> "_Wish":
        try:
            return self._wishes.get(timeout=seconds)
        except queue.Empty:
            return _Wish.AT_LEISURE

    def _open_log(self) -> int:
        """The log, whose name is durable. SQLite keeps the same file for as long as a connection is open."""
        log = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        location.sync(self.path.parent)
        return log

    def _fail(self, error: OSError) -> None:
        """From this moment on nobody begins a commit, whether or not the loop has heard of it."""
        failure = LedgerError(f"{self.path}-wal: cannot be synced: {error.strerror}")
        failure.__cause__ = error
        self.failure = self.failure or failure


class _Wish(Enum):
    """What the thread is asked for."""

    AT_ONCE = auto()
    AT_LEISURE = auto()
    END = auto()


def to_its_end(_: object) -> trio.lowlevel.Abort:
    """For whoever waits for something that cannot be called off."""
    return trio.lowlevel.Abort.FAILED
