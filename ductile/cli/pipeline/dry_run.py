"""`ductile pipeline dry-run`: read the step responses, run one plugin if requested, and format the report.

Writes nothing; reads only the plugin state from the ledger. `ductile.pipeline.dry_run` decides what a run would do.
"""

import os
from contextlib import chdir
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ductile.cli.base import output
from ductile.cli.base.json_args import read_json, read_json_file
from ductile.config.checks.examine import examine
from ductile.config.load.load import Config
from ductile.config.snapshot import Snapshot, build_snapshot
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean
from ductile.core.model import Job
from ductile.pipeline.compile.plan import Plan
from ductile.pipeline.dry_run.answers import AnswerEvent, PluginAnswer, parse_answers
from ductile.pipeline.dry_run.dry_run import DryRunLine, DryRunResult, dry_run_pipeline
from ductile.pipeline.dry_run.sandbox import ExecuteJob
from ductile.pipeline.run.route import TooManyFollowUps

INSTANCE = "dry-run"
"""Instance marker of the processes of a dry run: no service treats them as its own."""
MAX_REASON_LENGTH = 160


def read_results(path: Path | None, single: tuple[str, ...]) -> dict[str, Any]:
    """Return the responses of `--results`, overridden by each `--result STEP=RESPONSE`."""
    given = read_json_file(path) if path is not None else {}
    if not isinstance(given, dict):
        raise UsageInvalid(f"{path}: must be an object of step → response")
    for text in single:
        step, equals, answer = text.partition("=")
        if not equals:
            raise UsageInvalid(f"--result {text!r}: write STEP=RESPONSE")
        given[step] = read_json(answer, f"--result {step}")
    return given


def dry_run_report(
    config: Config, name: str, payload: dict[str, Any], results: dict[str, Any], *, executed_step: str | None
) -> dict[str, Any]:
    """Simulate a run of the pipeline and return the report."""
    plan = config.plans.require(name)
    snapshot = build_snapshot(examine(config), os.environ)
    _note_absent_plugins(plan, snapshot)
    now, limits = datetime.now(UTC), config.settings.service.limits
    execute = _executing(plan, executed_step, snapshot) if executed_step is not None else None
    try:
        found = dry_run_pipeline(
            plan,
            payload,
            snapshot.routing,
            parse_answers(results, plan.nodes),
            now=now,
            execute=execute,
            max_jobs=limits.tree_jobs,
            max_hops=limits.hops,
        )
    except TooManyFollowUps as error:
        raise UsageInvalid(f"pipeline {name} cannot start: {error}") from error
    return _shown(plan, found)


def _note_absent_plugins(plan: Plan, snapshot: Snapshot) -> None:
    """Print a note for each plugin of the pipeline that is configured but unusable."""
    for plugin in dict.fromkeys(node.plugin for node in plan.nodes.values()):
        if plugin in snapshot.failed_to_load:
            output.note(f"plugin {plugin} {snapshot.why_unavailable(plugin)}; its jobs would wait until it is usable")


def _executing(plan: Plan, step: str, snapshot: Snapshot) -> ExecuteJob:
    """Return a callback that runs the plugin when `step` is first reached."""
    if step not in plan.nodes:
        hint = f"Steps: {', '.join(plan.nodes)}."
        raise NotFound(f"pipeline {plan.name} has no step {step!r}{did_you_mean(step, plan.nodes)}", hint=hint)
    if plan.nodes[step].kind != "uses":
        raise UsageInvalid(f"step {step} runs no plugin; --execute requires a step with `uses`")
    is_due = True

    def execute_once(job: Job) -> PluginAnswer | None:
        nonlocal is_due
        if not is_due or (job.pipeline, job.step_id) != (plan.name, step):
            return None
        is_due = False
        return _execute(job, snapshot)

    return execute_once


def _execute(job: Job, snapshot: Snapshot) -> PluginAnswer:
    """Run one attempt of the plugin as the service would, without recording it."""
    import trio

    from ductile.core.model import Succeeded
    from ductile.devkit.local.run import attempt_locally
    from ductile.engine.process.procfs import harden_self
    from ductile.engine.process.run import Finished

    output.note(f"executing {job.plugin}.{job.command}")
    config = snapshot.config
    harden_self()
    with chdir(config.directory):
        state = _state(config, job.plugin)
        local = trio.run(partial(attempt_locally, snapshot, job, state_json=state, instance=INSTANCE))
    if isinstance(local.run, Finished) and local.run.stderr:
        output.note(local.run.stderr_text(config.mask).rstrip())
    outcome, response = local.verdict.outcome, local.verdict.response
    if not isinstance(outcome, Succeeded) or response is None:
        return PluginAnswer(error=str(getattr(outcome, "error", outcome)))
    events = tuple(AnswerEvent(event.type, event.payload, event.dedupe_key) for event in response.events)
    return PluginAnswer(result=response.result, events=events)


def _state(config: Config, plugin: str) -> str:
    """Return the state of the plugin from the ledger; empty without a ledger."""
    from ductile.ledger.storage.open_file import open_reader
    from ductile.ledger.tables import facts

    if not config.settings.state.path.exists():
        return "{}"
    with open_reader(config.settings.state.path) as db:
        return facts.state(db, plugin)


# ── report ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _shown(plan: Plan, found: DryRunResult) -> dict[str, Any]:
    return {
        "pipeline": plan.name,
        "status": str(found.status),
        "complete": found.is_complete,
        "event_would_start_it": found.would_start,
        "predicates": list(found.predicates),
        "steps": [_line(line) for line in found.lines],
    }


def _line(line: DryRunLine) -> dict[str, Any]:
    content = {
        "step": line.step,
        "kind": line.kind,
        "outcome": line.outcome,
        "why": line.why,
        "pipeline": line.pipeline,
        "plugin": line.plugin,
        "command": line.command,
        "items": list(line.indexes) or None,
        "tolerated": line.tolerated or None,
        "predicates": list(line.predicates) or None,
        "with": dict(line.rendered) or None,
        "payload": line.payload,
        "baggage": dict(line.baggage) or None,
        "led_to": list(line.led_to),
    }
    return {name: value for name, value in content.items() if value is not None}


def exit_code(shown: dict[str, Any], executed_step: str | None) -> int:
    """Return 0 if the run would succeed and the requested step was executed, otherwise 1."""
    reached = executed_step is None or any(
        step["step"] == executed_step and step["kind"] == "uses" and step["outcome"] != "not reached"
        for step in shown["steps"]
    )
    if not reached:
        output.note(f"step {executed_step} was not executed: the run does not reach it with this payload")
    return 0 if reached and shown["status"] == "succeeded" else 1


def report_lines(shown: dict[str, Any], *, verbose: bool) -> list[str]:
    rows = [_row(step, shown["pipeline"]) for step in shown["steps"]]
    printed = output.table(rows)
    lines = [f"{shown['pipeline']}: a run with this payload would {_verb(shown)} (dry run)"]
    for step, line in zip(shown["steps"], printed, strict=True):
        lines.append(f"  {line}")
        shown_members = ("with", "payload", "baggage") if verbose else ("with",)
        lines += [f"      {name}: {_json(step[name])}" for name in shown_members if name in step]
    if not shown["event_would_start_it"]:
        lines.append(
            "  note: the `if` of the pipeline is false for this payload; an event with it would not start a run"
        )
    if not shown["complete"]:
        lines.append("  note: incomplete; the run exceeds service.limits.tree_jobs, and further jobs would be dead")
    return lines


def _verb(shown: dict[str, Any]) -> str:
    return "succeed" if shown["status"] == "succeeded" else "fail"


def _row(step: dict[str, Any], pipeline: str) -> tuple[str, ...]:
    items = f"[{'.'.join(map(str, step['items']))}]" if "items" in step else ""
    elsewhere = f"{step['pipeline']}: " if step.get("pipeline") not in (pipeline, None) else ""
    outcome = f"{step['outcome']} (tolerated)" if step.get("tolerated") else step["outcome"]
    plugin = f"{step['plugin']}.{step['command']}" if "plugin" in step else step["kind"]
    led_to = f"→ {', '.join(dict.fromkeys(step['led_to']))}" if step["led_to"] else ""
    return (f"{elsewhere}{step['step']}{items}", plugin, outcome, step["why"][:MAX_REASON_LENGTH], led_to)


def _json(value: Any) -> str:
    from ductile.core.formats import strict_json

    return strict_json.dumps(value)
