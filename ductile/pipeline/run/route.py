"""What follows from a job that has ended, and what a trigger starts. Pure: values in, values out.

Every event advances the run its job is part of, goes along the `routes:` that name its plugin and type, and starts the
pipelines that wait for its type. A decision not to start something is noted, never an error.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import evolve, field, frozen

from ductile.core.formats import strict_json
from ductile.core.model import (
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
    Prefinished,
    Skipped,
    Succeeded,
)
from ductile.pipeline.compile.plan import HANDLE, JOIN_COMPLETED, STEP_SUCCEEDED, End, Plan, PlanNode, Plans
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.language.conditions import explain, holds
from ductile.pipeline.language.paths import Scope
from ductile.pipeline.run.cursor import INDEXES, Position, fits, hook_depth_of, position_of
from ductile.pipeline.run.events import (
    Ended,
    Event,
    derived_id,
    entered_with,
    event_id,
    outcome_payload,
    silent_success,
    step_failure,
)
from ductile.pipeline.run.execute import MOST_BYTES, MOST_CONTEXT, MOST_JOBS, START, Target, TooManyFollowUps, Walk

__all__ = ["Event", "Routes", "Target", "TooManyFollowUps", "World", "after", "after_join", "begin", "event_id"]


@frozen
class Routes:
    """Which plugins get which events."""

    targets: Mapping[tuple[str, str], tuple[tuple[int, str], ...]] = field(factory=dict)
    """(source plugin, event type) → (place in the configuration, target plugin)."""

    @classmethod
    def of(cls, entries: Iterable[tuple[str, str, str]]) -> "Routes":
        targets: dict[tuple[str, str], tuple[tuple[int, str], ...]] = {}
        for index, (source, event_type, target) in enumerate(entries):
            targets[source, event_type] = (*targets.get((source, event_type), ()), (index, target))
        return cls(targets)


@frozen(kw_only=True, eq=False)
class World:
    """Everything that decides where events go: one configuration, as far as routing cares."""

    routes: Routes = field(factory=Routes)
    plans: Plans = field(factory=Plans)
    target: Callable[[str], Target] = lambda _: Target()
    config_of: Callable[[str], Mapping[str, Any]] = lambda _: {}
    most_bytes: int = MOST_BYTES
    most_jobs: int = MOST_JOBS
    most_context: int = MOST_CONTEXT
    most_hooks: int = 4
    """Hooks that may follow on hooks."""
    mask: Callable[[Any], Any] = lambda data: data
    """Hides in plain data what must not stand in the journal."""
    snapshot_id: str | None = None

    def walk(self) -> Walk:
        return Walk(**self.bounds())

    def bounds(self) -> dict[str, Any]:
        """What every walk in this world begins with."""
        return {
            "target": self.target,
            "config_of": self.config_of,
            "most_bytes": self.most_bytes,
            "most_jobs": self.most_jobs,
            "most_context": self.most_context,
            "snapshot_id": self.snapshot_id,
            "mask": self.mask,
        }


MOST_JOINED = 1 << 20
"""Characters of results that stand in the join's own result."""
MOST_ARRIVED = 16 << 20
"""Characters of results that one join takes: they are read and written again inside a transaction."""


@frozen
class _Place:
    """The step of a run that a job is."""

    node: PlanNode
    at: Position


def after(job: Job, ended: Ended, events: Sequence[Event], world: World, *, now: datetime) -> FollowUps:
    """What follows from a final ending; TooManyFollowUps if it is more than one job may lead to."""
    if ended.status is JobStatus.SUCCEEDED and not events and _ends_here(job, world):
        return NOTHING
    walk = world.walk()
    place = _place(job, world, walk)
    if ended.status is JobStatus.SUCCEEDED and not events and place is not None:
        events = (silent_success(job, ended.result, now=now),)
    for event in events:
        _send(event, job, place, world, walk, advances=ended.status is JobStatus.SUCCEEDED)
    if ended.is_failure and place is not None and place.node.on_error is not None:
        walk.enter(place.node.on_error, step_failure(job, ended, now=now), place.at)
    if job.notify and job.is_root and ended.status is not JobStatus.SKIPPED:
        _tell_hooks(job, ended, world, walk, now=now)
    following = walk.following()
    # The row is as old as the job: a reload, a budget or an earlier attempt may have made something else of its step.
    goes_on = place is not None and place.node.tolerated
    return evolve(following, tolerated=goes_on) if ended.is_failure and goes_on != job.tolerated else following


NOTHING = FollowUps()


def _ends_here(job: Job, world: World) -> bool:
    """True if nobody is told when the job succeeds without an event: its payload and baggage need not be read then.

    False where that takes more than a look.
    """
    if job.notify and job.is_root:
        return False
    if job.pipeline is None or job.step_id is None:
        return True
    plan = world.plans.by_name.get(job.pipeline)
    node = plan.nodes.get(job.step_id) if plan is not None else None
    if node is None or not isinstance(node.successors, End) or (job.plugin, STEP_SUCCEEDED) in world.routes.targets:
        return False
    # What `fits` asks: such a job has no join and no indexes, nor has its step.
    is_plain = job.join_id is None and INDEXES not in (job.context or "")
    return is_plain and not node.joins and not node.foreach_depth


def after_join(joined: JoinInput, world: World, *, now: datetime) -> tuple[Outcome, FollowUps]:
    """How a join ends whose members are all over, and what its step leads to."""
    job = joined.job
    waited = Evidence(started_at=job.created_at, duration=max(now, job.created_at) - job.created_at)
    if joined.failed:
        more = "" if joined.failed == len(joined.failures) else f" and {joined.failed - len(joined.failures)} more"
        return Failed(f"not joined: {'; '.join(joined.failures)}{more}", waited), FollowUps()
    walk = world.walk()
    place = _place(job, world, walk)
    if place is None:
        return Failed(_lost(job, world), waited), walk.following()
    if not joined.arrivals and job.dedupe_key is not None:
        return Skipped("everything it would have joined was a duplicate"), FollowUps()
    arrived = sum(len(arrival.payload) for arrival in joined.arrivals)
    if arrived > MOST_ARRIVED:
        return Failed(f"its results have {arrived:,} characters, {MOST_ARRIVED:,} can be joined", waited), FollowUps()
    results = [strict_json.loads(arrival.payload) for arrival in joined.arrivals]
    payload = {**entered_with(job), "results": results}
    event = Event(event_id(job.id, job.attempt, "joined"), JOIN_COMPLETED, payload, job.plugin, now)
    try:
        walk.enter(place.node.successors, event, place.at)
    except TooManyFollowUps as error:
        return Failed(str(error), waited), FollowUps()
    return Succeeded(evolve(waited, result=_joined_text(results))), walk.following()


def _lost(job: Job, world: World) -> str:
    """Why the job stands nowhere in its run any more."""
    plan = world.plans.by_name.get(job.pipeline or "")
    if plan is None or job.step_id not in plan.nodes:
        return f"pipeline {job.pipeline} has no step {job.step_id} any more"
    return f"pipeline {job.pipeline} was changed around step {job.step_id}: the run cannot go on in it"


def _joined_text(results: list[Any]) -> str:
    """The result of a join, in the shape of a plugin's answer; what arrived is in it unless it is very much."""
    answer = {"status": "ok", "result": f"{len(results)} joined"}
    text = strict_json.dumps({**answer, "results": results})
    return text if len(text) <= MOST_JOINED else strict_json.dumps(answer)


@frozen
class Beginning:
    """The first jobs of a run, the root first, and why some of them cannot be run if they cannot."""

    following: FollowUps
    refusals: tuple[str, ...]


def begin(plan: Plan, payload: Mapping[str, Any], world: World, *, submitted_by: str, now: datetime) -> Beginning:
    """Start a run of `plan` that was requested by name, without evaluating its conditions.

    Raises TooManyFollowUps, as `after` does.
    """
    walk = world.walk()
    event = Event(str(uuid.uuid4()), plan.on or plan.hook or plan.name, payload, submitted_by, now)
    start(plan, event, walk, Position(**fresh(plan, event), submitted_by=submitted_by))
    return Beginning(walk.following(), tuple(walk.refusals))


def _place(job: Job, world: World, walk: Walk) -> _Place | None:
    """Where in a run the job stands; None if it is in none, or in one that the configuration no longer has."""
    if job.pipeline is None or job.step_id is None:
        return None
    plan = world.plans.by_name.get(job.pipeline)
    node = plan.nodes.get(job.step_id) if plan is not None else None
    if plan is None or node is None:
        walk.notes.append(_run_ended(job, "the configuration has no such step any more"))
        return None
    at = position_of(job, plan, node)
    if not fits(job, node, len(at.indexes)):
        walk.notes.append(_run_ended(job, "the pipeline was changed around this step"))
        return None
    return _Place(node, at)


def _run_ended(job: Job, reason: str) -> Note:
    return Note(kind="run.ended", data={"pipeline": job.pipeline, "step_id": job.step_id, "reason": reason})


def _send(event: Event, job: Job, place: _Place | None, world: World, walk: Walk, *, advances: bool) -> None:
    """The event is on all its ways; if there is none, that is noted."""
    made = len(walk.children) + len(walk.arrivals)
    if place is not None and advances:
        walk.enter(place.node.successors, _from(event, job), place.at)
    for index, plugin in world.routes.targets.get((job.plugin, event.type), ()):
        walk.add(_routed(event, job, index, plugin, world, walk))
    for plan in () if event.is_internal else world.plans.on(event.type):
        _trigger(plan, event, job, place, walk)
    if len(walk.children) + len(walk.arrivals) == made and event.type != STEP_SUCCEEDED:
        walk.notes.append(Note(kind="event.unmatched", data={"event_id": event.id, "type": event.type}))


def _from(event: Event, job: Job) -> Event:
    """The event with the step it came from, for plugins that want to know."""
    source = {"ductile_upstream_plugin": job.plugin}
    if job.pipeline is not None:
        source["ductile_upstream_pipeline"] = job.pipeline
    if job.step_id is not None:
        source["ductile_upstream_step_id"] = job.step_id
    payload = {**event.payload, **source}
    return Event(event.id, event.type, payload, event.source, event.at, event.dedupe_key, event.headers)


def _routed(event: Event, job: Job, index: int, plugin: str, world: World, walk: Walk) -> NewJob:
    """The job of one route; for a plugin that cannot run it is dead from the start and says why."""
    known = world.target(plugin)
    return NewJob(
        plugin=plugin,
        command=HANDLE,
        submitted_by="route",
        payload=walk.payload_for(HANDLE, event),
        max_attempts=known.max_attempts,
        dedupe_key=event.dedupe_key,
        parent_job_id=job.id,
        source_event_id=event.id,
        child_key=f"{event.id}/route/{index}",
        hops=job.hops + 1,
        snapshot_id=world.snapshot_id,
        settled=Prefinished(status=JobStatus.DEAD, error=f"plugin {plugin} {known.refused}") if known.refused else None,
    )


def _trigger(plan: Plan, event: Event, job: Job, place: _Place | None, walk: Walk) -> None:
    """A run of its own inside the tree of the job; it inherits what is durable."""
    baggage = place.at.baggage if place is not None else {}
    if not may_begin(plan, event, job.plugin, baggage, walk):
        return
    at = Position(
        **fresh(plan, event),
        baggage=baggage,
        hops=job.hops + 1,
        parent_id=job.id,
    )
    _start_or_note(plan, _from(event, job), walk, at, continues=job.event_context_id)


def _start_or_note(plan: Plan, event: Event, walk: Walk, at: Position, *, continues: str | None = None) -> None:
    """The run has begun; or it is too much and that is noted: the job that emitted the event is not to blame."""
    before = walk.mark()
    try:
        start(plan, event, walk, at, continues=continues)
    except TooManyFollowUps as error:
        walk.go_back_to(before)
        about = {"pipeline": plan.name, "event_id": event.id, "type": event.type}
        walk.notes.append(Note(kind="pipeline.skipped", data={**about, "reason": str(error)}))


SIGNALS = ("job.completed", "job.failed", "job.timed_out", "job.dead")


def _tell_hooks(job: Job, ended: Ended, world: World, walk: Walk, *, now: datetime) -> None:
    """Hook pipelines start as trees of their own, with nothing of the job but how it ended."""
    applies = (True, ended.is_failure, ended.timed_out, ended.status is JobStatus.DEAD)
    payload, depth = outcome_payload(job, ended), hook_depth_of(job) + 1
    for signal in (signal for signal, does in zip(SIGNALS, applies, strict=True) if does):
        event = Event(event_id(job.id, job.attempt, signal), signal, payload, job.plugin, now)
        for plan in world.plans.on_hook(signal):
            if depth > world.most_hooks:
                about = {"pipeline": plan.name, "event_id": event.id, "type": signal}
                reason = f"more than {world.most_hooks} hooks in a row (service.hook_max_depth)"
                walk.notes.append(Note(kind="pipeline.skipped", data={**about, "reason": reason}))
            elif may_begin(plan, event, job.plugin, {}, walk):
                at = Position(
                    **fresh(plan, event),
                    hops=job.hops + 1,
                    parent_id=job.id,
                    own_tree=True,
                    submitted_by="hook",
                    hook_depth=depth,
                )
                _start_or_note(plan, event, walk, at)


def may_begin(plan: Plan, event: Event, source: str, baggage: Mapping[str, Any], walk: Walk) -> bool:
    about: dict[str, Any] = {"pipeline": plan.name, "event_id": event.id, "type": event.type}
    if not plan.takes_from(source):
        about |= {"reason": f"from_plugin is {plan.from_plugin}", "source": source}
    elif plan.condition is not None:
        scope = Scope(payload=event.payload, context=baggage)
        if holds(plan.condition, scope):
            return True
        about |= {"reason": "if is false", "predicates": walk.mask(explain(plan.condition, scope))}
    else:
        return True
    walk.notes.append(Note(kind="pipeline.skipped", data=about))
    return False


def fresh(plan: Plan, event: Event) -> dict[str, Any]:
    """What every run begins with."""
    instance = derived_id(event.id, plan.name)
    return {
        "plan": plan,
        "instance": instance,
        "inherits_from": derived_id(instance, "context"),
        "depth_limit": plan.depth_limit,
    }


def start(plan: Plan, event: Event, walk: Walk, at: Position, *, continues: str | None = None) -> None:
    """The root context and the first jobs, which inherit from it; it `continues` the context that the run came from.

    A tree of its own gets one root, whatever the pipeline begins with.
    """
    context_id = at.inherits_from
    assert context_id is not None, "`fresh` has named the root context"
    context = NewContext(
        id=context_id,
        parent_id=continues,
        pipeline_name=plan.name,
        accumulated_json=strict_json.dumps({**at.baggage, CONTROL: at.control(0)}),
    )
    walk.add_context(context)
    first = len(walk.children)
    walk.enter(plan.entry, event, at)
    if at.parent_id is None or at.own_tree:
        walk.children[first:] = _under_one_root(walk.children[first:], event, at, context_id)


def _under_one_root(made: list[NewJob], event: Event, at: Position, context_id: str) -> list[NewJob]:
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
        settled=Prefinished(status=JobStatus.SUCCEEDED, result=strict_json.dumps({"jobs": len(roots)})),
    )
    top = at.parent_id
    below = (evolve(new, parent_job_id=start.id, own_tree=False) if new.parent_job_id == top else new for new in made)
    return [start, *below]
