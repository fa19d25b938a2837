"""The cursor of a run: its position in the plan and the data it carries, read from a job's row and context. Pure."""

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
"""Occurs in the JSON of every context that has indexes."""
KEY_PARTS = 5
"""The fewest parts of a key; a path can have several."""


@frozen(kw_only=True)
class RunCursor:
    """A position in a run, with the data that the run carries."""

    plan: Plan
    instance: str
    baggage: Mapping[str, Any] = field(factory=dict, repr=False)
    inherits_from: str | None = None
    """The parent of the next context row."""
    depth: int = 0
    depth_limit: int
    items: tuple[Any, ...] = ()
    indexes: tuple[int, ...] = ()
    hops: int = 0
    """Hops before this run, without the calls inside it."""
    join_id: str | None = None
    """The innermost join around it."""
    parent_id: str | None = None
    own_tree: bool = False
    submitted_by: str = "route"
    trail: tuple[int, ...] = ()
    """Branches and items taken in this execution; keeps two paths to the same step distinct."""
    hook_depth: int = 0
    """Number of consecutive hooks that led to this run."""

    def key(self, event: Event, path: str) -> str:
        """Return a key that is unique among the children of one parent. `indexes_in` reads it."""
        return "/".join((event.id, self.instance, path, dotted(self.indexes), dotted(self.trail)))

    def scope(self, event: Event, config: Mapping[str, Any] | None = None) -> Scope:
        item = self.items[-1] if self.items else ABSENT
        return Scope(payload=event.payload, context=self.baggage, config=config or {}, item=item)

    def control(self, depth: int) -> dict[str, Any]:
        """Return the reserved part of the context of a job created here."""
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


def cursor_of(job: Job, plan: Plan, node: PlanNode) -> RunCursor:
    """Return the cursor of a job, read from its row and context."""
    baggage: dict[str, Any] = strict_json.loads(job.context) if job.context else {}
    control = baggage.pop(CONTROL, {})
    return RunCursor(
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
    """Return the number of consecutive hooks that led to the run of a job."""
    if job.context is None:
        return 0
    control = strict_json.loads(job.context).get(CONTROL, {})
    depth: int = control.get("hook_depth", 0)
    return depth


def foreach_depth_of(job: Job) -> int:
    """Return the number of `foreach` loops around a job."""
    # The text search avoids parsing most contexts.
    if job.context is None or INDEXES not in job.context:
        return 0
    control = strict_json.loads(job.context).get(CONTROL, {})
    return len(control.get("indexes", ()))


def matches_step(job: Job, node: PlanNode, foreach_depth: int) -> bool:
    """Return whether the job still fits its step; False if a reload changed the joins or loops around it."""
    return (job.join_id is not None) == bool(node.joins) and foreach_depth == node.foreach_depth


def cursor_after(at: RunCursor, context: NewContext | None) -> RunCursor:
    """Return the cursor after a step with this context."""
    if context is None:
        return at
    baggage = strict_json.loads(context.accumulated_json)
    depth = baggage.pop(CONTROL)["route_depth"]
    return evolve(at, baggage=baggage, depth=depth, inherits_from=context.id)


def item_cursors(at: RunCursor, items: Iterable[Any]) -> Iterator[RunCursor]:
    """Yield the cursor of each item of a list."""
    # Lists are long, and `evolve` would read every field again for each item.
    values = {attribute.name: getattr(at, attribute.name) for attribute in fields(RunCursor)}
    for index, item in enumerate(items):
        values |= {"items": (*at.items, item), "indexes": (*at.indexes, index), "trail": (*at.trail, index)}
        yield RunCursor(**values)


def indexes_in(key: str) -> tuple[int, ...]:
    """Return the indexes of the foreach items in a key of `RunCursor.key`, outermost first; empty for other keys."""
    parts = key.split("/")
    numbers = parts[-2].split(".") if len(parts) >= KEY_PARTS else []
    return tuple(map(int, numbers)) if all(number.isdecimal() for number in numbers) else ()


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
