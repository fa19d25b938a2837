"""`ductile job list` and `ductile job logs`: what happened, newest first, page by page.

The ledger is read directly, whether or not the service runs; with --api-url the service is asked.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ductile.cli.base import options, output

MOST_IN_A_PAGE = 200
LONGEST_WORDS = 80


def _listing(command: Callable[..., Any]) -> Callable[..., Any]:
    """What both lists take."""
    for option in (
        options.as_json,
        options.service,
        options.config,
        click.option("--cursor", help="Go on from `next_cursor` of the page before."),
        click.option(
            "--limit", type=click.IntRange(1, MOST_IN_A_PAGE), default=50, show_default=True, help="How many to show."
        ),
        click.option("--query", help="Only with all of these words in names, errors, stderr or results."),
        click.option("--to", "until", help="Only before this moment."),
        click.option("--from", "since", help="Only from this moment on, such as 2026-03-29T02:30:00Z."),
        click.option("--job-id", help="Only this job."),
        click.option("--root", help="Only jobs of the tree with this root job."),
        click.option("--pipeline", help="Only steps of this pipeline."),
        click.option("--schedule-id", help="Only jobs of this schedule."),
        click.option("--submitted-by", help="Only what this caller asked for: api, cli, webhook, route, …"),
        click.option("--status", help="Only in this state; pending, ok and error are understood, too."),
        click.option("--command", help="Only this command."),
        click.option("--plugin", help="Only of this plugin."),
    ):
        command = option(command)
    return command


@click.command("list")
@click.option("-f", "--follow", is_flag=True, help="Print each change of state as it happens, until Ctrl-C.")
@_listing
def list_jobs(follow: bool, as_json: bool, **given: Any) -> int:
    """List the jobs in the queue and those that ended lately, newest first.

    Works while the service runs and while it does not; --api-url asks another service. A page may be short although
    more follows: go on with --cursor.

    --follow prints no list but what changes from now on, over restarts of the service, with --json one object per
    line; --status means the state that a job came into. Ctrl-C ends it with exit code 130.

    Example: ductile job list --status failed --plugin backup --limit 20
    """
    if follow:
        return _follow(given, as_json=as_json)
    if given["api_url"]:
        page = _ask("/jobs", given)
    else:
        from ductile.cli.base.connect import ledger_for
        from ductile.core.statuses import JobStatus
        from ductile.explain.orphaned import marked
        from ductile.ledger.reports import job_list
        from ductile.ledger.reports.filters import ends_of

        found = _read(job_list.jobs, given, JobStatus)
        page = {"jobs": marked(found.items, ledger_for(given)), **ends_of(found, given["limit"])}
    output.show(page, as_json=as_json, human=_job_lines)
    return 0


def _follow(given: Mapping[str, Any], *, as_json: bool) -> int:
    from ductile.cli.base.connect import client_for
    from ductile.cli.job.follow import follow_jobs, require_followable
    from ductile.cli.logs.command import LogQuery, past_events
    from ductile.core.statuses import JobStatus
    from ductile.ledger.reports.filters import TEXTS, read_wanted

    require_followable(given)
    wanted = read_wanted(_named(given), JobStatus)
    _, place = past_events(given, LogQuery(), 0, is_followed=True)
    filters = {name: getattr(wanted, name) for name in (*TEXTS, "status")}
    return follow_jobs(client_for(given), place, filters, as_json=as_json)


@click.command("logs")
@click.option("--include-result", is_flag=True, help="Show what each attempt left, if it is not too large.")
@_listing
def list_logs(as_json: bool, **given: Any) -> None:
    """List every attempt on record, newest first: how it ended, how long it took, what it said.

    Attempts are kept longer than jobs (service.job_log_retention). --query finds words in errors, stderr and results.

    Example: ductile job logs --plugin backup --status timed_out --include-result
    """
    if given["api_url"]:
        page = _ask("/job-logs", given)
    else:
        from ductile.core.statuses import AttemptStatus
        from ductile.ledger.reports import attempt_list, search

        page = _read(_logs_of(attempt_list, search, wants_result=given["include_result"]), given, AttemptStatus)
    output.show(page, as_json=as_json, human=_log_lines)


def _logs_of(attempt_list: Any, search: Any, *, wants_result: bool) -> Callable[..., dict[str, Any]]:
    """The page as the API answers it."""
    import json

    from ductile.ledger.reports.filters import ends_of
    from ductile.web.views.jobs import attempt_text

    def read(db: Any, wanted: Any, **place: Any) -> dict[str, Any]:
        page = (search.logs if wanted.words else attempt_list.logs)(db, wanted, **place)
        results = [attempt_list.result_of(db, item) if wants_result else None for item in page.items]
        texts = [attempt_text(item, left, shows_result=True) for item, left in zip(page.items, results, strict=True)]
        return {"logs": [json.loads(text) for text in texts], **ends_of(page, place["limit"])}

    return read


def _read(function: Callable[..., Any], given: Mapping[str, Any], statuses: Any) -> Any:
    from ductile.cli.base.connect import ledger_for
    from ductile.ledger.reports.filters import read_cursor, read_wanted
    from ductile.ledger.storage.open_file import open_reader

    wanted, before = read_wanted(_named(given), statuses), read_cursor(given["cursor"])
    with open_reader(ledger_for(given)) as db:
        return function(db, wanted, before=before, limit=given["limit"])


def _ask(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    from urllib.parse import urlencode

    from ductile.cli.base.connect import client_for

    query = {name: value for name, value in _named(given).items() if value}
    query |= {"limit": given["limit"]} | ({"cursor": given["cursor"]} if given["cursor"] else {})
    query |= {"include_result": "true"} if given.get("include_result") else {}
    return client_for(given).ask("GET", f"{path}?{urlencode(query)}")


def _named(given: Mapping[str, Any]) -> dict[str, str | None]:
    """The filters under the names of the API."""
    names = ("plugin", "command", "status", "submitted_by", "schedule_id", "pipeline", "root", "job_id", "query")
    return {**{name: given[name] for name in names}, "from": given["since"], "to": given["until"]}


def _job_lines(page: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import told
    from ductile.explain.orphaned import shown_error, shown_status

    head = ("JOB", "WHAT", "STATUS", "ATTEMPT", "ASKED FOR", "")
    rows = [
        (
            job["job_id"],
            f"{job['plugin']}.{job['command']}" + (f" ({job['pipeline']}/{job['step_id']})" if _is_step(job) else ""),
            shown_status(job),
            f"{job['attempt']}/{job['max_attempts']}",
            told(job["created_at"]),
            _glimpse(shown_error(job)),
        )
        for job in page["jobs"]
    ]
    return _page_lines(page, head, rows, "job")


def _is_step(job: Mapping[str, Any]) -> bool:
    return bool(job.get("pipeline") and job.get("step_id"))


def _log_lines(page: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import told

    head = ("ATTEMPT", "WHAT", "STATUS", "TOOK", "EXIT", "ENDED", "")
    rows = [
        (
            row["log_id"],
            f"{row['plugin']}.{row['command']}",
            row["status"],
            f"{row['duration_ms']} ms" if "duration_ms" in row else "-",
            _exit(row),
            told(row["completed_at"]),
            _glimpse(row.get("last_error") or _result(row)),
        )
        for row in page["logs"]
    ]
    return _page_lines(page, head, rows, "attempt")


def _exit(row: Mapping[str, Any]) -> str:
    return f"signal {row['signal']}" if "signal" in row else str(row.get("exit_code", "-"))


def _result(row: Mapping[str, Any]) -> str | None:
    import json

    return json.dumps(row["result"], ensure_ascii=False) if "result" in row else row.get("output")


def _glimpse(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= LONGEST_WORDS else f"{line[:LONGEST_WORDS]}…"


def _page_lines(
    page: Mapping[str, Any], head: tuple[str, ...], rows: Sequence[tuple[str, ...]], noun: str
) -> list[str]:
    count = page["total"]
    total = f"{count}{'' if page['total_is_exact'] else ' or more'} {noun}{'' if count == 1 else 's'} in all"
    lines = output.table([head, *rows]) if rows else []
    if page["next_cursor"]:
        return [*lines, f"{total}; go on with --cursor {page['next_cursor']}"]
    return [*lines, total if rows else f"no {noun} fits"]
