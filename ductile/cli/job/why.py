"""`ductile job why` and `ductile job diagnose`. Formats what `ductile.explain` decides; decides nothing itself."""

from collections.abc import Mapping
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.terminal import state
from ductile.explain.truncate import DEFAULT_BYTES, MIN_BYTES

NOT_FAILED = ("succeeded", "skipped")


@click.command("why")
@options.job_id
@options.config
@options.as_json
def why(job_id: str, as_json: bool, **where: Any) -> None:
    """Explain why a job waits or how it ended. For the first job of a run, also show the state of the run.

    Reads the ledger, so it works while the service is stopped.

    Example: ductile job why 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    from ductile.cli.base.connect import ledger_for
    from ductile.explain.job import job_why
    from ductile.ledger.storage.open_file import open_reader

    ledger = ledger_for(where)
    with open_reader(ledger) as db:
        view = job_why(db, ledger, job_id)
    output.show(view, as_json=as_json, human=_why_lines)


def _why_lines(view: Mapping[str, Any]) -> list[str]:
    lines = [head_line(view)]
    lines += [f"  {reason['words']}" for reason in view["reasons"]]
    lines += attempt_lines(view["attempts"]) if len(view["attempts"]) > 1 else []
    return [*lines, *(f"  next: {command}" for command in view["next"])]


def head_line(view: Mapping[str, Any]) -> str:
    """Return a job with its status, and with that of its run where the run failed."""
    from ductile.explain.orphaned import display_status

    line = f"{view['job_id']}  {view['plugin']}.{view['command']}  {state(display_status(view).upper())}"
    run_is_worse = view["status"] in NOT_FAILED and view["run"] and view["run"]["status"] == "failed"
    return f"{line}, its run {state('FAILED')}" if run_is_worse else line


def attempt_lines(attempts: list[Mapping[str, Any]]) -> list[str]:
    from ductile.explain.orphaned import display_status

    return [
        f"  attempt {one['attempt']}: {state(display_status(one))}  {one.get('error', '')}".rstrip() for one in attempts
    ]


@click.command("diagnose")
@options.job_id
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
    from ductile.cli.base.connect import ledger_for, mask_for
    from ductile.cli.job.diagnosis import diagnosis_lines
    from ductile.explain.diagnosis import diagnose_job
    from ductile.explain.truncate import PARTS, json_size, truncate_to_fit
    from ductile.ledger.storage.open_file import open_reader

    ledger, mask = ledger_for(where), mask_for(where)
    with open_reader(ledger) as db:
        bundle = diagnose_job(db, ledger, job_id, mask)

    def text_size(shown: dict[str, Any]) -> int:
        return len("\n".join(diagnosis_lines(shown)).encode("utf-8", "backslashreplace")) + 1

    shown = truncate_to_fit(bundle, PARTS, json_size if as_json else text_size, max_bytes)
    output.show(shown, as_json=as_json, human=diagnosis_lines)
