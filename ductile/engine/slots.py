"""The attempts of this process: each has an owner, from its claim until its ending waits to be written.

Most are over within milliseconds and are watched together (`young`); whatever has to be waited for has a task of its
own. Knows nothing of claims and commits; the dispatcher hands attempts in and takes endings out.
"""

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import trio

from ductile.config.snapshot import Snapshot
from ductile.engine.follow import rule_of
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
from ductile.engine.young import Young
from ductile.errors import LedgerError
from ductile.hub import Hub
from ductile.ledger.writer import Ledger
from ductile.meters import Meters
from ductile.model import Ending, Failed, Job, Retried
from ductile.pipeline.plan import RELAY
from ductile.values import define, field

AFTER_OUR_OWN_FAULT = timedelta(seconds=30)


@define(eq=False)
class Slots:
    """The attempts that run, and the endings of those that have."""

    around: Surroundings
    ledger: Ledger
    hub: Hub
    snapshot: Callable[[], Snapshot]
    meters: Meters = field(factory=Meters)
    attempts: dict[str, Attempt] = field(factory=dict)
    """Job id → its running attempt."""
    young: Young | None = None
    """Those of them whose process has only just started; while somebody watches them."""
    endings: list[Ending] = field(factory=list)
    """What waits to be written."""
    may_join: bool = False
    """Whether what is written next may bring joins to their end."""
    is_outdated: bool = False
    """Whether a job has ended under a configuration that was replaced: it may have asked for plugins that are gone."""

    def watch_the_young(self, jobs: trio.Nursery) -> None:
        """From now on, for as long as `jobs` lasts, an attempt needs no task of its own to begin with."""
        self.young = Young()
        jobs.start_soon(self._end_the_young, self.young, jobs)
        jobs.start_soon(self._let_the_young_go, self.young, jobs)

    def live_stderr(self, job_id: str) -> str | None:
        """What a running job has written to stderr so far, with known secrets masked."""
        attempt = self.attempts.get(job_id)
        if attempt is None:
            return None
        said, mask = attempt.tail.read(), attempt.snapshot.config.mask
        hide = mask.of_tail if attempt.tail.total > len(said) else mask
        return hide(said.decode("utf-8", "backslashreplace"))

    def kill_all(self) -> None:
        """The last resort: every plugin process group gets SIGKILL now; the next start recovers their jobs."""
        for attempt in self.attempts.values():
            if attempt.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(attempt.pid, signal.SIGKILL)

    def start(self, attempt: Attempt, jobs: trio.Nursery, *, in_a_task: bool) -> None:
        """The attempt has started, or has a task in which it will; with `in_a_task`, in any case that."""
        # Whoever asked for the job may be one of those: a plugin can take the service down with it.
        comes_later = self.ledger.disk.somebody_goes_first or self.waits_for_the_disk(attempt.job)
        if in_a_task or comes_later or not self._start_at_once(attempt):
            jobs.start_soon(self.run, attempt, name=f"job {attempt.job.id}")

    async def run(self, attempt: Attempt) -> None:
        """A claimed job has run, or runs among the young."""
        job = attempt.job
        if not await self._is_there_for_good(job):
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
            tolerated=False if attempt.has_run else None,
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

    async def _is_there_for_good(self, job: Job) -> bool:
        """Waits until no power cut can take the job back; False if that cannot be: the next start recovers it.

        The claim may be taken back, then the job runs again. What was queued again a moment ago, or waited for its key,
        stands in an old row: it waits for everything that is committed by now. Whoever asked for the job has gone on.
        """
        if self.waits_for_the_disk(job):
            try:
                await self.ledger.disk.until_durable()
            except LedgerError:
                return False
        await self.ledger.disk.until_they_went_on()
        return True

    def waits_for_the_disk(self, job: Job) -> bool:
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


def _may_start_at_once(attempt: Attempt) -> bool:
    """Whether nobody has to wait longer than for one spawn if the attempt starts here."""
    if attempt.job.plugin == RELAY or attempt.size > LARGE or attempt.stop.reason is not None:
        return False
    return may_launch_at_once()
