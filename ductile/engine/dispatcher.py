"""Claim queued jobs and run each in its own task; drain when the service stops.

Owns the nursery of running jobs. Knows nothing of HTTP or schedules.
"""

from datetime import datetime

import trio
from attrs import frozen

from ductile.core.errors import LedgerBusy, LedgerError, LedgerFull, LedgerLost
from ductile.core.instance.failpoints import failpoint
from ductile.engine.follow_up_rules import gates_of, join_rule_of
from ductile.engine.job_context import JobContext
from ductile.engine.judge import DRAIN
from ductile.engine.run_job import LEDGER_RETRY_INTERVAL, announce, run_job
from ductile.engine.running_jobs import Attempt, Capacity
from ductile.ledger.completion.record import Recorded, Stale
from ductile.ledger.queue.claim import Claimed, claim_next
from ductile.ledger.queue.enqueue import newest_seq
from ductile.ledger.storage.db import Db

RECHECK_INTERVAL, IDLE_RECHECK_INTERVAL = 1.0, 30.0
"""How long a lost wake-up can delay a job: while jobs run, and while none does."""


async def dispatch(
    ctx: JobContext, stopping: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Claim jobs and run each in its own task until `stopping`; then drain."""
    async with trio.open_nursery() as drain:
        drain.start_soon(stop_jobs_after_drain, ctx, stopping, name="drain")
        async with trio.open_nursery() as jobs:
            task_status.started()
            while not stopping.is_set():
                claimed = await claim_jobs(ctx)
                for attempt in claimed.attempts:
                    failpoint("claim.after_commit")
                    jobs.start_soon(run_job, ctx, attempt, name=f"job {attempt.job.id}")
                await ctx.hub.work_waiting(at_most=claimed.recheck_seconds)
        drain.cancel_scope.cancel()


@frozen
class ClaimedAttempts:
    """The attempts to start now, and when to look for more work at the latest."""

    attempts: tuple[Attempt, ...] = ()
    recheck_seconds: float = RECHECK_INTERVAL


async def claim_jobs(ctx: JobContext) -> ClaimedAttempts:
    """Claim what the free slots can run. Resolve joins that are ready, which needs no slot.

    The claims are committed. They need not be durable: a claim that a power cut takes back only runs the job again.
    An attempt waits by itself until its job is durable.
    """
    snapshot = ctx.snapshot()
    capacity = ctx.running.capacity(snapshot).without(ctx.held())
    try:
        queued_in, ended, claimed = await _claim(ctx, capacity)
    except (LedgerFull, LedgerBusy) as error:
        ctx.log.error("dispatcher", f"{error}; trying again")
        return ClaimedAttempts(recheck_seconds=LEDGER_RETRY_INTERVAL)
    except LedgerError as error:
        raise LedgerLost(f"{ctx.ledger.path}: {error}") from error
    # No checkpoint since the commit: a request to stop a claimed job always finds its attempt.
    attempts = tuple(
        Attempt(
            job,
            snapshot,
            state=claimed.states[job.plugin],
            queued_in=0 if ctx.durable_jobs.has(job, ctx.ledger.durable) else queued_in,
        )
        for job in claimed.jobs
    )
    ctx.running.add(attempts)
    announce(ctx, ended)
    if claimed.more:
        ctx.hub.announce_work()
    return ClaimedAttempts(attempts, _recheck_seconds(ctx, claimed.next_due))


async def _claim(ctx: JobContext, capacity: Capacity) -> tuple[int, tuple[Recorded | Stale, ...], Claimed]:
    """Claim in one transaction.

    Returns the last commit that can have queued a claimed job, what ended without an attempt, and the claim.
    """
    snapshot = ctx.snapshot()

    def work(db: Db) -> tuple[int, tuple[Recorded | Stale, ...], Claimed]:
        commit = ctx.ledger.commits
        ctx.durable_jobs.note(commit, newest_seq(db), durable_commit=ctx.ledger.durable)
        allowed = capacity.without(ctx.held())  # asked again: a plugin can be paused while the write waits
        settled, claimed = claim_next(
            db,
            now=ctx.clock.now(),
            run_id=ctx.run_id,
            free=allowed.free,
            limit=allowed.limit,
            relays=allowed.relays,
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=snapshot.budget,
            snapshot_id=snapshot.id,
            join_rule=join_rule_of(snapshot),
            gates=gates_of(snapshot),
        )
        ended = (*settled, *claimed.skipped)
        # A join that ends in here queues its follow-up jobs in this commit, and a skipped job releases its key.
        return commit + bool(ended), ended, claimed

    return await ctx.ledger.transact(work, wait=False)


def _recheck_seconds(ctx: JobContext, next_due: datetime | None) -> float:
    """Return how long no work can be missed: until a delayed job is due, or as long as a lost wake-up may cost."""
    recheck = RECHECK_INTERVAL if ctx.running else IDLE_RECHECK_INTERVAL
    if next_due is None:
        return recheck
    return min(max((next_due - ctx.clock.now()).total_seconds(), 0.0), recheck)


async def stop_jobs_after_drain(ctx: JobContext, stopping: trio.Event) -> None:
    """Give running jobs `service.drain_timeout` after `stopping`, then end their processes."""
    await stopping.wait()
    failpoint("drain.started")
    await trio.sleep(ctx.snapshot().config.settings.service.drain_timeout.total_seconds())
    ctx.running.stop_all(DRAIN)
