"""Why a job waits, runs or ended, with the state of the run that began with it and the commands that help.

Takes a report of the ledger and returns a value. Does not format for a terminal.
"""

from pathlib import Path
from typing import Annotated, TypedDict

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.formats.json_schema import Omittable, Ordinal, Timestamp, without_none
from ductile.core.model import AttemptStatus, Job, JobStatus, OutcomeCode, is_control_plugin
from ductile.explain.finished import (
    dropped_follow_ups,
    early_responses,
    events_without_jobs,
    operator_acts,
    orphaned,
    outcome_reason,
    past_waits,
    running,
    with_actor,
    with_limit,
)
from ductile.explain.orphaned import has_service
from ductile.explain.reason import AnyReasonView, Reason
from ductile.explain.runs.state import RunOutcomeView, run_failures, run_next_commands, run_reason, run_state
from ductile.explain.waiting import read_queue_conditions, waiting_reasons
from ductile.ledger.admin.job_actions import was_entered
from ductile.ledger.reports import job_details, trees, wait_reasons
from ductile.ledger.reports.job_details import JobReport, LoggedAttempt
from ductile.ledger.reports.trees import RunSummary
from ductile.ledger.storage.db import Db

NOT_FAILED = (JobStatus.SUCCEEDED, JobStatus.SKIPPED)


class BriefAttemptView(TypedDict):
    """An attempt of an explained job."""

    attempt: Ordinal
    status: AttemptStatus
    completed_at: Timestamp
    exit_code: Omittable[int]
    signal: Omittable[int]
    error: Omittable[str]
    outcome_code: Omittable[Annotated[str, "Why the job ended with this attempt"]]


class JobWhyView(TypedDict):
    """Why a job waits, runs or ended. Texts require the scope jobs:result:ro."""

    job_id: str
    plugin: str
    command: str
    status: JobStatus
    outcome_code: Annotated[str, "Why it ended; `cancelled` and `purged` are no failures"] | None
    attempt: Ordinal
    max_attempts: Ordinal
    words: Omittable[Annotated[str, "The most important reason as a sentence"]]
    reasons: Annotated[list[AnyReasonView], "The most important reason first"]
    attempts: list[BriefAttemptView]
    run: Annotated[RunOutcomeView, "Only for the first job of a run with several jobs"] | None
    next: Annotated[list[str], "Commands that help"]


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

    def as_data(self) -> JobWhyView:
        """Return the JSON view of `ductile job why` and `GET /job/{id}/why`."""
        job = self.report.job
        return {
            "job_id": job.id,
            "plugin": job.plugin,
            "command": job.command,
            "status": job.status,
            "outcome_code": job.outcome_code,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "words": self.words,
            "reasons": [reason.as_data() for reason in self.reasons],
            "attempts": [_attempt_view(attempt) for attempt in self.report.attempts],
            "run": {**run_state(self.run), "failures": run_failures(self.run)} if self.run else None,
            "next": list(self.next_commands),
        }


def job_why(db: Db, ledger: Path, job_id: str) -> JobWhyView:
    """Explain one job as JSON data. Raises NotFound for an unknown id."""
    return explain_job(db, ledger, job_details.job(db, job_id)).as_data()


def explain_job(db: Db, ledger: Path, report: JobReport, *, ask_with: str = "why") -> JobExplanation:
    """Explain the job of `report`. `ask_with` is the command that the next steps name: `why` or `diagnose`."""
    job, is_up = report.job, has_service(ledger)
    found = _job_reasons(db, ledger, report, is_up=is_up)
    commands = _next_commands(job, found[0].code, in_queue=report.in_queue)
    if run := trees.summarize_run(db, job):
        state, has_not_failed = run_reason(run, has_service=is_up), job.status in NOT_FAILED
        found = [state, *found] if has_not_failed and state.code == "run_failed" else [*found, state]
        continued = run_next_commands(run, job, has_service=is_up, ask_with=ask_with) if has_not_failed else []
        commands = continued or commands
    found += [
        *operator_acts(report),
        *early_responses(report),
        *dropped_follow_ups(db, job),
        *events_without_jobs(report),
    ]
    return JobExplanation(report=report, reasons=tuple(found), run=run, next_commands=tuple(commands))


def _job_reasons(db: Db, ledger: Path, report: JobReport, *, is_up: bool) -> list[Reason]:
    if (waiting := wait_reasons.waiting(db, report.job.id)) is not None:
        reasons = waiting_reasons(db, waiting, read_queue_conditions(db, ledger))
        return [with_limit(reason, report) if reason.code == "retry_time" else reason for reason in reasons]
    if report.job.status is JobStatus.RUNNING:
        state = running(report.job) if is_up else orphaned(report.job)
    else:
        state = outcome_reason(report)
    is_cancelled = state.code in (OutcomeCode.CANCELLED, "ending")
    return [with_actor(state, report) if is_cancelled else state, *past_waits(report)]


def _attempt_view(attempt: LoggedAttempt) -> BriefAttemptView:
    view: BriefAttemptView = {
        "attempt": attempt.attempt,
        "status": attempt.status,
        "completed_at": to_text(attempt.completed_at),
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error": attempt.last_error,
        "outcome_code": attempt.outcome_code,
    }
    return without_none(view)


def _next_commands(job: Job, code: str, *, in_queue: bool) -> list[str]:
    """Return the commands that help, the most likely first. A job that has left the queue cannot be run again."""
    fixes = {
        "service_down": ["ductile system start"],
        "service_died": ["ductile system start"],
        "queue_paused": ["ductile queue resume"],
        "paused": [f"ductile plugin resume {job.plugin}"],
        "breaker": [f"ductile system breaker {job.plugin}", f"ductile system reset {job.plugin} {job.command}"],
        "blocked": [f"ductile plugin show {job.plugin}", "ductile system reload"],
        "plugin_changed": ["ductile config check", "ductile config lock --dry-run"],
        "plugin_not_sealed": ["ductile config check"],
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
