"""`ductile event`: send an event; show what an event led to, and why to nothing more.

Formats what `ductile.explain.event` decides.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.cli.base.terminal import state
from ductile.core.errors import UsageInvalid

MAX_EVENTS = 100


@click.group("event")
def group() -> None:
    """Send an event, and show what an event led to."""


@group.command("send")
@click.argument("event_type", metavar="TYPE")
@click.option("--payload", help="Payload of the event, a JSON object.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="Read the payload from a file; - is stdin.")
@options.config
@options.service
@options.dry_run
@options.as_json
def send(
    event_type: str, payload: str | None, payload_file: Path | None, dry_run: bool, as_json: bool, **where: Any
) -> int:
    """Send an event of type TYPE: start the pipelines that it triggers, like a webhook with `event:`.

    Prints the root job of each run. Exit 1 if the event starts nothing, with the reason. --dry-run evaluates the
    triggers and starts nothing.

    Example: ductile event send backup.done --payload '{"archive": "monday.tar"}'
    """
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.json_args import read_payload

    content = read_payload(payload, payload_file)
    path = f"/event/{quote(event_type, safe='')}{'?dry_run=true' if dry_run else ''}"
    body = {"payload": content} if content is not None else None
    answer = client_for(where).request("POST", path, body)
    output.show(answer, as_json=as_json, human=_sent_lines)
    return 1 if answer["status"] == "unmatched" else 0


@group.command("why")
@click.argument("event_id", required=False)
@click.option("--type", "event_type", help="Explain the newest events of this type instead.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_EVENTS),
    default=5,
    show_default=True,
    help="Maximum number of events of --type to explain.",
)
@options.config
@options.as_json
def why(event_id: str | None, event_type: str | None, limit: int, as_json: bool, **where: Any) -> None:
    """Show which routes and pipelines an event matched, and which condition was false with the values it found.

    Reads the ledger, so it works while the service is stopped. Covers the retention of the journal
    (service.job_transitions_retention), and at most 50,000 of its rows.

    Example: ductile event why --type backup.done
    """
    from ductile.cli.base.connect import ledger_for
    from ductile.explain.event import event_type_why, event_why
    from ductile.ledger.storage.open_file import open_reader

    if (event_id is None) is (event_type is None):
        raise UsageInvalid("exactly one of EVENT_ID and --type is required", hint="Run `ductile event why --help`.")
    ledger = ledger_for(where)
    with open_reader(ledger) as db:
        if event_id is not None:
            output.show(event_why(db, ledger, event_id), as_json=as_json, human=_event_lines)
        else:
            view = event_type_why(db, ledger, str(event_type), limit=limit)
            output.show(view, as_json=as_json, human=_type_lines)


def _event_lines(view: Mapping[str, Any]) -> list[str]:
    from ductile.explain.orphaned import display_status

    source = f" from {view['source']}" if view["source"] else ""
    lines = [
        f"{view['event_id']}  {view['type'] or 'event'}{source}  {view['at'] or ''}".rstrip(),
        f"  {view['words']}",
    ]
    for job in view["led_to"]:
        step = f", step {job['step_id']}" if "step_id" in job else ""
        what = f"job {job['job_id']}  {job['plugin']}.{job['command']}"
        lines.append(f"    {job['via']}{step}: {what}  {state(display_status(job))}")
    lines += [f"  {decision['words']}" for decision in _other_decisions(view)]
    return lines + ([f"  next: ductile job inspect {view['emitted_by']}"] if view["emitted_by"] else [])


def _other_decisions(view: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the decisions that the verdict does not state already."""
    decisions: list[Mapping[str, Any]] = view["decisions"]
    if view["led_to"]:
        return decisions
    decisive = next((one["words"] for one in decisions if one["kind"] == view["decision"]), None)
    return [one for one in decisions if one["kind"] != "event.unmatched" and one["words"] != decisive]


def _type_lines(view: Mapping[str, Any]) -> list[str]:
    lines = [f"pipeline {one['name']} handles {view['type']}" for one in view["waiting"]["pipelines"]]
    lines += [f"route from {one.get('from')} to {one.get('to')}" for one in view["waiting"]["routes"]]
    lines = lines or [f"nothing handles {view['type']}"]
    if "emitters" in view:
        names = ", ".join(view["emitters"]) or "none"
        lines.append(f"only root jobs of plugins with notify_on_complete: true emit {view['type']}: {names}")
    for event in view["events"]:
        lines += _event_lines(event)
    lines += [f"{one['at']}  withheld by job {one['job_id']}: {one['words']}" for one in view["withheld"]]
    return lines if view["events"] or view["withheld"] else [*lines, "no such event"]


def _sent_lines(answer: dict[str, Any]) -> list[str]:
    lines = [_job_line(job, dry_run=answer["dry_run"]) for job in answer["jobs"]]
    if answer["reason"]:
        lines.append(f"{answer['event_type']} starts nothing: {answer['reason']}")
    lines += [f"  {skipped['words']}" for skipped in answer["skipped"]]
    return lines


def _job_line(job: dict[str, Any], *, dry_run: bool) -> str:
    what = f"pipeline {job['pipeline']}" if job["pipeline"] else f"{job['plugin']}.{job['command']}"
    if dry_run:
        return f"would start {what}"
    return f"{job['job_id']}  {what}  {job['status']}{' (existing job)' if job['deduplicated'] else ''}"
