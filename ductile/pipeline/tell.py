"""What the plugin of a step is told: its payload after `with`, and the context of its run. Pure.

A job outside of every run is told what it was asked for, as it stands. `preflight` puts the rest of the request around
it.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from ductile import strict_json
from ductile.errors import NotFound
from ductile.model import Job
from ductile.pipeline.baggage import CONTROL
from ductile.pipeline.paths import ABSENT, Scope
from ductile.pipeline.plan import HANDLE, Node, Plans
from ductile.pipeline.position import fits, lists_around
from ductile.pipeline.templates import remap


@frozen
class Told:
    """JSON texts of the payload and the context; None where there is none."""

    payload: str | None
    context: str | None = None


def step_of(plans: Plans, job: Job) -> Node | None:
    """The step that a job runs; None if it is in no run. NotFound if its pipeline has changed meanwhile."""
    if job.pipeline is None or job.step_id is None:
        return None
    plan = plans.by_name.get(job.pipeline)
    if plan is None:
        raise NotFound(f"pipeline {job.pipeline} is not there any more")
    node = plan.nodes.get(job.step_id)
    if node is None:
        raise NotFound(f"pipeline {job.pipeline} has no step {job.step_id} any more")
    if not fits(job, node, lists_around(job)):
        raise NotFound(f"pipeline {job.pipeline} was changed around step {job.step_id}: the run cannot go on in it")
    return node


def tell(job: Job, node: Node | None) -> Told:
    """What the plugin gets; PathAbsent if a `with` asks for something that is not there."""
    if node is None or job.context is None:
        return Told(job.payload)
    baggage: dict[str, Any] = strict_json.loads(job.context)
    control = baggage.pop(CONTROL, {})
    return Told(_payload(job, node, baggage, control), strict_json.dumps(_context(job, baggage, control)))


def _payload(job: Job, node: Node, baggage: Mapping[str, Any], control: Mapping[str, Any]) -> str | None:
    if job.payload is None or not (baggage or node.with_):
        return job.payload
    content: dict[str, Any] = strict_json.loads(job.payload)
    if job.command != HANDLE:
        return strict_json.dumps(_remapped(content, node, baggage, control))
    # A plugin finds what is durable among its payload too, unless the payload has a value of that name.
    merged = {**baggage, **content["payload"]}
    return strict_json.dumps({**content, "payload": _remapped(merged, node, baggage, control)})


def _remapped(
    payload: Mapping[str, Any], node: Node, baggage: Mapping[str, Any], control: Mapping[str, Any]
) -> dict[str, Any]:
    items = control.get("items")
    scope = Scope(payload=payload, context=baggage, item=items[-1] if items else ABSENT)
    return remap(node.with_, payload, scope)


def _context(job: Job, baggage: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    """The baggage, the core's own object, and its members under flat names where the baggage has none of them."""
    own = {**control, "plugin": job.plugin, "pipeline": job.pipeline, "step_id": job.step_id}
    flat = ("plugin", "pipeline", "step_id", "pipeline_instance_id", "route_depth", "route_max_depth")
    return {**{f"{CONTROL}_{name}": own[name] for name in flat if name in own}, **baggage, CONTROL: own}
