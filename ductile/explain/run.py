"""How the run that began with a job stands or ended, in words: what whoever started it wants to know.

A root may have succeeded long before its run failed. `job why` and `job diagnose` tell both.
"""

from typing import Any

from ductile.core.model import Job
from ductile.explain.waiting import Reason
from ductile.ledger.reports.trees import Run, TreeStatus

MOST_TOLD = 10


def run_reason(run: Run, *, has_service: bool) -> Reason:
    """The run in one sentence; of a failed one, by which job. Nothing goes on without a service."""
    match run.status:
        case TreeStatus.OPEN:
            verb = "is" if run.open_jobs == 1 else "are"
            failed = f", {len(run.failures)} failed" if run.failures else ""
            goes = "goes on" if has_service else "goes on when the service runs again"
            return Reason("run_open", f"its run {goes}: {run.open_jobs} of {run.jobs} jobs {verb} not over{failed}")
        case TreeStatus.FAILED:
            first = run.failures[0]
            ended = f"{_what(first)} ended {first.status}: {first.last_error or 'no reason on record'}"
            return Reason("run_failed", f"its run failed: {ended}; {len(run.failures)} of {run.jobs} jobs failed")
    return Reason("run_succeeded", f"its run succeeded: {run.jobs} jobs")


def run_view(run: Run) -> dict[str, Any]:
    """The same as data, with the first of the jobs that failed, causes first."""
    return {
        "status": str(run.status),
        "jobs": run.jobs,
        "open": run.open_jobs,
        "failed": len(run.failures),
        "failures": [_failure(job) for job in run.failures[:MOST_TOLD]],
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


def _what(job: Job) -> str:
    what = f"{job.plugin}.{job.command}"
    return f"step {job.step_id} ({what})" if job.step_id else what


def next_of_run(run: Run, root: Job, *, has_service: bool) -> list[str]:
    """What leads on from the root; nothing where the run needs nobody."""
    if run.status is TreeStatus.OPEN:
        return [*([] if has_service else ["ductile system start"]), f"ductile job wait {root.id} --tree"]
    if run.status is TreeStatus.FAILED:
        return [f"ductile job why {run.failures[0].id}", f"ductile job tree {root.id}"]
    return []
