"""From queued rows to running jobs and back: claims what may run, owns its tasks, writes what it came to.

One loop does all the writing: endings that arrive during a commit share the next one, and every commit claims for the
slots that are free by then, so there is never more than one claim at a time. Knows nothing of HTTP or schedules.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

import trio

from ductile.config import relay
from ductile.config.snapshot import Snapshot
from ductile.engine.follow import gates_of, join_rule_of
from ductile.engine.judge import DRAIN
from ductile.engine.processes import identify
from ductile.engine.room import NO_ROOM, Room, free_slots
from ductile.engine.run_job import Attempt
from ductile.engine.slots import Slots
from ductile.engine.stranded import settle_stranded
from ductile.errors import LedgerBusy, LedgerError, LedgerFull, LedgerLost
from ductile.failpoints import failpoint
from ductile.hub import SCHEDULES
from ductile.ledger import outbox
from ductile.ledger.claim import Claimed, Process, note_processes, record_and_claim
from ductile.ledger.connections import Connection
from ductile.ledger.joins import any_ready
from ductile.ledger.record import Recorded, Stale
from ductile.model import Ending, Job
from ductile.pipeline.plan import RELAY
from ductile.values import define, field

RECHECK_SECONDS, IDLE_RECHECK_SECONDS = 1.0, 30.0
"""How long a lost hint can cost: while something runs, and while nothing does."""
NOTED_AFTER_SECONDS = 0.5
LEDGER_PATIENCE_SECONDS, LEDGER_RETRY_SECONDS = 60.0, 0.5


@define(eq=False)
class Dispatcher:
    """What becomes of the slots of this process, turn by turn."""

    slots: Slots
    run_id: str
    held: Callable[[], frozenset[str]] = frozenset
    """The plugins whose jobs may not start now; `*` means all of them."""
    to_stop: dict[str, str] = field(factory=dict)
    """Jobs that are claimed but not known here yet, and why they are to end."""
    is_draining: bool = False
    drain_is_over: bool = False
    writing_since: float | None = None
    _alarm: trio.CancelScope = field(factory=trio.CancelScope)
    """When the ledger is looked at without a hint."""
    _without_worker: tuple[Snapshot, Mapping[str, int]] | None = None
    _work: tuple[Snapshot, Callable[..., tuple[list[Recorded | Stale], Claimed]]] | None = None

    async def run(self, stopping: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Claim and run jobs until `stopping`, then let them finish, or end them when the drain's time is over."""
        async with trio.open_nursery() as jobs:
            jobs.start_soon(self._drain_when, stopping)
            jobs.start_soon(self._look_again)
            self.slots.watch_the_young(jobs)
            jobs.start_soon(self.slots.around.spare_memory.run)
            task_status.started()
            try:
                await self._take_turns(jobs)
            finally:
                self.slots.ledger.write_what_waits()  # what was left for our next turn, and there is none
            jobs.cancel_scope.cancel()

    async def _take_turns(self, jobs: trio.Nursery) -> None:
        """Everything has its turn until the drain has nothing left to wait for."""
        while True:
            pause = await self._turn(jobs)
            if self.is_draining and not self.slots.attempts and not self.slots.endings:
                break
            await self._note_processes()
            # An earlier moment stays: a look too many costs less than to set the alarm with every job.
            until = trio.current_time() + pause
            if until < self._alarm.deadline:
                self._alarm.deadline = until
            await self.slots.hub.work_waiting()

    async def _look_again(self) -> None:
        """Work is announced whenever the alarm goes off."""
        while True:
            with self._alarm:
                await trio.sleep_forever()
            self._alarm = trio.CancelScope()
            self._without_worker = None  # somebody may have asked for an old relay once more
            self.slots.hub.announce_work()

    def stop_job(self, job_id: str, reason: str) -> None:
        """The process of a running job gets SIGTERM, its grace, then SIGKILL; what it comes to is in the ledger."""
        attempt = self.slots.attempts.get(job_id)
        if attempt is not None:
            attempt.stop.request(reason)
        else:  # claimed a moment ago: whoever asks may hear of that before we do
            self.to_stop[job_id] = reason

    def stuck_seconds(self) -> float:
        """How long the ledger has kept us waiting."""
        writing = 0.0 if self.writing_since is None else trio.current_time() - self.writing_since
        return max(writing, self.slots.ledger.disk.stuck_seconds())

    async def _turn(self, jobs: trio.Nursery) -> float:
        """Write what has ended, start what may start; how long the next turn can wait for a hint."""
        endings, self.slots.endings = self.slots.endings, []
        # Joins read and write very much at times: nobody else is to wait for that.
        is_quick = not self.slots.may_join and all(ending.is_small for ending in endings)
        self.slots.may_join = False
        snapshot = self.slots.snapshot()
        room = self._room(snapshot)
        if not endings and room.is_none:
            self.slots.ledger.write_what_waits()
            if not self.slots.ledger.look_up(any_ready):
                return RECHECK_SECONDS
        recorded, claimed = await self._write(endings, snapshot, room, is_quick=is_quick)
        # No await from here to the last start: a claimed job always has an owner.
        started = [self._attempt(job, snapshot, claimed.states[job.plugin]) for job in claimed.jobs]
        self.to_stop.clear()
        ended = (*recorded, *claimed.skipped)
        # Whoever waits for what has ended does not wait for a spawn as well; if nobody does, the spawn comes first.
        is_awaited = any(map(self._is_awaited, ended))
        if is_awaited:
            self._announce_when_durable(ended, is_awaited=True)
        for attempt in started:
            failpoint("claim.after_commit")
            self.slots.start(attempt, jobs, in_a_task=is_awaited)
        if ended and not is_awaited:
            self._announce_when_durable(ended, is_awaited=False)
        if endings and self.slots.is_outdated:
            self.slots.is_outdated = False
            self._without_worker = None  # it may have asked for relays that this configuration does not know
            jobs.start_soon(self._settle_stranded)
        if claimed.more or self.slots.endings:
            self.slots.may_join |= claimed.more
            self.slots.hub.announce_work()
        return self._until(claimed.next_due)

    def _attempt(self, job: Job, snapshot: Snapshot, state: str) -> Attempt:
        """The attempt of a job that was claimed just now, as others see it from now on."""
        attempt = Attempt(job, snapshot, state)
        self.slots.attempts[job.id] = attempt
        if self.drain_is_over:
            attempt.stop.request(DRAIN)
        elif job.id in self.to_stop:
            attempt.stop.request(self.to_stop[job.id])
        return attempt

    async def _settle_stranded(self) -> None:
        """What an outdated job has led to is held against the configuration of the moment."""
        try:
            await settle_stranded(
                self.slots.ledger, self.slots.snapshot(), self.slots.around.log, now=self.slots.around.clock.now()
            )
        except LedgerError as error:
            self.slots.around.log.warn("dispatcher", f"jobs of plugins that are gone were not ended: {error}")
        self.slots.hub.announce_everyone()

    async def _note_processes(self) -> None:
        """Attempts of some age are written down with their process, so that a recovery can find and end that."""
        if not self.slots.attempts:
            return
        since = trio.current_time() - NOTED_AFTER_SECONDS
        old = [one for one in self.slots.attempts.values() if one.since < since and not one.is_noted]
        found = [(one, seen) for one in old if one.pid is not None and (seen := identify(one.pid))]
        if not found:
            return
        for attempt, _ in found:
            attempt.is_noted = True
        processes = [
            Process(one.job.id, one.job.attempt, seen.pid, seen.start_ticks, seen.boot_id) for one, seen in found
        ]
        try:
            await self.slots.ledger.write(note_processes, processes, now=self.slots.around.clock.now())
            failpoint("process.after_commit")
        except (LedgerFull, LedgerBusy):
            for attempt, _ in found:  # another turn tries again; until then the mark in its environment finds it
                attempt.is_noted = False
        except LedgerError as error:
            self.slots.around.log.warn("dispatcher", f"{len(found)} processes not noted: {error}")

    async def _write(
        self, endings: list[Ending], snapshot: Snapshot, room: Room, *, is_quick: bool
    ) -> tuple[list[Recorded | Stale], Claimed]:
        """One transaction for the endings and the next claim. A full disk or a busy file is waited out."""
        failpoint("record.before")
        self.writing_since = trio.current_time()
        written = await self._try_to_write(endings, snapshot, room, is_quick=is_quick)
        while written is None and not self._has_lost_patience():
            # Shielded: what a plugin did is not forgotten because the service is told to stop.
            with trio.CancelScope(shield=True):
                await trio.sleep(LEDGER_RETRY_SECONDS)
            written = await self._try_to_write(endings, snapshot, NO_ROOM, is_quick=is_quick)
            self.slots.hub.announce_work()  # what may start by now is for another turn to say
        self.writing_since = None
        failpoint("record.after_commit")
        if written is None:
            raise LedgerFull("the ledger takes nothing; what was running is run again after the next start")
        return written

    def _has_lost_patience(self) -> bool:
        """Whether we are to end, and the ledger has kept us from it for long."""
        is_cancelled = trio.current_effective_deadline() == -math.inf
        return (self.is_draining or is_cancelled) and self.stuck_seconds() > LEDGER_PATIENCE_SECONDS

    async def _try_to_write(
        self, endings: list[Ending], snapshot: Snapshot, room: Room, *, is_quick: bool
    ) -> tuple[list[Recorded | Stale], Claimed] | None:
        now, write_under = self.slots.around.clock.now(), self._work_under(snapshot)

        def work(db: Connection, *, carefully: bool = True) -> tuple[list[Recorded | Stale], Claimed]:
            # Asked again when it is written: who was paused while this waited does not start.
            may = room.without(self.held())
            return write_under(
                db,
                endings,
                now=now,
                free=may.free,
                limit=may.limit,
                without_worker=may.without_worker,
                carefully=carefully,
            )

        try:
            return await self.slots.ledger.write_last(
                partial(work, carefully=False), is_quick=is_quick, is_awaited=self._anybody_waits, with_care=work
            )
        except (LedgerFull, LedgerBusy) as error:
            self.slots.around.log.error("dispatcher", f"{error}; trying again", endings=len(endings))
            return None
        except LedgerError as error:
            if self.slots.ledger.broken.is_set():
                raise LedgerLost(f"{self.slots.ledger.path}: {error}") from error
            raise

    def _room(self, snapshot: Snapshot) -> Room:
        """The slots that may be filled now."""
        if self.is_draining:
            return NO_ROOM
        taken = [attempt.job.plugin for attempt in self.slots.attempts.values()]
        left = snapshot.max_workers - sum(plugin != RELAY for plugin in taken)
        free = free_slots(snapshot.slots, taken) if left > 0 else {}
        room = Room(free, left if free else 0, free_slots(self._lanes_without_worker(snapshot), taken))
        return room.without(self.held())

    def _work_under(self, snapshot: Snapshot) -> Callable[..., tuple[list[Recorded | Stale], Claimed]]:
        """What every transaction under this configuration has in common."""
        if self._work is None or self._work[0] is not snapshot:
            work = partial(
                record_and_claim,
                run_id=self.run_id,
                default_ttl=snapshot.config.settings.service.dedupe_ttl,
                budget=snapshot.budget,
                snapshot_id=snapshot.id,
                join_rule=join_rule_of(snapshot),
                gates=gates_of(snapshot),
            )
            self._work = (snapshot, work)
        return self._work[1]

    def _lanes_without_worker(self, snapshot: Snapshot) -> Mapping[str, int]:
        """Relays need no worker. Without instances there are none, but for those that a configuration left behind."""
        if self._without_worker is None or self._without_worker[0] is not snapshot:
            relays = snapshot.config.settings.instances or self.slots.ledger.look_up(outbox.waiting, RELAY).count
            self._without_worker = (snapshot, {RELAY: relay.SLOTS} if relays else {})
        return self._without_worker[1]

    def _anybody_waits(self, written: tuple[list[Recorded | Stale], Claimed]) -> bool:
        """Whether a caller, or a job that is to start, waits for what was written to be durable."""
        recorded, claimed = written
        return any(map(self.slots.waits_for_the_disk, claimed.jobs)) or any(
            map(self._is_awaited, (*recorded, *claimed.skipped))
        )

    def _is_awaited(self, result: Recorded | Stale) -> bool:
        return not isinstance(result, Stale) and self.slots.hub.is_awaited(result.job_id, tree=_done_tree(result))

    def _announce_when_durable(self, results: Sequence[Recorded | Stale], *, is_awaited: bool) -> None:
        self.slots.ledger.disk.when_durable(partial(self._announce, results), is_awaited=is_awaited)

    def _announce(self, results: Iterable[Recorded | Stale]) -> None:
        for result in results:
            if isinstance(result, Stale):
                about = {"job_id": result.job_id, "attempt": result.attempt}
                self.slots.around.log.warn("dispatcher", f"late result dropped: the job is {result.found}", **about)
            else:
                if result.status.is_final:
                    self.slots.meters.jobs[result.plugin, result.command, result.status] += 1
                else:
                    self.slots.meters.retries[result.plugin] += 1
                self.slots.hub.announce_end(result.job_id, tree=_done_tree(result))
                if result.was_probe:
                    self.slots.hub.announce(SCHEDULES)

    def _until(self, due: datetime | None) -> float:
        """How long nothing can be missed: until a delayed job is due, or as long as a lost hint may cost."""
        recheck = RECHECK_SECONDS if self.slots.attempts else IDLE_RECHECK_SECONDS
        if due is None:
            return recheck
        return min(max((due - self.slots.around.clock.now()).total_seconds(), 0.0), recheck)

    async def _drain_when(self, stopping: trio.Event) -> None:
        await stopping.wait()
        self.is_draining = True
        failpoint("drain.started")
        self.slots.hub.announce_work()
        await trio.sleep(self.slots.snapshot().config.settings.service.drain_timeout.total_seconds())
        self.drain_is_over = True
        for attempt in self.slots.attempts.values():
            attempt.stop.request(DRAIN)


def _done_tree(result: Recorded) -> str | None:
    """The tree that is done with this end."""
    return result.root_job_id if result.tree_is_done else None
