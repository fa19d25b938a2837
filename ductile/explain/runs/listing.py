"""A page of runs: each with its state, its times and the states of its steps. Reads the ledger alone."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

from ductile.core.clock import to_text, to_text_or_none
from ductile.core.formats.json_schema import Count, Keywords, Omittable, Timestamp, without_none
from ductile.core.model import Job, JobStatus
from ductile.explain.orphaned import mark_orphans
from ductile.ledger.reports.filters import MAX_PAGE_SIZE, PageFields, page_fields
from ductile.ledger.reports.pagination import NEWEST, ListFilter
from ductile.ledger.reports.runs import stored_runs
from ductile.ledger.reports.runs.stored_runs import Run
from ductile.ledger.reports.trees import TreeStatus
from ductile.ledger.storage.db import Db
from ductile.pipeline.draw import combined_status

MAX_JOBS_COMBINED = 200
"""The first jobs of a run, which its list of steps covers."""
_MILLISECOND = timedelta(milliseconds=1)


class RunStepView(TypedDict):
    """A step of a run, or a job outside pipelines. The first of queued, running, failed … that any job has."""

    plugin: str
    command: str
    pipeline: Omittable[str]
    step_id: Omittable[str]
    status: JobStatus
    outcome_code: Omittable[Annotated[str, "Why its jobs with that status ended, if it is the same for all"]]
    jobs: Count
    tolerated: Omittable[Annotated[bool, "True if it failed and the failure does not fail the run"]]
    duration_ms: Omittable[Annotated[Count, "The sum over its ended jobs"]]
    orphaned: NotRequired[Annotated[bool, "True if no service runs its job"]]


class RunHeadView(TypedDict):
    """A run: the tree of one root job."""

    run_id: Annotated[str, "The id of its first job"]
    status: TreeStatus
    plugin: Annotated[str, "Plugin of its first job"]
    command: Annotated[str, "Command of its first job"]
    pipeline: Omittable[Annotated[str, "Pipeline of its first job"]]
    submitted_by: str
    schedule_id: Omittable[str]
    slot_at: Omittable[Timestamp]
    parent_job_id: Omittable[Annotated[str, "Only for a run of a hook: the job that it reacts to"]]
    replay_of: Omittable[Annotated[str, "The job that its first job repeats"]]
    created_at: Timestamp
    started_at: Omittable[Annotated[Timestamp, "The start of the first attempt of its first job"]]
    completed_at: Omittable[Annotated[Timestamp, "The end of its last job"]]
    waited_ms: Omittable[Annotated[Count, "From created_at to started_at"]]
    duration_ms: Omittable[Annotated[Count, "From created_at to completed_at"]]
    jobs: Count
    open: Annotated[Count, "Jobs that have not ended"]


class ListedRunView(RunHeadView):
    """A run with its steps."""

    steps: Annotated[list[RunStepView], f"In order of creation; of the first {MAX_JOBS_COMBINED} jobs"]


class RunPageView(PageFields):
    runs: Annotated[list[ListedRunView], Keywords(maxItems=MAX_PAGE_SIZE)]


def run_page(db: Db, ledger: Path, wanted: ListFilter, *, before: int = NEWEST, limit: int = 50) -> RunPageView:
    """Return a page of the matching runs as JSON data, newest first."""
    page = stored_runs.list_runs(db, wanted, before=before, limit=limit)
    return {"runs": [_listed_run(db, ledger, run) for run in page.items], **page_fields(page, limit)}


def run_head(run: Run) -> RunHeadView:
    """Return the run without its steps."""
    root = run.root
    view: RunHeadView = {
        "run_id": root.root_job_id,
        "status": run.status,
        "plugin": root.plugin,
        "command": root.command,
        "pipeline": root.pipeline,
        "submitted_by": root.submitted_by,
        "schedule_id": root.schedule_id,
        "slot_at": to_text_or_none(root.slot_at),
        "parent_job_id": root.parent_job_id if root.is_root else None,
        "replay_of": root.replay_of,
        "created_at": to_text(root.created_at),
        "started_at": to_text_or_none(run.started_at),
        "completed_at": to_text_or_none(run.completed_at),
        "waited_ms": _milliseconds_between(root.created_at, run.started_at),
        "duration_ms": _milliseconds_between(root.created_at, run.completed_at),
        "jobs": run.jobs,
        "open": run.open_jobs,
    }
    return without_none(view)


def _listed_run(db: Db, ledger: Path, run: Run) -> ListedRunView:
    jobs = stored_runs.jobs_of_run(db, run.root.id, limit=MAX_JOBS_COMBINED) if run.jobs > 1 else [run.root]
    return {**run_head(run), "steps": mark_orphans(list(_steps(jobs)), ledger)}


def _steps(jobs: Iterable[Job]) -> Iterable[RunStepView]:
    """Yield the steps in the order in which their first jobs were created."""
    by_step: dict[tuple[str | None, ...], list[Job]] = {}
    for job in jobs:
        by_step.setdefault((job.pipeline, job.step_id, job.plugin, job.command), []).append(job)
    for members in by_step.values():
        combined, first = combined_status(members), members[0]
        view: RunStepView = {
            "plugin": first.plugin,
            "command": first.command,
            "pipeline": first.pipeline,
            "step_id": first.step_id,
            "status": combined.status,
            "outcome_code": combined.outcome_code,
            "jobs": combined.jobs,
            "tolerated": combined.tolerated or None,
            "duration_ms": None if combined.duration is None else max(0, combined.duration // _MILLISECOND),
        }
        yield without_none(view)


def _milliseconds_between(since: datetime, until: datetime | None) -> int | None:
    """Return the milliseconds; 0 if the clock was set back in between."""
    return None if until is None else max(0, (until - since) // _MILLISECOND)
