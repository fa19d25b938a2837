"""A compiled pipeline: a graph of nodes, gates and instructions, with all calls inlined.

Values only. `compile` builds them and `run` executes them. Instructions share their successors, so compare them by
identity and never expand the graph into a tree.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Literal, TypeAlias

from attrs import field, frozen

from ductile.core.model import HANDLE
from ductile.pipeline.compile.plans import Plans as Plans
from ductile.pipeline.language.baggage import Claims
from ductile.pipeline.language.conditions import Condition
from ductile.pipeline.language.dsl import Mode, Signal
from ductile.pipeline.language.parse import Publish, Relay
from ductile.pipeline.language.paths import Path
from ductile.pipeline.language.templates import Template

SWITCH, JOIN, RELAY, PUBLISH = "core.switch", "core.join", "core.relay", "core.publish"

STEP_SUCCEEDED, STEP_FAILED = "ductile.step.succeeded", "ductile.step.failed"
SWITCH_TRUE, SWITCH_FALSE = "ductile.switch.true", "ductile.switch.false"
JOIN_COMPLETED = "ductile.join.completed"


# ── instructions ────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class Go:
    """Create a job for `node`."""

    node: "PlanNode"


@frozen(eq=False)
class Gate:
    """Evaluate the condition and continue with `then` or `otherwise`. Recorded as a `core.switch` job."""

    path: str
    """`<step>__switch`; `<step>/__switch` for the `if` of a called pipeline. Unique in the plan."""
    condition: Condition = field(repr=False)
    plugin: str | None
    """The plugin whose configuration `config.*` reads."""
    pipeline: str
    """The pipeline that defines it, as in PlanNode."""
    where: str
    """Configuration path, such as `pipelines[0].steps[2].if`."""
    then: "Instruction" = field(repr=False)
    otherwise: "Instruction" = field(repr=False)


@frozen(eq=False)
class Fork:
    """Continue with every branch, in this order, with the same event."""

    branches: tuple["Instruction", ...] = field(repr=False)


@frozen(eq=False)
class Each:
    """Continue with `body` for every element of the list at `source`, or with `empty` if the list is empty.

    Pushes the element and its index onto `items` and `indexes`.
    """

    path: str
    """The path of the step."""
    where: str
    """Configuration path, such as `pipelines[0].steps[2].foreach`."""
    source: Path
    max_items: int
    body: "Instruction" = field(repr=False)
    empty: "Instruction" = field(repr=False)


@frozen(eq=False)
class Leave:
    """Pop the innermost item and index and continue with `then`."""

    then: "Instruction" = field(repr=False)


@frozen(eq=False)
class Open:
    """Create a job for `join` with the current event and context, and continue with `body` inside it."""

    join: "PlanNode"
    body: "Instruction" = field(repr=False)


@frozen(eq=False)
class Arrive:
    """Add the event's payload to the results of the innermost open join, which is `join`.

    Results are sorted by (innermost index if `by_item` else 0, `branch`, order of arrival).
    """

    join: "PlanNode"
    branch: int = 0
    by_item: bool = False


@frozen(eq=False)
class End:
    """End this path."""


Instruction: TypeAlias = Go | Gate | Fork | Each | Leave | Open | Arrive | End


# ── nodes and plans ─────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False, kw_only=True)
class PlanNode:
    """A step of a plan that has a job: a plugin, a relay, a message or a join."""

    path: str
    """Unique in the plan: `processing/transcribe`, `fan__join`."""
    kind: Literal["uses", "relay", "publish", "join"]
    plugin: str
    command: str = HANDLE
    pipeline: str
    """The pipeline that defines it; inside a call, the called pipeline."""
    step_id: str
    """Its id in that pipeline; for a join, the id of its step with `__join`."""
    where: str
    """Configuration path, such as `pipelines[0].steps[2]`."""
    with_: Mapping[str, Template] = field(factory=dict, repr=False)
    baggage: Claims | None = field(default=None, repr=False)
    relay: Relay | None = field(default=None, repr=False)
    publish: Publish | None = field(default=None, repr=False)
    tolerated: bool = False
    """`continue: true`: its final failure does not fail the tree."""
    depth: int
    """Jobs on the longest path to it, itself included. Joins count, switches do not."""
    min_depth: int
    """Jobs on the shortest path to it. A join counts from where it was opened."""
    call_depth: int = 0
    foreach_depth: int = 0
    """The number of `foreach` loops around it."""
    joins: tuple[str, ...] = ()
    """Paths of the joins around it, outermost first."""
    is_terminal: bool
    """True if a run can end after it."""
    successors: Instruction = field(repr=False)
    """Executed for each event of its succeeded job; for a join, with `ductile.join.completed`."""
    on_error: Instruction | None = field(default=None, repr=False)
    """Executed with `ductile.step.failed` after the final failure of its job."""


@frozen(eq=False, kw_only=True)
class Plan:
    """A compiled pipeline."""

    name: str
    on: str | None
    """The event type that starts it; None for a hook pipeline."""
    hook: Signal | None
    from_plugin: str | None
    condition: Condition | None = field(repr=False)
    """Evaluated for events and hooks, on the payload and the upstream context; not for API triggers and calls."""
    execution_mode: Mode
    timeout: timedelta
    max_depth: int | None
    """The configured limit; 0 is unlimited."""
    longest_path: int
    """Jobs on the longest path through it."""
    entry: Instruction = field(repr=False)
    nodes: Mapping[str, PlanNode] = field(repr=False)
    """By path, in textual order; a join comes after its branches."""
    vertices: tuple[PlanNode | Gate, ...] = field(repr=False)
    """Nodes and gates, in the same order, which is also a topological order."""
    fingerprint: str
    """`blake3:<hex>` of its definition and of every pipeline it calls."""
    where: str
    """Configuration path, such as `pipelines[0]`."""

    @property
    def depth_limit(self) -> int:
        """The maximum number of jobs along one path; 0 is unlimited."""
        return self.longest_path if self.max_depth is None else self.max_depth

    @property
    def own_nodes(self) -> "Iterator[PlanNode]":
        """The nodes that this pipeline itself defines, without those of its calls."""
        return (node for node in self.nodes.values() if node.call_depth == 0)

    def accepts_source(self, plugin: str | None) -> bool:
        """Return whether events of `plugin` can start it; None means an event without a plugin."""
        return self.from_plugin is None or self.from_plugin == plugin
