"""How the run that began with a job stands or ended.

A root may have succeeded long before its run failed. `job why` and `job diagnose` report both.
"""

from typing import Any

from ductile.core.model import Job
from ductile.explain.reason import Reason
from ductile.ledger.reports.trees import RunSummary, TreeStatus

MAX_FAILURES = 10


def run_reason(run: RunSummary, *, has_service: bool) -> Reason:
    """Return the state of the run; for a failed one with the first job that failed it."""
    data: dict[str, Any] = {"jobs": run.jobs, "open": run.open_jobs, "failed": len(run.failures)}
    match run.status:
        case TreeStatus.OPEN:
            return Reason("run_open", {**data, "has_service": has_service})
        case TreeStatus.FAILED:
            return Reason("run_failed", {**data, **_failure(run.failures[0])})
    return Reason("run_succeeded", data)


def run_view(run: RunSummary) -> dict[str, Any]:
    """Return the run as JSON members, with the first of the jobs that failed, causes first."""
    return {
        "status": str(run.status),
        "jobs": run.jobs,
        "open": run.open_jobs,
        "failed": len(run.failures),
        "failures": [_failure(job) for job in run.failures[:MAX_FAILURES]],
    }


def _failure(job: Job) -> dict[str, Any]:
    content = {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": str(job.status),
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "error": job.last_error,
    }
    return {name: value for name, value in content.items() if value is not None}


def run_next_commands(run: RunSummary, root: Job, *, has_service: bool, ask_with: str = "why") -> list[str]:
    """Return the commands that continue from the root; none if the run succeeded.

    `ask_with` is the command that explains the failed job: `why` or `diagnose`.
    """
    if run.status is TreeStatus.OPEN:
        return [*([] if has_service else ["ductile system start"]), f"ductile job wait {root.id} --tree"]
    if run.status is TreeStatus.FAILED:
        return [f"ductile job {ask_with} {run.failures[0].id}", f"ductile job tree {root.id}"]
    return []
