"""`ductile job list --follow`: each job's change of state as it happens, one line each.

A change comes with the event stream; what a job is, with the event that made it, or from the service.
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
from ductile.cli.base.run_until_interrupted import run_until_signal, tell_breaks
from ductile.cli.base.stream_client import Event, Follower, Lost
from ductile.cli.logs.event_format import moment, plain, what
from ductile.core.errors import ServiceUnreachable, UsageInvalid

OF_A_JOB = ("plugin", "command", "submitted_by", "pipeline", "step_id", "schedule_id", "parent_job_id", "root_job_id")
"""What never changes about a job."""
OF_A_CHANGE = ("from", "to", "attempt", "duration_ms", "next_retry_at", "reason", "error")
NOT_WHILE_FOLLOWING = {"query": "--query", "since": "--from", "until": "--to", "cursor": "--cursor"}
MOST_REMEMBERED = 5_000
LONGEST_WORDS = 120
WIDTH_OF_STATES = len("runningsucceeded")


def require_followable(given: Mapping[str, Any]) -> None:
    """UsageInvalid if something is asked for that what is still to come cannot answer."""
    for name, option in NOT_WHILE_FOLLOWING.items():
        if given.get(name):
            raise UsageInvalid(
                f"{option} does not go with --follow", hint="it shows what happens from now on; see `ductile logs`"
            )


def follow_jobs(service: Client, place: int | None, wanted: Mapping[str, str | None], *, as_json: bool) -> int:
    """Prints changes of the jobs that are `wanted` until a signal comes; the exit code."""
    changes = StateChanges(service=service)

    async def hear(row: list[Event]) -> None:
        if row[0]["event"] == "gap":
            output.note("some changes are missing: the journal does not keep them any more")
        change = await changes.of(row)
        if change is not None and _fits(change, wanted):
            if as_json:
                click.echo(json.dumps(change))
            else:
                output.tell(_line(change))

    asked = {name: wanted[key] for name, key in (("plugin", "plugin"), ("job", "job_id"), ("tree", "root"))}
    filters = {name: value for name, value in asked.items() if value}
    return run_until_signal(
        Follower(service=service, hear=hear, notice=tell_breaks(), place=place, wanted=filters).follow
    )


@define(eq=False, kw_only=True)
class StateChanges:
    """Rows of the journal as changes of state; remembers what the latest jobs are."""

    service: Client
    _jobs: "OrderedDict[str, dict[str, Any]]" = field(factory=OrderedDict)

    async def of(self, row: list[Event]) -> dict[str, Any] | None:
        """The change that the row is; None if no job came into another state."""
        told = [event for event in row if event["event"].startswith("job.") and event["data"].get("to")]
        if not told:
            return None
        data = told[-1]["data"]
        job = await self._job(data)
        change = {name: data[name] for name in OF_A_CHANGE if data.get(name) is not None}
        head = {"seq": data["seq"], "at": data["at"], "event": told[-1]["event"], "job_id": data["job_id"]}
        return head | job | change

    async def _job(self, data: Mapping[str, Any]) -> dict[str, Any]:
        job_id = data["job_id"]
        if data.get("from") is None:  # it came into being just now
            self._jobs[job_id] = _facts(data)
        elif job_id not in self._jobs:
            self._jobs[job_id] = _facts(data) | await self._asked(job_id)
        self._jobs.move_to_end(job_id)
        if len(self._jobs) > MOST_REMEMBERED:
            self._jobs.popitem(last=False)
        return self._jobs[job_id]

    async def _asked(self, job_id: str) -> dict[str, Any]:
        try:
            page = await trio.to_thread.run_sync(self.service.ask, "GET", f"/jobs?job_id={job_id}")
        except (ServiceUnreachable, Busy) as error:
            raise Lost(str(error)) from None
        return _facts(page["jobs"][0]) if page["jobs"] else {}


def _facts(source: Mapping[str, Any]) -> dict[str, Any]:
    return {name: source[name] for name in OF_A_JOB if source.get(name) is not None}


def _fits(change: Mapping[str, Any], wanted: Mapping[str, str | None]) -> bool:
    told = {**change, "status": change["to"], "root": change.get("root_job_id")}
    return all(value is None or told.get(name) == value for name, value in wanted.items())


def _line(change: Mapping[str, Any]) -> str:
    step = f" ({change['pipeline']}/{change['step_id']})" if change.get("pipeline") and change.get("step_id") else ""
    before, after = str(change.get("from", "new")), str(change["to"])
    parts = (
        moment(change["at"]),
        f"{before} → {terminal.state(after)}" + " " * max(0, WIDTH_OF_STATES - len(before) - len(after)),
        what(change) + plain(step),
        change["job_id"],
        f"attempt {change['attempt']}" if "attempt" in change else "",
        plain(str(change.get("error") or change.get("reason") or ""))[:LONGEST_WORDS],
    )
    return "  ".join(part for part in parts if part)
