"""What an operator does to a job by hand: cancel it, or have a finished one tried again.

Also ends the queued jobs of a plugin that was removed. Called by the web and by offline commands.
"""

import shlex
from datetime import datetime, timedelta

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.errors import WrongState
from ductile.core.model import CORE, Budget, Dead, FollowRule, Job, JobStatus, NewJob, runs_nothing
from ductile.ledger.completion.record import Recorded, end_queued
from ductile.ledger.queue import joins, tree_counters
from ductile.ledger.queue.dedupe import DEFAULT_TTL
from ductile.ledger.queue.lanes import lanes_with_work
from ductile.ledger.queue.rows import get_job, no_such_job
from ductile.ledger.queue.tree_counters import ORDINARY
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import greatest, using
from ductile.ledger.tables import journal

ENDED_BADLY = "only jobs that ended failed or dead can be tried again"


@frozen
class CancelRequested:
    """The job runs; whoever runs it ends its process and records it as dead."""

    job_id: str
    attempt: int


def cancel(
    db: Db,
    job_id: str,
    reason: str,
    *,
    now: datetime,
    rule: FollowRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
) -> Recorded | CancelRequested:
    """A waiting job is dead, and what `rule` says follows from it; a running one will be dead.

    The members of a join that is dead go on, but nothing follows from it.
    """
    job = known_job(db, job_id)
    if job.status is JobStatus.QUEUED:
        outcome = Dead(f"cancelled: {reason}")
        ended = end_queued(db, job.id, job.attempt, outcome, now=now, rule=rule, default_ttl=default_ttl, budget=budget)
        assert ended is not None, "the job was queued a moment ago in this transaction"
        return ended
    if job.status is JobStatus.RUNNING:
        return _request_cancel(db, job, reason, now=now)
    raise WrongState(f"{job_id}: already {job.status}", hint="only queued and running jobs can be cancelled")


REQUEST_CANCEL = """
    UPDATE job_queue SET cancel_requested_at = ?, cancel_reason = ?
     WHERE id = ? AND status = 'running' AND attempt = ? AND cancel_requested_at IS NULL
"""


def _request_cancel(db: Db, job: Job, reason: str, *, now: datetime) -> CancelRequested:
    if db.execute(REQUEST_CANCEL, (to_text(now), reason, job.id, job.attempt)).rowcount == 1:
        journal.append(
            db,
            "job.cancel_requested",
            now=now,
            plugin=job.plugin,
            job_id=job.id,
            root_job_id=job.root_job_id,
            data={"attempt": job.attempt, "reason": reason},
        )
    return CancelRequested(job.id, job.attempt)


def retry(db: Db, job_id: str, *, now: datetime) -> Job:
    """A job that ended failed or dead is queued again, with one attempt more than it has used if need be.

    So is every join around it that ended failed or dead; it waits for its members again and keeps what others brought.
    """
    job = known_job(db, job_id)
    if not _ended_badly(job):
        raise WrongState(f"{job_id}: {job.status}", hint=ENDED_BADLY)
    _queue_again(db, job, "operator", now=now)
    member = job
    while member.join_id and (join := get_job(db, member.join_id)):
        if join.status is JobStatus.QUEUED or _ended_badly(join):
            joins.withdraw_arrivals(db, member)
        if not _ended_badly(join):
            joins.count_in(db, join.id)
            break
        _queue_again(db, join, "a member is tried again", now=now)
        member = join
    return known_job(db, job_id)


def require_retryable(db: Db, job: Job) -> None:
    """Raises WrongState for a job that nobody should try again by hand."""
    if not _ended_badly(job):
        raise WrongState(f"{job.id}: {job.status}", hint=ENDED_BADLY)
    if runs_nothing(job.plugin):
        failed = db.execute(FAILED_MEMBER, (job.id,)).fetchone()
        raise _decides(
            job,
            f"retry the one it waited for: `ductile job retry {failed[0]}`" if failed else _way_to_run_again(db, job),
        )
    _require_entered(db, job)
    if job.tolerated:
        is_alone = job.join_id is None
        hint = (
            f"replay it as a run of its own: `ductile job replay {job.id}`" if is_alone else _way_to_run_again(db, job)
        )
        raise WrongState(f"{job.id}: its run has gone on without it", hint=hint)


FAILED_MEMBER = f"""
    SELECT id FROM job_queue {using("job_queue_by_join")}
     WHERE join_id = ? AND status IN ('failed', 'dead') AND tolerated = 0 AND substr(plugin, 1, 5) <> 'core.'
       AND event_context_id IS NOT NULL
     ORDER BY seq LIMIT 1
"""


def require_replayable(db: Db, job: Job) -> None:
    """Raises WrongState for a job that cannot be run once more by itself, with the way to what can."""
    if runs_nothing(job.plugin):
        raise _decides(job, _way_to_run_again(db, job))
    if job.join_id is not None:
        raise WrongState(f"{job.id}: one of several that are joined", hint=_way_to_run_again(db, job))
    _require_entered(db, job)


def _require_entered(db: Db, job: Job) -> None:
    """Raises WrongState for a step of which nobody knows what its plugin is to be told: it would run without its
    `with`, and everything behind it without the context of its run."""
    if not was_entered(job):
        raise WrongState(f"{job.id}: its step could not be entered ({job.last_error})", hint=_way_to_run_again(db, job))


def was_entered(job: Job) -> bool:
    """False for a step that was refused before it had a context, such as one whose claims could not be met."""
    return job.step_id is None or job.event_context_id is not None


def _way_to_run_again(db: Db, job: Job) -> str:
    """What leads to the job once more: the nearest one above it that can be replayed, else its pipeline."""
    above = job
    while above.parent_job_id and (parent := get_job(db, above.parent_job_id)):
        above = parent
        if not runs_nothing(above.plugin) and above.join_id is None and was_entered(above):
            return f"replay the job that led to it: `ductile job replay {above.id}`"
    return f"run its pipeline again: `ductile pipeline run {shlex.quote(above.pipeline or job.pipeline or 'NAME')}`"


def _decides(job: Job, hint: str) -> WrongState:
    return WrongState(f"{job.id}: {job.plugin} decides, it does not run anything", hint=hint)


def replay(db: Db, job_id: str, *, submitted_by: str, payload: str | None, snapshot_id: str) -> NewJob:
    """What a copy of the job is asked for: a tree of its own that goes on as the job's run would, outside of dedupe.

    `payload` stands in for the job's own; None keeps that. The job may be in any state.
    """
    job = known_job(db, job_id)
    require_replayable(db, job)
    return NewJob(
        plugin=job.plugin,
        command=job.command,
        submitted_by=submitted_by,
        payload=job.payload if payload is None else payload,
        max_attempts=job.max_attempts,
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


def _ended_badly(job: Job) -> bool:
    return job.status in (JobStatus.FAILED, JobStatus.DEAD)


RETRY = f"""
    UPDATE job_queue
       SET status = 'queued', lane = CASE WHEN :waits_for = 0 THEN plugin END, waits_for = :waits_for,
           attempt = attempt + 1, max_attempts = {greatest("max_attempts", "attempt + 1 - interruptions")},
           asked_at = :now, started_at = NULL, completed_at = NULL, cancel_requested_at = NULL, cancel_reason = NULL
     WHERE id = :id AND status IN ('failed', 'dead') AND attempt = :attempt
"""


def _queue_again(db: Db, job: Job, reason: str, *, now: datetime) -> None:
    waits_for = joins.open_members(db, job.id) if job.is_join else 0
    values = {"id": job.id, "attempt": job.attempt, "now": to_text(now), "waits_for": waits_for}
    changed = db.execute(RETRY, values).rowcount
    assert changed == 1, "the job was final a moment ago in this transaction"
    tree_counters.reopen_one(db, job.root_job_id)
    data = {"from": job.status, "to": "queued", "attempt": job.attempt + 1, "reason": reason}
    journal.append(
        db, "job.requeued", now=now, plugin=job.plugin, job_id=job.id, root_job_id=job.root_job_id, data=data
    )


# By status: the index by plugin would lead through the plugin's whole history.
QUEUED_OF_PLUGIN = f"""
    SELECT id, attempt FROM job_queue {using("job_queue_by_status")}
     WHERE status = 'queued' AND plugin = ? ORDER BY seq LIMIT ?
"""


def end_queued_jobs_of(
    db: Db,
    plugin: str,
    reason: str,
    *,
    now: datetime,
    limit: int = 500,
    rule: FollowRule | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
) -> list[Recorded]:
    """Up to `limit` waiting jobs of a plugin that is gone are dead; call again while it returns any.

    `rule` says what follows from each.
    """
    rows = db.execute(QUEUED_OF_PLUGIN, (plugin, limit)).fetchall()
    ended = [
        end_queued(db, job_id, attempt, Dead(reason), now=now, rule=rule, default_ttl=default_ttl, budget=budget)
        for job_id, attempt in rows
    ]
    return [one for one in ended if one is not None]


QUEUED_BY_PLUGIN = f"""
    SELECT plugin, COUNT(*) FROM job_queue {using("job_queue_by_status")}
     WHERE status = 'queued' AND substr(plugin, 1, 5) <> 'core.' GROUP BY plugin ORDER BY plugin
"""


def queued_by_plugin(db: Db) -> dict[str, int]:
    """How many jobs of each plugin wait."""
    return dict(db.execute(QUEUED_BY_PLUGIN))


DELAYED = f"SELECT DISTINCT plugin FROM job_queue {using('job_queue_delayed')} WHERE next_retry_at IS NOT NULL"
WAITING_FOR_KEYS = f"SELECT DISTINCT plugin FROM job_queue {using('job_queue_waiting')} WHERE waits_for_key = 1"


def queued_plugins(db: Db) -> list[str]:
    """The plugins that have a waiting job, in alphabetical order; proportional to what is delayed or waits for a key,
    not to a backlog in the lanes.

    What the core does itself (`core.*`) is no plugin that could be gone.
    """
    apart = {plugin for statement in (DELAYED, WAITING_FOR_KEYS) for (plugin,) in db.execute(statement)}
    return sorted(plugin for plugin in apart.union(lanes_with_work(db)) if not plugin.startswith(CORE))


IN_LOG = "SELECT 1 FROM job_log WHERE job_id = ? LIMIT 1"


def known_job(db: Db, job_id: str) -> Job:
    """The job; WrongState if only its log is left, NotFound if there never was one."""
    job = get_job(db, job_id)
    if job is not None:
        return job
    if db.execute(IN_LOG, (job_id,)).fetchone():
        raise WrongState(
            f"{job_id}: over, and no longer in the queue",
            hint="what it was asked for is kept for service.job_queue_retention",
        )
    raise no_such_job(job_id)
