"""A dry run: how a run of a pipeline would go, step by step, with the reasons.

Nothing is queued, written or spawned: answers of plugins are given or made up, and only the caller may fetch a real
one. The same functions as in the service decide what follows.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from attrs import field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import JobStatus
from ductile.pipeline.compile.plan import JOIN, RELAY, SWITCH, Plan
from ductile.pipeline.dry_run.answers import PluginAnswer
from ductile.pipeline.dry_run.sandbox import Ask, Predicates, Sandbox, SandboxJob, SwitchDecision, TellingWorld
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.language.conditions import explain, holds
from ductile.pipeline.language.parse import SWITCH_SUFFIX
from ductile.pipeline.language.paths import Scope
from ductile.pipeline.run.execute import FOREACH, START
from ductile.pipeline.run.route import World, begin

MOST_JOBS = 10_000
MOST_HOPS = 20
NOT_REACHED = "not reached"


@frozen(kw_only=True)
class DryRunLine:
    """One thing that would happen, or would not."""

    step: str
    kind: str
    """uses, relay, join, if, foreach, or route for a job outside of every run."""
    outcome: str
    """executed, simulated, failed, dead, joined, entered, bypassed or not reached."""
    why: str
    pipeline: str | None = None
    plugin: str | None = None
    command: str | None = None
    indexes: tuple[int, ...] = ()
    """Which item of each `foreach` around it, outermost first."""
    predicates: Predicates = ()
    payload: Any = field(default=None, repr=False)
    """What the plugin gets, after `with`."""
    baggage: Mapping[str, Any] = field(factory=dict, repr=False)
    tolerated: bool = False
    led_to: tuple[str, ...] = ()


@frozen(kw_only=True)
class Rehearsal:
    """How the run would go."""

    status: JobStatus
    lines: tuple[DryRunLine, ...]
    would_start: bool
    """What the pipeline's own `if` says about the payload; who asks for a run by name is not asked."""
    predicates: Predicates = ()
    is_complete: bool = True
    """False if it was cut short because it has more jobs than it may: in the service the others are dead."""


def rehearse(
    plan: Plan,
    payload: Mapping[str, Any],
    world: World,
    answers: Mapping[str, PluginAnswer] | None = None,
    *,
    now: datetime,
    ask: Ask | None = None,
    most_jobs: int = MOST_JOBS,
    most_hops: int = MOST_HOPS,
) -> Rehearsal:
    """The run of `plan` with this payload, every job answered by `ask`, else by `answers` (by step), else silently.

    TooManyFollowUps if the payload leads to more jobs at once than a run may have.
    """
    telling = TellingWorld.of(world)
    stage = Sandbox(plan.name, telling, answers or {}, ask, now, most_jobs, most_hops)
    stage.apply(begin(plan, payload, telling, submitted_by="cli", now=now).following)
    stage.play()
    lines = tuple(_lines(stage))
    scope = Scope(payload=payload, context={})
    return Rehearsal(
        status=JobStatus.FAILED if stage.has_failed or stage.is_cut else JobStatus.SUCCEEDED,
        lines=(*lines, *_not_reached(plan, lines)),
        would_start=plan.condition is None or holds(plan.condition, scope),
        predicates=tuple(explain(plan.condition, scope)) if plan.condition else (),
        is_complete=not stage.is_cut,
    )


def _lines(stage: Sandbox) -> Iterator[DryRunLine]:
    """What happened, in the order in which it came about."""
    for row in stage.rows.values():
        if row.job.plugin == SWITCH:
            yield _decision(row, stage.world.decided[row.job.id])
        elif row.job.plugin != START:
            yield _line(row)


def _decision(row: SandboxJob, decision: SwitchDecision) -> DryRunLine:
    job = row.job
    matched: bool = strict_json.loads(row.result or "{}")["matched"]
    return DryRunLine(
        step=(job.step_id or "").removesuffix(SWITCH_SUFFIX).removesuffix("/"),
        kind="if",
        outcome="entered" if matched else "bypassed",
        why="; ".join(map(_told, decision.predicates)),
        pipeline=job.pipeline,
        indexes=decision.indexes,
        predicates=decision.predicates,
        led_to=tuple(row.led_to),
    )


def _told(predicate: Mapping[str, Any]) -> str:
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
        payload=row.payload,
        baggage=baggage,
        tolerated=job.tolerated and row.is_failed,
        led_to=tuple(row.led_to),
    )


_KINDS = {JOIN: "join", RELAY: "relay", FOREACH: "foreach"}


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
        return f"{'really run: ' if row.is_executed else ''}{row.job.last_error}"
    return row.why if row.job.status.is_final else "the rehearsal was cut short before it"


def _not_reached(plan: Plan, lines: tuple[DryRunLine, ...]) -> Iterator[DryRunLine]:
    """The steps that nothing is told about yet: neither that they ran nor that they were bypassed."""
    reached = {line.step for line in lines if line.pipeline == plan.name and line.outcome != "entered"}
    for node in plan.nodes.values():
        if node.path not in reached:
            yield DryRunLine(
                step=node.path,
                kind=node.kind,
                outcome=NOT_REACHED,
                why="nothing led to it",
                pipeline=plan.name,
                plugin=node.plugin,
                command=node.command,
            )
