"""Dry runs: predict a run of a pipeline step by step, with the reasons.

Queues, writes and starts nothing. Plugin answers are simulated unless the caller executes a plugin. Routing uses the
same functions as the service.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from attrs import field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import JobStatus
from ductile.pipeline.compile.plan import JOIN, PUBLISH, RELAY, SWITCH, Plan
from ductile.pipeline.dry_run.answers import PluginAnswer
from ductile.pipeline.dry_run.sandbox import (
    ExecuteJob,
    Predicates,
    Sandbox,
    SandboxJob,
    SwitchDecision,
    TracingRoutingConfig,
)
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.language.conditions import explain, holds
from ductile.pipeline.language.parse import SWITCH_SUFFIX
from ductile.pipeline.language.paths import Scope
from ductile.pipeline.run.execute import FOREACH, START
from ductile.pipeline.run.route import RoutingConfig, trigger_run

MAX_JOBS = 10_000
MAX_HOPS = 20
NOT_REACHED = "not reached"


@frozen(kw_only=True)
class DryRunLine:
    """One step of a dry run and its outcome."""

    step: str
    kind: str
    """uses, relay, publish, join, if, foreach, or route for a job outside of a run."""
    outcome: str
    """executed, simulated, failed, dead, joined, entered, bypassed or not reached."""
    why: str
    pipeline: str | None = None
    plugin: str | None = None
    command: str | None = None
    indexes: tuple[int, ...] = ()
    """The index in each `foreach` around it, outermost first."""
    predicates: Predicates = ()
    rendered: Mapping[str, Any] = field(factory=dict, repr=False)
    """The values of `with`."""
    payload: Any = field(default=None, repr=False)
    """The payload of the plugin, after `with`."""
    baggage: Mapping[str, Any] = field(factory=dict, repr=False)
    tolerated: bool = False
    led_to: tuple[str, ...] = ()


@frozen(kw_only=True)
class DryRunResult:
    """The result of a dry run."""

    status: JobStatus
    lines: tuple[DryRunLine, ...]
    would_start: bool
    """The value of the pipeline's `if`, which a run by name does not evaluate."""
    predicates: Predicates = ()
    is_complete: bool = True
    """False if the run exceeds the job limit. The service would mark the remaining jobs dead."""


def dry_run_pipeline(
    plan: Plan,
    payload: Mapping[str, Any],
    routing: RoutingConfig,
    answers: Mapping[str, PluginAnswer] | None = None,
    *,
    now: datetime,
    execute: ExecuteJob | None = None,
    max_jobs: int = MAX_JOBS,
    max_hops: int = MAX_HOPS,
) -> DryRunResult:
    """Simulate a run of `plan` with this payload.

    A job gets the answer of `execute`, otherwise that of its step in `answers`, otherwise it succeeds without events.
    Raises TooManyFollowUps if the run cannot start.
    """
    tracing = TracingRoutingConfig.of(routing)
    sandbox = Sandbox(plan.name, tracing, answers or {}, execute, now, max_jobs, max_hops)
    sandbox.apply(trigger_run(plan, payload, tracing, submitted_by="cli", now=now).follow_ups)
    sandbox.run()
    lines = tuple(_lines(sandbox))
    scope = Scope(payload=payload, context={})
    return DryRunResult(
        status=JobStatus.FAILED if sandbox.has_failed or sandbox.is_truncated else JobStatus.SUCCEEDED,
        lines=(*lines, *_not_reached(plan, lines)),
        would_start=plan.condition is None or holds(plan.condition, scope),
        predicates=tuple(explain(plan.condition, scope)) if plan.condition else (),
        is_complete=not sandbox.is_truncated,
    )


def _lines(sandbox: Sandbox) -> Iterator[DryRunLine]:
    """Yield the executed steps and decisions, in order."""
    for row in sandbox.rows.values():
        if row.job.plugin == SWITCH:
            yield _decision(row, sandbox.routing.decisions[row.job.id])
        elif row.job.plugin != START:
            yield _line(row)


def _decision(row: SandboxJob, decision: SwitchDecision) -> DryRunLine:
    job = row.job
    matched: bool = strict_json.loads(row.result or "{}")["matched"]
    return DryRunLine(
        step=(job.step_id or "").removesuffix(SWITCH_SUFFIX).removesuffix("/"),
        kind="if",
        outcome="entered" if matched else "bypassed",
        why="; ".join(map(_format_predicate, decision.predicates)),
        pipeline=job.pipeline,
        indexes=decision.indexes,
        predicates=decision.predicates,
        led_to=tuple(row.led_to),
    )


def _format_predicate(predicate: Mapping[str, Any]) -> str:
    value = f" {strict_json.dumps(predicate['value'])}" if "value" in predicate else ""
    found = f"found {strict_json.dumps(predicate['found'])}" if "found" in predicate else "it is absent"
    return f"{predicate['path']} {predicate['op']}{value} is {str(predicate['holds']).lower()}: {found}"


def _line(row: SandboxJob) -> DryRunLine:
    job = row.job
    baggage: dict[str, Any] = strict_json.loads(job.context) if job.context else {}
    control = baggage.pop(CONTROL, {})
    return DryRunLine(
        step=job.step_id or job.plugin,
        kind=_KINDS.get(job.plugin, "uses" if job.step_id else "route"),
        outcome=_outcome(row),
        why=_why(row),
        pipeline=job.pipeline,
        plugin=job.plugin,
        command=job.command,
        indexes=tuple(control.get("indexes", ())),
        rendered=row.rendered,
        payload=row.payload,
        baggage=baggage,
        tolerated=job.tolerated and row.is_failed,
        led_to=tuple(row.led_to),
    )


_KINDS = {JOIN: "join", RELAY: "relay", PUBLISH: "publish", FOREACH: "foreach"}


def _outcome(row: SandboxJob) -> str:
    match row.job.status:
        case JobStatus.SUCCEEDED if row.job.is_join:
            return "joined"
        case JobStatus.SUCCEEDED:
            return "executed" if row.is_executed else "simulated"
        case JobStatus.FAILED | JobStatus.DEAD as status:
            return str(status)
        case _:
            return NOT_REACHED


def _why(row: SandboxJob) -> str:
    if row.is_failed:
        return f"{'plugin executed: ' if row.is_executed else ''}{row.job.last_error}"
    return row.why if row.job.status.is_final else "the dry run stopped before this step"


def _not_reached(plan: Plan, lines: tuple[DryRunLine, ...]) -> Iterator[DryRunLine]:
    """Yield the steps that neither ran nor were bypassed."""
    reached = {line.step for line in lines if line.pipeline == plan.name and line.outcome != "entered"}
    for node in plan.nodes.values():
        if node.path not in reached:
            yield DryRunLine(
                step=node.path,
                kind=node.kind,
                outcome=NOT_REACHED,
                why="no event reached it",
                pipeline=plan.name,
                plugin=node.plugin,
                command=node.command,
            )
