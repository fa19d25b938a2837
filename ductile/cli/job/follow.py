"""`ductile job list --follow`: print each state change of a job as it happens.

Changes come from the event stream; the attributes of a job from its first event, or from the service.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import click
import trio
from attrs import define, field

from ductile.cli.base import output, terminal
from ductile.cli.base.client import Busy, Client
from ductile.cli.base.run_until_interrupted import connection_notes, run_until_signal
from ductile.cli.base.stream_client import Event, Follower, Lost
from ductile.cli.logs.event_format import moment, plain, subject
from ductile.core.errors import ServiceUnreachable, UsageInvalid

JOB_FIELDS = ("plugin", "command", "submitted_by", "pipeline", "step_id", "schedule_id", "parent_job_id", "root_job_id")
"""Attributes of a job that never change."""
CHANGE_FIELDS = ("from", "to", "attempt", "duration_ms", "next_retry_at", "reason", "error")
NOT_WITH_FOLLOW = {"query": "--query", "since": "--from", "until": "--to", "cursor": "--cursor"}
MAX_CACHED_JOBS = 5_000
MAX_ERROR_LENGTH = 120
STATES_WIDTH = len("runningsucceeded")


def require_followable(params: Mapping[str, Any]) -> None:
    """Raise UsageInvalid for filters on past jobs."""
    for name, option in NOT_WITH_FOLLOW.items():
        if params.get(name):
            raise UsageInvalid(f"{option} cannot be combined with --follow", hint="Use `ductile logs` for past events.")


def follow_jobs(service: Client, position: int | None, filters: Mapping[str, str | None], *, as_json: bool) -> int:
    """Print state changes of the jobs that match `filters` until a signal arrives; return the exit code."""
    changes = StateChanges(service=service)

    async def on_row(row: list[Event]) -> None:
        if row[0]["event"] == "gap":
            output.note("some changes are missing: the journal no longer has them")
        change = await changes.of(row)
        if change is not None and _matches(change, filters):
            if as_json:
                click.echo(json.dumps(change))
            else:
                output.print_line(_line(change))

    by_name = {name: filters[key] for name, key in (("plugin", "plugin"), ("job", "job_id"), ("tree", "root"))}
    follower = Follower(
        service=service,
        on_row=on_row,
        on_connection=connection_notes(),
        position=position,
        filters={name: value for name, value in by_name.items() if value},
    )
    return run_until_signal(follower.follow)


@define(eq=False, kw_only=True)
class StateChanges:
    """Turns journal rows into state changes. Caches the attributes of the latest jobs."""

    service: Client
    _jobs: "OrderedDict[str, dict[str, Any]]" = field(factory=OrderedDict)

    async def of(self, row: list[Event]) -> dict[str, Any] | None:
        """Return the state change of the row; None if it has none."""
        events = [event for event in row if event["event"].startswith("job.") and event["data"].get("to")]
        if not events:
            return None
        data = events[-1]["data"]
        job = await self._job(data)
        change = {name: data[name] for name in CHANGE_FIELDS if data.get(name) is not None}
        head = {"seq": data["seq"], "at": data["at"], "event": events[-1]["event"], "job_id": data["job_id"]}
        return head | job | change

    async def _job(self, data: Mapping[str, Any]) -> dict[str, Any]:
        job_id = data["job_id"]
        if data.get("from") is None:  # the job is new
            self._jobs[job_id] = _facts(data)
        elif job_id not in self._jobs:
            self._jobs[job_id] = _facts(data) | await self._fetch(job_id)
        self._jobs.move_to_end(job_id)
        if len(self._jobs) > MAX_CACHED_JOBS:
            self._jobs.popitem(last=False)
        return self._jobs[job_id]

    async def _fetch(self, job_id: str) -> dict[str, Any]:
        try:
            page = await trio.to_thread.run_sync(self.service.request, "GET", f"/jobs?job_id={job_id}")
        except (ServiceUnreachable, Busy) as error:
            raise Lost(str(error)) from None
        return _facts(page["jobs"][0]) if page["jobs"] else {}


def _facts(source: Mapping[str, Any]) -> dict[str, Any]:
    return {name: source[name] for name in JOB_FIELDS if source.get(name) is not None}


def _matches(change: Mapping[str, Any], filters: Mapping[str, str | None]) -> bool:
    values = {**change, "status": change["to"], "root": change.get("root_job_id")}
    return all(value is None or values.get(name) == value for name, value in filters.items())


def _line(change: Mapping[str, Any]) -> str:
    step = f" ({change['pipeline']}/{change['step_id']})" if change.get("pipeline") and change.get("step_id") else ""
    before, after = str(change.get("from", "new")), str(change["to"])
    parts = (
        moment(change["at"]),
        f"{before} → {terminal.state(after)}" + " " * max(0, STATES_WIDTH - len(before) - len(after)),
        subject(change) + plain(step),
        change["job_id"],
        f"attempt {change['attempt']}" if "attempt" in change else "",
        plain(str(change.get("error") or change.get("reason") or ""))[:MAX_ERROR_LENGTH],
    )
    return "  ".join(part for part in parts if part)
