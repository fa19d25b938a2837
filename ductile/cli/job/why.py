"""`ductile job why` and `ductile job diagnose`. Formats what `ductile.explain` decides; decides nothing itself."""

from collections.abc import Mapping
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.terminal import state

MIN_BYTES, DEFAULT_BYTES = 4_000, 64 << 10
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
"""The members of a diagnosis that can be truncated."""
ENDED_WELL = ("succeeded", "skipped")


@click.command("why")
@click.argument("job_id")
@options.config
@options.as_json
def why(job_id: str, as_json: bool, **where: Any) -> None:
    """Explain why a job waits or how it ended. For the first job of a run, also show the state of the run.

    Reads the ledger, so it works while the service is stopped.

    Example: ductile job why 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    from ductile.cli.base.connect import ledger_for
    from ductile.explain.job import explain_job
    from ductile.ledger.reports import job_details
    from ductile.ledger.storage.open_file import open_reader

    ledger = ledger_for(where)
    with open_reader(ledger) as db:
        view = explain_job(db, ledger, job_details.job(db, job_id)).as_data()
    output.show(view, as_json=as_json, human=_why_lines)


def _why_lines(view: dict[str, Any]) -> list[str]:
    lines = [head_line(view)]
    lines += [f"  {reason['words']}" for reason in view["reasons"]]
    lines += attempt_lines(view["attempts"]) if len(view["attempts"]) > 1 else []
    return [*lines, *(f"  next: {command}" for command in view["next"])]


def head_line(view: Mapping[str, Any]) -> str:
    """Return a job with its status, and with that of its run where the run failed."""
    line = f"{view['job_id']}  {view['plugin']}.{view['command']}  {state(view['status'].upper())}"
    run_is_worse = view["status"] in ENDED_WELL and view["run"] and view["run"]["status"] == "failed"
    return f"{line}, its run {state('FAILED')}" if run_is_worse else line


def attempt_lines(attempts: list[Mapping[str, Any]]) -> list[str]:
    return [f"  attempt {one['attempt']}: {state(one['status'])}  {one.get('error', '')}".rstrip() for one in attempts]


@click.command("diagnose")
@click.argument("job_id")
@click.option(
    "--max-bytes",
    type=click.IntRange(MIN_BYTES),
    default=DEFAULT_BYTES,
    show_default=True,
    help="Maximum size of the output.",
)
@options.config
@options.as_json
def diagnose(job_id: str, max_bytes: int, as_json: bool, **where: Any) -> None:
    """Show everything about a job: request, response, stderr, attempts, journal, and related failures.

    Includes what changed since the same command last succeeded, similar failures, and the next commands. Known secrets
    and values with secret-like names are masked. Members that exceed --max-bytes are truncated and listed under `cut`.
    Reads the ledger, so it works while the service is stopped.

    Example: ductile job diagnose 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --max-bytes 16000 --json
    """
    import json

    from ductile.cli.base.connect import ledger_for, mask_for
    from ductile.cli.job import truncate
    from ductile.cli.job.diagnosis import diagnosis_lines
    from ductile.explain.diagnosis import diagnose_job
    from ductile.ledger.storage.open_file import open_reader

    ledger, mask = ledger_for(where), mask_for(where)
    with open_reader(ledger) as db:
        bundle = diagnose_job(db, ledger, job_id, mask)

    def size(shown: dict[str, Any]) -> int:
        text = json.dumps(shown, indent=2, ensure_ascii=False) if as_json else "\n".join(diagnosis_lines(shown))
        return len(text.encode("utf-8", "backslashreplace")) + 1

    output.show(truncate.truncate_to_fit(bundle, PARTS, size, max_bytes), as_json=as_json, human=diagnosis_lines)
