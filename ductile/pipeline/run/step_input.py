"""The input of a plugin: the payload after `with`, and the context of the run. Pure.

A job outside of a run gets its payload unchanged. `preflight` builds the rest of the request.
"""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from ductile.core.errors import NotFound
from ductile.core.formats import strict_json
from ductile.core.model import HANDLE, Job
from ductile.pipeline.compile.plan import PlanNode, Plans
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.language.paths import ABSENT, Scope
from ductile.pipeline.language.templates import remap
from ductile.pipeline.run.cursor import foreach_depth_of, matches_step


@frozen
class StepInput:
    """The JSON texts of payload and context."""

    payload: str | None
    context: str | None = None


def find_step(plans: Plans, job: Job) -> PlanNode | None:
    """Return the step that a job runs; None outside of a run. Raises NotFound if a reload removed or changed it."""
    if job.pipeline is None or job.step_id is None:
        return None
    plan = plans.by_name.get(job.pipeline)
    if plan is None:
        raise NotFound(f"pipeline {job.pipeline} no longer exists")
    node = plan.nodes.get(job.step_id)
    if node is None:
        raise NotFound(f"pipeline {job.pipeline} no longer has step {job.step_id}")
    if not matches_step(job, node, foreach_depth_of(job)):
        raise NotFound(f"pipeline {job.pipeline} changed around step {job.step_id}, so the run cannot continue")
    return node


def build_step_input(job: Job, node: PlanNode | None) -> StepInput:
    """Build the input of the plugin. Raises PathAbsent if a `with` template reads an absent value."""
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
    # Baggage is visible in the payload too, below values of the payload itself.
    merged = {**baggage, **content["payload"]}
    return strict_json.dumps({**content, "payload": _remapped(merged, node, baggage, control)})


def _remapped(
    payload: Mapping[str, Any], node: PlanNode, baggage: Mapping[str, Any], control: Mapping[str, Any]
) -> dict[str, Any]:
    items = control.get("items")
    scope = Scope(payload=payload, context=baggage, item=items[-1] if items else ABSENT)
    return remap(node.with_, payload, scope)


def _context(job: Job, baggage: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    """Return the baggage with the reserved object, whose members also have flat names that baggage can override."""
    own = {**control, "plugin": job.plugin, "pipeline": job.pipeline, "step_id": job.step_id}
    flat = ("plugin", "pipeline", "step_id", "pipeline_instance_id", "route_depth", "route_max_depth")
    return {**{f"{CONTROL}_{name}": own[name] for name in flat if name in own}, **baggage, CONTROL: own}
