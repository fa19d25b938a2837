"""Route events: compute the follow-up jobs of a completed job, and the first jobs of a triggered run. Pure.

An event advances the run of its job, follows matching `routes:` entries, and starts pipelines that its type triggers.
A pipeline that does not start is noted in the journal; it is not an error.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import evolve, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import (
    HANDLE,
    Evidence,
    Failed,
    FollowUps,
    Job,
    JobStatus,
    JoinInput,
    NewContext,
    NewJob,
    Note,
    Outcome,
    OutcomeCode,
    Prefinished,
    Skipped,
    Succeeded,
)
from ductile.pipeline.compile.plan import JOIN_COMPLETED, STEP_SUCCEEDED, End, Plan, PlanNode, Plans
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.language.conditions import explain, holds
from ductile.pipeline.language.paths import Scope
from ductile.pipeline.run.cursor import INDEXES, RunCursor, cursor_of, hook_depth_of, matches_step
from ductile.pipeline.run.events import (
    Event,
    JobResult,
    derived_id,
    event_id,
    input_payload,
    outcome_payload,
    step_failed_event,
    step_succeeded_event,
)
from ductile.pipeline.run.execute import (
    MAX_CONTEXT_BYTES,
    MAX_FOLLOW_UP_BYTES,
    MAX_FOLLOW_UP_JOBS,
    START,
    Execution,
    Target,
    TooManyFollowUps,
    plugin_unavailable,
)

__all__ = [
    "Event",
    "Routes",
    "RoutingConfig",
    "Target",
    "TooManyFollowUps",
    "compute_follow_ups",
    "event_id",
    "resolve_join",
    "trigger_run",
]


@frozen
class Routes:
    """The `routes:` section, indexed by source plugin and event type."""

    targets: Mapping[tuple[str, str], tuple[tuple[int, str], ...]] = field(factory=dict)
    """(source plugin, event type) → (index in the configuration, target plugin)."""

    @classmethod
    def of(cls, entries: Iterable[tuple[str, str, str]]) -> "Routes":
        targets: dict[tuple[str, str], tuple[tuple[int, str], ...]] = {}
        for index, (source, event_type, target) in enumerate(entries):
            targets[source, event_type] = (*targets.get((source, event_type), ()), (index, target))
        return cls(targets)


@frozen(kw_only=True, eq=False)
class RoutingConfig:
    """The part of a configuration snapshot that routing needs."""

    routes: Routes = field(factory=Routes)
    plans: Plans = field(factory=Plans)
    target: Callable[[str], Target] = lambda _: Target()
    config_of: Callable[[str], Mapping[str, Any]] = lambda _: {}
    max_bytes: int = MAX_FOLLOW_UP_BYTES
    max_jobs: int = MAX_FOLLOW_UP_JOBS
    max_context_bytes: int = MAX_CONTEXT_BYTES
    max_hook_depth: int = 4
    """Maximum number of consecutive hooks."""
    mask: Callable[[Any], Any] = lambda data: data
    """Masks secrets in data for the journal."""
    snapshot_id: str | None = None

    def new_execution(self) -> Execution:
        return Execution(**self.execution_settings())

    def execution_settings(self) -> dict[str, Any]:
        """Return the constructor arguments of an Execution."""
        return {
            "target": self.target,
            "config_of": self.config_of,
            "max_bytes": self.max_bytes,
            "max_jobs": self.max_jobs,
            "max_context_bytes": self.max_context_bytes,
            "snapshot_id": self.snapshot_id,
            "mask": self.mask,
        }


MAX_JOIN_RESULT_CHARS = 1 << 20
"""Above this size, the results are left out of the join's own result."""
MAX_JOIN_INPUT_CHARS = 16 << 20
"""Limits the results of one join, because they are parsed and serialised inside a transaction."""


@frozen
class _RunStep:
    """The step of a job and its cursor in the run."""

    node: PlanNode
    at: RunCursor


def compute_follow_ups(
    job: Job, job_result: JobResult, events: Sequence[Event], routing: RoutingConfig, *, now: datetime
) -> FollowUps:
    """Compute the follow-ups of a job with a final result. Raises TooManyFollowUps."""
    if job_result.status is JobStatus.SUCCEEDED and not events and _has_no_follow_ups(job, routing):
        return NO_FOLLOW_UPS
    execution = routing.new_execution()
    step = _run_step(job, routing, execution)
    if job_result.status is JobStatus.SUCCEEDED and not events and step is not None:
        events = (step_succeeded_event(job, job_result.result, now=now),)
    for event in events:
        _route_event(event, job, step, routing, execution, advances=job_result.status is JobStatus.SUCCEEDED)
    if job_result.is_failure and step is not None and step.node.on_error is not None:
        execution.enter(step.node.on_error, step_failed_event(job, job_result, now=now), step.at)
    if job.notify and job.is_root and job_result.status is not JobStatus.SKIPPED:
        _trigger_hooks(job, job_result, routing, execution, now=now)
    follow_ups = execution.follow_ups()
    # The flag in the row can be outdated: a reload, a budget or an earlier attempt may have changed it.
    tolerated = step is not None and step.node.tolerated
    return (
        evolve(follow_ups, tolerated=tolerated) if job_result.is_failure and tolerated != job.tolerated else follow_ups
    )


NO_FOLLOW_UPS = FollowUps()


def _has_no_follow_ups(job: Job, routing: RoutingConfig) -> bool:
    """Return True if a success without events certainly has no follow-ups, without parsing payload and baggage.

    False means that the full computation has to decide.
    """
    if job.notify and job.is_root:
        return False
    if job.pipeline is None or job.step_id is None:
        return True
    plan = routing.plans.by_name.get(job.pipeline)
    node = plan.nodes.get(job.step_id) if plan is not None else None
    if node is None or not isinstance(node.successors, End) or (job.plugin, STEP_SUCCEEDED) in routing.routes.targets:
        return False
    # The rule of `matches_step` for a job and a step without joins and loops.
    is_plain = job.join_id is None and INDEXES not in (job.context or "")
    return is_plain and not node.joins and not node.foreach_depth


def resolve_join(joined: JoinInput, routing: RoutingConfig, *, now: datetime) -> tuple[Outcome, FollowUps]:
    """Decide the outcome of a join whose members are all finished, and compute its follow-ups."""
    job = joined.job
    waited = Evidence(started_at=job.created_at, duration=max(now, job.created_at) - job.created_at)
    if joined.failed:
        more = "" if joined.failed == len(joined.failures) else f" and {joined.failed - len(joined.failures)} more"
        details = {"failures": list(joined.failures), "failed": joined.failed}
        error = f"not joined: {'; '.join(joined.failures)}{more}"
        return Failed(error, waited, OutcomeCode.NOT_JOINED, details), FollowUps()
    execution = routing.new_execution()
    step = _run_step(job, routing, execution)
    if step is None:
        return Failed(_missing_step_reason(job, routing), waited, OutcomeCode.STEP_REMOVED), execution.follow_ups()
    if not joined.arrivals and job.dedupe_key is not None:
        duplicates = "every job it would have joined was a duplicate"
        return Skipped(duplicates, OutcomeCode.NOTHING_TO_JOIN), FollowUps()
    arrived = sum(len(arrival.payload) for arrival in joined.arrivals)
    if arrived > MAX_JOIN_INPUT_CHARS:
        error = f"its results have {arrived:,} characters, the limit is {MAX_JOIN_INPUT_CHARS:,}"
        details = {"characters": arrived, "max": MAX_JOIN_INPUT_CHARS}
        return Failed(error, waited, OutcomeCode.JOIN_TOO_LARGE, details), FollowUps()
    results = [strict_json.loads(arrival.payload) for arrival in joined.arrivals]
    payload = {**input_payload(job), "results": results}
    event = Event(event_id(job.id, job.attempt, "joined"), JOIN_COMPLETED, payload, job.plugin, now)
    try:
        execution.enter(step.node.successors, event, step.at)
    except TooManyFollowUps as error:
        return Failed(str(error), waited, OutcomeCode.TOO_MANY_FOLLOW_UPS), FollowUps()
    joined_up = evolve(waited, result=_join_result(results))
    return Succeeded(joined_up, OutcomeCode.JOINED, {"results": len(results)}), execution.follow_ups()


def _missing_step_reason(job: Job, routing: RoutingConfig) -> str:
    """Return the reason why the step of a job no longer exists."""
    plan = routing.plans.by_name.get(job.pipeline or "")
    if plan is None or job.step_id not in plan.nodes:
        return f"pipeline {job.pipeline} no longer has step {job.step_id}"
    return f"pipeline {job.pipeline} changed around step {job.step_id}, so the run cannot continue"


def _join_result(results: list[Any]) -> str:
    """Return the result of a join in the format of a plugin response, with the results unless they are too large."""
    answer = {"status": "ok", "result": f"{len(results)} joined"}
    text = strict_json.dumps({**answer, "results": results})
    return text if len(text) <= MAX_JOIN_RESULT_CHARS else strict_json.dumps(answer)


@frozen
class TriggeredRun:
    """The first jobs of a run, the root first, and the reasons why steps could not start."""

    follow_ups: FollowUps
    refusals: tuple[str, ...]


def trigger_run(
    plan: Plan, payload: Mapping[str, Any], routing: RoutingConfig, *, submitted_by: str, now: datetime
) -> TriggeredRun:
    """Start a run of `plan` that was requested by name, without evaluating its conditions.

    Raises TooManyFollowUps.
    """
    execution = routing.new_execution()
    event = Event(str(uuid.uuid4()), plan.on or plan.hook or plan.name, payload, submitted_by, now)
    enter_pipeline(plan, event, execution, RunCursor(**initial_cursor_fields(plan, event), submitted_by=submitted_by))
    return TriggeredRun(execution.follow_ups(), tuple(execution.refusals))


def _run_step(job: Job, routing: RoutingConfig, execution: Execution) -> _RunStep | None:
    """Return the step of a job; None outside of a run, and None with a note if a reload removed or changed it."""
    if job.pipeline is None or job.step_id is None:
        return None
    plan = routing.plans.by_name.get(job.pipeline)
    node = plan.nodes.get(job.step_id) if plan is not None else None
    if plan is None or node is None:
        execution.notes.append(_run_ended_note(job, "the step no longer exists in the configuration"))
        return None
    at = cursor_of(job, plan, node)
    if not matches_step(job, node, len(at.indexes)):
        execution.notes.append(_run_ended_note(job, "the pipeline changed around this step"))
        return None
    return _RunStep(node, at)


def _run_ended_note(job: Job, reason: str) -> Note:
    return Note(kind="run.ended", data={"pipeline": job.pipeline, "step_id": job.step_id, "reason": reason})


def _route_event(
    event: Event, job: Job, step: _RunStep | None, routing: RoutingConfig, execution: Execution, *, advances: bool
) -> None:
    """Advance the run, follow routes and start pipelines. An event without any effect is noted as unmatched."""
    before = len(execution.children) + len(execution.arrivals)
    if step is not None and advances:
        execution.enter(step.node.successors, _with_upstream(event, job), step.at)
    for index, plugin in routing.routes.targets.get((job.plugin, event.type), ()):
        execution.add(_route_job(event, job, index, plugin, routing, execution))
    for plan in () if event.is_internal else routing.plans.for_event(event.type):
        _trigger_pipeline(plan, event, job, step, execution)
    if len(execution.children) + len(execution.arrivals) == before and event.type != STEP_SUCCEEDED:
        execution.notes.append(Note(kind="event.unmatched", data={"event_id": event.id, "type": event.type}))


def _with_upstream(event: Event, job: Job) -> Event:
    """Add the names of the emitting step to the payload."""
    source = {"ductile_upstream_plugin": job.plugin}
    if job.pipeline is not None:
        source["ductile_upstream_pipeline"] = job.pipeline
    if job.step_id is not None:
        source["ductile_upstream_step_id"] = job.step_id
    return evolve(event, payload={**event.payload, **source})


def _route_job(event: Event, job: Job, index: int, plugin: str, routing: RoutingConfig, execution: Execution) -> NewJob:
    """Create the job of one route. If the plugin cannot run, the job is dead with the reason."""
    target = routing.target(plugin)
    return NewJob(
        plugin=plugin,
        command=HANDLE,
        submitted_by="route",
        payload=execution.payload_for(HANDLE, event),
        max_attempts=target.max_attempts,
        dedupe_key=event.dedupe_key,
        parent_job_id=job.id,
        source_event_id=event.id,
        child_key=f"{event.id}/route/{index}",
        hops=job.hops + 1,
        snapshot_id=routing.snapshot_id,
        prefinished=plugin_unavailable(plugin, target.refused) if target.refused else None,
    )


def _trigger_pipeline(plan: Plan, event: Event, job: Job, step: _RunStep | None, execution: Execution) -> None:
    """Start a run inside the tree of the job. The run inherits the baggage."""
    baggage = step.at.baggage if step is not None else {}
    if not may_start(plan, event, job.plugin, baggage, execution):
        return
    at = RunCursor(
        **initial_cursor_fields(plan, event),
        baggage=baggage,
        hops=job.hops + 1,
        parent_id=job.id,
    )
    _start_or_note(plan, _with_upstream(event, job), execution, at, continues=job.event_context_id)


def _start_or_note(
    plan: Plan, event: Event, execution: Execution, at: RunCursor, *, continues: str | None = None
) -> None:
    """Start a run, or note that it exceeds a limit, which must not fail the job that emitted the event."""
    savepoint = execution.savepoint()
    try:
        enter_pipeline(plan, event, execution, at, continues=continues)
    except TooManyFollowUps as error:
        execution.roll_back(savepoint)
        details = {"pipeline": plan.name, "event_id": event.id, "type": event.type}
        execution.notes.append(Note(kind="pipeline.skipped", data={**details, "reason": str(error)}))


SIGNALS = ("job.completed", "job.failed", "job.timed_out", "job.dead")
HOOK = "hook"
"""The submitter of hook runs."""


def _trigger_hooks(
    job: Job, job_result: JobResult, routing: RoutingConfig, execution: Execution, *, now: datetime
) -> None:
    """Start hook pipelines as separate trees with the outcome of the job as payload."""
    applies = (True, job_result.is_failure, job_result.timed_out, job_result.status is JobStatus.DEAD)
    payload, depth = outcome_payload(job, job_result), hook_depth_of(job) + 1
    for signal in (signal for signal, does in zip(SIGNALS, applies, strict=True) if does):
        event = Event(event_id(job.id, job.attempt, signal), signal, payload, job.plugin, now)
        start_hooks(event, job, depth, routing, execution)


def start_hooks(event: Event, job: Job, depth: int, routing: RoutingConfig, execution: Execution) -> None:
    """Start the hook pipelines of a signal about `job`, each as a separate tree. `depth` counts consecutive hooks."""
    for plan in routing.plans.for_hook(event.type):
        if depth > routing.max_hook_depth:
            details = {"pipeline": plan.name, "event_id": event.id, "type": event.type}
            reason = f"more than {routing.max_hook_depth} consecutive hooks (service.hook_max_depth)"
            execution.notes.append(Note(kind="pipeline.skipped", data={**details, "reason": reason}))
        elif may_start(plan, event, job.plugin, {}, execution):
            at = RunCursor(
                **initial_cursor_fields(plan, event),
                hops=job.hops + 1,
                parent_id=job.id,
                own_tree=True,
                submitted_by=HOOK,
                hook_depth=depth,
            )
            _start_or_note(plan, event, execution, at)


def may_start(plan: Plan, event: Event, source: str, baggage: Mapping[str, Any], execution: Execution) -> bool:
    details: dict[str, Any] = {"pipeline": plan.name, "event_id": event.id, "type": event.type}
    if not plan.accepts_source(source):
        details |= {"reason": f"from_plugin is {plan.from_plugin}", "source": source}
    elif plan.condition is not None:
        scope = Scope(payload=event.payload, context=baggage)
        if holds(plan.condition, scope):
            return True
        details |= {"reason": "if is false", "predicates": execution.mask(explain(plan.condition, scope))}
    else:
        return True
    execution.notes.append(Note(kind="pipeline.skipped", data=details))
    return False


def initial_cursor_fields(plan: Plan, event: Event) -> dict[str, Any]:
    """Return the RunCursor arguments that every new run has in common."""
    instance = derived_id(event.id, plan.name)
    return {
        "plan": plan,
        "instance": instance,
        "inherits_from": derived_id(instance, "context"),
        "depth_limit": plan.depth_limit,
    }


def enter_pipeline(
    plan: Plan, event: Event, execution: Execution, at: RunCursor, *, continues: str | None = None
) -> None:
    """Create the root context and the first jobs of a run. `continues` is the parent of the root context.

    A separate tree gets exactly one root job.
    """
    context_id = at.inherits_from
    assert context_id is not None, "`initial_cursor_fields` sets the root context"
    context = NewContext(
        id=context_id,
        parent_id=continues,
        pipeline_name=plan.name,
        accumulated_json=strict_json.dumps({**at.baggage, CONTROL: at.control(0)}),
    )
    execution.add_context(context)
    first = len(execution.children)
    execution.enter(plan.entry, event, at)
    if at.parent_id is None or at.own_tree:
        execution.children[first:] = _under_one_root(execution.children[first:], event, at, context_id)


def _under_one_root(made: list[NewJob], event: Event, at: RunCursor, context_id: str) -> list[NewJob]:
    """Add a `core.start` job as the root, unless the run already starts with exactly one job."""
    roots = [new for new in made if new.parent_job_id == at.parent_id]
    if len(roots) == 1 and not roots[0].is_join:
        return made
    start = NewJob(
        id=derived_id(at.instance, "start"),
        plugin=START,
        command=HANDLE,
        submitted_by=at.submitted_by,
        parent_job_id=at.parent_id,
        own_tree=at.own_tree,
        child_key=at.key(event, START),
        source_event_id=event.id,
        event_context_id=context_id,
        pipeline=at.plan.name,
        hops=at.hops,
        prefinished=Prefinished(status=JobStatus.SUCCEEDED, result=strict_json.dumps({"jobs": len(roots)})),
    )
    top = at.parent_id
    below = (evolve(new, parent_job_id=start.id, own_tree=False) if new.parent_job_id == top else new for new in made)
    return [start, *below]
