"""Where in a run somebody is, and what it carries: read from a job's row and context, handed on by the walk. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, field, fields, frozen

from ductile.core.formats import strict_json
from ductile.core.model import Job, NewContext
from ductile.pipeline.compile.plan import Plan, PlanNode
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.language.paths import ABSENT, Scope
from ductile.pipeline.run.events import Event

INDEXES = '"indexes"'
"""Stands in the text of every context that has indexes."""


@frozen(kw_only=True)
class Position:
    """Where in a run the walk is, and what it carries."""

    plan: Plan
    instance: str
    baggage: Mapping[str, Any] = field(factory=dict, repr=False)
    inherits_from: str | None = None
    """The context row that the next one continues."""
    depth: int = 0
    depth_limit: int
    items: tuple[Any, ...] = ()
    indexes: tuple[int, ...] = ()
    hops: int = 0
    """Crossings on the way to this run; calls inside it come on top."""
    join_id: str | None = None
    """The innermost join that waits for what is made here."""
    parent_id: str | None = None
    own_tree: bool = False
    submitted_by: str = "route"
    trail: tuple[int, ...] = ()
    """The choices of this walk, so that two ways to the same place stay two."""
    hook_depth: int = 0
    """How many hooks in a row led to this run."""

    def key(self, event: Event, path: str) -> str:
        """Tells one child of a parent from another."""
        return "/".join((event.id, self.instance, path, dotted(self.indexes), dotted(self.trail)))

    def scope(self, event: Event, config: Mapping[str, Any] | None = None) -> Scope:
        item = self.items[-1] if self.items else ABSENT
        return Scope(payload=event.payload, context=self.baggage, config=config or {}, item=item)

    def control(self, depth: int) -> dict[str, Any]:
        """What the core keeps in the context of a job made here."""
        control: dict[str, Any] = {
            "pipeline_instance_id": self.instance,
            "route_depth": depth,
            "route_max_depth": self.depth_limit,
        }
        if self.items:
            control |= {"items": list(self.items), "indexes": list(self.indexes)}
        if self.hook_depth:
            control["hook_depth"] = self.hook_depth
        return control


def position_of(job: Job, plan: Plan, node: PlanNode) -> Position:
    """Where a job of a run stands, read from its row and its context."""
    baggage: dict[str, Any] = strict_json.loads(job.context) if job.context else {}
    control = baggage.pop(CONTROL, {})
    return Position(
        plan=plan,
        instance=control.get("pipeline_instance_id", job.root_job_id),
        baggage=baggage,
        inherits_from=job.event_context_id,
        depth=control.get("route_depth", 0),
        depth_limit=plan.depth_limit,
        items=tuple(control.get("items", ())),
        indexes=tuple(control.get("indexes", ())),
        hops=job.hops - node.call_depth,
        join_id=job.join_id,
        parent_id=job.id,
        hook_depth=control.get("hook_depth", 0),
    )


def hook_depth_of(job: Job) -> int:
    """How many hooks in a row led to the run that a job is part of."""
    if job.context is None:
        return 0
    control = strict_json.loads(job.context).get(CONTROL, {})
    depth: int = control.get("hook_depth", 0)
    return depth


def lists_around(job: Job) -> int:
    """In how many lists, one inside the other, the job stands for an item. Most contexts are not read for that."""
    if job.context is None or INDEXES not in job.context:
        return 0
    control = strict_json.loads(job.context).get(CONTROL, {})
    return len(control.get("indexes", ()))


def fits(job: Job, node: PlanNode, lists: int) -> bool:
    """False if the pipeline was changed so that the job, inside so many lists, cannot have come to this step of it."""
    return (job.join_id is not None) == bool(node.joins) and lists == node.foreach_depth


def entered(at: Position, context: NewContext | None) -> Position:
    """The position behind a step that was entered with this context."""
    if context is None:
        return at
    baggage = strict_json.loads(context.accumulated_json)
    depth = baggage.pop(CONTROL)["route_depth"]
    return evolve(at, baggage=baggage, depth=depth, inherits_from=context.id)


def inside_each(at: Position, items: Iterable[Any]) -> Iterator[Position]:
    """The positions of the items of a list, each one level further in."""
    # Not `evolve`, which asks for every field again each time: lists are long.
    same = {each.name: getattr(at, each.name) for each in fields(Position)}
    for index, item in enumerate(items):
        same |= {"items": (*at.items, item), "indexes": (*at.indexes, index), "trail": (*at.trail, index)}
        yield Position(**same)


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
