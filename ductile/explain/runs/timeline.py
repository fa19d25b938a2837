"""One run: its jobs, when each waited and ran, and what each followed from. Reads the ledger alone.

The times of a job are those of its last attempt, so a timeline is made from the log of attempts. The parent of a join
is the job before the split, so what a join waited for is found from its members.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

from ductile.core.clock import to_text
from ductile.core.formats.json_schema import Omittable, Ordinal, Timestamp, without_none
from ductile.core.formats.stored_json import load_stored_object
from ductile.core.model import AttemptStatus, Job, JobStatus
from ductile.explain.orphaned import mark_orphans
from ductile.explain.reason import Reason
from ductile.explain.runs.listing import RunHeadView, run_head
from ductile.ledger.reports.runs import stored_runs
from ductile.ledger.reports.runs.stored_runs import RunAttempt
from ductile.ledger.storage.db import Db
from ductile.pipeline.run.cursor import indexes_in


class RunSpanKind(StrEnum):
    """What a job did in a span of time."""

    WAITING = "waiting"
    RETRY_WAIT = "retry_wait"
    RUNNING = "running"


class SpanView(TypedDict):
    """A time in which a job waited or ran. Without `to` it has not ended."""

    kind: Annotated[RunSpanKind, "retry_wait: between two attempts"]
    at: Annotated[Timestamp, "Its start"]
    to: Omittable[Annotated[Timestamp, "Its end"]]
    attempt: Ordinal
    status: Omittable[Annotated[AttemptStatus, "How the attempt ended"]]
    exit_code: Omittable[int]
    outcome_code: Omittable[Annotated[str, "Why the job ended with the attempt"]]
    until: Omittable[Annotated[Timestamp, "The time of the next attempt"]]


class RunJobView(TypedDict):
    """A job of a run, with the times in which it waited and ran, oldest first."""

    job_id: str
    plugin: str
    command: str
    pipeline: Omittable[str]
    step_id: Omittable[str]
    indexes: Omittable[Annotated[list[int], "Its item of each foreach around it, from 0, outermost first"]]
    status: JobStatus
    outcome_code: Omittable[Annotated[str, "Why it ended"]]
    words: Omittable[Annotated[str, "Why steps did not run: the condition that is false, or the failed jobs of a join"]]
    attempt: Ordinal
    max_attempts: Ordinal
    is_join: Omittable[bool]
    tolerated: Omittable[Annotated[bool, "True if its failure does not fail the run"]]
    created_at: Timestamp
    completed_at: Omittable[Timestamp]
    last_error: Omittable[str]
    spans: list[SpanView]
    orphaned: NotRequired[Annotated[bool, "True if no service runs it"]]


class RunEdgeView(TypedDict):
    """A job follows from another one, or a join waited for it."""

    source: Annotated[str, "Job id"]
    target: Annotated[str, "Job id"]
    kind: Literal["follow_up", "join"]


class RunTimelineView(RunHeadView):
    """A run as a timeline and as a graph."""

    timeline: Annotated[list[RunJobView], "Its jobs, in order of creation"]
    edges: list[RunEdgeView]
    is_complete: Annotated[bool, f"False if only its first {stored_runs.MAX_JOBS} jobs are shown"]


def run_timeline(db: Db, ledger: Path, job_id: str) -> RunTimelineView:
    """Return the run that the job is in as JSON data. Raises NotFound for an unknown id."""
    run = stored_runs.find_run(db, job_id)
    jobs = stored_runs.jobs_of_run(db, run.root.root_job_id)
    attempts: dict[str, list[RunAttempt]] = defaultdict(list)
    for attempt in stored_runs.attempts_of_run(db, run.root.root_job_id):
        attempts[attempt.job_id].append(attempt)
    shown = [_job_view(job, attempts[job.id]) for job in jobs]
    return {
        **run_head(run),
        "timeline": mark_orphans(shown, ledger),
        "edges": list(_edges(jobs)),
        "is_complete": len(jobs) >= run.jobs,
    }


def _job_view(job: Job, attempts: Sequence[RunAttempt]) -> RunJobView:
    view: RunJobView = {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "indexes": list(indexes_in(job.child_key or "")) or None,
        "status": job.status,
        "outcome_code": job.outcome_code,
        "words": _why_not(job, attempts[-1]) if attempts else None,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "is_join": job.is_join or None,
        "tolerated": (job.tolerated and job.status in (JobStatus.FAILED, JobStatus.DEAD)) or None,
        "created_at": to_text(job.created_at),
        "completed_at": to_text(job.completed_at) if job.completed_at else None,
        "last_error": job.last_error,
        "spans": list(_spans(job, attempts)),
    }
    return without_none(view)


def _why_not(job: Job, last: RunAttempt) -> str | None:
    """Return why the step of a switch, or the steps after a join, did not run; None for other jobs."""
    if last.outcome_code not in stored_runs.BYPASSING:
        return None
    return Reason(last.outcome_code, {"step_id": job.step_id, **load_stored_object(last.outcome_data)}).words


# ── times ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _spans(job: Job, attempts: Iterable[RunAttempt]) -> Iterator[SpanView]:
    """Yield when the job waited and ran, from its log of attempts and its current state."""
    since, wait = job.created_at, RunSpanKind.WAITING
    for one in attempts:
        if one.started_at is None:
            yield _span(wait, since, one.completed_at, one.attempt, ended=one)
        else:
            yield _span(wait, since, one.started_at, one.attempt)
            yield _span(RunSpanKind.RUNNING, one.started_at, one.completed_at, one.attempt, ended=one)
        since, wait = one.completed_at, RunSpanKind.RETRY_WAIT
    if job.status is JobStatus.RUNNING and job.started_at:
        yield _span(wait, since, job.started_at, job.attempt)
        yield _span(RunSpanKind.RUNNING, job.started_at, None, job.attempt)
    elif job.status is JobStatus.QUEUED:
        yield _span(wait, since, None, job.attempt, until=job.next_retry_at)


def _span(
    kind: RunSpanKind,
    start: datetime,
    end: datetime | None,
    attempt: int,
    *,
    ended: RunAttempt | None = None,
    until: datetime | None = None,
) -> SpanView:
    view: SpanView = {
        "kind": kind,
        "at": to_text(start),
        "to": to_text(max(start, end)) if end else None,
        "attempt": attempt,
        "status": ended.status if ended else None,
        "exit_code": ended.exit_code if ended else None,
        "outcome_code": ended.outcome_code if ended else None,
        "until": to_text(until) if until else None,
    }
    return without_none(view)


# ── graph ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _edges(jobs: Iterable[Job]) -> Iterator[RunEdgeView]:
    """Yield what each job follows from, and which jobs each join waited for last."""
    known = {job.id: job for job in jobs}
    passed = _passed(known)
    joined = {job.join_id for job in known.values()}
    for job in known.values():
        if job.parent_job_id in known and not (job.is_join and job.id in joined):
            yield {"source": job.parent_job_id or "", "target": job.id, "kind": "follow_up"}
        if job.join_id in known and (job.join_id, job.id) not in passed:
            yield {"source": job.id, "target": job.join_id or "", "kind": "join"}


def _passed(known: Mapping[str, Job]) -> set[tuple[str, str]]:
    """Return (join, job) for each job of a branch that another job of the same branch follows."""
    passed: set[tuple[str, str]] = set()
    for job in known.values():
        parent = known.get(job.parent_job_id or "")
        # A switch between two steps of a branch is not a member, so the way up does not end at it.
        while job.join_id and parent is not None and (job.join_id, parent.id) not in passed:
            passed.add((job.join_id, parent.id))
            parent = known.get(parent.parent_job_id or "")
    return passed
