"""`ductile pipeline`: which pipelines there are, how they look, how a run would go, and starting one."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import LazyGroup
from ductile.core.errors import NotFound, UsageInvalid


@click.group("pipeline", cls=LazyGroup, modules={"test": "pipeline.test.test"})
def group() -> None:
    """See which pipelines there are, draw, rehearse, test and run one."""


@group.command("list")
@options.config
@options.as_json
@options.verbose
def list_pipelines(config_path: Path | None, config_dir: Path | None, as_json: bool, verbose: bool) -> None:
    """List every pipeline with what starts it. -v adds its condition and where it is written.

    Example: ductile pipeline list --json
    """
    config = _load(options.chosen(config_path, config_dir))
    rows = [_row(config, plan) for plan in config.plans.by_name.values()]
    output.show(
        config.mask.everywhere({"pipelines": rows}),
        as_json=as_json,
        human=lambda shown: _list_lines(shown, verbose=verbose),
    )


@group.command("show")
@click.argument("name")
@options.config
@options.as_json
@options.verbose
def show_pipeline(name: str, config_path: Path | None, config_dir: Path | None, as_json: bool, verbose: bool) -> None:
    """Show one pipeline as it was compiled: its steps, calls included, and every route between them.

    -v adds the conditions in full. `ductile config show pipeline:NAME` prints what the author wrote.

    Example: ductile pipeline show nightly-report
    """
    from ductile.pipeline.compile.graph import compiled_routes

    config = _load(options.chosen(config_path, config_dir))
    plan = config.plans.named(name)
    shown = _row(config, plan) | {
        "steps": [_step(node) for node in plan.nodes.values()],
        "routes": compiled_routes(plan),
    }
    output.show(config.mask.everywhere(shown), as_json=as_json, human=lambda value: _show_lines(value, verbose=verbose))


@group.command("visualize")
@click.argument("name", required=False)
@click.option("--job", "job_id", help="Draw the run that this job is in: states, durations and counts on the steps.")
@options.config
@options.as_json
@options.verbose
def visualize(
    name: str | None,
    job_id: str | None,
    config_path: Path | None,
    config_dir: Path | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Print a pipeline as a Mermaid flowchart; with --job, a run of it. NAME may be left out then.

    Diamonds are conditions, hexagons joins, dashed lines the ways after a failure. -v says which steps of a run the
    configuration no longer has.

    Example: ductile pipeline visualize nightly-report > report.mmd
    """
    from ductile.pipeline.draw import draw

    config = _load(options.chosen(config_path, config_dir))
    if job_id is None:
        if name is None:
            raise UsageInvalid("name a pipeline, or a job of a run with --job")
        plan, marks = config.plans.named(name), None
    else:
        plan, marks = _run_of(config, name, job_id)
    picture = config.mask(draw(plan, marks))
    shown: dict[str, Any] = {"pipeline": plan.name, "job_id": job_id, "mermaid": picture}
    if marks is not None:
        known = {place.path for place in plan.places}
        shown["steps"] = {path: str(mark) for path, mark in marks.items()}
        if verbose:
            for path in sorted(marks.keys() - known):
                output.note(f"{path}: {marks[path]}; not drawn, the configuration has no such step")
    output.show(shown, as_json=as_json, human=lambda _: picture.splitlines())


@group.command("dry-run")
@click.argument("name")
@click.option("--payload", help="The payload that starts the run, a JSON object.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="The same from a file; - is stdin.")
@click.option("--results", type=click.Path(path_type=Path), help="JSON file of step → answer, as --result has one.")
@click.option("--result", "result", multiple=True, help="STEP=ANSWER in JSON, as often as wanted.")
@click.option("--step", help="The step that --execute runs.")
@click.option("--execute", "executes", is_flag=True, help="Really run the plugin of --step, the first time it is due.")
@options.config
@options.as_json
@options.verbose
def dry_run(
    name: str,
    payload: str | None,
    payload_file: Path | None,
    results: Path | None,
    result: tuple[str, ...],
    step: str | None,
    executes: bool,
    config_path: Path | None,
    config_dir: Path | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Walk through a pipeline and say what each step would do, and why. Nothing is enqueued; no service is needed.

    An answer is a list of events ([{"type": "x", "payload": {}}]), {"fail": "why"}, or {"result": "text", "events":
    []}. A step without one succeeds silently. With --step and --execute one plugin really runs, outside of the ledger,
    and its own answer is used. -v shows payloads and baggage. Exit 1 if the run would fail.

    Example: ductile pipeline dry-run nightly-report --payload '{"day": "monday"}' --result fetch='{"fail": "offline"}'
    """
    from ductile.cli.base.json_args import read_payload
    from ductile.cli.pipeline.dry_run import exit_code, lines, read_results, rehearsed

    if executes != (step is not None):
        raise UsageInvalid("--step names the step that --execute runs; give both or none")
    config = _load(options.chosen(config_path, config_dir))
    shown = rehearsed(
        config,
        name,
        read_payload(payload, payload_file) or {},
        read_results(results, result),
        executed_step=step,
    )
    output.show(config.mask.everywhere(shown), as_json=as_json, human=lambda value: lines(value, verbose=verbose))
    return exit_code(shown, step)


@group.command("run")
@click.argument("name")
@click.option("--payload", help="The payload that starts the run, a JSON object.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="The same from a file; - is stdin.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the run is over.")
@click.option("--async", "leaves", is_flag=True, help="Print the id of the root job and be done.")
@click.option("--timeout", default="5m", show_default=True, help="How long --wait waits.")
@options.config
@options.service
@options.dry_run
@options.as_json
@options.verbose
def run_pipeline(
    name: str,
    payload: str | None,
    payload_file: Path | None,
    waits: bool,
    leaves: bool,
    timeout: str,
    config_path: Path | None,
    config_dir: Path | None,
    api_url: str | None,
    api_key: str | None,
    dry_run: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Ask the running service for a run of a pipeline. Without --wait and --async, its execution_mode decides.

    Exit 1 if the run failed, or was not over when the waiting was. -v adds the tree. --dry-run says whether it can
    begin; `pipeline dry-run` walks through all its steps.

    Example: ductile pipeline run nightly-report --payload '{"day": "monday"}' --wait
    """
    from ductile.cli.base.connect import client
    from ductile.cli.base.json_args import read_payload
    from ductile.cli.base.long_poll import on_record, patience, tree_when_over
    from ductile.cli.job.tree import run_lines, run_of

    if waits and leaves:
        raise UsageInvalid("--wait and --async exclude each other")
    seconds, given = patience(timeout), read_payload(payload, payload_file)
    service = client(options.chosen(config_path, config_dir), api_url, api_key)
    query = "?dry_run=true" if dry_run else "?async=true" if waits or leaves else ""
    answer = service.ask(
        "POST", f"/pipeline/{quote(name, safe='')}{query}", {"payload": given} if given is not None else None
    )
    if dry_run:
        output.show(answer, as_json=as_json, human=lambda _: [f"would start a run of {name}"])
        return 0
    if waits:
        with on_record(answer["job_id"], is_run=True):
            answer = run_of(tree_when_over(service, answer["job_id"], seconds), name)
    output.show(answer, as_json=as_json, human=lambda run: run_lines(run, verbose=verbose))
    return 0 if answer["status"] in ("succeeded", "queued") else 1


def _load(explicit: Path | None) -> Any:
    from ductile.config.load.load import load
    from ductile.config.load.sources import find

    return load(find(explicit, os.environ).path)


def _row(config: Any, plan: Any) -> dict[str, Any]:
    from ductile.core.units import format_duration
    from ductile.pipeline.language.conditions import as_data

    return {
        "name": plan.name,
        "on": plan.on,
        "on_hook": plan.hook,
        "from_plugin": plan.from_plugin,
        "if": as_data(plan.condition) if plan.condition else None,
        "execution_mode": plan.execution_mode,
        "timeout": format_duration(plan.timeout),
        "max_depth": plan.max_depth,
        "longest": plan.longest,
        "jobs": len(plan.nodes),
        "fingerprint": plan.fingerprint,
        "where": str(config.places.get(plan.where, config.root)),
    }


def _list_lines(shown: dict[str, Any], *, verbose: bool) -> list[str]:
    if not shown["pipelines"]:
        return ["no pipelines; write some under `pipelines:`"]
    head = ("NAME", "STARTS ON", "FROM", "MODE", "STEPS")
    rows = [
        (row["name"], _start_of(row), row["from_plugin"] or "", row["execution_mode"], str(row["jobs"]))
        for row in shown["pipelines"]
    ]
    if not verbose:
        return output.table([head, *rows])
    more = [(_condition(row["if"]), row["where"]) for row in shown["pipelines"]]
    return output.table([(*head, "IF", "WRITTEN IN"), *((*row, *extra) for row, extra in zip(rows, more, strict=True))])


def _start_of(row: dict[str, Any]) -> str:
    return row["on"] or f"hook {row['on_hook']}"


def _condition(data: Any) -> str:
    from ductile.core.formats import strict_json

    return strict_json.dumps(data) if data else ""


def _step(node: Any) -> dict[str, Any]:
    return {
        "path": node.path,
        "kind": node.kind,
        "plugin": node.plugin,
        "command": node.command,
        "pipeline": node.pipeline,
        "depth": node.depth,
        "terminal": node.is_terminal,
        "tolerated": node.tolerated,
        "joins": list(node.joins),
        "claims": {str(claim): str(claim.source) for claim in (node.baggage.claims if node.baggage else ())},
    }


def _show_lines(shown: dict[str, Any], *, verbose: bool) -> list[str]:
    waiting = f", callers wait up to {shown['timeout']}" if shown["execution_mode"] == "synchronous" else ""
    source = f" from {shown['from_plugin']}" if shown["from_plugin"] else ""
    lines = [
        f"{shown['name']}: on {_start_of(shown)}{source}, {shown['execution_mode']}{waiting}",
        f"  written in {shown['where']}, {shown['fingerprint']}",
    ]
    if shown["if"]:
        lines.append(f"  if: {_condition(shown['if'])}")
    marks = (("terminal", "may end the run"), ("tolerated", "may fail"))
    rows = [
        (step["path"], f"{step['plugin']}.{step['command']}", ", ".join(word for key, word in marks if step[key]))
        for step in shown["steps"]
    ]
    lines += ["  steps:", *(f"    {line}" for line in output.table(rows)), "  routes:"]
    routes = [_route(route, verbose=verbose) for route in shown["routes"]]
    return lines + [f"    {line}" for line in output.table(routes)]


def _route(route: dict[str, Any], *, verbose: bool) -> tuple[str, str, str, str]:
    source, destination = route["source"], route["destination"]
    start = source.get("step_id") or source.get("trigger") or f"hook {source.get('hook_signal')}"
    event = source.get("event_type", "") if "step_id" in source else ""
    notes = [f"each of {source['foreach']}"] if "foreach" in source else []
    notes += [f"if {_condition(source['if'])}"] if verbose and "if" in source else []
    return (start, f"→ {destination.get('step_id', 'end')}", event, ", ".join(notes))


def _run_of(config: Any, name: str | None, job_id: str) -> tuple[Any, dict[str, Any]]:
    """The plan of a run and what became of its steps; of several pipelines in a tree, the one that is named."""
    from ductile.ledger.reports import trees
    from ductile.ledger.storage.open_file import open_reader
    from ductile.pipeline.draw import marks_of

    with open_reader(config.settings.state.path) as db:
        jobs = [node.job for node in trees.tree(db, job_id)]
    pipelines = list(dict.fromkeys(job.pipeline for job in jobs if job.pipeline))
    own = next((job.pipeline for job in jobs if job.id == job_id), None)
    chosen = name or own or (pipelines[0] if pipelines else None)
    if chosen is None or chosen not in pipelines:
        known = f"it has runs of {', '.join(pipelines)}" if pipelines else "no pipeline has a part in it"
        raise NotFound(f"the tree of {job_id} has no run of {chosen or 'a pipeline'}", hint=known)
    return config.plans.named(chosen), marks_of(jobs, chosen)
