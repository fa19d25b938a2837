"""Run one attempt of one job: preflight, process, judge, record, announce.

The dispatcher starts `run_job` in a task of its own for every claimed job. An error in here is this attempt's failure
and does not reach other jobs; only a ledger that cannot be written ends the service.
"""

import errno
import math
import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import trio
from attrs import evolve

from ductile.core.errors import LedgerBusy, LedgerError, LedgerFull, LedgerLost
from ductile.core.hub import SCHEDULES
from ductile.core.instance.failpoints import failpoint
from ductile.core.logs import Log
from ductile.core.model import RELAY, Completion, Dead, Failed, Job, Retried, Succeeded
from ductile.core.threads import run_in_thread
from ductile.engine.completion import ending_of, without_run
from ductile.engine.follow_up_rules import join_rule_of, rule_of
from ductile.engine.job_context import JobContext
from ductile.engine.judge import RetryPolicy, Verdict, backoff, judge, stopped
from ductile.engine.maintenance.unrunnable_jobs import end_unrunnable_jobs
from ductile.engine.preflight import Postpone, Ready, Refuse, preflight
from ductile.engine.process.procfs import identify
from ductile.engine.process.run import Finished, run_process
from ductile.engine.process.start import Process, SpawnFailed
from ductile.engine.running_jobs import Attempt
from ductile.ledger.completion.record import Recorded, Stale
from ductile.ledger.completion.record_completion import record_completion
from ductile.ledger.queue.claim import ProcessNote, note_process
from ductile.ledger.storage.db import Db

LARGE_BYTES = 512 << 10
"""More text than this is parsed in a thread, so that it does not hold up the event loop."""
INTERNAL_ERROR_RETRY = timedelta(seconds=30)
LEDGER_TIMEOUT, LEDGER_RETRY_INTERVAL = 60.0, 0.5
MAX_BACKOFF_STEPS = 20
T = TypeVar("T")


async def run_job(ctx: JobContext, attempt: Attempt) -> None:
    """Run one attempt of a claimed job, record its completion and announce it."""
    try:
        await _until_durable(ctx, attempt.queued_in)
        completion = await _complete(ctx, attempt)
        recorded = await _record(ctx, attempt, completion) if completion is not None else []
    finally:
        ctx.running.remove(attempt)
    ctx.meters.ran(attempt.job.plugin, trio.current_time() - attempt.since)
    ctx.hub.announce_work()  # a free slot, and perhaps follow-up jobs
    announce(ctx, recorded)
    if attempt.snapshot is not ctx.snapshot():
        await _end_unrunnable_jobs(ctx)


async def _complete(ctx: JobContext, attempt: Attempt) -> Completion | None:
    """Return what the attempt led to, or None if a relay was put back to wait for its instance."""
    job = attempt.job
    if job.attempt == 1 and job.started_at is not None:
        ctx.meters.waited(job.plugin, (job.started_at - job.created_at).total_seconds())
    try:
        if job.plugin == RELAY:
            return await ctx.send_relay(ctx, attempt)
        return await attempt_job(ctx, attempt)
    except* Exception as errors:
        completion = _internal_error(ctx, attempt, errors.exceptions[0])
    return completion


async def attempt_job(ctx: JobContext, attempt: Attempt) -> Completion:
    """Run the plugin of one attempt and decide what follows from it."""
    job, started_at = attempt.job, ctx.clock.now()
    if reason := attempt.control.stop.reason:
        verdict = Verdict(stopped(reason))
        return _logged(ctx, job, None, verdict, without_run(job, verdict.outcome, attempt.snapshot, now=started_at))
    ready = await _in_thread_if_large(partial(_preflight, ctx, attempt, started_at), attempt.input_bytes)
    match ready:
        case Ready():
            for warning in ready.warnings:
                ctx.log.warn("preflight", warning, plugin=job.plugin, job_id=job.id)
            failpoint("spawn.before")
            attempt.control.on_long_run = partial(_note_process, ctx, attempt)
            run = await run_process(ready.spec, attempt.control, ctx.processes)
            attempt.note_end(run)
            decide = partial(_judge, ctx, attempt, ready, run, started_at)
            verdict, ending = await _in_thread_if_large(decide, attempt.input_bytes + _output_bytes(run))
            return _logged(ctx, job, run, verdict, ending)
        case Refuse(outcome):
            verdict, refused = Verdict(outcome), None
        case Postpone(error, policy):
            refused = SpawnFailed(error, errno.EACCES)
            verdict = judge(job, refused, policy, started_at=started_at, chance=random.random())
    ending = without_run(job, verdict.outcome, attempt.snapshot, now=started_at)
    return _logged(ctx, job, refused, verdict, evolve(ending, told={"preflight": "fail"}))


def _preflight(ctx: JobContext, attempt: Attempt, now: datetime) -> Ready | Refuse | Postpone:
    return preflight(
        attempt.snapshot,
        attempt.job,
        state_json=attempt.state,
        instance=ctx.instance,
        now=now,
        memory=ctx.preflight_cache,
    )


def _judge(
    ctx: JobContext, attempt: Attempt, ready: Ready, run: Finished | SpawnFailed, started_at: datetime
) -> tuple[Verdict, Completion]:
    """Decide what the run means and what follows from it."""
    job = attempt.job
    verdict = judge(job, run, ready.policy, started_at=started_at, chance=random.random())
    told = _journal_fields(attempt, ready, verdict)
    ending = ending_of(job, ready, verdict, attempt.snapshot, now=ctx.clock.now(), told=told)
    # A success can become a failure that leads to too much, or to a state that is too large.
    return verdict if ending.outcome is verdict.outcome else evolve(verdict, outcome=ending.outcome), ending


async def judge_run(job: Job, run: Finished | SpawnFailed, policy: RetryPolicy, started_at: datetime) -> Verdict:
    """Decide what a run outside of the queue means."""
    decide = partial(judge, job, run, policy, started_at=started_at, chance=random.random())
    return await _in_thread_if_large(decide, _output_bytes(run))


async def _in_thread_if_large(decide: Callable[[], T], text_bytes: int) -> T:
    return await run_in_thread(decide) if text_bytes > LARGE_BYTES else decide()


def _output_bytes(run: Finished | SpawnFailed) -> int:
    return len(run.stdout) if isinstance(run, Finished) else 0


def _journal_fields(attempt: Attempt, ready: Ready, verdict: Verdict) -> dict[str, Any]:
    """Return what the journal records about the run, unless `_note_process` has recorded it."""
    fields: dict[str, Any] = {} if attempt.is_noted else {"preflight": "run"}
    if attempt.pid is not None and not attempt.is_noted:
        fields["pid"] = attempt.pid
    if isinstance(verdict.outcome, Retried | Dead) and verdict.response and not verdict.response.ok:
        fields["plugin_retry_field"] = verdict.response.retry
    if isinstance(verdict.outcome, Retried):
        base, steps = ready.policy.backoff_base, min(attempt.job.max_attempts, MAX_BACKOFF_STEPS + 1)
        delays = (backoff(base, tries, 0.0) for tries in range(1, steps))
        fields["backoff_schedule"] = [delay // timedelta(milliseconds=1) for delay in delays]
    return fields


async def _note_process(ctx: JobContext, attempt: Attempt, process: Process) -> None:
    """Store the process id of a long attempt, so that recovery can find it. Not durable when it returns.

    Tries again until the process has exited, which cancels this.
    """
    job, is_logged = attempt.job, False
    while True:
        try:
            seen = identify(process.pid)
            if seen is None:
                return None
            note = ProcessNote(job.id, job.attempt, seen.pid, seen.start_ticks, seen.boot_id)
            work = partial(note_process, process=note, run_id=ctx.run_id, now=ctx.clock.now())
            attempt.is_noted = await ctx.ledger.transact(work, wait=False)
            return failpoint("process.after_commit")
        except (LedgerFull, LedgerBusy, OSError) as error:  # OSError: no free descriptor
            if not is_logged:
                ctx.log.warn("dispatcher", f"process id not stored, trying again: {error}", job_id=job.id)
            is_logged = True
        except LedgerError as error:
            return ctx.log.warn("dispatcher", f"process id not stored: {error}", plugin=job.plugin, job_id=job.id)
        await trio.sleep(LEDGER_RETRY_INTERVAL)


def _internal_error(ctx: JobContext, attempt: Attempt, error: Exception) -> Completion:
    """Fail the attempt because of an error in Ductile. A plugin that has run is not run again."""
    job = attempt.job
    message = attempt.snapshot.config.mask(f"internal error: {error!r}")
    ctx.log.error("dispatcher", message, plugin=job.plugin, job_id=job.id)
    return Completion(
        job_id=job.id,
        attempt=job.attempt,
        outcome=Failed(message) if attempt.has_run else Retried(message, INTERNAL_ERROR_RETRY),
        rule=rule_of(attempt.snapshot),
        tolerated=False if attempt.has_run else None,
    )


# ── record and announce ─────────────────────────────────────────────────────────────────────────────────────────────


async def _record(ctx: JobContext, attempt: Attempt, completion: Completion) -> list[Recorded | Stale]:
    """Record the completion and its follow-up jobs in one transaction. Return at the commit, before it is durable.

    A full disk or a busy ledger is retried until there is space again; a service that stops retries LEDGER_TIMEOUT
    seconds more.
    """
    failpoint("record.before")
    give_up_at = math.inf
    while True:
        try:
            with trio.CancelScope(shield=True):  # bounded: the ledger waits for another writer for a few seconds only
                recorded = await _try_to_record(ctx, attempt, completion)
        except (LedgerFull, LedgerBusy) as error:
            ctx.log.error("dispatcher", f"{error}; trying again", job_id=completion.job_id)
            now = trio.current_time()
            if trio.current_effective_deadline() == -math.inf:
                give_up_at = min(give_up_at, now + LEDGER_TIMEOUT)
            if now >= give_up_at:
                raise
            with trio.CancelScope(shield=True, deadline=now + LEDGER_RETRY_INTERVAL):
                await trio.sleep_forever()
        except LedgerError as error:
            raise LedgerLost(f"{ctx.ledger.path}: {error}") from error
        else:
            failpoint("record.after_commit")
            return recorded


async def _try_to_record(ctx: JobContext, attempt: Attempt, completion: Completion) -> list[Recorded | Stale]:
    snapshot = ctx.snapshot()

    def work(db: Db) -> list[Recorded | Stale]:
        return record_completion(
            db,
            completion,
            now=ctx.clock.now(),  # inside the transaction: the order of times is the order of commits
            run_id=ctx.run_id,
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=snapshot.budget,
            join_rule=join_rule_of(snapshot),
        )

    is_large = not completion.is_small or attempt.job.join_id is not None
    return await ctx.ledger.transact(work, wait=False, in_thread=is_large)


async def _until_durable(ctx: JobContext, commit: int) -> None:
    """Wait until that commit is durable. Raises LedgerLost if it never will be."""
    try:
        await ctx.ledger.until_durable(commit)
    except LedgerError as error:
        raise LedgerLost(f"{ctx.ledger.path}: {error}") from error


def announce(ctx: JobContext, results: Iterable[Recorded | Stale]) -> None:
    """Count the results of the last commit and wake the callers that wait for them; they wait until it is durable."""
    for result in results:
        if isinstance(result, Stale):
            about = {"job_id": result.job_id, "attempt": result.attempt}
            ctx.log.warn("dispatcher", f"late result dropped: the job is {result.found}", **about)
            continue
        if result.status.is_final:
            ctx.meters.jobs[result.plugin, result.command, result.status] += 1
        else:
            ctx.meters.retries[result.plugin] += 1
        tree = result.root_job_id if result.tree_is_done else None
        ctx.hub.announce_end(result.job_id, tree=tree, commit=ctx.ledger.commits)
        if result.was_probe:
            ctx.hub.announce(SCHEDULES)


async def _end_unrunnable_jobs(ctx: JobContext) -> None:
    """End follow-up jobs of plugins that a reload has removed while this job ran."""
    try:
        await end_unrunnable_jobs(ctx.ledger, ctx.snapshot, ctx.log, now=ctx.clock.now())
    except LedgerError as error:
        ctx.log.warn("dispatcher", f"jobs of removed plugins were not ended: {error}")
    ctx.hub.announce_everyone()


# ── log lines ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _logged(
    ctx: JobContext, job: Job, run: Finished | SpawnFailed | None, verdict: Verdict, ending: Completion
) -> Completion:
    """Log the plugin's own lines, its stderr and how the attempt ended; return `ending`."""
    log, about = ctx.log, {"plugin": job.plugin, "job_id": job.id}
    if verdict.response:
        for note in verdict.response.notes:
            log.warn("protocol", note, **about)
        for line in verdict.response.logs:
            log.write(str(line.level), "plugin", line.message, about)
    if isinstance(run, Finished):
        if run.stderr and log.enabled("warn"):
            log.warn("plugin", run.words(log.mask), **about, bytes=run.stderr_total)
        if run.swept or run.pipe_held or run.lost:
            log.warn("process", "the plugin left processes behind", **about, swept=run.swept, lost=run.lost)
    _log_outcome(log, job, run, verdict)
    return ending


def _log_outcome(log: Log, job: Job, run: Finished | SpawnFailed | None, verdict: Verdict) -> None:
    fields: dict[str, Any] = {"plugin": job.plugin, "job_id": job.id, "command": job.command, "attempt": job.attempt}
    fields["outcome"] = type(verdict.outcome).__name__.lower()
    if isinstance(run, Finished):
        fields["duration_ms"] = round(run.duration * 1000, 1)
    match verdict.outcome:
        case Succeeded():
            log.write("info", "dispatcher", "job succeeded", fields)
        case Retried(error, delay):
            log.warn("dispatcher", f"attempt failed: {error}", **fields, retry_in_seconds=delay.total_seconds())
        case Failed(error) | Dead(error):
            log.write("error", "dispatcher", f"job failed: {error}", fields)
        case _:
            log.write("info", "dispatcher", "attempt interrupted", fields)
