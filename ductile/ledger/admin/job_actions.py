"""Operator actions on jobs: cancel, retry, replay, purge. Also ends the queued jobs of a removed plugin.

Runs in the caller's transaction. Ending the process of a cancelled job is the engine's task.
"""

import shlex
from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.errors import WrongState
from ductile.core.model import (
    CORE,
    Budget,
    Dead,
    FollowRule,
    Job,
    JobStatus,
    NewJob,
    OutcomeCode,
    cancelled,
    is_control_plugin,
)
from ductile.ledger.admin.pauses import ALL_PLUGINS
from ductile.ledger.completion.record import Recorded, end_queued
from ductile.ledger.jobs import joins, tree_counters
from ductile.ledger.jobs.dedupe import DEFAULT_TTL
from ductile.ledger.jobs.rows import get_job, job_not_found
from ductile.ledger.jobs.tree_counters import DEFAULT_BUDGET
from ductile.ledger.queue.claim import plugins_with_ready_jobs
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import greatest, using
from ductile.ledger.tables import journal
from ductile.ledger.tables.blocked_jobs import BREAKER_OPEN

RETRYABLE_HINT = "Only failed and dead jobs can be retried."


@frozen
class CancelRequested:
    """The job is running. The engine ends its process and records it as dead."""

    job_id: str
    attempt: int


def cancel(
    db: Db,
    job_id: str,
    reason: str,
    *,
    now: datetime,
    actor: str | None = None,
    rule: FollowRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
) -> Recorded | CancelRequested:
    """End a queued job as dead, with the follow-up jobs that `rule` decides; mark a running one as cancelled.

    The members of a cancelled join still run, but the join has no follow-up jobs. Raises WrongState for a finished job.
    """
    job = require_job(db, job_id)
    if job.status is JobStatus.QUEUED:
        _journal_cancel(db, job, reason, actor, now=now)
        outcome = cancelled(reason)
        ended = end_queued(db, job.id, job.attempt, outcome, now=now, rule=rule, default_ttl=default_ttl, budget=budget)
        assert ended is not None, "this transaction has just read the queued job"
        return ended
    if job.status is JobStatus.RUNNING:
        return _request_cancel(db, job, reason, actor, now=now)
    raise WrongState(f"{job_id}: already {job.status}", hint="Only queued and running jobs can be cancelled.")


REQUEST_CANCEL = """
    UPDATE job_queue SET cancel_requested_at = ?, cancel_reason = ?
     WHERE id = ? AND status = 'running' AND attempt = ? AND cancel_requested_at IS NULL
"""


def _request_cancel(db: Db, job: Job, reason: str, actor: str | None, *, now: datetime) -> CancelRequested:
    if db.execute(REQUEST_CANCEL, (to_text(now), reason, job.id, job.attempt)).rowcount == 1:
        _journal_cancel(db, job, reason, actor, now=now)
    return CancelRequested(job.id, job.attempt)


def _journal_cancel(db: Db, job: Job, reason: str, actor: str | None, *, now: datetime) -> None:
    journal.append(
        db,
        "job.cancel_requested",
        now=now,
        plugin=job.plugin,
        job_id=job.id,
        root_job_id=job.root_job_id,
        data={"attempt": job.attempt, "reason": reason},
        actor=actor,
    )


def retry(db: Db, job_id: str, *, now: datetime, actor: str | None = None) -> Job:
    """Queue a failed or dead job again, with at least one more attempt.

    Every enclosing join that ended failed or dead is also queued again. It waits for its open members and keeps the
    results of the others. Raises WrongState for a job with another status.
    """
    job = require_job(db, job_id)
    if not _is_retryable(job):
        raise WrongState(f"{job_id}: {job.status}", hint=RETRYABLE_HINT)
    _requeue(db, job, "operator", now=now, actor=actor)
    member = job
    while member.join_id and (join := get_job(db, member.join_id)):
        if join.status is JobStatus.QUEUED or _is_retryable(join):
            joins.withdraw_arrivals(db, member)
        if not _is_retryable(join):
            joins.add_members(db, join.id)
            break
        _requeue(db, join, "a member was retried", now=now)
        member = join
    return require_job(db, job_id)


START_NOW = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin
     WHERE id = ? AND status = 'queued' AND next_retry_at IS NOT NULL AND blocked_reason IS DISTINCT FROM ?
"""


def retry_now(db: Db, job_id: str, *, now: datetime, actor: str | None = None) -> Job:
    """Start the next attempt of a queued job now instead of at its retry time.

    Raises WrongState for a job that waits for something else.
    """
    job = require_job(db, job_id)
    if db.execute(START_NOW, (job_id, BREAKER_OPEN)).rowcount == 0:
        raise _not_delayed(job)
    data = {"attempt": job.attempt, "reason": "operator", "was_due": to_text(job.next_retry_at or now)}
    _journal_requeued(db, job, data, actor, now=now)
    return require_job(db, job_id)


IS_DELAYED = """
    SELECT 1 FROM job_queue
     WHERE id = ? AND status = 'queued' AND next_retry_at IS NOT NULL AND blocked_reason IS DISTINCT FROM ?
"""


def require_delayed(db: Db, job: Job) -> None:
    """Raise WrongState for a queued job that does not wait for its retry time."""
    if db.execute(IS_DELAYED, (job.id, BREAKER_OPEN)).fetchone() is None:
        raise _not_delayed(job)


def _not_delayed(job: Job) -> WrongState:
    hint = f"`ductile job why {job.id}` shows what it waits for."
    return WrongState(f"{job.id}: {job.status}, but not waiting for a retry time", hint=hint)


def require_retryable(db: Db, job: Job) -> None:
    """Raise WrongState for a job that an operator cannot retry."""
    if not _is_retryable(job):
        raise WrongState(f"{job.id}: {job.status}", hint=RETRYABLE_HINT)
    if is_control_plugin(job.plugin):
        failed = db.execute(FAILED_MEMBER, (job.id,)).fetchone()
        raise _not_runnable(
            job,
            f"Retry the job that it waited for: `ductile job retry {failed[0]}`" if failed else _rerun_hint(db, job),
        )
    _require_entered(db, job)
    if job.tolerated:
        is_alone = job.join_id is None
        hint = f"Replay it as a new run: `ductile job replay {job.id}`" if is_alone else _rerun_hint(db, job)
        raise WrongState(f"{job.id}: its failure was tolerated and its run has continued", hint=hint)


FAILED_MEMBER = f"""
    SELECT id FROM job_queue {using("job_queue_by_join")}
     WHERE join_id = ? AND status IN ('failed', 'dead') AND tolerated = 0 AND substr(plugin, 1, 5) <> 'core.'
       AND event_context_id IS NOT NULL
     ORDER BY seq LIMIT 1
"""


def require_replayable(db: Db, job: Job) -> None:
    """Raise WrongState for a job that cannot be replayed alone. The hint names what to replay instead."""
    if is_control_plugin(job.plugin):
        raise _not_runnable(job, _rerun_hint(db, job))
    if job.join_id is not None:
        raise WrongState(f"{job.id}: a member of a join cannot be replayed alone", hint=_rerun_hint(db, job))
    _require_entered(db, job)


def _require_entered(db: Db, job: Job) -> None:
    """Raise WrongState for a step without a context: its plugin would run without its `with` values, and the steps
    after it without the baggage of their run."""
    if not was_entered(job):
        raise WrongState(f"{job.id}: its step was not entered ({job.last_error})", hint=_rerun_hint(db, job))


def was_entered(job: Job) -> bool:
    """False for a step that ended before it got a context, such as one with missing baggage."""
    return job.step_id is None or job.event_context_id is not None


def _rerun_hint(db: Db, job: Job) -> str:
    """Return how to run the job again: replay its nearest replayable ancestor, or run its pipeline."""
    ancestor = job
    while ancestor.parent_job_id and (parent := get_job(db, ancestor.parent_job_id)):
        ancestor = parent
        if not is_control_plugin(ancestor.plugin) and ancestor.join_id is None and was_entered(ancestor):
            return f"Replay the job that it follows: `ductile job replay {ancestor.id}`"
    return f"Run its pipeline again: `ductile pipeline run {shlex.quote(ancestor.pipeline or job.pipeline or 'NAME')}`"


def _not_runnable(job: Job, hint: str) -> WrongState:
    return WrongState(f"{job.id}: {job.plugin} is a control step and runs no plugin", hint=hint)


def replay(
    db: Db,
    job_id: str,
    *,
    submitted_by: str,
    actor: str | None = None,
    payload: str | None,
    max_attempts: int,
    snapshot_id: str,
) -> NewJob:
    """Return a copy of the job to enqueue: the root of a new tree that continues as the job's run, without dedupe.

    `payload` replaces the job's own unless it is None. The job may have any status.
    """
    job = require_job(db, job_id)
    require_replayable(db, job)
    return NewJob(
        plugin=job.plugin,
        command=job.command,
        submitted_by=submitted_by,
        actor=actor,
        payload=job.payload if payload is None else payload,
        max_attempts=max_attempts,
        source_event_id=job.source_event_id,
        event_context_id=job.event_context_id,
        pipeline=job.pipeline,
        step_id=job.step_id,
        hops=job.hops,
        notify=job.notify,
        tolerated=job.tolerated,
        replay_of=job.id,
        snapshot_id=snapshot_id,
    )


def _is_retryable(job: Job) -> bool:
    return job.status in (JobStatus.FAILED, JobStatus.DEAD)


RETRY = f"""
    UPDATE job_queue
       SET status = 'queued', lane = CASE WHEN :waits_for = 0 THEN plugin END, waits_for = :waits_for,
           attempt = attempt + 1, max_attempts = {greatest("max_attempts", "attempt + 1 - interruptions")},
           asked_at = :now, started_at = NULL, completed_at = NULL, cancel_requested_at = NULL, cancel_reason = NULL,
           outcome_code = NULL
     WHERE id = :id AND status IN ('failed', 'dead') AND attempt = :attempt
"""


def _requeue(db: Db, job: Job, reason: str, *, now: datetime, actor: str | None = None) -> None:
    waits_for = joins.count_open_members(db, job.id) if job.is_join else 0
    values = {"id": job.id, "attempt": job.attempt, "now": to_text(now), "waits_for": waits_for}
    changed = db.execute(RETRY, values).rowcount
    assert changed == 1, "this transaction has just read the finished job"
    tree_counters.reopen_job(db, job.root_job_id)
    data = {"from": job.status, "to": "queued", "attempt": job.attempt + 1, "reason": reason}
    _journal_requeued(db, job, data, actor, now=now)


def _journal_requeued(db: Db, job: Job, data: dict[str, Any], actor: str | None, *, now: datetime) -> None:
    journal.append(
        db,
        "job.requeued",
        now=now,
        plugin=job.plugin,
        job_id=job.id,
        root_job_id=job.root_job_id,
        data=data,
        actor=actor,
    )


# By status: the index by plugin would lead through the plugin's whole history.
QUEUED_OF_PLUGIN = f"""
    SELECT id, attempt FROM job_queue {using("job_queue_by_status")}
     WHERE status = 'queued' AND plugin = ? ORDER BY seq LIMIT ?
"""


def end_queued_jobs(
    db: Db,
    plugin: str,
    reason: str,
    *,
    now: datetime,
    limit: int = 500,
    rule: FollowRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
) -> list[Recorded]:
    """End up to `limit` queued jobs of a removed plugin as dead. Call again while it returns any.

    `rule` decides the follow-up jobs of each.
    """
    rows = db.execute(QUEUED_OF_PLUGIN, (plugin, limit)).fetchall()
    outcome = Dead(reason, code=OutcomeCode.PLUGIN_UNAVAILABLE)
    ended = [
        end_queued(db, job_id, attempt, outcome, now=now, rule=rule, default_ttl=default_ttl, budget=budget)
        for job_id, attempt in rows
    ]
    return [job for job in ended if job is not None]


MAX_PURGED_AT_ONCE = 200
"""Jobs that one transaction ends, so that other writers do not wait long."""

# By status: the index by plugin would lead through the plugin's whole history. A join ends with its members.
_PURGEABLE = f"""
    FROM job_queue {using("job_queue_by_status")}
   WHERE status = 'queued' AND is_join = 0 AND seq <= :up_to AND (:plugin IS NULL OR plugin = :plugin)
"""
COUNT_PURGEABLE = f"SELECT COUNT(*), COALESCE(MAX(seq), 0) {_PURGEABLE}"
OLDEST_PURGEABLE = f"SELECT id, attempt {_PURGEABLE} ORDER BY seq LIMIT :limit"


@frozen
class Purgeable:
    """The number of jobs that a purge would end, and the highest `seq` among them."""

    count: int
    up_to: int


def count_purgeable(db: Db, plugin: str | None, up_to: int) -> Purgeable:
    """Count the queued jobs with `seq <= up_to` that a purge would end, of one plugin or of all (None)."""
    count, newest = db.execute(COUNT_PURGEABLE, {"plugin": plugin, "up_to": up_to}).fetchone()
    return Purgeable(count, newest)


def purge(
    db: Db,
    plugin: str | None,
    up_to: int,
    reason: str,
    *,
    now: datetime,
    actor: str | None = None,
    limit: int = MAX_PURGED_AT_ONCE,
    rule: FollowRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
) -> list[Recorded]:
    """End the oldest `limit` of them as purged, and journal their number. Call again while it returns any.

    `up_to` is fixed when the purge begins, so that follow-up jobs of purged jobs stay.
    """
    rows = db.execute(OLDEST_PURGEABLE, {"plugin": plugin, "up_to": up_to, "limit": limit}).fetchall()
    why = {"reason": reason, **({"actor": actor} if actor else {})}
    ended = [
        end_queued(
            db,
            job_id,
            attempt,
            Dead(f"cancelled: {reason}", code=OutcomeCode.PURGED, data=why),
            now=now,
            rule=rule,
            default_ttl=default_ttl,
            budget=budget,
        )
        for job_id, attempt in rows
    ]
    purged = [job for job in ended if job is not None]
    if purged:
        data = {"count": len(purged), "reason": reason}
        journal.append(db, "queue.purged", now=now, plugin=plugin or ALL_PLUGINS, data=data, actor=actor)
    return purged


QUEUED_BY_PLUGIN = f"""
    SELECT plugin, COUNT(*) FROM job_queue {using("job_queue_by_status")}
     WHERE status = 'queued' AND substr(plugin, 1, 5) <> 'core.' GROUP BY plugin ORDER BY plugin
"""


def queued_by_plugin(db: Db) -> dict[str, int]:
    """Count the queued jobs of each plugin."""
    return dict(db.execute(QUEUED_BY_PLUGIN))


DELAYED = f"SELECT DISTINCT plugin FROM job_queue {using('job_queue_delayed')} WHERE next_retry_at IS NOT NULL"
WAITING_FOR_KEYS = f"SELECT DISTINCT plugin FROM job_queue {using('job_queue_waiting')} WHERE waits_for_key = 1"


def queued_plugins(db: Db) -> list[str]:
    """List the plugins that have a queued job, in alphabetical order, without `core.*`.

    The cost depends on the jobs that are delayed or wait for a key, not on the ready ones.
    """
    not_ready = {plugin for statement in (DELAYED, WAITING_FOR_KEYS) for (plugin,) in db.execute(statement)}
    return sorted(plugin for plugin in not_ready.union(plugins_with_ready_jobs(db)) if not plugin.startswith(CORE))


IN_LOG = "SELECT 1 FROM job_log WHERE job_id = ? LIMIT 1"


def require_job(db: Db, job_id: str) -> Job:
    """Return the job. Raises WrongState if only the log has it, NotFound if it is unknown."""
    job = get_job(db, job_id)
    if job is not None:
        return job
    if db.execute(IN_LOG, (job_id,)).fetchone():
        raise WrongState(
            f"{job_id}: finished and no longer in the queue",
            hint="Jobs can be acted on for service.job_queue_retention after they finish.",
        )
    raise job_not_found(job_id)
