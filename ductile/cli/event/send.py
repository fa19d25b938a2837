"""`ductile event send`: send an event to the running service."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output


@click.command("send")
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
    """Send an event of this TYPE: start the pipelines that it triggers, like a webhook with `event:`.

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
    output.show(answer, as_json=as_json, human=_lines)
    return 1 if answer["status"] == "unmatched" else 0


def _lines(answer: dict[str, Any]) -> list[str]:
    lines = [_job_line(job, dry_run=answer["dry_run"]) for job in answer["jobs"]]
    if answer["reason"]:
        lines.append(f"{answer['event_type']} starts nothing: {answer['reason']}")
    lines += [f"  pipeline {skipped['pipeline']} is skipped: {skipped['reason']}" for skipped in answer["skipped"]]
    return lines


def _job_line(job: dict[str, Any], *, dry_run: bool) -> str:
    what = f"pipeline {job['pipeline']}" if job["pipeline"] else f"{job['plugin']}.{job['command']}"
    if dry_run:
        return f"would start {what}"
    return f"{job['job_id']}  {what}  {job['status']}{' (existing job)' if job['deduplicated'] else ''}"
