"""`ductile run`: list the runs, and show one as a timeline. A run is the tree of one root job.

As in the original Ductile, `ductile run PLUGIN` is `ductile plugin run PLUGIN`.
"""

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import SuggestingGroup
from ductile.cli.base.terminal import state

MAX_TEXT = 160

PLUGIN_RUN = "plugin"
"""The name under which the group has the command `plugin run`."""


class RunGroup(SuggestingGroup):
    """The noun of runs. A first word that is not one of its actions is the plugin of `plugin run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [PLUGIN_RUN, *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != PLUGIN_RUN:
            return super().get_command(ctx, cmd_name)
        root = ctx.find_root().command
        plugin = root.get_command(ctx, "plugin") if isinstance(root, click.Group) else None
        found = plugin.get_command(ctx, "run") if isinstance(plugin, click.Group) else None
        assert found is not None, "plugin has no run"
        command = copy(found)
        command.help = (found.help or "").replace("ductile plugin run", "ductile run")
        return command


@click.group("run", cls=RunGroup)
def group() -> None:
    """List runs and show one. `ductile run PLUGIN` is the same as `ductile plugin run PLUGIN`."""


@group.command("list")
@click.option("--plugin", help="Only runs whose first job is of this plugin.")
@click.option("--command", help="Only runs whose first job has this command.")
@click.option("--pipeline", help="Only runs with a step of this pipeline.")
@click.option("--status", help="Only runs with this status: open, succeeded or failed.")
@click.option("--submitted-by", help="Only runs submitted by: api, cli, webhook, scheduler, …")
@click.option("--schedule-id", help="Only runs of this schedule.")
@click.option("--from", "since", help="Only from this time on, such as 2026-03-29T02:30:00Z.")
@click.option("--to", "until", help="Only before this time.")
@options.page("runs")
@options.config
@options.service
@options.as_json
def list_runs(as_json: bool, **params: Any) -> None:
    """List the runs with the states of their steps, newest first.

    Works while the service is stopped. --api-url queries a remote service. A page can have fewer rows than --limit
    even if more follow; continue with --cursor.

    Example: ductile run list --pipeline nightly-report --status failed
    """
    if params["api_url"]:
        from urllib.parse import urlencode

        from ductile.cli.base.connect import client_for

        query = {name: value for name, value in {**_filters(params), **_page(params)}.items() if value}
        view = client_for(params).request("GET", f"/runs?{urlencode(query)}")
    else:
        view = _read_page(params)
    output.show(view, as_json=as_json, human=_list_lines)


def _filters(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters under their API names."""
    names = ("plugin", "command", "pipeline", "status", "submitted_by", "schedule_id")
    return {**{name: params[name] for name in names}, "from": params["since"], "to": params["until"]}


def _page(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"limit": params["limit"], "cursor": params["cursor"]}


def _read_page(params: Mapping[str, Any]) -> Any:
    from ductile.cli.base.connect import ledger_for
    from ductile.explain.runs.listing import run_page
    from ductile.ledger.reports.filters import parse_cursor, parse_filter
    from ductile.ledger.reports.trees import TreeStatus
    from ductile.ledger.storage.open_file import open_reader

    wanted, before = parse_filter(_filters(params), TreeStatus), parse_cursor(params["cursor"])
    ledger = ledger_for(params)
    with open_reader(ledger) as db:
        return run_page(db, ledger, wanted, before=before, limit=params["limit"])


def _list_lines(view: Mapping[str, Any]) -> list[str]:
    from ductile.cli.job.lists import page_lines
    from ductile.core.format_time import format_when

    head = ("RUN", "FIRST JOB", "STATUS", "STEPS", "DURATION", "CREATED")
    rows = [
        (
            run["run_id"],
            f"{run['plugin']}.{run['command']}",
            run["status"],
            _steps_text(run["steps"]),
            _milliseconds(run.get("duration_ms")),
            format_when(run["created_at"]),
        )
        for run in view["runs"]
    ]
    return page_lines(view, head, rows, "run")


def _steps_text(steps: list[Mapping[str, Any]]) -> str:
    """Return `first, second failed ×2`: the steps in order, with every state but `succeeded`."""
    from ductile.explain.orphaned import display_status

    texts = []
    for step in steps:
        status = display_status(step)
        parts = [step.get("step_id") or f"{step['plugin']}.{step['command']}"]
        parts += [status] if status != "succeeded" else []
        parts += [f"×{step['jobs']}"] if step["jobs"] > 1 else []
        texts.append(" ".join(parts))
    return ", ".join(texts)


def _milliseconds(count: int | None) -> str:
    return "-" if count is None else f"{count} ms"


@group.command("show")
@options.job_id
@options.config
@options.service
@options.as_json
@options.verbose
def show_run(
    job_id: str,
    config_path: Path | None,
    config_dir: Path | None,
    api_url: str | None,
    api_key: str | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Show the run that a job belongs to: when each of its jobs waited and ran, and which job it followed.

    Works while the service is stopped. --api-url queries a remote service. -v adds every wait and attempt.

    Example: ductile run show 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    if api_url:
        from ductile.cli.base.connect import client

        service = client(options.selected_config(config_path, config_dir), api_url, api_key)
        view = service.request("GET", f"/run/{quote(job_id, safe='')}")
    else:
        view = _read_run(options.selected_config(config_path, config_dir), job_id)
    output.show(view, as_json=as_json, human=lambda shown: _show_lines(shown, verbose=verbose))


def _read_run(explicit: Path | None, job_id: str) -> Any:
    from ductile.cli.base.connect import ledger_path
    from ductile.explain.runs.timeline import run_timeline
    from ductile.ledger.storage.open_file import open_reader

    ledger = ledger_path(explicit)
    with open_reader(ledger) as db:
        return run_timeline(db, ledger, job_id)


def _show_lines(view: Mapping[str, Any], *, verbose: bool) -> list[str]:
    from ductile.core.format_time import format_when

    lines = [
        f"run {view['run_id']}: {state(view['status'])}, {output.format_count(view['jobs'], 'job')}",
        f"  created {format_when(view['created_at'])}, waited {_milliseconds(view.get('waited_ms'))},"
        f" took {_milliseconds(view.get('duration_ms'))}",
    ]
    lines += [f"  {line}" for line in output.table([_job_row(view, job) for job in view["timeline"]])]
    if verbose:
        lines += [f"  {line}" for line in output.table(_span_rows(view))]
    if not view["is_complete"]:
        lines.append(f"  only the first {len(view['timeline'])} jobs are shown")
    return [*lines, f"  next: ductile job why {view['run_id']}"]


def _job_row(view: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[str, ...]:
    from ductile.explain.orphaned import display_error, display_status

    sources = [_name(view, edge["source"]) for edge in view["edges"] if edge["target"] == job["job_id"]]
    return (
        _step(job),
        f"{job['plugin']}.{job['command']}",
        f"{job['status']} (tolerated)" if job.get("tolerated") else display_status(job),
        f"waited {_sum(job, 'waiting', 'retry_wait')} ms",
        f"ran {_sum(job, 'running')} ms",
        f"after {', '.join(sources)}" if sources else "",
        job["job_id"],
        " ".join((job.get("words") or display_error(job)).split())[:MAX_TEXT],
    )


def _step(job: Mapping[str, Any]) -> str:
    """Return the step of the job, with the indexes of its foreach items: `fetch[0]`."""
    return str(job.get("step_id") or job["plugin"]) + "".join(f"[{index}]" for index in job.get("indexes", ()))


def _name(view: Mapping[str, Any], job_id: str) -> str:
    return next(_step(job) for job in view["timeline"] if job["job_id"] == job_id)


def _sum(job: Mapping[str, Any], *kinds: str) -> int:
    """Return the milliseconds of the spans of these kinds that have ended."""
    from datetime import timedelta

    spans = [span for span in job["spans"] if span["kind"] in kinds and "to" in span]
    return sum((_length(span) for span in spans), timedelta()) // timedelta(milliseconds=1)


def _length(span: Mapping[str, Any]) -> Any:
    from ductile.core.clock import from_text

    return from_text(span["to"]) - from_text(span["at"])


def _span_rows(view: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            span["at"],
            span.get("to", "…"),
            _name(view, job["job_id"]),
            f"{span['kind']} {span.get('status', '')}".strip(),
        )
        for job in view["timeline"]
        for span in job["spans"]
    ]
