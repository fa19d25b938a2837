"""`ductile job why` and `ductile job diagnose`: one answer in words, and everything that is known in one bundle."""

from typing import Any

import click

from ductile.cli import options, output
from ductile.cli.terminal import state

SMALLEST, USUAL = 4_000, 64 << 10
PARTS = (
    "request",
    "response",
    "stderr",
    "attempts",
    "journal",
    "since_last_success",
    "similar_failures",
    "why",
    "next",
)
"""What of a diagnosis can be cut."""


@click.command("why")
@click.argument("job_id")
@options.config
@options.as_json
def why(job_id: str, as_json: bool, **where: Any) -> None:
    """Say why a job waits, or by which rule it ended.

    Reads the ledger, so it works while the service does not run.

    Example: ductile job why 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    from ductile.cli.connect import ledger_for
    from ductile.ledger import reports
    from ductile.ledger.store import open_reader

    path = ledger_for(where)
    with open_reader(path) as db:
        view = why_view(db, path, reports.job(db, job_id))
    output.show(view, as_json=as_json, human=why_lines)


def why_view(db: Any, path: Any, report: Any) -> dict[str, Any]:
    """The verdict about one job; `words` is the most telling reason."""
    from ductile.cli import endings
    from ductile.cli.standing import circumstances, reasons
    from ductile.ledger import explain

    job = report.job
    waiting = explain.waiting(db, job.id)
    if waiting is not None:
        found = reasons(db, waiting, circumstances(db, path))
    elif job.status == "running":
        found = [endings.running(job)]
    else:
        found = [endings.ended_by(db, report)]
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": str(job.status),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "words": found[0].words,
        "reasons": [reason.as_data() for reason in found],
        "attempts": [_attempt(one) for one in report.attempts],
        "next": next_commands(job, found[0].code),
    }


def _attempt(one: Any) -> dict[str, Any]:
    from ductile.clock import to_text

    content = {
        "attempt": one.attempt,
        "status": str(one.status),
        "completed_at": to_text(one.completed_at),
        "exit_code": one.exit_code,
        "signal": one.signal,
        "error": one.last_error,
    }
    return {name: value for name, value in content.items() if value is not None}


def next_commands(job: Any, code: str) -> list[str]:
    """What can be done about it, the most likely first."""
    fixes = {
        "service_down": ["ductile system start"],
        "queue_paused": ["ductile queue resume"],
        "paused": [f"ductile plugin resume {job.plugin}"],
        "breaker": [f"ductile system breaker {job.plugin}", f"ductile system reset {job.plugin} {job.command}"],
        "blocked": [f"ductile plugin show {job.plugin}", "ductile system reload"],
        "unhealthy": [f"ductile plugin show {job.plugin}", "ductile system reload"],
        "exit_78": [f"ductile config show plugin:{job.plugin}"],
        "join": [f"ductile job tree {job.id}"],
        "not_joined": [f"ductile job tree {job.id}"],
    }
    # A run that has gone on without the job does not come back for it.
    again = f"ductile job {'replay' if job.tolerated else 'retry'} {job.id}"
    by_status = {
        "queued": [f"ductile job wait {job.id}"],
        "running": [f"ductile job tail {job.id}"],
        "failed": [f"ductile job diagnose {job.id}", again],
        "dead": [f"ductile job diagnose {job.id}", again],
    }
    is_core = job.plugin.startswith("core.")
    usual = [] if is_core else by_status.get(str(job.status), [])
    return [*fixes.get(code, []), *usual] or [f"ductile job inspect {job.id}"]


def why_lines(view: dict[str, Any]) -> list[str]:
    lines = [f"{view['job_id']}  {view['plugin']}.{view['command']}  {state(view['status'].upper())}"]
    lines += [f"  {reason['words']}" for reason in view["reasons"]]
    for one in view["attempts"] if len(view["attempts"]) > 1 else []:
        lines.append(f"  attempt {one['attempt']}: {state(one['status'])}  {one.get('error', '')}".rstrip())
    return [*lines, *(f"  next: {command}" for command in view["next"])]


@click.command("diagnose")
@click.argument("job_id")
@click.option(
    "--max-bytes", type=click.IntRange(SMALLEST), default=USUAL, show_default=True, help="How much to print at most."
)
@options.config
@options.as_json
def diagnose(job_id: str, max_bytes: int, as_json: bool, **where: Any) -> None:
    """Put together all that is known about a job: request, answer, stderr, attempts, journal, and what else went wrong.

    Also what changed since the same command last succeeded, how often it failed alike, and what to do next. Known
    secrets and values under telling names are hidden. What does not fit into --max-bytes is cut, and that is said.
    Reads the ledger, so it works while the service does not run.

    Example: ductile job diagnose 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --max-bytes 16000 --json
    """
    import json

    from ductile.cli import diagnosis, fitting
    from ductile.cli.connect import ledger_for, mask_for
    from ductile.ledger.store import open_reader

    path, mask = ledger_for(where), mask_for(where)
    with open_reader(path) as db:
        bundle = diagnosis.diagnosis(db, path, job_id, mask)

    def size(shown: dict[str, Any]) -> int:
        text = json.dumps(shown, indent=2, ensure_ascii=False) if as_json else "\n".join(diagnosis.lines(shown))
        return len(text.encode("utf-8", "backslashreplace")) + 1

    output.show(fitting.fit(bundle, PARTS, size, max_bytes), as_json=as_json, human=diagnosis.lines)
