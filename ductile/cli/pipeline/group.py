"""`ductile pipeline`: list, show, draw, dry-run, test and run pipelines."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.core.errors import NotFound, UsageInvalid


@click.group("pipeline")
def group() -> None:
    """List, draw, dry-run, test and run pipelines."""


@group.command("list")
@options.config
@options.as_json
@options.verbose
def list_pipelines(config_path: Path | None, config_dir: Path | None, as_json: bool, verbose: bool) -> None:
    """List the pipelines with their triggers. -v adds the condition and the file.

    Example: ductile pipeline list --json
    """
    from ductile.config.views.pipelines import pipelines_view

    view = pipelines_view(_load(options.selected_config(config_path, config_dir)))
    output.show(view, as_json=as_json, human=lambda shown: _list_lines(shown, verbose=verbose))


@group.command("show")
@click.argument("name")
@options.config
@options.as_json
@options.verbose
def show_pipeline(name: str, config_path: Path | None, config_dir: Path | None, as_json: bool, verbose: bool) -> None:
    """Show the steps and routes of a compiled pipeline, including those of called pipelines.

    -v adds the full conditions. `ductile config show pipeline:NAME` prints the definition.

    Example: ductile pipeline show nightly-report
    """
    from ductile.config.views.pipelines import pipeline_graph_view

    view = pipeline_graph_view(_load(options.selected_config(config_path, config_dir)), name)
    output.show(view, as_json=as_json, human=lambda shown: _show_lines(shown, verbose=verbose))


@group.command("visualize")
@click.argument("name", required=False)
@click.option("--job", "job_id", help="Draw the run of this job, with states, durations and counts.")
@options.with_complete_job_id
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
    """Print a pipeline, or with --job a run of it, as a Mermaid flowchart. NAME is optional with --job.

    Diamonds are conditions, hexagons are joins, dashed lines are failure paths. -v lists the steps of a run that the
    configuration no longer has.

    Example: ductile pipeline visualize nightly-report > report.mmd
    """
    from ductile.pipeline.draw import draw

    config = _load(options.selected_config(config_path, config_dir))
    if job_id is None:
        if name is None:
            raise UsageInvalid("NAME or --job is required")
        plan, marks = config.plans.require(name), None
    else:
        plan, marks = _run_of(config, name, job_id)
    picture = config.mask(draw(plan, marks))
    shown: dict[str, Any] = {"pipeline": plan.name, "job_id": job_id, "mermaid": picture}
    if marks is not None:
        known = {place.path for place in plan.vertices}
        shown["steps"] = {path: str(mark) for path, mark in marks.items()}
        if verbose:
            for path in sorted(marks.keys() - known):
                output.note(f"{path}: {marks[path]}; not drawn: the step is no longer configured")
    output.show(shown, as_json=as_json, human=lambda _: picture.splitlines())


@group.command("dry-run")
@click.argument("name")
@click.option("--payload", help="Payload of the run, a JSON object.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="Read the payload from a file; - is stdin.")
@click.option("--results", type=click.Path(path_type=Path), help="JSON file with an object of step → response.")
@click.option("--result", "result", multiple=True, help="STEP=RESPONSE in JSON; repeatable.")
@click.option("--step", help="Step that --execute runs.")
@click.option("--execute", "executes", is_flag=True, help="Run the plugin of --step when the step is first reached.")
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
    """Simulate a run of a pipeline and show what each step would do, and why. Needs no service; enqueues nothing.

    A response is a list of events ([{"type": "x", "payload": {}}]), {"fail": "reason"}, or {"result": "text",
    "events": []}. A step without a response succeeds without events. --step with --execute runs one plugin and uses its
    response; nothing is recorded. Shows the values of `with`; -v adds payloads and baggage. Exit 1 if the run would
    fail.

    Example: ductile pipeline dry-run nightly-report --payload '{"day": "monday"}' --result fetch='{"fail": "offline"}'
    """
    from ductile.cli.base.json_args import read_payload
    from ductile.cli.pipeline.dry_run import dry_run_report, exit_code, read_results, report_lines

    if executes != (step is not None):
        raise UsageInvalid("--step and --execute must be used together")
    config = _load(options.selected_config(config_path, config_dir))
    shown = dry_run_report(
        config,
        name,
        read_payload(payload, payload_file) or {},
        read_results(results, result),
        executed_step=step,
    )
    output.show(config.mask.mask_data(shown), as_json=as_json, human=lambda value: report_lines(value, verbose=verbose))
    return exit_code(shown, step)


@group.command("test")
@click.argument("file", type=click.Path(path_type=Path))
@options.config
@options.as_json
def test_pipelines(file: Path, config_path: Path | None, config_dir: Path | None, as_json: bool) -> int:
    """Run pipeline test cases from FILE. A case has an event or payload, step responses and the expected run.

    Uses the routing code of the service. Runs no plugins and records nothing. docs/pipelines.md describes the format.
    Exit 1 if a case fails.

    Example: ductile pipeline test tests/report.yaml
    """
    from ductile.config.checks.examine import examine
    from ductile.config.snapshot import build_snapshot
    from ductile.devkit.pipeline_cases import read_cases, run_case

    cases = read_cases(file)
    config = _load(options.selected_config(config_path, config_dir))
    snapshot = build_snapshot(examine(config), os.environ)
    results = [run_case(case, snapshot) for case in cases]
    rows = [
        {
            "name": result.case.name,
            "pipeline": result.case.pipeline,
            "holds": not result.differences,
            "differences": list(result.differences),
            "found": result.shown,
        }
        for result in results
    ]
    shown = {"file": str(file), "holds": all(row["holds"] for row in rows), "cases": rows}
    output.show(shown, as_json=as_json, human=_test_lines)
    return 0 if shown["holds"] else 1


def _test_lines(shown: dict[str, Any]) -> list[str]:
    lines = []
    for case in shown["cases"]:
        lines.append(f"{'pass' if case['holds'] else 'FAIL'}  {case['pipeline']}: {case['name']}")
        lines += [f"      {line}" for line in case["differences"]]
    passed = sum(case["holds"] for case in shown["cases"])
    return [*lines, f"{passed} of {len(shown['cases'])} cases passed"]


@group.command("run")
@click.argument("name")
@click.option("--payload", help="Payload of the run, a JSON object.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="Read the payload from a file; - is stdin.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the run has ended.")
@click.option("--async", "leaves", is_flag=True, help="Print the id of the root job and exit.")
@click.option("--timeout", default="5m", show_default=True, help="Timeout of --wait.")
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
    """Start a run of a pipeline. Without --wait and --async, its execution_mode decides whether to wait.

    Exit 1 if the run failed or the timeout has passed. -v adds the tree. --dry-run checks whether the run can start;
    `pipeline dry-run` simulates all steps.

    Example: ductile pipeline run nightly-report --payload '{"day": "monday"}' --wait
    """
    from ductile.cli.base.connect import client
    from ductile.cli.base.json_args import read_payload
    from ductile.cli.base.long_poll import naming_job, parse_timeout, wait_for_tree
    from ductile.cli.job.tree import run_lines, run_result

    if waits and leaves:
        raise UsageInvalid("--wait and --async are mutually exclusive")
    seconds, content = parse_timeout(timeout), read_payload(payload, payload_file)
    service = client(options.selected_config(config_path, config_dir), api_url, api_key)
    query = "?dry_run=true" if dry_run else "?async=true" if waits or leaves else ""
    answer = service.request(
        "POST", f"/pipeline/{quote(name, safe='')}{query}", {"payload": content} if content is not None else None
    )
    if answer.get("if_holds") is False:
        output.note("note: the `if` of the pipeline is false for this payload; a run by name does not apply it")
    if dry_run:
        output.show(answer, as_json=as_json, human=lambda _: [f"would start a run of {name}"])
        return 0
    if waits:
        with naming_job(answer["job_id"], is_run=True):
            answer = run_result(wait_for_tree(service, answer["job_id"], seconds), name)
    output.show(answer, as_json=as_json, human=lambda run: run_lines(run, verbose=verbose))
    return 0 if answer["status"] in ("succeeded", "queued") else 1


def _load(explicit: Path | None) -> Any:
    from ductile.config.files.sources import find_config
    from ductile.config.load.load import load

    return load(find_config(explicit, os.environ).path)


def _list_lines(shown: dict[str, Any], *, verbose: bool) -> list[str]:
    if not shown["pipelines"]:
        return ["no pipelines; add them under `pipelines:`"]
    head = ("NAME", "TRIGGER", "FROM", "MODE", "STEPS")
    rows = [
        (row["name"], _start_of(row), row["from_plugin"] or "", row["execution_mode"], str(row["jobs"]))
        for row in shown["pipelines"]
    ]
    if not verbose:
        return output.table([head, *rows])
    more = [(_condition(row["if"]), row["where"]) for row in shown["pipelines"]]
    return output.table([(*head, "IF", "DEFINED IN"), *((*row, *extra) for row, extra in zip(rows, more, strict=True))])


def _start_of(row: dict[str, Any]) -> str:
    return row["on"] or f"hook {row['on_hook']}"


def _condition(data: Any) -> str:
    from ductile.core.formats import strict_json

    return strict_json.dumps(data) if data else ""


def _show_lines(shown: dict[str, Any], *, verbose: bool) -> list[str]:
    waiting = f", timeout {shown['timeout']}" if shown["execution_mode"] == "synchronous" else ""
    source = f" from {shown['from_plugin']}" if shown["from_plugin"] else ""
    lines = [
        f"{shown['name']}: on {_start_of(shown)}{source}, {shown['execution_mode']}{waiting}",
        f"  defined in {shown['where']}, {shown['fingerprint']}",
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
    """Return the plan of a run and the states of its steps. `name` selects one of several pipelines in a tree."""
    from ductile.ledger.reports import trees
    from ductile.ledger.storage.open_file import open_reader
    from ductile.pipeline.draw import step_statuses

    with open_reader(config.settings.state.path) as db:
        jobs = [node.job for node in trees.tree(db, job_id)]
    pipelines = list(dict.fromkeys(job.pipeline for job in jobs if job.pipeline))
    own = next((job.pipeline for job in jobs if job.id == job_id), None)
    chosen = name or own or (pipelines[0] if pipelines else None)
    if chosen is None or chosen not in pipelines:
        known = f"Pipelines in the tree: {', '.join(pipelines)}." if pipelines else "The tree has no pipeline."
        raise NotFound(f"the tree of {job_id} has no run of {chosen or 'a pipeline'}", hint=known)
    return config.plans.require(chosen), step_statuses(jobs, chosen)
