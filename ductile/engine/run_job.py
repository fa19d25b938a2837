"""Run one attempt of one job: preflight, process, judge, record, announce.

The dispatcher starts one task per claimed job. An internal error fails this attempt only; the service ends only if
the ledger cannot be written.
"""

import errno
import math
import random
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import trio
from attrs import asdict, evolve

from ductile.core.errors import LedgerBusy, LedgerError, LedgerFull, LedgerLost
from ductile.core.hub import SCHEDULES
from ductile.core.instance.failpoints import failpoint
from ductile.core.instance.threads import run_in_thread_if_large
from ductile.core.logs import Log
from ductile.core.model import Completion, Dead, Failed, Job, OutcomeCode, Retried, Succeeded
from ductile.engine.completion import complete, complete_without_run
from ductile.engine.follow_up_rules import follow_up_rule_of, join_rule_of, signal_runs
from ductile.engine.job_context import LEDGER_RETRY_INTERVAL, JobContext
from ductile.engine.judge import Verdict, backoff, judge, stop_outcome
from ductile.engine.maintenance.drifted_plugins import note_files, postpone_for_drift
from ductile.engine.maintenance.unrunnable_jobs import end_unrunnable_jobs
from ductile.engine.preflight import Block, Postpone, Ready, Refuse, preflight
from ductile.engine.process.procfs import identify
from ductile.engine.process.run import Finished, run_process
from ductile.engine.process.start import Process, SpawnFailed
from ductile.engine.running_jobs import Attempt
from ductile.ledger.completion.record import Recorded, Stale
from ductile.ledger.completion.record_completion import record_completion
from ductile.ledger.queue.claim import ProcessNote, note_process
from ductile.ledger.storage.db import Db

INTERNAL_ERROR_RETRY = timedelta(seconds=30)
LEDGER_TIMEOUT = 60.0
MAX_BACKOFF_STEPS = 20


async def run_job(ctx: JobContext, attempt: Attempt) -> None:
    """Run one attempt of a claimed job, record its completion and announce it."""
    try:
        await _until_durable(ctx, attempt.queued_by_commit)
        completion = await _run_attempt(ctx, attempt)
        recorded = await _record(ctx, attempt, completion) if completion is not None else []
    finally:
        ctx.running.remove(attempt)
    ctx.metrics.observe_run(attempt.job.plugin, trio.current_time() - attempt.started)
    ctx.hub.announce_work()  # a free slot, and perhaps follow-up jobs
    announce(ctx, recorded)
    if attempt.snapshot is not ctx.snapshot():
        await _end_unrunnable_jobs(ctx)


async def _run_attempt(ctx: JobContext, attempt: Attempt) -> Completion | None:
    """Run the attempt and return its completion, or None if the job was queued again without a run."""
    job = attempt.job
    if job.attempt == 1 and job.started_at is not None:
        ctx.metrics.observe_wait(job.plugin, (job.started_at - job.created_at).total_seconds())
    try:
        if job.plugin in ctx.processless:
            return await ctx.processless[job.plugin](ctx, attempt)
        return await attempt_job(ctx, attempt)
    except* Exception as errors:
        completion = _internal_error(ctx, attempt, errors.exceptions[0])
    return completion


async def attempt_job(ctx: JobContext, attempt: Attempt) -> Completion | None:
    """Run the plugin once and return the completion with its follow-up jobs; None if its plugin is blocked."""
    job, started_at = attempt.job, ctx.clock.now()
    if reason := attempt.control.stop.reason:
        verdict = Verdict(stop_outcome(reason))
        completion = complete_without_run(job, verdict.outcome, attempt.snapshot, now=started_at)
        return _log_attempt(ctx, job, None, verdict, completion)
    ready = await run_in_thread_if_large(partial(_preflight, ctx, attempt, started_at), attempt.input_bytes)
    match ready:
        case Ready():
            await note_files(ctx, job.plugin, ready.files)
            for warning in ready.warnings:
                ctx.log.warn("preflight", warning, plugin=job.plugin, job_id=job.id)
            failpoint("spawn.before")
            attempt.control.on_long_run = partial(_store_process_id, ctx, attempt)
            run = await run_process(ready.spec, attempt.control, ctx.processes)
            attempt.mark_finished(run)
            decide = partial(_judge, ctx, attempt, ready, run, started_at)
            verdict, completion = await run_in_thread_if_large(decide, attempt.input_bytes + len(run.stdout))
            return _log_attempt(ctx, job, run, verdict, completion)
        case Refuse(outcome):
            verdict, refused = Verdict(outcome), None
        case Block(_, files):
            ended = await postpone_for_drift(ctx, job, files)
            if ended is None:
                return None
            verdict, refused = Verdict(ended), None
        case Postpone(error, policy):
            refused = SpawnFailed(error, errno.EACCES)
            verdict = judge(job, refused, policy, started_at=started_at, jitter=random.random())
    completion = complete_without_run(job, verdict.outcome, attempt.snapshot, now=started_at)
    return _log_attempt(ctx, job, refused, verdict, evolve(completion, journal_data={"preflight": "fail"}))


def _preflight(ctx: JobContext, attempt: Attempt, now: datetime) -> Ready | Refuse | Postpone | Block:
    return preflight(
        attempt.snapshot,
        attempt.job,
        state_json=attempt.state,
        instance=ctx.instance,
        now=now,
        cache=ctx.preflight_cache,
    )


def _judge(
    ctx: JobContext, attempt: Attempt, ready: Ready, run: Finished | SpawnFailed, started_at: datetime
) -> tuple[Verdict, Completion]:
    """Judge the run and compute its completion."""
    job = attempt.job
    verdict = judge(job, run, ready.policy, started_at=started_at, jitter=random.random(), files=ready.files)
    journal_data = _journal_fields(attempt, ready, verdict)
    completion = complete(job, ready, verdict, attempt.snapshot, now=ctx.clock.now(), journal_data=journal_data)
    # A success becomes a failure if it leads to too many follow-up jobs or to a state that is too large.
    is_same = completion.outcome is verdict.outcome
    return verdict if is_same else evolve(verdict, outcome=completion.outcome), completion


def _journal_fields(attempt: Attempt, ready: Ready, verdict: Verdict) -> dict[str, Any]:
    """Return what the journal records about the run, unless `_store_process_id` has recorded it."""
    fields: dict[str, Any] = {} if attempt.has_stored_pid else {"preflight": "run"}
    if attempt.pid is not None and not attempt.has_stored_pid:
        fields["pid"] = attempt.pid
    if isinstance(verdict.outcome, Retried | Dead) and verdict.response and not verdict.response.ok:
        fields["plugin_retry_field"] = verdict.response.retry
    if isinstance(verdict.outcome, Retried):
        base, steps = ready.policy.backoff_base, min(attempt.job.max_attempts, MAX_BACKOFF_STEPS + 1)
        delays = (backoff(base, tries, 0.0) for tries in range(1, steps))
        fields["backoff_schedule"] = [delay // timedelta(milliseconds=1) for delay in delays]
    return fields


async def _store_process_id(ctx: JobContext, attempt: Attempt, process: Process) -> None:
    """Store the process id of a long attempt, so that recovery can find it. Not durable when it returns.

    Retries until it is cancelled, which happens when the process exits.
    """
    job, is_logged = attempt.job, False
    while True:
        try:
            seen = identify(process.pid)
            if seen is None:
                return None
            note = ProcessNote(job.id, job.attempt, seen.pid, seen.start_ticks, seen.boot_id)
            work = partial(note_process, process=note, run_id=ctx.run_id, now=ctx.clock.now())
            attempt.has_stored_pid = await ctx.ledger.transact(work, wait=False)
            return failpoint("process.after_commit")
        except (LedgerFull, LedgerBusy, OSError) as error:  # OSError: no free descriptor
            if not is_logged:
                ctx.log.warn("dispatcher", f"process id not stored, trying again: {error}", job_id=job.id)
            is_logged = True
        except LedgerError as error:
            return ctx.log.warn("dispatcher", f"process id not stored: {error}", plugin=job.plugin, job_id=job.id)
        await trio.sleep(LEDGER_RETRY_INTERVAL)


def _internal_error(ctx: JobContext, attempt: Attempt, error: Exception) -> Completion:
    """Fail the attempt because of a bug in Ductile. The job is retried only if the plugin has not run."""
    job = attempt.job
    message = attempt.snapshot.config.mask(f"internal error: {error!r}")
    ctx.log.error("dispatcher", message, plugin=job.plugin, job_id=job.id)
    return Completion(
        job_id=job.id,
        attempt=job.attempt,
        outcome=Failed(message, code=OutcomeCode.INTERNAL_ERROR)
        if attempt.has_run
        else Retried(message, INTERNAL_ERROR_RETRY),
        rule=follow_up_rule_of(attempt.snapshot),
        tolerated=False if attempt.has_run else None,
    )


# ── record and announce ─────────────────────────────────────────────────────────────────────────────────────────────


async def _record(ctx: JobContext, attempt: Attempt, completion: Completion) -> list[Recorded | Stale]:
    """Record the completion and its follow-up jobs in one transaction. Return at the commit, before it is durable.

    Retries while the disk is full or the ledger is busy; for at most LEDGER_TIMEOUT seconds once it is cancelled.
    Raises LedgerLost if the ledger cannot be written.
    """
    failpoint("record.before")
    give_up_at = math.inf
    while True:
        try:
            with trio.CancelScope(shield=True):  # bounded: the ledger waits a few seconds for another writer
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
            raise LedgerLost(error.reason, path=ctx.ledger.path) from error
        else:
            failpoint("record.after_commit")
            return recorded


async def _try_to_record(ctx: JobContext, attempt: Attempt, completion: Completion) -> list[Recorded | Stale]:
    snapshot = ctx.snapshot()

    def work(db: Db) -> list[Recorded | Stale]:
        now = ctx.clock.now()  # inside the transaction: the order of times is the order of commits
        recorded = record_completion(
            db,
            completion,
            now=now,
            run_id=ctx.run_id,
            default_ttl=snapshot.config.settings.service.dedupe_ttl,
            budget=snapshot.budget,
            join_rule=join_rule_of(snapshot),
        )
        signal_runs(db, recorded, snapshot, now=now)
        return recorded

    is_large = not completion.is_small or attempt.job.join_id is not None
    return await ctx.ledger.transact(work, wait=False, in_thread=is_large)


async def _until_durable(ctx: JobContext, commit: int) -> None:
    """Wait until the commit is durable. Raises LedgerLost if that fails."""
    try:
        await ctx.ledger.until_durable(commit)
    except LedgerError as error:
        raise LedgerLost(error.reason, path=ctx.ledger.path) from error


def announce(ctx: JobContext, results: Iterable[Recorded | Stale]) -> None:
    """Count the results of the last commit and wake the tasks that wait for them until that commit is durable."""
    for result in results:
        if isinstance(result, Stale):
            about = {"job_id": result.job_id, "attempt": result.attempt}
            ctx.log.warn("dispatcher", f"late result dropped: the job is {result.found}", **about)
            continue
        for duplicate in result.duplicates:
            text = f"duplicate: job {duplicate.winner} has the same dedupe key"
            ctx.log.info("dispatcher", text, job_id=result.job_id, **asdict(duplicate))
        if result.status.is_final:
            ctx.metrics.jobs[result.plugin, result.command, result.status, str(result.outcome_code)] += 1
        else:
            ctx.metrics.retries[result.plugin] += 1
        tree = result.root_job_id if result.tree_is_done else None
        ctx.hub.announce_end(result.job_id, tree=tree, commit=ctx.ledger.commits)
        if result.was_probe:
            ctx.hub.announce(SCHEDULES)


async def _end_unrunnable_jobs(ctx: JobContext) -> None:
    """End follow-up jobs of plugins that a reload removed while this job ran."""
    try:
        await end_unrunnable_jobs(ctx.ledger, ctx.snapshot, ctx.log, now=ctx.clock.now())
    except LedgerError as error:
        ctx.log.warn("dispatcher", f"jobs of removed plugins were not ended: {error}")
    ctx.hub.announce_all()


# ── log lines ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _log_attempt(
    ctx: JobContext, job: Job, run: Finished | SpawnFailed | None, verdict: Verdict, completion: Completion
) -> Completion:
    """Log the plugin's log lines, its stderr and the outcome; return `completion`."""
    log, about = ctx.log, {"plugin": job.plugin, "job_id": job.id}
    if verdict.response:
        for note in verdict.response.notes:
            log.warn("protocol", note, **about)
        for line in verdict.response.logs:
            log.write(str(line.level), "plugin", line.message, about)
    if isinstance(run, Finished):
        if run.stderr and log.enabled("warn"):
            log.warn("plugin", run.stderr_text(log.mask), **about, bytes=run.stderr_total)
        if run.swept or run.pipe_left_open or run.lost:
            log.warn("process", "the plugin left processes behind", **about, swept=run.swept, lost=run.lost)
    _log_outcome(log, job, run, verdict)
    return completion


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
