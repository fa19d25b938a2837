"""Cancel, retry or replay all jobs that filters select: one request per job, after a confirmation.

Knows the requests only through the function that the command passes. A refused request does not stop the
others.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import click
from attrs import frozen

from ductile.cli.base import options, output
from ductile.core.errors import DuctileError, UsageInvalid
from ductile.core.statuses import ENDED_BY_OPERATOR

MAX_JOBS = 10_000
"""Jobs that one command acts on; the next command continues."""
PAGE_SIZE = 200
SAMPLE = 5
PROGRESS_STEP = 100
CONFIRM_EXIT = 2
UNREACHABLE_EXIT, NOT_ALLOWED_EXIT = 69, 77
FILTERS = ("status", "plugin", "command", "pipeline", "since")

JobRow = Mapping[str, Any]
ActOnJob = Callable[[str], dict[str, Any]]
"""Sends the request for one job id and returns the response."""


def selection_options(*statuses: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the argument and options of a command that acts on one job, or with --status on many."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            options.as_json,
            options.dry_run,
            options.service,
            options.config,
            click.option("--yes", "is_confirmed", is_flag=True, help="Confirm the action on all selected jobs."),
            click.option("--since", help="Only jobs created from this time on: 1h (ago), 02:30, 2026-03-29T02:30:00Z."),
            click.option("--pipeline", help="Only steps of this pipeline."),
            click.option("--command", help="Only jobs of this command."),
            click.option("--plugin", help="Only jobs of this plugin."),
            click.option("--status", type=click.Choice(statuses), help="Select all jobs with this status."),
        ):
            command = option(command)
        return click.argument("job_id", required=False)(options.with_complete_job_id(command))

    return add


@frozen
class Verb:
    """The words for an action, such as `retry` and `retried`, and the jobs that it applies to."""

    base: str
    past: str
    applies: Callable[[JobRow], bool] = lambda _: True


def can_be_retried(job: JobRow) -> bool:
    """True for a job that was not ended by an operator, and for a queued one that waits for its retry time."""
    return "next_retry_at" in job if job["status"] == "queued" else job.get("outcome_code") not in ENDED_BY_OPERATOR


def is_batch(job_id: str | None, params: Mapping[str, Any]) -> bool:
    """True if filters select the jobs. Raises UsageInvalid unless there is either a job id or --status."""
    filters = [f"--{name}" for name in FILTERS if params[name] is not None]
    if job_id is not None and (filters or params["is_confirmed"]):
        raise UsageInvalid(f"JOB_ID cannot be combined with {', '.join(filters) or '--yes'}")
    if job_id is None and params["status"] is None:
        raise UsageInvalid(
            "JOB_ID or --status is required", hint="--status selects all jobs with a status; see --help."
        )
    return job_id is None


def act_on_all(verb: Verb, act: ActOnJob, params: Mapping[str, Any], *, dry_run: bool, as_json: bool) -> int:
    """Act on every selected job, or show the selection without --yes. Return the exit code."""
    jobs, is_cut = _select(verb, params)
    shown = {"action": verb.base, "count": len(jobs), "more": is_cut, "dry_run": dry_run}
    if not jobs or dry_run or not params["is_confirmed"]:
        shown |= {"confirmed": False, "jobs": [_sample_view(job) for job in jobs[:SAMPLE]]}
        output.show(shown, as_json=as_json, human=lambda view: _preview_lines(view, verb))
        return 0 if dry_run or not jobs else CONFIRM_EXIT
    done, failures, stopped = _act(verb, act, jobs)
    shown |= {"confirmed": True, "done": done, "failed": failures, "stopped": stopped}
    output.show(shown, as_json=as_json, human=lambda view: _result_lines(view, verb))
    return stopped["exit_code"] if stopped else 1 if failures else 0


def _select(verb: Verb, params: Mapping[str, Any]) -> tuple[list[JobRow], bool]:
    """Return the matching jobs, oldest first, and whether there are more."""
    from ductile.core.model import is_control_plugin

    found: list[JobRow] = []
    for job in _matching(params):
        if is_control_plugin(job["plugin"]) or not verb.applies(job):
            continue
        if len(found) == MAX_JOBS:
            return found[::-1], True
        found.append(job)
    return found[::-1], False


def _matching(params: Mapping[str, Any]) -> Iterator[JobRow]:
    """Yield the jobs that match the filters, newest first."""
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.local_time import parse_past
    from ductile.core.clock import to_text

    query = {name: params[name] for name in FILTERS if name != "since" and params[name]} | {"limit": PAGE_SIZE}
    query |= {"from": to_text(parse_past(params["since"], "--since"))} if params["since"] else {}
    service = client_for(params)
    while True:
        page = service.request("GET", f"/jobs?{urlencode(query)}")
        yield from page["jobs"]
        if not page["next_cursor"]:
            return
        query["cursor"] = page["next_cursor"]


def _act(
    verb: Verb, act: ActOnJob, jobs: list[JobRow]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any] | None]:
    """Return the responses, the errors of refused requests, and the error that stopped the batch."""
    done: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    for number, job in enumerate(jobs, 1):
        try:
            done.append(act(job["job_id"]))
        except DuctileError as error:
            failure = {"job_id": job["job_id"], "error": str(error), "code": error.code, "hint": error.hint}
            if error.exit_code in (UNREACHABLE_EXIT, NOT_ALLOWED_EXIT):
                return done, failures, {**failure, "exit_code": error.exit_code, "left": len(jobs) - number + 1}
            failures.append(failure)
        if number % PROGRESS_STEP == 0:
            output.note(f"{number} of {len(jobs)} jobs {verb.past}, {len(failures)} refused")
    return done, failures, None


def _sample_view(job: JobRow) -> dict[str, Any]:
    names = ("job_id", "plugin", "command", "status", "created_at", "last_error")
    return {name: job[name] for name in names if name in job}


def _preview_lines(shown: Mapping[str, Any], verb: Verb) -> Iterator[str]:
    if not shown["count"]:
        yield "no matching jobs"
        return
    more = f" (the newest {MAX_JOBS:,}; more match)" if shown["more"] else ""
    yield f"{output.format_count(shown['count'], 'job')} would be {verb.past}{more}"
    rows = [
        (job["job_id"], f"{job['plugin']}.{job['command']}", job["status"], job.get("last_error", "")[:80])
        for job in shown["jobs"]
    ]
    yield from (f"  {line}" for line in output.table(rows))
    if (left := shown["count"] - len(rows)) > 0:
        yield f"  … and {left} more"
    if not shown["dry_run"]:
        yield f"  next: add --yes to {verb.base} them"


def _result_lines(shown: Mapping[str, Any], verb: Verb) -> Iterator[str]:
    refused = f", {len(shown['failed'])} refused" if shown["failed"] else ""
    yield f"{output.format_count(len(shown['done']), 'job')} {verb.past}{refused}"
    yield from (f"  {failure['error']}" for failure in shown["failed"][:SAMPLE])
    if (left := len(shown["failed"]) - SAMPLE) > 0:
        yield f"  … and {left} more; --json lists all of them"
    if stopped := shown["stopped"]:
        yield f"  stopped with {output.format_count(stopped['left'], 'job')} left: {stopped['error']}"
    if shown["more"]:
        yield "  more jobs match; run the command again"
