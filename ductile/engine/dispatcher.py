"""Claim queued jobs and run each in its own task; drain when the service stops.

Owns the nursery of running jobs. Knows nothing of HTTP or schedules.
"""

from datetime import datetime

import trio
from attrs import frozen

from ductile.core.errors import LedgerBusy, LedgerError, LedgerFull, LedgerLost
from ductile.core.instance.failpoints import failpoint
from ductile.engine.follow_up_rules import gates_of, join_rule_of, signal_runs
from ductile.engine.job_context import LEDGER_RETRY_INTERVAL, JobContext
from ductile.engine.judge import DRAIN
from ductile.engine.maintenance.drifted_plugins import release_restored_plugins
from ductile.engine.run_job import announce, run_job
from ductile.engine.running_jobs import Attempt, Capacity
from ductile.ledger.completion.record import Recorded, Stale
from ductile.ledger.jobs.enqueue import newest_seq
from ductile.ledger.queue.claim import Claimed, claim_next
from ductile.ledger.queue.waits import Hold
from ductile.ledger.storage.db import Db

RECHECK_INTERVAL, IDLE_RECHECK_INTERVAL = 1.0, 30.0
"""The longest delay that a lost wake-up can cause, while jobs run and while none does. Restored files are noticed after
the first."""


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
                await ctx.hub.wait_for_work(max_seconds=claimed.recheck_seconds)
        drain.cancel_scope.cancel()


@frozen
class ClaimedAttempts:
    """The attempts to start now, and the longest time to wait before the next claim."""

    attempts: tuple[Attempt, ...] = ()
    recheck_seconds: float = RECHECK_INTERVAL


async def claim_jobs(ctx: JobContext) -> ClaimedAttempts:
    """Claim jobs for the free slots. Resolve joins that are ready, which needs no slot.

    The claims are committed but not yet durable: if a power cut loses a claim, the job runs again. Each attempt waits
    until its own job is durable.
    """
    snapshot = ctx.snapshot()
    try:
        await release_restored_plugins(ctx)
        capacity = ctx.running.capacity(snapshot).exclude(ctx.held_plugins())
        queued_by, ended, claimed = await _claim(ctx, capacity)
    except (LedgerFull, LedgerBusy) as error:
        ctx.log.error("dispatcher", f"{error}; trying again")
        return ClaimedAttempts(recheck_seconds=LEDGER_RETRY_INTERVAL)
    except LedgerError as error:
        raise LedgerLost(error.reason, path=ctx.ledger.path) from error
    # No checkpoint since the commit, so a request to stop a claimed job always finds its attempt.
    attempts = tuple(
        Attempt(
            job,
            snapshot,
            state=claimed.states[job.plugin],
            queued_by_commit=0 if ctx.durable_jobs.is_durable(job, ctx.ledger.durable) else queued_by,
        )
        for job in claimed.jobs
    )
    ctx.running.add(attempts)
    announce(ctx, ended)
    if claimed.more or ended:  # the end of a run can start hooks
        ctx.hub.announce_work()
    return ClaimedAttempts(attempts, _recheck_seconds(ctx, claimed.next_due))


async def _claim(ctx: JobContext, capacity: Capacity) -> tuple[int, tuple[Recorded | Stale, ...], Claimed]:
    """Claim in one transaction.

    Returns the last commit that can have queued a claimed job, the jobs that ended without an attempt, and the claim.
    """
    snapshot = ctx.snapshot()

    def work(db: Db) -> tuple[int, tuple[Recorded | Stale, ...], Claimed]:
        commit = ctx.ledger.commits
        ctx.durable_jobs.add(commit, newest_seq(db), durable_commit=ctx.ledger.durable)
        held, now = ctx.held_plugins(), ctx.clock.now()  # read again: a plugin can be paused while the write waits
        ctx.holds.update({plugin: Hold(code, now) for plugin, code in held.items()})
        allowed = capacity.exclude(held)
        settled, claimed = claim_next(
            db,
            now=now,
            run_id=ctx.run_id,
            free=allowed.free,
            limit=allowed.limit,
            processless=allowed.processless,
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=snapshot.budget,
            snapshot_id=snapshot.id,
            join_rule=join_rule_of(snapshot),
            gates=gates_of(snapshot),
            holds=ctx.holds,
        )
        ended = (*settled, *claimed.skipped)
        signal_runs(db, ended, snapshot, now=now)
        # This commit queues the follow-up jobs of a resolved join and the next job of a released dedupe key.
        return commit + bool(ended), ended, claimed

    return await ctx.ledger.transact(work, wait=False)


def _recheck_seconds(ctx: JobContext, next_due: datetime | None) -> float:
    """Return the time until the next delayed job is due, at most the recheck interval."""
    recheck = RECHECK_INTERVAL if ctx.running or ctx.drifted.files else IDLE_RECHECK_INTERVAL
    if next_due is None:
        return recheck
    return min(max((next_due - ctx.clock.now()).total_seconds(), 0.0), recheck)


async def stop_jobs_after_drain(ctx: JobContext, stopping: trio.Event) -> None:
    """Wait for `stopping`, give running jobs `service.drain_timeout`, then terminate their processes."""
    await stopping.wait()
    failpoint("drain.started")
    await trio.sleep(ctx.snapshot().config.settings.service.drain_timeout.total_seconds())
    ctx.running.stop_all(DRAIN)
