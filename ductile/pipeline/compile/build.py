"""Build the plan of one pipeline, from the last step to the first, so that successors exist before their predecessors.

`compile` is the only caller and has already checked for errors, cycles and size limits.
"""

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Literal

from attrs import define, evolve, field, frozen

from ductile.core.model import HANDLE
from ductile.pipeline.compile.plan import (
    JOIN,
    PUBLISH,
    RELAY,
    Arrive,
    Each,
    End,
    Fork,
    Gate,
    Go,
    Instruction,
    Leave,
    Open,
    Plan,
    PlanNode,
)
from ductile.pipeline.compile.size import ONE_JOB, Size, Sizes
from ductile.pipeline.language.baggage import Claims
from ductile.pipeline.language.parse import (
    JOIN_SUFFIX,
    SWITCH_SUFFIX,
    CallAction,
    ParsedPipeline,
    ParsedStep,
    Publish,
    PublishAction,
    Relay,
    RelayAction,
    SplitAction,
    StepsAction,
    UsesAction,
)
from ductile.pipeline.language.templates import Template

END = End()
BranchExit = Callable[[int], Instruction]
"""Maps the number of a branch to the instruction after the branch."""


@frozen
class _PlanPosition:
    """The position in the plan that is being built."""

    pipeline: ParsedPipeline
    prefix: str = ""
    longest_path: int = 0
    """Jobs before it on the longest path."""
    shortest_path: int = 0
    """Jobs before it on the shortest path."""
    calls: int = 0
    items: int = 0
    joins: tuple[str, ...] = ()

    def after(self, size: Size) -> "_PlanPosition":
        return evolve(
            self,
            longest_path=self.longest_path + size.longest_path,
            shortest_path=self.shortest_path + size.shortest_path,
        )

    def inside(self, pipeline: ParsedPipeline, path: str) -> "_PlanPosition":
        return evolve(self, pipeline=pipeline, prefix=f"{path}/", calls=self.calls + 1).behind_switch(pipeline)

    def behind_switch(self, source: ParsedStep | ParsedPipeline) -> "_PlanPosition":
        """Return the location after the switch of the `if` of a step or a called pipeline, if it has one."""
        return self.after(ONE_JOB) if source.condition else self


def build_plan(
    pipeline: ParsedPipeline, pipelines: Mapping[str, ParsedPipeline], sizes: Sizes, fingerprint: str
) -> Plan:
    """Build the plan of `pipeline`. `pipelines` and `sizes` must contain everything that it calls."""
    builder = _Builder(pipelines, sizes)
    entry = builder.sequence(pipeline.steps, _PlanPosition(pipeline), END)
    vertices = tuple(reversed(builder.built))
    nodes = {vertex.path: vertex for vertex in vertices if isinstance(vertex, PlanNode)}
    source = pipeline.source
    return Plan(
        name=source.name,
        on=source.on,
        hook=source.on_hook,
        from_plugin=source.from_plugin,
        condition=pipeline.condition,
        execution_mode=source.execution_mode,
        timeout=source.timeout,
        max_depth=source.max_depth,
        longest_path=max(node.depth for node in nodes.values()),
        entry=entry,
        nodes=nodes,
        vertices=vertices,
        fingerprint=fingerprint,
        where=pipeline.where,
    )


@define(eq=False)
class _Builder:
    """The state of building one plan; `built` has the last vertex first."""

    pipelines: Mapping[str, ParsedPipeline]
    sizes: Sizes
    built: list[PlanNode | Gate] = field(factory=list)
    known_can_end: dict[Instruction, bool] = field(factory=dict)

    def sequence(self, steps: tuple[ParsedStep, ...], at: _PlanPosition, then: Instruction) -> Instruction:
        starts = list(accumulate((self.sizes[step] for step in steps), _PlanPosition.after, initial=at))
        for step, start in reversed(list(zip(steps, starts, strict=False))):
            then = self.step(step, start, then)
        return then

    def step(self, step: ParsedStep, at: _PlanPosition, then: Instruction) -> Instruction:
        if step.foreach is not None:
            return self.each(step, at, then)
        entered = at.behind_switch(step)
        if not step.join:
            return self.gate_step(step, at, self.action(step, entered, lambda _: then), otherwise=then)
        join = self.join(step, evolve(at, shortest_path=entered.shortest_path), then)
        inside = evolve(entered, joins=(*at.joins, join.path))
        body = self.action(step, inside, lambda branch: Arrive(join, branch))
        return self.gate_step(step, at, Open(join, body), otherwise=then)

    def each(self, step: ParsedStep, at: _PlanPosition, then: Instruction) -> Instruction:
        """Build a `foreach` step, whose `if` is evaluated for every item."""
        inside = evolve(at.behind_switch(step), items=at.items + 1)
        if not step.join:
            left = Leave(then)
            body = self.gate_step(step, at, self.action(step, inside, lambda _: left), otherwise=left)
            return self.loop(step, at, body, empty=then)
        join = self.join(step, at, then)
        inside = evolve(inside, joins=(*at.joins, join.path))
        body = self.action(step, inside, lambda branch: Arrive(join, branch, by_item=True))
        body = self.gate_step(step, at, body, otherwise=Arrive(join, by_item=True))
        return Open(join, self.loop(step, at, body, empty=END))

    def loop(self, step: ParsedStep, at: _PlanPosition, body: Instruction, *, empty: Instruction) -> Each:
        assert step.foreach is not None
        where = f"{step.where}.foreach"
        return Each(at.prefix + step.id, where, step.foreach, step.max_items, body=body, empty=empty)

    def action(self, step: ParsedStep, at: _PlanPosition, branch_exit: BranchExit) -> Instruction:
        match step.action:
            case StepsAction(steps):
                return self.sequence(steps, at, branch_exit(0))
            case SplitAction(branches):
                entries = [
                    self.step(branch, at, branch_exit(number)) for number, branch in reversed([*enumerate(branches)])
                ]
                return Fork(tuple(reversed(entries)))
            case CallAction(name):
                return self.call(name, step, at, branch_exit(0))
            case _:
                return self.job(step, at, branch_exit(0))

    def call(self, name: str, step: ParsedStep, at: _PlanPosition, then: Instruction) -> Instruction:
        called, path = self.pipelines[name], at.prefix + step.id
        entry = self.sequence(called.steps, at.inside(called, path), then)
        if called.condition is None:
            return entry
        gate = Gate(f"{path}/{SWITCH_SUFFIX}", called.condition, None, called.name, f"{called.where}.if", entry, then)
        self.built.append(gate)
        return gate

    def gate_step(
        self, step: ParsedStep, at: _PlanPosition, entry: Instruction, *, otherwise: Instruction
    ) -> Instruction:
        if step.condition is None:
            return entry
        plugin = step.action.plugin if isinstance(step.action, UsesAction) else None
        path, where = f"{at.prefix}{step.id}{SWITCH_SUFFIX}", f"{step.where}.if"
        gate = Gate(path, step.condition, plugin, at.pipeline.name, where, entry, otherwise)
        self.built.append(gate)
        return gate

    def job(self, step: ParsedStep, at: _PlanPosition, then: Instruction) -> Instruction:
        on_error: Instruction | None = None
        if step.on_error or step.tolerated:
            on_error = self.sequence(step.on_error, at.after(ONE_JOB), then if step.tolerated else END)
        match step.action:
            case RelayAction(relay):
                spec = _NodeSpec("relay", RELAY, HANDLE, relay=relay)
            case PublishAction(publish):
                spec = _NodeSpec("publish", PUBLISH, HANDLE, publish=publish)
            case UsesAction(plugin, command, with_, baggage):
                spec = _NodeSpec("uses", plugin, command, with_, baggage)
            case other:
                raise AssertionError(f"{other} has no job of its own")
        return Go(self.node(spec, step.id, step, at, then, on_error))

    def join(self, step: ParsedStep, at: _PlanPosition, then: Instruction) -> PlanNode:
        location = evolve(at, longest_path=at.longest_path + self.sizes[step].longest_path - 1)
        return self.node(_NodeSpec("join", JOIN, HANDLE), f"{step.id}{JOIN_SUFFIX}", step, location, then, None)

    def node(
        self,
        spec: "_NodeSpec",
        step_id: str,
        step: ParsedStep,
        at: _PlanPosition,
        then: Instruction,
        on_error: Instruction | None,
    ) -> PlanNode:
        node = PlanNode(
            path=at.prefix + step_id,
            kind=spec.kind,
            plugin=spec.plugin,
            command=spec.command,
            pipeline=at.pipeline.name,
            step_id=step_id,
            where=step.where,
            with_=spec.with_,
            baggage=spec.baggage,
            relay=spec.relay,
            publish=spec.publish,
            tolerated=step.tolerated,
            depth=at.longest_path + 1,
            min_depth=at.shortest_path + 1,
            call_depth=at.calls,
            foreach_depth=at.items,
            joins=at.joins,
            is_terminal=self.can_end(then),
            successors=then,
            on_error=on_error,
        )
        self.built.append(node)
        return node

    def can_end(self, entry: Instruction) -> bool:
        """Return whether a path through `entry` ends without another job."""
        # Successors are built first, so their results are cached and the recursion stays shallow.
        if entry not in self.known_can_end:
            match entry:
                case Gate():
                    can_end = self.can_end(entry.then) or self.can_end(entry.otherwise)
                case Fork():
                    can_end = any(map(self.can_end, entry.branches))
                case Each():
                    can_end = self.can_end(entry.body) or self.can_end(entry.empty)
                case Leave():
                    can_end = self.can_end(entry.then)
                case _:
                    can_end = isinstance(entry, End)
            self.known_can_end[entry] = can_end
        return self.known_can_end[entry]


@frozen
class _NodeSpec:
    """The action of a node to build."""

    kind: Literal["uses", "relay", "publish", "join"]
    plugin: str
    command: str
    with_: Mapping[str, Template] = field(factory=dict)
    baggage: Claims | None = None
    relay: Relay | None = None
    publish: Publish | None = None
