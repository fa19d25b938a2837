"""Everything that is known about one job, for whoever has to find out what went wrong: one bundle, without secrets.

Gathered from the ledger alone, so it works offline. What does not fit is cut in `fitting`.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ductile.cli.base.terminal import state
from ductile.cli.job.why import head_line, why_view
from ductile.config.views.show import without_secrets
from ductile.core.clock import to_text
from ductile.core.format_time import exact, told
from ductile.core.formats import strict_json
from ductile.core.formats.stored_json import kept_value
from ductile.core.model import Job, runs_nothing
from ductile.core.secret import Mask
from ductile.explain.changes import change_lines, changes_since
from ductile.ledger.queue.rows import get_job
from ductile.ledger.reports import job_details, wait_reasons
from ductile.ledger.reports.job_details import JobReport, LoggedAttempt
from ductile.ledger.storage.db import Db
from ductile.pipeline.language.baggage import CONTROL

LONGEST_PATTERN = 300
MOST_IDS = 5
MOST_OTHERS = 3
MOST_LINES = 12
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b0x[0-9a-f]+\b|\b[0-9a-f]{12,}\b", re.I
)
_NUMBER = re.compile(r"\d+")
_USED_UP = re.compile(r"^attempts used up \(\d+ of \d+\): ")


def diagnosis(db: Db, path: Path, job_id: str, mask: Mask) -> dict[str, Any]:
    """The whole bundle, however large."""
    report = job_details.job(db, job_id)
    job, last = report.job, report.attempts[-1] if report.attempts else None
    why = why_view(db, path, report)
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": str(job.status),
        **_place(job),
        "why": mask(why["words"]),
        **_run(why["run"], mask),
        "next": _next(job, why),
        "exit": _exit(last),
        "request": _request(get_job(db, job_id), mask),
        "response": without_secrets(kept_value(last.result), mask) if last else None,
        "stderr": mask(last.stderr) if last and last.stderr else None,
        "attempts": [_attempt(one, mask) for one in report.attempts],
        "journal": _journal(report, mask),
        "since_last_success": _since_success(db, job),
        "similar_failures": _similar(wait_reasons.failures_like(db, job), _own_error(job, last), mask),
    }


def _run(run: Mapping[str, Any] | None, mask: Mask) -> dict[str, Any]:
    """How the run that began with the job stands, and apart from it what failed it: that may be long."""
    if run is None:
        return {"run": None, "failures": []}
    return {
        "run": {name: value for name, value in run.items() if name != "failures"},
        "failures": mask.everywhere(run["failures"]),
    }


def _place(job: Job) -> dict[str, Any]:
    """Where it came from and when; what it has of it."""
    content = {
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "submitted_by": job.submitted_by,
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
    """What the plugin was told, but for its configuration; None once the queue has forgotten it."""
    if job is None:
        return None
    context = kept_value(job.context)
    if isinstance(context, dict):
        context = {name: value for name, value in context.items() if name != CONTROL}
    return {"payload": without_secrets(kept_value(job.payload), mask), "context": without_secrets(context, mask)}


def _attempt(one: LoggedAttempt, mask: Mask) -> dict[str, Any]:
    content = {
        "attempt": one.attempt,
        "status": str(one.status),
        "started_at": to_text(one.started_at) if one.started_at else None,
        "completed_at": to_text(one.completed_at),
        "exit_code": one.exit_code,
        "signal": one.signal,
        "error": mask(one.last_error) if one.last_error else None,
    }
    return {name: value for name, value in content.items() if value is not None}


def _journal(report: JobReport, mask: Mask) -> list[dict[str, Any]]:
    return [
        {"at": to_text(entry.at), "kind": entry.kind, "data": mask.everywhere(entry.data)} for entry in report.journal
    ]


def _since_success(db: Db, job: Job) -> dict[str, Any] | None:
    """The last time the same command went well before, and what has changed from then to this job."""
    if runs_nothing(job.plugin):
        return None  # the core's own decisions are no runs of a command that could be compared
    until = job.started_at or job.completed_at or datetime.now(UTC)
    success = wait_reasons.last_success(db, job, until=until)
    if success is None:
        return None
    own = job.started_snapshot_id or job.enqueued_snapshot_id
    changes = changes_since(db, success.snapshot_id, job.plugin, since=success.completed_at, until_id=own)
    return {"job_id": success.job_id, "completed_at": to_text(success.completed_at), "changes": changes}


def _own_error(job: Job, last: LoggedAttempt | None) -> str | None:
    return job.last_error or (last.last_error if last else None)


def normalised(error: str) -> str:
    """The same text for errors that differ only in ids, numbers and blanks."""
    plain = _NUMBER.sub("#", _ID.sub("ID", _USED_UP.sub("", error)))
    return " ".join(plain.split())[:LONGEST_PATTERN]


def _similar(failures: list[LoggedAttempt], error: str | None, mask: Mask) -> dict[str, Any]:
    """How often the same went wrong before, and what else did; among the attempts that one answer looks at."""
    groups: dict[str, list[LoggedAttempt]] = {}
    for one in failures:
        groups.setdefault(normalised(one.last_error or ""), []).append(one)
    same = groups.pop(normalised(error), []) if error else []
    others = sorted(groups.items(), key=lambda group: -len(group[1]))[:MOST_OTHERS]
    return {
        "error": mask(normalised(error)) if error else None,
        "count": len(same),
        "first_at": to_text(same[-1].completed_at) if same else None,
        "last_at": to_text(same[0].completed_at) if same else None,
        "job_ids": list(dict.fromkeys(one.job_id for one in same))[:MOST_IDS],
        "others": [{"error": mask(pattern), "count": len(found)} for pattern, found in others],
    }


def _next(job: Job, why: Mapping[str, Any]) -> list[str]:
    """What `job why` proposes, but for what the reader does already; of what failed its run, the diagnosis at once."""
    commands = [command.replace("ductile job why ", "ductile job diagnose ") for command in why["next"]]
    commands += [f"ductile job tree {job.id}"] if job.pipeline else []
    if not runs_nothing(job.plugin):
        commands.append(f"ductile job logs --plugin {job.plugin} --command {job.command} --status error")
    return [command for command in dict.fromkeys(commands) if command != f"ductile job diagnose {job.id}"]


# ── for people ──────────────────────────────────────────────────────────────────────────────────────────────────────


def lines(shown: Mapping[str, Any]) -> list[str]:
    """The bundle in words."""
    lines = [head_line(shown), f"  {shown['why']}"]
    facts = (
        "submitted_by",
        "pipeline",
        "step_id",
        "schedule_id",
        "replay_of",
    )
    lines += [f"  {name}: {shown[name]}" for name in facts if shown.get(name)]
    moments = ("created_at", "started_at", "completed_at")
    lines += [f"  {name}: {told(shown[name])}" for name in moments if shown.get(name)]
    lines += [f"  {name}: {_few(_text(shown[name]))}" for name in ("exit", "request", "response") if shown.get(name)]
    if shown["stderr"]:
        lines += ["  stderr:", *(f"    {line}" for line in shown["stderr"].splitlines())]
    for one in _items(shown["attempts"]):
        lines.append(f"  attempt {one['attempt']}: {state(one['status'])}  {one.get('error', '')}".rstrip())
    lines += [f"  {exact(entry['at'])}  {entry['kind']}  {_text(entry['data'])}" for entry in _items(shown["journal"])]
    if not runs_nothing(shown["plugin"]):
        lines += _success_lines(shown["since_last_success"])
        lines += _similar_lines(shown["similar_failures"])
    lines += [f"  cut: {name}, {one['kept']} of {one['of']} {one['unit']} shown" for name, one in shown["cut"].items()]
    return [*lines, *(f"  next: {command}" for command in _items(shown["next"]))]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _success_lines(success: Any) -> list[str]:
    if not isinstance(success, dict):
        return [f"  last success: {success or 'none on record'}"]
    head = f"  last success: job {success['job_id']} {told(success['completed_at'])}; changed since:"
    return [head, *(f"    {line}" for line in change_lines(success["changes"]))]


def _similar_lines(similar: Any) -> list[str]:
    if not isinstance(similar, dict):
        return [f"  similar failures: {similar}"]
    if not similar["count"]:
        return ["  similar failures: none on record"]
    when = f"{told(similar['first_at'])} to {told(similar['last_at'])}"
    return [f"  similar failures: {similar['count']}, {when}: {', '.join(similar['job_ids'])}"]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else strict_json.dumps(value)


def _few(text: str) -> str:
    """As many lines as somebody reads."""
    lines = text.splitlines()
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], f"… {more} more lines; --json has them"]) if more > 0 else text
