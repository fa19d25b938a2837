"""`ductile job list` and `ductile job logs`: jobs and attempts, newest first, in pages.

Reads the ledger, also while the service is stopped; with --api-url, queries a remote service.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ductile.cli.base import options, output

MAX_TEXT_LENGTH = 80


def _list_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of both lists."""
    for option in (
        options.as_json,
        options.service,
        options.config,
        options.page("rows"),
        click.option("--query", help="Only rows with all of these words in names, errors, stderr or results."),
        click.option("--to", "until", help="Only before this time."),
        click.option("--from", "since", help="Only from this time on, such as 2026-03-29T02:30:00Z."),
        click.option("--job-id", help="Only this job."),
        click.option("--root", help="Only jobs of the tree with this root job."),
        click.option("--pipeline", help="Only steps of this pipeline."),
        click.option("--schedule-id", help="Only jobs of this schedule."),
        click.option("--submitted-by", help="Only jobs submitted by: api, cli, webhook, route, …"),
        click.option("--status", help="Only this status; pending, ok and error are accepted as aliases."),
        click.option("--command", help="Only this command."),
        click.option("--plugin", help="Only this plugin."),
    ):
        command = option(command)
    return command


@click.command("list")
@click.option("-f", "--follow", is_flag=True, help="Print state changes as they happen, until Ctrl-C.")
@_list_options
def list_jobs(follow: bool, as_json: bool, **params: Any) -> int:
    """List queued, running and recently ended jobs, newest first.

    Works while the service is stopped. --api-url queries a remote service. A page can have fewer rows than --limit
    even if more follow; continue with --cursor.

    --follow prints state changes from now on instead of a list, across restarts of the service; with --json, one object
    per line. --status then selects the new state. Ctrl-C exits with code 130.

    Example: ductile job list --status failed --plugin backup --limit 20
    """
    if follow:
        return _follow(params, as_json=as_json)
    if params["api_url"]:
        page = _request_page("/jobs", params)
    else:
        from ductile.cli.base.connect import ledger_for
        from ductile.core.statuses import JobStatus
        from ductile.explain.orphaned import mark_orphans
        from ductile.ledger.reports import job_list
        from ductile.ledger.reports.filters import page_fields

        found = _read_page(job_list.jobs, params, JobStatus)
        page = {"jobs": mark_orphans(found.items, ledger_for(params)), **page_fields(found, params["limit"])}
    output.show(page, as_json=as_json, human=_job_lines)
    return 0


def _follow(params: Mapping[str, Any], *, as_json: bool) -> int:
    from ductile.cli.base.connect import client_for
    from ductile.cli.job.follow import follow_jobs, require_followable
    from ductile.cli.logs.command import LogQuery, past_events
    from ductile.core.statuses import JobStatus
    from ductile.ledger.reports.filters import TEXT_ARGUMENTS, parse_filter

    require_followable(params)
    wanted = parse_filter(_api_filters(params), JobStatus)
    _, position = past_events(params, LogQuery(), 0, is_followed=True)
    filters = {name: getattr(wanted, name) for name in (*TEXT_ARGUMENTS, "status")}
    return follow_jobs(client_for(params), position, filters, as_json=as_json)


@click.command("logs")
@click.option("--include-result", is_flag=True, help="Show the result of each attempt, unless it is too large.")
@_list_options
def list_logs(as_json: bool, **params: Any) -> None:
    """List attempts, newest first, with status, duration, exit code and error.

    Attempts are retained longer than jobs (service.job_log_retention). --query searches errors, stderr and results.

    Example: ductile job logs --plugin backup --status timed_out --include-result
    """
    if params["api_url"]:
        page = _request_page("/job-logs", params)
    else:
        from ductile.core.statuses import AttemptStatus
        from ductile.ledger.reports import attempt_list, search

        page = _read_page(_logs_of(attempt_list, search, wants_result=params["include_result"]), params, AttemptStatus)
    output.show(page, as_json=as_json, human=_log_lines)


def _logs_of(attempt_list: Any, search: Any, *, wants_result: bool) -> Callable[..., dict[str, Any]]:
    """Return a function that reads a page in the form of the API."""
    import json

    from ductile.ledger.reports.filters import page_fields
    from ductile.web.views.jobs import attempt_json

    def read(db: Any, wanted: Any, **page_options: Any) -> dict[str, Any]:
        page = (search.search_attempts if wanted.words else attempt_list.list_attempts)(db, wanted, **page_options)
        results = [attempt_list.read_result(db, item) if wants_result else None for item in page.items]
        texts = [attempt_json(item, left, shows_result=True) for item, left in zip(page.items, results, strict=True)]
        return {"logs": [json.loads(text) for text in texts], **page_fields(page, page_options["limit"])}

    return read


def _read_page(function: Callable[..., Any], params: Mapping[str, Any], statuses: Any) -> Any:
    from ductile.cli.base.connect import ledger_for
    from ductile.ledger.reports.filters import parse_cursor, parse_filter
    from ductile.ledger.storage.open_file import open_reader

    wanted, before = parse_filter(_api_filters(params), statuses), parse_cursor(params["cursor"])
    with open_reader(ledger_for(params)) as db:
        return function(db, wanted, before=before, limit=params["limit"])


def _request_page(path: str, params: Mapping[str, Any]) -> dict[str, Any]:
    from urllib.parse import urlencode

    from ductile.cli.base.connect import client_for

    query = {name: value for name, value in _api_filters(params).items() if value}
    query |= {"limit": params["limit"]} | ({"cursor": params["cursor"]} if params["cursor"] else {})
    query |= {"include_result": "true"} if params.get("include_result") else {}
    return client_for(params).request("GET", f"{path}?{urlencode(query)}")


def _api_filters(params: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the filters under their API names."""
    names = ("plugin", "command", "status", "submitted_by", "schedule_id", "pipeline", "root", "job_id", "query")
    return {**{name: params[name] for name in names}, "from": params["since"], "to": params["until"]}


def _job_lines(page: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when
    from ductile.explain.orphaned import display_error, display_status

    head = ("JOB", "COMMAND", "STATUS", "ATTEMPT", "CREATED", "")
    rows = [
        (
            job["job_id"],
            f"{job['plugin']}.{job['command']}" + (f" ({job['pipeline']}/{job['step_id']})" if _is_step(job) else ""),
            display_status(job),
            f"{job['attempt']}/{job['max_attempts']}",
            format_when(job["created_at"]),
            _shortened(display_error(job)),
        )
        for job in page["jobs"]
    ]
    return page_lines(page, head, rows, "job")


def _is_step(job: Mapping[str, Any]) -> bool:
    return bool(job.get("pipeline") and job.get("step_id"))


def _log_lines(page: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when
    from ductile.explain.orphaned import display_status

    head = ("ATTEMPT", "COMMAND", "STATUS", "DURATION", "EXIT", "ENDED", "")
    rows = [
        (
            row["log_id"],
            f"{row['plugin']}.{row['command']}",
            display_status(row),
            f"{row['duration_ms']} ms" if "duration_ms" in row else "-",
            _exit(row),
            format_when(row["completed_at"]),
            _shortened(row.get("last_error") or _result(row)),
        )
        for row in page["logs"]
    ]
    return page_lines(page, head, rows, "attempt")


def _exit(row: Mapping[str, Any]) -> str:
    return f"signal {row['signal']}" if "signal" in row else str(row.get("exit_code", "-"))


def _result(row: Mapping[str, Any]) -> str | None:
    import json

    return json.dumps(row["result"], ensure_ascii=False) if "result" in row else row.get("output")


def _shortened(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= MAX_TEXT_LENGTH else f"{line[:MAX_TEXT_LENGTH]}…"


def page_lines(page: Mapping[str, Any], head: tuple[str, ...], rows: Sequence[tuple[str, ...]], noun: str) -> list[str]:
    count = page["total"]
    total = f"{count}{'' if page['total_is_exact'] else ' or more'} {noun}{'' if count == 1 else 's'} in total"
    lines = output.table([head, *rows]) if rows else []
    if page["next_cursor"]:
        return [*lines, f"{total}; continue with --cursor {page['next_cursor']}"]
    return [*lines, total if rows else f"no matching {noun}s"]
