"""`ductile job`: what became of a job."""

from pathlib import Path
from typing import Any

import click

from ductile.cli import options, output
from ductile.errors import DuctileError


@click.group("job")
def group() -> None:
    """See what became of a job."""


@group.command("inspect")
@click.argument("job_id")
@options.config
@options.as_json
def inspect_job(job_id: str, config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Show one job: its attempts with their output and timings, the jobs it led to, and its journal.

    Works while the service runs and while it does not. A running job shows what it has written to stderr so far.

    Example: ductile job inspect 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    from ductile.cli.connect import ledger_path
    from ductile.ledger import reports
    from ductile.ledger.store import open_reader

    path = ledger_path(options.chosen(config_path, config_dir))
    with open_reader(path) as db:
        report = reports.job(db, job_id)
    shown = _report(report)
    if shown["status"] == "running":
        shown["stderr"] = _live_stderr(path, job_id)
    output.show(shown, as_json=as_json, human=_lines)


def _live_stderr(ledger: Path, job_id: str) -> str | None:
    from ductile.cli.client import Client
    from ductile.web.listen import local_socket_path

    try:
        return Client(local_socket_path(ledger.parent)).ask("GET", f"/job/{job_id}").get("stderr")
    except DuctileError:
        return None  # the service stopped in the meantime; the rest of the report is still true


def _report(report: Any) -> dict[str, Any]:
    from ductile.clock import to_text

    def moment(value: Any) -> str | None:
        return to_text(value) if value else None

    job = report.job
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": str(job.status),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "submitted_by": job.submitted_by,
        "context_id": job.event_context_id,
        "parent_job_id": job.parent_job_id,
        "root_job_id": job.root_job_id,
        "dedupe_key": job.dedupe_key,
        "created_at": moment(job.created_at),
        "started_at": moment(job.started_at),
        "completed_at": moment(job.completed_at),
        "next_retry_at": moment(job.next_retry_at),
        "last_error": job.last_error,
        "blocked_reason": report.blocked_reason,
        "attempts": [_attempt(attempt, moment) for attempt in report.attempts],
        "children": [
            {"job_id": child.id, "plugin": child.plugin, "command": child.command, "status": str(child.status)}
            for child in report.children
        ],
        "journal": [
            {"seq": entry.seq, "at": moment(entry.at), "kind": entry.kind, "data": entry.data}
            for entry in report.journal
        ],
    }


def _attempt(attempt: Any, moment: Any) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "status": str(attempt.status),
        "started_at": moment(attempt.started_at),
        "completed_at": moment(attempt.completed_at),
        "duration_ms": attempt.duration.total_seconds() * 1000 if attempt.duration is not None else None,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error": attempt.last_error,
        "stderr": attempt.stderr,
        "result": attempt.result,
    }


def _lines(shown: dict[str, Any]) -> list[str]:
    lines = [f"{shown['job_id']}  {shown['plugin']}.{shown['command']}  {shown['status'].upper()}"]
    facts = (
        "submitted_by",
        "created_at",
        "started_at",
        "completed_at",
        "next_retry_at",
        "parent_job_id",
        "dedupe_key",
        "last_error",
        "blocked_reason",
    )
    lines += [f"  {name}: {shown[name]}" for name in facts if shown[name]]
    if shown.get("stderr"):
        lines += ["  stderr so far:", *(f"    {line}" for line in shown["stderr"].splitlines())]
    for attempt in shown["attempts"]:
        lines += _attempt_lines(attempt, shown["max_attempts"])
    for child in shown["children"]:
        lines.append(f"  led to {child['job_id']}  {child['plugin']}.{child['command']}  {child['status']}")
    lines.append("  journal:")
    lines += [f"    {entry['at']}  {entry['kind']}  {_brief(entry['data'])}".rstrip() for entry in shown["journal"]]
    return lines


def _attempt_lines(attempt: dict[str, Any], most: int) -> list[str]:
    took = f" in {attempt['duration_ms']:.0f} ms" if attempt["duration_ms"] is not None else ""
    ended = f", exit code {attempt['exit_code']}" if attempt["exit_code"] is not None else ""
    lines = [f"  attempt {attempt['attempt']} of {most}: {attempt['status']}{took}{ended}"]
    lines += [f"    error: {attempt['error']}"] if attempt["error"] else []
    for name in ("result", "stderr"):
        if attempt[name]:
            lines += [f"    {name}: {line}" for line in attempt[name].strip().splitlines()[-10:]]
    return lines


def _brief(data: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in data.items() if name not in ("from", "command"))
