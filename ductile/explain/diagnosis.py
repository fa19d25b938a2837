"""Everything the ledger has about one job, as one bundle without secrets.

Reads the ledger alone, so it works without a service. Does not cut: the caller limits the size.
"""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

from ductile.config.load.redaction import redact
from ductile.core.clock import to_text
from ductile.core.formats.json_schema import Omittable, Ordinal, Timestamp
from ductile.core.formats.stored_json import load_stored
from ductile.core.model import Job, JobStatus, is_control_plugin
from ductile.core.secret import Mask
from ductile.explain.changes import RunConditions, changes_since, conditions_now
from ductile.explain.finished import own_error
from ductile.explain.job import explain_job
from ductile.explain.runs.state import RunStateView, run_failures, run_state
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.reports import job_details, wait_reasons
from ductile.ledger.reports.job_details import JobReport, LoggedAttempt
from ductile.ledger.reports.trees import RunSummary
from ductile.ledger.storage.db import Db
from ductile.pipeline.language.baggage import CONTROL

MAX_PATTERN_CHARS = 300
MAX_JOB_IDS = 5
MAX_OTHER_ERRORS = 3


class CutView(TypedDict):
    """How much of a member is left."""

    kept: int
    of: int
    unit: Annotated[str, "items or characters"]


class DiagnosisView(TypedDict):
    """Everything the ledger has about one job. A member that was cut can be a text."""

    job_id: str
    plugin: str
    command: str
    status: JobStatus
    outcome_code: Omittable[Annotated[str, "Why it ended; `cancelled` and `purged` are no failures"]]
    attempt: Ordinal
    max_attempts: Ordinal
    submitted_by: str
    actor: Omittable[Annotated[str, "Who caused its run"]]
    pipeline: Omittable[str]
    step_id: Omittable[str]
    schedule_id: Omittable[str]
    parent_job_id: Omittable[str]
    root_job_id: Omittable[Annotated[str, "Only for a job that is not the first of its run"]]
    replay_of: Omittable[str]
    created_at: Timestamp
    started_at: Omittable[Timestamp]
    completed_at: Omittable[Timestamp]
    why: str
    code: Annotated[str, "Code of the most important reason"]
    run: Annotated[RunStateView, "Only for the first job of a run with several jobs"] | None
    failures: Annotated[Any, "The jobs that failed the run, causes first"]
    next: Annotated[Any, "Commands that help"]
    exit: Annotated[dict[str, Any], "Status, exit code, signal and duration of the last attempt"] | None
    request: Annotated[Any, "Payload and context; null after the job has left the queue"]
    response: Annotated[Any, "The response of the last attempt"]
    stderr: str | None
    attempts: Annotated[Any, "Every recorded attempt"]
    journal: Annotated[Any, "The journal rows of the job, oldest first"]
    since_last_success: Annotated[Any, "What changed since the same command succeeded; requires system:ro"]
    similar_failures: Annotated[Any, "How often the same error occurred, and the most frequent other errors"]
    cut: Annotated[dict[str, CutView], "The members that were cut to fit max_bytes"]


_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b0x[0-9a-f]+\b|\b[0-9a-f]{12,}\b", re.I
)
_NUMBER = re.compile(r"\d+")


def diagnose_job(db: Db, ledger: Path, job_id: str, mask: Mask) -> dict[str, Any]:
    """Return the bundle of one job. Raises NotFound for an unknown id."""
    report = job_details.job(db, job_id)
    job, last = report.job, report.attempts[-1] if report.attempts else None
    why = explain_job(db, ledger, report, ask_with="diagnose")
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": str(job.status),
        **_origin(job),
        "why": mask(why.words),
        "code": why.reasons[0].code,
        **_run(why.run, mask),
        "next": _next_commands(job, why.next_commands),
        "exit": _exit(last),
        "request": _request(get_job(db, job_id), mask),
        "response": redact(load_stored(last.result), mask) if last else None,
        "stderr": mask(last.stderr) if last and last.stderr else None,
        "attempts": [_attempt(attempt, mask) for attempt in report.attempts],
        "journal": _journal(report, mask),
        "since_last_success": _since_success(db, job, last),
        "similar_failures": _similar(wait_reasons.failures_like(db, job), _error(job, last), mask),
    }


def _run(run: RunSummary | None, mask: Mask) -> dict[str, Any]:
    """Return the state of the run and, as a member of its own because it may be long, what failed it."""
    if run is None:
        return {"run": None, "failures": []}
    return {"run": run_state(run), "failures": mask.mask_data(run_failures(run))}


def _origin(job: Job) -> dict[str, Any]:
    content = {
        "outcome_code": job.outcome_code,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "submitted_by": job.submitted_by,
        "actor": job.actor,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "schedule_id": job.schedule_id,
        "parent_job_id": job.parent_job_id,
        "root_job_id": job.root_job_id if job.root_job_id != job.id else None,
        "replay_of": job.replay_of,
        "created_at": to_text(job.created_at),
        "started_at": to_text(job.started_at) if job.started_at else None,
        "completed_at": to_text(job.completed_at) if job.completed_at else None,
    }
    return {name: value for name, value in content.items() if value is not None}


def _exit(last: LoggedAttempt | None) -> dict[str, Any] | None:
    if last is None:
        return None
    took = last.duration.total_seconds() * 1000 if last.duration is not None else None
    return {"status": str(last.status), "exit_code": last.exit_code, "signal": last.signal, "duration_ms": took}


def _request(job: Job | None, mask: Mask) -> dict[str, Any] | None:
    """Return the request without the configuration; None after the job has left the queue."""
    if job is None:
        return None
    context = load_stored(job.context)
    if isinstance(context, dict):
        context = {name: value for name, value in context.items() if name != CONTROL}
    return {"payload": redact(load_stored(job.payload), mask), "context": redact(context, mask)}


def _attempt(attempt: LoggedAttempt, mask: Mask) -> dict[str, Any]:
    content = {
        "attempt": attempt.attempt,
        "status": str(attempt.status),
        "started_at": to_text(attempt.started_at) if attempt.started_at else None,
        "completed_at": to_text(attempt.completed_at),
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error": mask(attempt.last_error) if attempt.last_error else None,
        "outcome_code": attempt.outcome_code,
    }
    return {name: value for name, value in content.items() if value is not None}


def _journal(report: JobReport, mask: Mask) -> list[dict[str, Any]]:
    return [
        {
            "at": to_text(entry.at),
            "kind": entry.kind,
            **({"actor": entry.actor} if entry.actor else {}),
            "data": mask.mask_data(entry.data),
        }
        for entry in report.journal
    ]


def _since_success(db: Db, job: Job, last: LoggedAttempt | None) -> dict[str, Any] | None:
    """Return the previous success of the same command, and what changed from then to this job.

    A job without a recorded attempt is compared with the files on disk.
    """
    if is_control_plugin(job.plugin):
        return None  # decisions of the core are no runs of a command that could be compared
    until = job.started_at or job.completed_at or datetime.now(UTC)
    success = wait_reasons.last_success(db, job, until=until)
    if success is None:
        return None
    before = RunConditions.of(success.snapshot_id, success.plugin_changes)
    snapshot_id = job.started_snapshot_id or job.enqueued_snapshot_id
    # Without a recorded attempt, the files on disk are those that run or keep the job from starting.
    own = RunConditions.of(snapshot_id, last.plugin_changes) if last else conditions_now(db, job.plugin)
    changes = changes_since(db, before, job.plugin, since=success.completed_at, until=own)
    return {"job_id": success.job_id, "completed_at": to_text(success.completed_at), "changes": changes}


def _error(job: Job, last: LoggedAttempt | None) -> str | None:
    if last is not None and last.outcome_code is not None:
        return own_error(last)
    return job.last_error or (last.last_error if last else None)


def error_pattern(error: str) -> str:
    """Return the same text for errors of plugins that differ only in ids, numbers and whitespace."""
    plain = _NUMBER.sub("#", _ID.sub("ID", error))
    return " ".join(plain.split())[:MAX_PATTERN_CHARS]


def _similar(failures: list[LoggedAttempt], error: str | None, mask: Mask) -> dict[str, Any]:
    """Count the failures with the same error pattern, and the most frequent other patterns."""
    groups: dict[str, list[LoggedAttempt]] = {}
    for attempt in failures:
        groups.setdefault(error_pattern(own_error(attempt) or ""), []).append(attempt)
    same = groups.pop(error_pattern(error), []) if error else []
    others = sorted(groups.items(), key=lambda group: -len(group[1]))[:MAX_OTHER_ERRORS]
    return {
        "error": mask(error_pattern(error)) if error else None,
        "count": len(same),
        "first_at": to_text(same[-1].completed_at) if same else None,
        "last_at": to_text(same[0].completed_at) if same else None,
        "job_ids": list(dict.fromkeys(attempt.job_id for attempt in same))[:MAX_JOB_IDS],
        "others": [{"error": mask(pattern), "count": len(found)} for pattern, found in others],
    }


def _next_commands(job: Job, commands: tuple[str, ...]) -> list[str]:
    """Return the commands of `job why` without the diagnosis itself, and those that look further."""
    found = [*commands, *([f"ductile job tree {job.id}"] if job.pipeline else [])]
    if not is_control_plugin(job.plugin):
        found.append(f"ductile job logs --plugin {job.plugin} --command {job.command} --status error")
    return [command for command in dict.fromkeys(found) if command != f"ductile job diagnose {job.id}"]
