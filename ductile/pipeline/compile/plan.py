"""A compiled pipeline: the places where something happens, and what is entered after each.

Values only. `compile` makes them, `route` walks them, the CLI shows them. Calls are already inlined, so a walk needs
nothing but the plan. Places and instructions share what follows, so compare them by identity and never expand them.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Literal, TypeAlias

from attrs import field, frozen

from ductile.pipeline.compile.plans import Plans as Plans
from ductile.pipeline.language.baggage import Claims
from ductile.pipeline.language.conditions import Condition
from ductile.pipeline.language.dsl import Mode, Signal
from ductile.pipeline.language.paths import Path
from ductile.pipeline.language.templates import Template

CORE = "core"
SWITCH, JOIN, RELAY = "core.switch", "core.join", "core.relay"
HANDLE = "handle"

STEP_SUCCEEDED, STEP_FAILED = "ductile.step.succeeded", "ductile.step.failed"
SWITCH_TRUE, SWITCH_FALSE = "ductile.switch.true", "ductile.switch.false"
JOIN_COMPLETED = "ductile.join.completed"


# ── what happens when something is entered ──────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class Go:
    """One job for `node`."""

    node: "PlanNode"


@frozen(eq=False)
class Gate:
    """A decision, recorded as a `core.switch` row: `then` if the condition holds, else `otherwise`; same event."""

    path: str
    """`<step>__switch`; `<step>/__switch` for the `if` of a called pipeline. Unique in the plan."""
    condition: Condition = field(repr=False)
    plugin: str | None
    """Whose configuration `config.*` means."""
    pipeline: str
    """Where it is written, as in PlanNode."""
    where: str
    """`pipelines[0].steps[2].if`: the place in the configuration."""
    then: "Entry" = field(repr=False)
    otherwise: "Entry" = field(repr=False)


@frozen(eq=False)
class Fork:
    """All of them, in this order, with the same event."""

    branches: tuple["Entry", ...] = field(repr=False)


@frozen(eq=False)
class Each:
    """`body` once for every element of the list at `source`, with that element and its index pushed on `items` and
    `indexes`; `empty` once, with nothing pushed, if there is none."""

    path: str
    """Of the step."""
    where: str
    """`pipelines[0].steps[2].foreach`: the place in the configuration."""
    source: Path
    max_items: int
    body: "Entry" = field(repr=False)
    empty: "Entry" = field(repr=False)


@frozen(eq=False)
class Leave:
    """The innermost item and index are popped, then `then`."""

    then: "Entry" = field(repr=False)


@frozen(eq=False)
class Open:
    """One job for `join`, with the event and context of this moment; then `body` inside it."""

    join: "PlanNode"
    body: "Entry" = field(repr=False)


@frozen(eq=False)
class Arrive:
    """The event's payload is one of the results of the innermost open join, which is `join`.

    Its place among them is (the innermost index if `by_item` else 0, `branch`, order of arrival).
    """

    join: "PlanNode"
    branch: int = 0
    by_item: bool = False


@frozen(eq=False)
class End:
    """Nothing follows here."""


Entry: TypeAlias = Go | Gate | Fork | Each | Leave | Open | Arrive | End


# ── places ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Relay:
    """What a relay step sends, and to whom."""

    to: str
    event: str
    dedupe_key: Template | None = None
    with_: Mapping[str, Template] | None = field(default=None, repr=False)
    """The remote payload; None: the payload as it came."""
    baggage: Claims | None = None


@frozen(eq=False, kw_only=True)
class PlanNode:
    """One place in a run that has a job: a plugin, a relay, or a join that waits."""

    path: str
    """Unique in the plan: `processing/transcribe`, `fan__join`."""
    kind: Literal["uses", "relay", "join"]
    plugin: str
    command: str = HANDLE
    pipeline: str
    """Where it is written: inside a call, the called pipeline."""
    step_id: str
    """Its own id there; a join has the id of its step and `__join`."""
    where: str
    """`pipelines[0].steps[2]`: the place in the configuration."""
    with_: Mapping[str, Template] = field(factory=dict, repr=False)
    baggage: Claims | None = field(default=None, repr=False)
    relay: Relay | None = field(default=None, repr=False)
    tolerated: bool = False
    """`continue: true`: its final failure does not fail the tree."""
    depth: int
    """Jobs on the longest way to it, itself included; switches do not count, joins do."""
    nearest: int
    """The same on the shortest way; a join counts from where it was opened."""
    call_depth: int = 0
    foreach_depth: int = 0
    """How many items are on the stack when its job is made."""
    joins: tuple[str, ...] = ()
    """Paths of the joins it is inside of, outermost first."""
    is_terminal: bool
    """True if the run may end with it."""
    successors: Entry = field(repr=False)
    """Entered with each event when its job has succeeded (a join: with `ductile.join.completed`)."""
    on_error: Entry | None = field(default=None, repr=False)
    """Entered with `ductile.step.failed` when its job has finally failed; None: nothing is."""


@frozen(eq=False, kw_only=True)
class Plan:
    """One pipeline, ready to run."""

    name: str
    on: str | None
    """The event type that starts it; None for a hook pipeline."""
    hook: Signal | None
    from_plugin: str | None
    condition: Condition | None = field(repr=False)
    """On the payload and the upstream context, for events and hooks; not for API triggers and calls."""
    execution_mode: Mode
    timeout: timedelta
    max_depth: int | None
    """What the author set; 0 is unlimited."""
    longest: int
    """Jobs on the longest way through it."""
    entry: Entry = field(repr=False)
    nodes: Mapping[str, PlanNode] = field(repr=False)
    """By path, in textual order; a join comes after what it waits for."""
    places: tuple[PlanNode | Gate, ...] = field(repr=False)
    """Nodes and gates, in the same order; nothing leads back to an earlier one."""
    fingerprint: str
    """`blake3:<hex>` of its shape and of every pipeline it calls."""
    where: str
    """`pipelines[0]`"""

    @property
    def depth_limit(self) -> int:
        """The most jobs along one way; 0 is unlimited."""
        return self.longest if self.max_depth is None else self.max_depth

    @property
    def own_nodes(self) -> "Iterator[PlanNode]":
        """The nodes that are written in this pipeline, not in one that it calls."""
        return (node for node in self.nodes.values() if node.call_depth == 0)

    def takes_from(self, plugin: str | None) -> bool:
        """True if events of `plugin` (None: not from a plugin) may start it."""
        return self.from_plugin is None or self.from_plugin == plugin
