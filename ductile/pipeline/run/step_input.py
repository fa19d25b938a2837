"""What the plugin of a step is told: its payload after `with`, and the context of its run. Pure.

A job outside of every run is told what it was asked for, as it stands. `preflight` puts the rest of the request around
it.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from ductile.core.errors import NotFound
from ductile.core.formats import strict_json
from ductile.core.model import Job
from ductile.pipeline.compile.plan import HANDLE, PlanNode, Plans
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.language.paths import ABSENT, Scope
from ductile.pipeline.language.templates import remap
from ductile.pipeline.run.cursor import fits, lists_around


@frozen
class StepInput:
    """JSON texts of the payload and the context; None where there is none."""

    payload: str | None
    context: str | None = None


def step_of(plans: Plans, job: Job) -> PlanNode | None:
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


def tell(job: Job, node: PlanNode | None) -> StepInput:
    """What the plugin gets; PathAbsent if a `with` asks for something that is not there."""
    if node is None or job.context is None:
        return StepInput(job.payload)
    baggage: dict[str, Any] = strict_json.loads(job.context)
    control = baggage.pop(CONTROL, {})
    return StepInput(_payload(job, node, baggage, control), strict_json.dumps(_context(job, baggage, control)))


def _payload(job: Job, node: PlanNode, baggage: Mapping[str, Any], control: Mapping[str, Any]) -> str | None:
    if job.payload is None or not (baggage or node.with_):
        return job.payload
    content: dict[str, Any] = strict_json.loads(job.payload)
    if job.command != HANDLE:
        return strict_json.dumps(_remapped(content, node, baggage, control))
    # A plugin finds what is durable among its payload too, unless the payload has a value of that name.
    merged = {**baggage, **content["payload"]}
    return strict_json.dumps({**content, "payload": _remapped(merged, node, baggage, control)})


def _remapped(
    payload: Mapping[str, Any], node: PlanNode, baggage: Mapping[str, Any], control: Mapping[str, Any]
) -> dict[str, Any]:
    items = control.get("items")
    scope = Scope(payload=payload, context=baggage, item=items[-1] if items else ABSENT)
    return remap(node.with_, payload, scope)


def _context(job: Job, baggage: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    """The baggage, the core's own object, and its members under flat names where the baggage has none of them."""
    own = {**control, "plugin": job.plugin, "pipeline": job.pipeline, "step_id": job.step_id}
    flat = ("plugin", "pipeline", "step_id", "pipeline_instance_id", "route_depth", "route_max_depth")
    return {**{f"{CONTROL}_{name}": own[name] for name in flat if name in own}, **baggage, CONTROL: own}
