"""The signals of ended runs, `run.completed` and `run.failed`: their payload and the hook pipelines they start. Pure.

A run is a tree of jobs. The ledger calls the rule once per ended run, in the transaction that ends its last job.
"""

from datetime import timedelta
from typing import Any

from ductile.core.clock import to_text
from ductile.core.model import EndedRun, FailedJob, FollowUps, Job, JobStatus, Note, RunRule
from ductile.pipeline.run.events import Event, derived_id
from ductile.pipeline.run.route import HOOK, RoutingConfig, start_hooks

COMPLETED, FAILED = "run.completed", "run.failed"
MAX_ERROR_CHARS = 500
"""Of the error of each failed job in the payload."""
NOTIFY = "notify"
"""The submitter of the jobs that send notifications."""


def run_rule_of(routing: RoutingConfig) -> RunRule:
    """Return the rule that signals the end of runs under this configuration."""

    def decide(run: EndedRun) -> FollowUps:
        return signal_run(run, routing)

    return RunRule(decide=decide, on_success=bool(routing.plans.for_hook(COMPLETED)))


def signal_run(run: EndedRun, routing: RoutingConfig) -> FollowUps:
    """Note a failed run and start the hook pipelines of its signals.

    A skipped run has no signals. Hook runs and notifications start no hooks, so that no signal leads to itself.
    """
    root, execution = run.root, routing.new_execution()
    if root.status is JobStatus.SKIPPED or root.submitted_by == NOTIFY:
        return FollowUps()
    payload = run_payload(run)
    signals = (COMPLETED, FAILED) if has_failed(run) else (COMPLETED,)
    if has_failed(run):
        execution.notes.append(Note(kind=FAILED, data=routing.mask(payload)))
    for signal in signals if root.submitted_by != HOOK else ():
        # A run that is retried and ends again is signalled again, with another id.
        event = Event(derived_id(root.id, signal, to_text(run.ended_at)), signal, payload, root.plugin, run.ended_at)
        start_hooks(event, root, 1, routing, execution)
    return execution.follow_ups()


def has_failed(run: EndedRun) -> bool:
    """True if a job failed that was not cancelled."""
    return run.failed > run.cancelled


def status_of(run: EndedRun) -> str:
    if has_failed(run):
        return "failed"
    return "cancelled" if run.cancelled else "succeeded"


def run_payload(run: EndedRun) -> dict[str, Any]:
    """Return the payload of both signals. `message` and `text` are a sentence for display."""
    root, message = run.root, _message(run)
    payload: dict[str, Any] = {
        "job_id": root.id,
        "plugin": root.plugin,
        "command": root.command,
        "status": status_of(run),
        "submitted_by": root.submitted_by,
        "created_at": to_text(root.created_at),
        "ended_at": to_text(run.ended_at),
        "duration_ms": (run.ended_at - root.created_at) // timedelta(milliseconds=1),
        "jobs": run.jobs,
        "failed_jobs": run.failed,
        "failures": [_failure(job) for job in run.failures],
        "title": f"{run_name(root)} {status_of(run)}",
        "message": message,
        "text": message,
    }
    return payload | ({"pipeline": root.pipeline} if root.pipeline is not None else {})


def run_name(root: Job) -> str:
    return f"Pipeline {root.pipeline}" if root.pipeline is not None else f"{root.plugin}.{root.command}"


def _failure(job: FailedJob) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "step_id": job.step_id,
        "status": job.status.value,
        "error": (job.error or "")[:MAX_ERROR_CHARS],
        "outcome_code": job.code,
    }


def _message(run: EndedRun) -> str:
    """Return a sentence such as `Pipeline deploy failed: step build: exit code 1. 2 more jobs failed.`"""
    ended = f"{run_name(run.root)} {'was cancelled' if status_of(run) == 'cancelled' else status_of(run)}"
    if not has_failed(run):
        return f"{ended}."
    first = run.failures[0]
    step = f"step {first.step_id}: " if first.step_id is not None else ""
    error = (first.error or first.status)[:MAX_ERROR_CHARS].rstrip(".")
    more = run.failed - run.cancelled - 1
    others = f" {more} more job{'s' if more > 1 else ''} failed." if more else ""
    return f"{ended}: {step}{error}.{others}"
