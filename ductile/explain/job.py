"""Why a job waits, runs or ended, with the state of the run that began with it and the commands that help.

Takes a report of the ledger and returns a value. Does not format for a terminal.
"""

from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.model import Job, JobStatus, OutcomeCode, is_control_plugin
from ductile.explain.finished import orphaned, outcome_reason, running
from ductile.explain.orphaned import has_service
from ductile.explain.reason import Reason
from ductile.explain.run import run_next_commands, run_reason, run_view
from ductile.explain.waiting import read_queue_conditions, waiting_reasons
from ductile.ledger.admin.job_actions import was_entered
from ductile.ledger.reports import trees, wait_reasons
from ductile.ledger.reports.job_details import JobReport, LoggedAttempt
from ductile.ledger.reports.trees import RunSummary
from ductile.ledger.storage.db import Db

ENDED_WELL = (JobStatus.SUCCEEDED, JobStatus.SKIPPED)


@frozen(kw_only=True)
class JobExplanation:
    """Why one job is as it is; the first reason is the most important one."""

    report: JobReport
    reasons: tuple[Reason, ...]
    run: RunSummary | None
    next_commands: tuple[str, ...]

    @property
    def words(self) -> str:
        return self.reasons[0].words

    def as_data(self) -> dict[str, Any]:
        """Return the JSON view of `ductile job why`."""
        job = self.report.job
        return {
            "job_id": job.id,
            "plugin": job.plugin,
            "command": job.command,
            "status": str(job.status),
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "words": self.words,
            "reasons": [reason.as_data() for reason in self.reasons],
            "attempts": [_attempt_view(attempt) for attempt in self.report.attempts],
            "run": run_view(self.run) if self.run else None,
            "next": list(self.next_commands),
        }


def explain_job(db: Db, ledger: Path, report: JobReport, *, ask_with: str = "why") -> JobExplanation:
    """Explain the job of `report`. `ask_with` is the command that the next steps name: `why` or `diagnose`."""
    job, is_up = report.job, has_service(ledger)
    found = _job_reasons(db, ledger, report, is_up=is_up)
    commands = _next_commands(job, found[0].code, in_queue=report.in_queue)
    if run := trees.summarize_run(db, job):
        state, ended_well = run_reason(run, has_service=is_up), job.status in ENDED_WELL
        found = [state, *found] if ended_well and state.code == "run_failed" else [*found, state]
        continued = run_next_commands(run, job, has_service=is_up, ask_with=ask_with) if ended_well else []
        commands = continued or commands
    return JobExplanation(report=report, reasons=tuple(found), run=run, next_commands=tuple(commands))


def _job_reasons(db: Db, ledger: Path, report: JobReport, *, is_up: bool) -> list[Reason]:
    if (waiting := wait_reasons.waiting(db, report.job.id)) is not None:
        return waiting_reasons(db, waiting, read_queue_conditions(db, ledger))
    if report.job.status is JobStatus.RUNNING:
        return [running(report.job) if is_up else orphaned(report.job)]
    return [outcome_reason(report)]


def _attempt_view(attempt: LoggedAttempt) -> dict[str, Any]:
    content = {
        "attempt": attempt.attempt,
        "status": str(attempt.status),
        "completed_at": to_text(attempt.completed_at),
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error": attempt.last_error,
        "outcome_code": attempt.outcome_code,
    }
    return {name: value for name, value in content.items() if value is not None}


def _next_commands(job: Job, code: str, *, in_queue: bool) -> list[str]:
    """Return the commands that help, the most likely first. A job that has left the queue cannot be run again."""
    fixes = {
        "service_down": ["ductile system start"],
        "service_died": ["ductile system start"],
        "queue_paused": ["ductile queue resume"],
        "paused": [f"ductile plugin resume {job.plugin}"],
        "breaker": [f"ductile system breaker {job.plugin}", f"ductile system reset {job.plugin} {job.command}"],
        "blocked": [f"ductile plugin show {job.plugin}", "ductile system reload"],
        "unhealthy": [f"ductile plugin show {job.plugin}", "ductile system reload"],
        "join": [f"ductile job tree {job.id}"],
        OutcomeCode.EXIT_78: [f"ductile config show plugin:{job.plugin}"],
        OutcomeCode.NOT_JOINED: [f"ductile job tree {job.id}"],
        OutcomeCode.PLUGIN_UNAVAILABLE: ["ductile plugin list", "ductile system reload"],
    }
    failed = [f"ductile job diagnose {job.id}", *(_run_again_commands(job) if in_queue else [])]
    by_status = {
        JobStatus.QUEUED: [f"ductile job wait {job.id}"],
        JobStatus.RUNNING: [f"ductile job tail {job.id}"],
        JobStatus.FAILED: failed,
        JobStatus.DEAD: failed,
    }
    usual = [] if is_control_plugin(job.plugin) or code == "service_died" else by_status.get(job.status, [])
    return [*fixes.get(code, []), *usual] or [f"ductile job inspect {job.id}"]


def _run_again_commands(job: Job) -> list[str]:
    """Return the command that runs the job once more, if one does."""
    # A run that continued without the job does not wait for it again; a copy of it would be joined with nothing.
    if not was_entered(job) or (job.tolerated and job.join_id is not None):
        return []
    return [f"ductile job {'replay' if job.tolerated else 'retry'} {job.id}"]
