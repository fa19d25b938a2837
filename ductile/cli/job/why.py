"""`ductile job why` and `ductile job diagnose`: one answer in words, and everything that is known in one bundle."""

from collections.abc import Mapping
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.terminal import state

SMALLEST, USUAL = 4_000, 64 << 10
PARTS = (
    "request",
    "response",
    "stderr",
    "attempts",
    "failures",
    "journal",
    "since_last_success",
    "similar_failures",
    "why",
    "next",
)
"""What of a diagnosis can be cut."""
ENDED_WELL = ("succeeded", "skipped")


@click.command("why")
@click.argument("job_id")
@options.config
@options.as_json
def why(job_id: str, as_json: bool, **where: Any) -> None:
    """Say why a job waits, or by which rule it ended; of the first job of a run also how the run stands, and which job
    failed it.

    Reads the ledger, so it works while the service does not run.

    Example: ductile job why 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    from ductile.cli.base.connect import ledger_for
    from ductile.ledger.reports import job_details
    from ductile.ledger.storage.open_file import open_reader

    path = ledger_for(where)
    with open_reader(path) as db:
        view = why_view(db, path, job_details.job(db, job_id))
    output.show(view, as_json=as_json, human=why_lines)


def why_view(db: Any, path: Any, report: Any) -> dict[str, Any]:
    """The verdict about one job and the run that began with it; `words` is the most telling reason."""
    from ductile.explain.orphaned import has_service
    from ductile.explain.run import next_of_run, run_reason, run_view
    from ductile.ledger.reports import trees

    job, found = report.job, _reasons(db, path, report)
    following = next_commands(job, found[0].code, in_queue=report.in_queue)
    if run := trees.run_of(db, job):
        is_up = has_service(path)
        told, ended_well = run_reason(run, has_service=is_up), job.status in ENDED_WELL
        found = [told, *found] if ended_well and told.code == "run_failed" else [*found, told]
        following = (next_of_run(run, job, has_service=is_up) if ended_well else []) or following
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
        "run": run_view(run) if run else None,
        "next": following,
    }


def _reasons(db: Any, path: Any, report: Any) -> list[Any]:
    """What keeps the job, or the rule by which it ended."""
    from ductile.explain import finished
    from ductile.explain.orphaned import has_service
    from ductile.explain.waiting import circumstances, reasons
    from ductile.ledger.reports import wait_reasons

    if (waiting := wait_reasons.waiting(db, report.job.id)) is not None:
        return reasons(db, waiting, circumstances(db, path))
    if report.job.status == "running":
        return [finished.running(report.job) if has_service(path) else finished.orphaned(report.job)]
    return [finished.ended_by(db, report)]


def _attempt(one: Any) -> dict[str, Any]:
    from ductile.core.clock import to_text

    content = {
        "attempt": one.attempt,
        "status": str(one.status),
        "completed_at": to_text(one.completed_at),
        "exit_code": one.exit_code,
        "signal": one.signal,
        "error": one.last_error,
    }
    return {name: value for name, value in content.items() if value is not None}


def next_commands(job: Any, code: str, *, in_queue: bool = True) -> list[str]:
    """What can be done about it, the most likely first; of one that has left the queue nothing can be done again."""
    fixes = {
        "service_down": ["ductile system start"],
        "service_died": ["ductile system start"],
        "queue_paused": ["ductile queue resume"],
        "paused": [f"ductile plugin resume {job.plugin}"],
        "breaker": [f"ductile system breaker {job.plugin}", f"ductile system reset {job.plugin} {job.command}"],
        "blocked": [f"ductile plugin show {job.plugin}", "ductile system reload"],
        "unhealthy": [f"ductile plugin show {job.plugin}", "ductile system reload"],
        "exit_78": [f"ductile config show plugin:{job.plugin}"],
        "join": [f"ductile job tree {job.id}"],
        "not_joined": [f"ductile job tree {job.id}"],
    }
    if code == "never_started" and (job.last_error or "").startswith(f"plugin {job.plugin} "):
        fixes[code] = ["ductile plugin list", "ductile system reload"]  # it was disabled or taken away
    failed = [f"ductile job diagnose {job.id}", *(_again(job) if in_queue else [])]
    by_status = {
        "queued": [f"ductile job wait {job.id}"],
        "running": [f"ductile job tail {job.id}"],
        "failed": failed,
        "dead": failed,
    }
    from ductile.core.model import runs_nothing

    usual = [] if runs_nothing(job.plugin) or code == "service_died" else by_status.get(str(job.status), [])
    return [*fixes.get(code, []), *usual] or [f"ductile job inspect {job.id}"]


def _again(job: Any) -> list[str]:
    """What runs the job once more by itself, if anything does."""
    from ductile.ledger.admin.operate import was_entered

    # A run that has gone on without the job does not come back for it; a copy of it would be joined with nothing.
    if not was_entered(job) or (job.tolerated and job.join_id is not None):
        return []
    return [f"ductile job {'replay' if job.tolerated else 'retry'} {job.id}"]


def why_lines(view: dict[str, Any]) -> list[str]:
    lines = [head_line(view)]
    lines += [f"  {reason['words']}" for reason in view["reasons"]]
    for one in view["attempts"] if len(view["attempts"]) > 1 else []:
        lines.append(f"  attempt {one['attempt']}: {state(one['status'])}  {one.get('error', '')}".rstrip())
    return [*lines, *(f"  next: {command}" for command in view["next"])]


def head_line(view: Mapping[str, Any]) -> str:
    """A job and its state, and that of its run where it says something else."""
    line = f"{view['job_id']}  {view['plugin']}.{view['command']}  {state(view['status'].upper())}"
    run_is_worse = view["status"] in ENDED_WELL and view["run"] and view["run"]["status"] == "failed"
    return f"{line}, its run {state('FAILED')}" if run_is_worse else line


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

    from ductile.cli.base.connect import ledger_for, mask_for
    from ductile.cli.job import diagnosis, truncate
    from ductile.ledger.storage.open_file import open_reader

    path, mask = ledger_for(where), mask_for(where)
    with open_reader(path) as db:
        bundle = diagnosis.diagnosis(db, path, job_id, mask)

    def size(shown: dict[str, Any]) -> int:
        text = json.dumps(shown, indent=2, ensure_ascii=False) if as_json else "\n".join(diagnosis.lines(shown))
        return len(text.encode("utf-8", "backslashreplace")) + 1

    output.show(truncate.fit(bundle, PARTS, size, max_bytes), as_json=as_json, human=diagnosis.lines)
