"""Compiled pipelines as JSON data, for the API and the CLI: a list, and one as nodes and edges. Contains no secrets."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict, cast

from ductile.config.load.load import Config
from ductile.core.formats.json_schema import Count
from ductile.core.model import HANDLE
from ductile.core.units import format_duration
from ductile.pipeline.compile.graph import compiled_routes, edges
from ductile.pipeline.compile.plan import SWITCH, Gate, Plan, PlanNode
from ductile.pipeline.language.conditions import as_data

# A keyword of Python cannot be a member in the class syntax.
_Condition = TypedDict("_Condition", {"if": Annotated[Any, "The condition of its trigger"]})


class ListedPipelineView(_Condition):
    """A pipeline with its trigger."""

    name: str
    on: Annotated[str, "The event type that starts it"] | None
    on_hook: Annotated[str, "The hook signal that starts it"] | None
    from_plugin: Annotated[str, "The only plugin whose events start it"] | None
    execution_mode: str
    timeout: str
    max_depth: int | None
    longest: Annotated[Count, "Jobs on the longest path"]
    jobs: Annotated[Count, "Steps and joins"]
    fingerprint: str
    where: NotRequired[Annotated[str, "File and line; requires system:ro"]]


class PipelinesView(TypedDict):
    pipelines: list[ListedPipelineView]


class PipelineStepView(TypedDict):
    """A step or join of a pipeline, with its calls inlined."""

    path: Annotated[str, "Unique in the pipeline, such as processing/transcribe"]
    kind: Literal["uses", "relay", "publish", "join"]
    plugin: str
    command: str
    pipeline: Annotated[str, "The pipeline that defines it"]
    depth: Count
    terminal: Annotated[bool, "True if a run can end after it"]
    tolerated: Annotated[bool, "True if its failure does not fail the run"]
    joins: Annotated[list[str], "Paths of the joins around it"]
    claims: Annotated[dict[str, str], "Name of each claimed value → its source"]


class PlanVertexView(TypedDict):
    """A node of the graph: a step, a join, a relay, a message, or the switch of an `if`."""

    path: str
    kind: Literal["uses", "relay", "publish", "join", "switch"]
    plugin: str
    command: str
    pipeline: str
    condition: Annotated[Any, "The condition of a switch"] | None


class PlanEdgeView(TypedDict):
    """An edge of the graph."""

    source: Annotated[str, "Path; null for the trigger"] | None
    target: Annotated[str, "Path; null for the end of the run"] | None
    event: Annotated[str, "The event that follows the edge; null for every event of the step"] | None
    foreach: Annotated[str, "The list whose elements follow the edge"] | None


class PipelineGraphView(ListedPipelineView):
    """A compiled pipeline."""

    steps: list[PipelineStepView]
    routes: Annotated[list[dict[str, Any]], "The edges in the form of /config/view"]
    nodes: Annotated[list[PlanVertexView], "Steps, joins and switches, each before its successors"]
    edges: list[PlanEdgeView]


def pipelines_view(config: Config) -> PipelinesView:
    """Return every pipeline, in the order of the configuration."""
    rows = [_head(config, plan) for plan in config.plans.by_name.values()]
    return cast(PipelinesView, config.mask.mask_data({"pipelines": rows}))


def pipeline_graph_view(config: Config, name: str) -> PipelineGraphView:
    """Return a pipeline with its steps, and as nodes and edges. Raises NotFound."""
    plan = config.plans.require(name)
    view: PipelineGraphView = {
        **_head(config, plan),
        "steps": [_step(node) for node in plan.nodes.values()],
        "routes": compiled_routes(plan),
        "nodes": [_vertex(vertex) for vertex in plan.vertices],
        "edges": [
            {
                "source": edge.source.path if edge.source else None,
                "target": edge.target.path if edge.target else None,
                "event": edge.event,
                "foreach": edge.foreach,
            }
            for edge in edges(plan)
        ],
    }
    return cast(PipelineGraphView, config.mask.mask_data(view))


def _head(config: Config, plan: Plan) -> ListedPipelineView:
    return {
        "name": plan.name,
        "on": plan.on,
        "on_hook": plan.hook,
        "from_plugin": plan.from_plugin,
        "if": as_data(plan.condition) if plan.condition else None,
        "execution_mode": plan.execution_mode,
        "timeout": format_duration(plan.timeout),
        "max_depth": plan.max_depth,
        "longest": plan.longest_path,
        "jobs": len(plan.nodes),
        "fingerprint": plan.fingerprint,
        "where": str(config.places.get(plan.where, config.root)),
    }


def _step(node: PlanNode) -> PipelineStepView:
    return {
        "path": node.path,
        "kind": node.kind,
        "plugin": node.plugin,
        "command": node.command,
        "pipeline": node.pipeline,
        "depth": node.depth,
        "terminal": node.is_terminal,
        "tolerated": node.tolerated,
        "joins": list(node.joins),
        "claims": {str(claim): str(claim.source) for claim in (node.baggage.claims if node.baggage else ())},
    }


def _vertex(vertex: PlanNode | Gate) -> PlanVertexView:
    return {
        "path": vertex.path,
        "kind": "switch" if isinstance(vertex, Gate) else vertex.kind,
        "plugin": SWITCH if isinstance(vertex, Gate) else vertex.plugin,
        "command": HANDLE if isinstance(vertex, Gate) else vertex.command,
        "pipeline": vertex.pipeline,
        "condition": as_data(vertex.condition) if isinstance(vertex, Gate) else None,
    }
