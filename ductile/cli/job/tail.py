"""`ductile job tail`: print what a job writes to stderr while it runs.

The service returns the end of what a running attempt has written; the log of an ended attempt has all that is stored.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.terminal import escape_controls
from ductile.cli.job.actions import canonical_id, job_lines

if TYPE_CHECKING:
    from ductile.cli.base.client import Client

POLL_SECONDS = 1.0
ANCHOR_LENGTH = 200
"""Characters used to find the last position in a text whose beginning was discarded."""
GAP = "\n[… output missing: it was written faster than it could be read …]\n"


@click.command("tail")
@options.job_id
@click.option("--timeout", default="1h", show_default=True, help="Maximum time to follow the job.")
@options.config
@options.service
@options.as_json
def tail(job_id: str, timeout: str, as_json: bool, **where: Any) -> int:
    """Print the stderr of a job as it is written, for all attempts, until the job has ended.

    The exit code is that of `job wait`. With --json, everything is printed at the end as one object.

    Example: ductile job tail 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.long_poll import parse_timeout

    seconds, service, parts = parse_timeout(timeout), client_for(where), [""]

    def on_output(text: str) -> None:
        if as_json:
            parts.append(text)
        else:
            click.echo(escape_controls(text), nl=False)

    job = follow(service, canonical_id(job_id), seconds, on_output)
    if as_json:
        output.show({**job, "stderr": "".join(parts)}, as_json=True, human=job_lines)
    else:
        output.note(f"job {job_id}: {job['status']}")
    return 0 if job["status"] == "succeeded" else 1


def follow(service: "Client", job_id: str, seconds: float, on_output: Callable[[str], None]) -> dict[str, Any]:
    """Pass the stderr of the job to `on_output`. Return the job when it has ended, or its state after `seconds`."""
    from ductile.cli.base.long_poll import is_open

    deadline, printed = time.monotonic() + seconds, _Printed(on_output)
    while True:
        left = max(0.0, deadline - time.monotonic())
        job = service.request("GET", f"/job/{job_id}?wait={min(left, POLL_SECONDS):.3f}s")
        has_ended = not is_open(job)
        if has_ended or job["attempt"] > printed.attempt:
            for row in _ended_attempts(service, job_id, printed.attempt):
                printed.add(row["attempt"], row.get("stderr", ""))
        if not has_ended:
            printed.add(job["attempt"], job.get("stderr", ""))
        if has_ended or not left:
            return job


def _ended_attempts(service: "Client", job_id: str, since: int) -> list[dict[str, Any]]:
    """Return the ended attempts from `since` on, oldest first."""
    rows = service.request("GET", f"/job-logs?job_id={job_id}&limit=200")["logs"]
    return [row for row in reversed(rows) if row["attempt"] >= since]


class _Printed:
    """The output of the current attempt that was already passed on."""

    def __init__(self, on_output: Callable[[str], None]) -> None:
        self.attempt = 0
        self._on_output, self._text = on_output, ""

    def add(self, attempt: int, text: str) -> None:
        """Pass on the new part of `text`."""
        if attempt != self.attempt:
            self.attempt, self._text = attempt, ""
        if new := new_output(self._text, text):
            self._on_output(new)
        self._text = text or self._text


def new_output(before: str, now: str) -> str:
    """Return what `now` has beyond `before`. The beginning of either may be discarded."""
    if not before or not now:
        return now
    if now.startswith(before):
        return now[len(before) :]
    if before.endswith(now):
        return ""
    anchor = before[-ANCHOR_LENGTH:]
    position = now.rfind(anchor)
    return now[position + len(anchor) :] if position >= 0 else GAP + now
