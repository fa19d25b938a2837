"""From queued rows to running jobs and back: claims what may run, owns its tasks, writes what it came to.

One loop does all the writing: endings that arrive during a commit share the next one, and every commit claims for the
slots that are free by then, so there is never more than one claim at a time. Knows nothing of HTTP or schedules.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

import trio

from ductile.config import relay
from ductile.config.snapshot import Snapshot
from ductile.engine.follow import budget_of, gates_of, join_rule_of, rule_of
from ductile.engine.judge import DRAIN
from ductile.engine.processes import identify
from ductile.engine.run_job import (
    LARGE,
    Attempt,
    Begun,
    Surroundings,
    end_at_once,
    see_through,
    start_at_once,
    start_job,
)
from ductile.engine.spawn import may_launch_at_once
from ductile.engine.stranded import settle_stranded
from ductile.engine.young import Young
from ductile.errors import LedgerBusy, LedgerError, LedgerFull, LedgerLost
from ductile.failpoints import failpoint
from ductile.hub import Hub
from ductile.ledger import outbox
from ductile.ledger.claim import Claimed, note_process, record_and_claim
from ductile.ledger.joins import any_ready
from ductile.ledger.pauses import EVERYTHING
from ductile.ledger.record import Recorded, Stale
from ductile.ledger.writer import Ledger
from ductile.meters import Meters
from ductile.model import Ending, Failed, Job, Retried
from ductile.pipeline.plan import RELAY
from ductile.values import define, field

RECHECK_SECONDS, IDLE_RECHECK_SECONDS = 1.0, 30.0
"""How long a lost hint can cost: while something runs, and while nothing does."""
NOTED_AFTER_SECONDS = 0.5
LEDGER_PATIENCE_SECONDS, LEDGER_RETRY_SECONDS = 60.0, 0.5
AFTER_OUR_OWN_FAULT = timedelta(seconds=30)


@define(eq=False)
class Dispatcher:
    """The running jobs of this process."""

    around: Surroundings
    ledger: Ledger
    hub: Hub
    snapshot: Callable[[], Snapshot]
    run_id: str
    held: Callable[[], frozenset[str]] = frozenset
    """The plugins whose jobs may not start now; `*` means all of them."""
    meters: Meters = field(factory=Meters)
    attempts: dict[str, Attempt] = field(factory=dict)
    """Job id → its running attempt."""
    young: Young | None = None
    """Those of them whose process has only just started; while the dispatcher runs."""
    endings: list[Ending] = field(factory=list)
    may_join: bool = False
    """Whether what is written next may bring joins to their end."""
    to_stop: dict[str, str] = field(factory=dict)
    """Jobs that are claimed but not known here yet, and why they are to end."""
    is_outdated: bool = False
    """Whether a job has ended under a configuration that was replaced: it may have asked for plugins that are gone."""
    is_draining: bool = False
    drain_is_over: bool = False
    writing_since: float | None = None
    _woken: int = 0
    _alarm: trio.CancelScope = field(factory=trio.CancelScope)
    """When the ledger is looked at without a hint."""
    _apart: tuple[Snapshot, Mapping[str, int]] | None = None
    _work: tuple[Snapshot, Callable[..., tuple[list[Recorded | Stale], Claimed]]] | None = None

    async def run(self, stopping: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Claim and run jobs until `stopping`, then let them finish, or end them when the drain's time is over."""
        self.young = Young()
        async with trio.open_nursery() as jobs:
            jobs.start_soon(self._drain_when, stopping)
            jobs.start_soon(self._look_again)
            jobs.start_soon(self._end_the_young, self.young, jobs)
            jobs.start_soon(self._let_the_young_go, self.young, jobs)
            jobs.start_soon(self.around.spare_memory.run)
            task_status.started()
            try:
                await self._take_turns(jobs)
            finally:
                self.ledger.write_what_waits()  # what was left for our next turn, and there is none
            jobs.cancel_scope.cancel()

    async def _take_turns(self, jobs: trio.Nursery) -> None:
        """Everything has its turn until the drain has nothing left to wait for."""
        while True:
            pause = await self._turn(jobs)
            if self.is_draining and not self.attempts and not self.endings:
                break
            # An earlier moment stays: a look too many costs less than to set the alarm with every job.
            until = trio.current_time() + pause
            if until < self._alarm.deadline:
                self._alarm.deadline = until
            await self.hub.work_waiting()

    async def _look_again(self) -> None:
        """Work is announced whenever the alarm goes off."""
        while True:
            with self._alarm:
                await trio.sleep_forever()
            self._alarm = trio.CancelScope()
            self.hub.announce_work()

    def live_stderr(self, job_id: str) -> str | None:
        """What a running job has written to stderr so far, with known secrets masked."""
        attempt = self.attempts.get(job_id)
        if attempt is None:
            return None
        return attempt.snapshot.config.mask(attempt.tail.read().decode("utf-8", "backslashreplace"))

    def stop_job(self, job_id: str, reason: str) -> None:
        """The process of a running job gets SIGTERM, its grace, then SIGKILL; what it comes to is in the ledger."""
        attempt = self.attempts.get(job_id)
        if attempt is not None:
            attempt.stop.request(reason)
        else:  # claimed a moment ago: whoever asks may hear of that before we do
            self.to_stop[job_id] = reason

    def stuck_seconds(self) -> float:
        """How long the ledger has kept us waiting."""
        writing = 0.0 if self.writing_since is None else trio.current_time() - self.writing_since
        return max(writing, self.ledger.disk.stuck_seconds())

    def kill_all(self) -> None:
        """The last resort: every plugin process group gets SIGKILL now; the next start recovers their jobs."""
        for attempt in self.attempts.values():
            if attempt.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(attempt.pid, signal.SIGKILL)

    async def _turn(self, jobs: trio.Nursery) -> float:
        """Write what has ended, start what may start; how long the next turn can wait for a hint."""
        endings, self.endings = self.endings, []
        # Joins read and write very much at times: nobody else is to wait for that.
        is_quick = not self.may_join and all(ending.is_small for ending in endings)
        self.may_join = False
        snapshot = self.snapshot()
        workers = sum(attempt.job.plugin != RELAY for attempt in self.attempts.values())
        for attempt in self._started_before(trio.current_time() - NOTED_AFTER_SECONDS):
            await self._note_process(attempt)
        free = {} if self.is_draining or workers >= snapshot.max_workers else self._free(snapshot.slots)
        limit = snapshot.max_workers - workers if free else 0
        relays = {} if self.is_draining else self._free(self._lanes_apart(snapshot))
        if not endings and not limit and not relays:
            self.ledger.write_what_waits()
            if not self.ledger.look_up(any_ready):
                return RECHECK_SECONDS
        recorded, claimed = await self._write(endings, snapshot, free, limit, relays, is_quick=is_quick)
        # No await from here to the last start: a claimed job always has an owner.
        comes_second = self._somebody_goes_first()
        started = [
            self._attempt(job, snapshot, claimed.states[job.plugin], comes_second=comes_second) for job in claimed.jobs
        ]
        self.to_stop.clear()
        ended = (*recorded, *claimed.skipped)
        is_awaited = any(map(self._is_awaited, ended))
        self.ledger.disk.when_durable(partial(self._announce, ended), is_awaited=is_awaited)
        for attempt in started:
            failpoint("claim.after_commit")
            # Whoever waits for what has ended does not wait for a spawn as well.
            if is_awaited or self._comes_later(attempt) or not self._start_at_once(attempt):
                jobs.start_soon(self._run_in_slot, attempt, name=f"job {attempt.job.id}")
        if endings and self.is_outdated:
            self.is_outdated = False
            jobs.start_soon(self._settle_stranded)
        if claimed.more or self.endings:
            self.may_join |= claimed.more
            self.hub.announce_work()
        return self._until(claimed.next_due)

    def _somebody_goes_first(self) -> bool:
        """Whether somebody was in the commit that was just made, or was woken since the last, who has not gone on yet
        and may have asked for what is claimed now."""
        woken, self._woken = self._woken, self.ledger.disk.woken
        return self.ledger.last_was_shared or woken != self._woken

    def _attempt(self, job: Job, snapshot: Snapshot, state: str, *, comes_second: bool) -> Attempt:
        """The attempt of a job that was claimed just now, as others see it from now on."""
        attempt = Attempt(job, snapshot, state, comes_second=comes_second)
        self.attempts[job.id] = attempt
        if self.drain_is_over:
            attempt.stop.request(DRAIN)
        elif job.id in self.to_stop:
            attempt.stop.request(self.to_stop[job.id])
        return attempt

    async def _run_in_slot(self, attempt: Attempt) -> None:
        """A claimed job has run, or runs among the young."""
        job = attempt.job
        if not await self._is_there_for_good(job, comes_second=attempt.comes_second):
            del self.attempts[job.id]
            return
        if not self._start_at_once(attempt):
            self._count_wait(job)
            await self._end(attempt, self._attempted(attempt))

    def _start_at_once(self, attempt: Attempt) -> bool:
        """True if the attempt has started and is among the young, or has ended; False if it needs a task to wait in."""
        if self.young is None or not _may_start_at_once(attempt):
            return False
        try:
            begun = start_at_once(self.around, attempt)
        except Exception as error:
            begun = self._fault(attempt, error)
        if begun is None:
            return False
        self._count_wait(attempt.job)
        self._go_on(attempt, begun)
        return True

    async def _end_the_young(self, young: Young, jobs: trio.Nursery) -> None:
        """Who exits among the young is put down; who leaves something to wait for gets a task for that."""
        try:
            while True:
                for begun in await young.exited():
                    if not self._end_at_once(begun):
                        jobs.start_soon(self._see_through, begun, name=f"job {begun.attempt.job.id}")
        finally:
            self.young = None
            for begun in young.leave():
                jobs.start_soon(self._see_through, begun, name=f"job {begun.attempt.job.id}")

    async def _let_the_young_go(self, young: Young, jobs: trio.Nursery) -> None:
        """Who is young no longer gets a task of its own."""
        while True:
            for begun in await young.outgrown():
                jobs.start_soon(self._see_through, begun, name=f"job {begun.attempt.job.id}")

    def _end_at_once(self, begun: Begun) -> bool:
        attempt = begun.attempt
        try:
            ending = end_at_once(self.around, begun)
        except Exception as error:
            ending = self._fault(attempt, error)
        if ending is None:
            return False
        self._put_down(attempt, ending)
        return True

    async def _see_through(self, begun: Begun) -> None:
        await self._end(begun.attempt, see_through(self.around, begun))

    async def _end(self, attempt: Attempt, work: Awaitable[Ending | Begun | None]) -> None:
        """The edge of a job: whatever goes wrong in here is this attempt's failure and nobody else's."""
        try:
            reached = await work
        except* Exception as errors:
            reached = self._fault(attempt, errors.exceptions[0])
        self._go_on(attempt, reached)

    def _go_on(self, attempt: Attempt, reached: Ending | Begun | None) -> None:
        """The attempt is over, or among the young."""
        if isinstance(reached, Begun):
            assert self.young is not None, "somebody watches it"
            self.young.take_in(reached)
        else:
            self._put_down(attempt, reached)

    def _fault(self, attempt: Attempt, error: Exception) -> Ending:
        job = attempt.job
        fault = attempt.snapshot.config.mask(f"internal error: {error!r}")
        self.around.log.error("dispatcher", fault, plugin=job.plugin, job_id=job.id)
        # What a plugin has done is not done again because of a fault of ours.
        outcome = Failed(fault) if attempt.has_run else Retried(fault, AFTER_OUR_OWN_FAULT)
        return Ending(
            job_id=job.id,
            attempt=job.attempt,
            outcome=outcome,
            rule=rule_of(attempt.snapshot),
            is_intolerable=attempt.has_run,
        )

    def _put_down(self, attempt: Attempt, ending: Ending | None) -> None:
        """The attempt is over; its ending, if its job was not put back, is in the next turn."""
        job = attempt.job
        # A job that was put back can run again already, woken in the same commit.
        if self.attempts.get(job.id) is attempt:
            del self.attempts[job.id]
        self.meters.ran(job.plugin, trio.current_time() - attempt.since)
        if ending is not None:
            self.endings.append(ending)
            self.may_join |= job.join_id is not None
        self.is_outdated |= attempt.snapshot is not self.snapshot()
        self.hub.announce_work()

    def _count_wait(self, job: Job) -> None:
        if job.attempt == 1 and job.started_at is not None:
            self.meters.waited(job.plugin, (job.started_at - job.created_at).total_seconds())

    def _comes_later(self, attempt: Attempt) -> bool:
        return attempt.comes_second or self._waits_for_the_disk(attempt.job)

    async def _is_there_for_good(self, job: Job, *, comes_second: bool = False) -> bool:
        """Waits until no power cut can take the job back; False if that cannot be: the next start recovers it.

        The claim may be taken back, then the job runs again. What was queued again a moment ago, or waited for its key,
        stands in an old row: it waits for everything that is committed by now. Whoever asked for the job, and was in
        its commit or waits for the same sync, goes on first: a plugin can take the service down with it.
        """
        if self._waits_for_the_disk(job):
            try:
                await self.ledger.disk.until_durable()
            except LedgerError:
                return False
            comes_second = True
        if comes_second:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return True

    def _waits_for_the_disk(self, job: Job) -> bool:
        return job.attempt > 1 or job.dedupe_key is not None or not self.ledger.disk.has(job.seq)

    async def _attempted(self, attempt: Attempt) -> Ending | Begun | None:
        """What the attempt came to, or its process; None if its job was put back and waits."""
        if attempt.job.plugin == RELAY:
            from ductile.engine.relay import send_job  # with its HTTP client: only who relays pays for loading it

            return await send_job(self.around, attempt, self.ledger)
        begun = await start_job(self.around, attempt)
        if isinstance(begun, Begun) and self.young is None:
            return await see_through(self.around, begun)
        return begun

    async def _settle_stranded(self) -> None:
        """What an outdated job has led to is held against the configuration of the moment."""
        try:
            await settle_stranded(self.ledger, self.snapshot(), self.around.log, now=self.around.clock.now())
        except LedgerError as error:
            self.around.log.warn("dispatcher", f"jobs of plugins that are gone were not ended: {error}")
        self.hub.announce_everyone()

    def _started_before(self, moment: float) -> list[Attempt]:
        """Attempts whose process is to be noted by now."""
        return [one for one in self.attempts.values() if one.since < moment and not one.is_noted]

    async def _note_process(self, attempt: Attempt) -> None:
        """The attempt is written down with its process, so that a recovery can find and end that."""
        process = identify(attempt.pid) if attempt.pid is not None else None
        if process is None:
            return
        attempt.is_noted = True
        try:
            await self.ledger.write(
                note_process,
                attempt.job.id,
                attempt.job.attempt,
                now=self.around.clock.now(),
                pid=process.pid,
                start_ticks=process.start_ticks,
                boot_id=process.boot_id,
            )
            failpoint("process.after_commit")
        except LedgerError as error:
            # The mark in its environment finds it too.
            self.around.log.warn("dispatcher", f"process not noted: {error}", job_id=attempt.job.id)

    async def _write(
        self,
        endings: list[Ending],
        snapshot: Snapshot,
        free: Mapping[str, int],
        limit: int,
        relays: Mapping[str, int],
        *,
        is_quick: bool,
    ) -> tuple[list[Recorded | Stale], Claimed]:
        """One transaction for the endings and the next claim. A full disk or a busy file is waited out."""
        failpoint("record.before")
        self.writing_since = trio.current_time()
        written = await self._try_to_write(endings, snapshot, free, limit, relays, is_quick=is_quick)
        while written is None and not (self.is_draining and self.stuck_seconds() > LEDGER_PATIENCE_SECONDS):
            # Shielded: what a plugin did is not forgotten because the service is told to stop.
            with trio.CancelScope(shield=True):
                await trio.sleep(LEDGER_RETRY_SECONDS)
            written = await self._try_to_write(endings, snapshot, free, limit, relays, is_quick=is_quick)
        self.writing_since = None
        failpoint("record.after_commit")
        if written is None:
            raise LedgerFull("the ledger takes nothing; what was running is run again after the next start")
        return written

    async def _try_to_write(
        self,
        endings: list[Ending],
        snapshot: Snapshot,
        free: Mapping[str, int],
        limit: int,
        relays: Mapping[str, int],
        *,
        is_quick: bool,
    ) -> tuple[list[Recorded | Stale], Claimed] | None:
        try:
            work = partial(
                self._work_under(snapshot),
                endings=endings,
                now=self.around.clock.now(),
                free=free,
                apart=relays,
                limit=limit,
            )
            return await self.ledger.write_last(
                partial(work, carefully=False),
                is_quick=is_quick,
                is_awaited=self._anybody_waits,
                with_care=work if endings else None,
            )
        except (LedgerFull, LedgerBusy) as error:
            self.around.log.error("dispatcher", f"{error}; trying again", endings=len(endings))
            return None
        except LedgerError as error:
            if self.ledger.broken.is_set():
                raise LedgerLost(f"{self.ledger.path}: {error}") from error
            raise

    def _free(self, slots_of: Mapping[str, int]) -> dict[str, int]:
        if not slots_of:
            return {}
        held = self.held()
        if EVERYTHING in held:
            return {}
        free = dict(slots_of)
        for attempt in self.attempts.values():
            plugin = attempt.job.plugin
            if plugin in free:
                free[plugin] -= 1
        return {name: slots for name, slots in free.items() if slots > 0 and name not in held}

    def _work_under(self, snapshot: Snapshot) -> Callable[..., tuple[list[Recorded | Stale], Claimed]]:
        """What every transaction under this configuration has in common."""
        if self._work is None or self._work[0] is not snapshot:
            work = partial(
                record_and_claim,
                run_id=self.run_id,
                default_ttl=snapshot.config.settings.service.dedupe_ttl,
                budget=budget_of(snapshot),
                snapshot_id=snapshot.id,
                join_rule=join_rule_of(snapshot),
                gates=gates_of(snapshot),
            )
            self._work = (snapshot, work)
        return self._work[1]

    def _lanes_apart(self, snapshot: Snapshot) -> Mapping[str, int]:
        """Relays need no worker. Without instances there are none, but for those that a configuration left behind."""
        if self._apart is None or self._apart[0] is not snapshot:
            relays = snapshot.config.settings.instances or self.ledger.look_up(outbox.waiting, RELAY).count
            self._apart = (snapshot, {RELAY: relay.SLOTS} if relays else {})
        return self._apart[1]

    def _anybody_waits(self, written: tuple[list[Recorded | Stale], Claimed]) -> bool:
        """Whether a caller, or a job that is to start, waits for what was written to be durable."""
        recorded, claimed = written
        return any(map(self._waits_for_the_disk, claimed.jobs)) or any(
            map(self._is_awaited, (*recorded, *claimed.skipped))
        )

    def _is_awaited(self, result: Recorded | Stale) -> bool:
        return not isinstance(result, Stale) and self.hub.is_awaited(result.job_id, result.root_job_id)

    def _announce(self, results: Iterable[Recorded | Stale]) -> None:
        for result in results:
            if isinstance(result, Stale):
                about = {"job_id": result.job_id, "attempt": result.attempt}
                self.around.log.warn("dispatcher", f"late result dropped: the job is {result.found}", **about)
            else:
                if result.status.is_final:
                    self.meters.jobs[result.plugin, result.command, result.status] += 1
                else:
                    self.meters.retries[result.plugin] += 1
                self.hub.announce_end(result.job_id, tree=result.root_job_id if result.tree_is_done else None)

    def _until(self, due: datetime | None) -> float:
        """How long nothing can be missed: until a delayed job is due, or as long as a lost hint may cost."""
        recheck = RECHECK_SECONDS if self.attempts else IDLE_RECHECK_SECONDS
        if due is None:
            return recheck
        return min(max((due - self.around.clock.now()).total_seconds(), 0.0), recheck)

    async def _drain_when(self, stopping: trio.Event) -> None:
        await stopping.wait()
        self.is_draining = True
        failpoint("drain.started")
        self.hub.announce_work()
        await trio.sleep(self.snapshot().config.settings.service.drain_timeout.total_seconds())
        self.drain_is_over = True
        for attempt in self.attempts.values():
            attempt.stop.request(DRAIN)


def _may_start_at_once(attempt: Attempt) -> bool:
    """Whether nobody has to wait longer than for one spawn if the attempt starts here."""
    if attempt.job.plugin == RELAY or attempt.size > LARGE or attempt.stop.reason is not None:
        return False
    return may_launch_at_once()
