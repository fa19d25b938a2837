"""How the run that began with a job stands or ended.

A root may have succeeded long before its run failed. `job why` and `job diagnose` report both.
"""

from typing import Annotated, Any, TypedDict

from ductile.core.formats.json_schema import Count, Omittable, without_none
from ductile.core.model import Job, JobStatus
from ductile.explain.reason import Reason
from ductile.ledger.reports.trees import RunSummary, TreeStatus

MAX_FAILURES = 10


class FailedJobView(TypedDict):
    """A job that failed its run."""

    job_id: str
    plugin: str
    command: str
    status: JobStatus
    outcome_code: Omittable[Annotated[str, "Why it ended; `cancelled` and `purged` if an operator ended it"]]
    pipeline: Omittable[str]
    step_id: Omittable[str]
    error: Omittable[str]


class RunStateView(TypedDict):
    """How many jobs of a run exist, are open and have failed."""

    status: TreeStatus
    jobs: Count
    open: Count
    failed: Count


class RunOutcomeView(RunStateView):
    """The state of a run with the jobs that failed it."""

    failures: Annotated[list[FailedJobView], "The first of them, causes first"]


def run_reason(run: RunSummary, *, has_service: bool) -> Reason:
    """Return the state of the run; for a failed one with the first job that failed it."""
    data: dict[str, Any] = {"jobs": run.jobs, "open": run.open_jobs, "failed": len(run.failures)}
    match run.status:
        case TreeStatus.OPEN:
            return Reason("run_open", {**data, "has_service": has_service})
        case TreeStatus.FAILED:
            return Reason("run_failed", {**data, **_failure(run.failures[0])})
    return Reason("run_succeeded", data)


def run_state(run: RunSummary) -> RunStateView:
    """Return the counts of the run."""
    return {"status": run.status, "jobs": run.jobs, "open": run.open_jobs, "failed": len(run.failures)}


def run_failures(run: RunSummary) -> list[FailedJobView]:
    """Return the first of the jobs that failed the run, causes first."""
    return [_failure(job) for job in run.failures[:MAX_FAILURES]]


def _failure(job: Job) -> FailedJobView:
    view: FailedJobView = {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job.status,
        "outcome_code": job.outcome_code,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "error": job.last_error,
    }
    return without_none(view)


def run_next_commands(run: RunSummary, root: Job, *, has_service: bool, ask_with: str = "why") -> list[str]:
    """Return the commands that continue from the root; none if the run succeeded.

    `ask_with` is the command that explains the failed job: `why` or `diagnose`.
    """
    if run.status is TreeStatus.OPEN:
        return [*([] if has_service else ["ductile system start"]), f"ductile job wait {root.id} --tree"]
    if run.status is TreeStatus.FAILED:
        return [f"ductile job {ask_with} {run.failures[0].id}", f"ductile job tree {root.id}"]
    return []
