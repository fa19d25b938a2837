"""One pipeline → its plan, from the last step to the first, so that everything knows what follows it.

Assumes that all is well: mistakes, circles and sizes have been looked at. `compile` is the only caller.
"""

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Literal

from attrs import define, evolve, field, frozen

from ductile.pipeline.compile.plan import (
    HANDLE,
    JOIN,
    RELAY,
    Arrive,
    Each,
    End,
    Entry,
    Fork,
    Gate,
    Go,
    Leave,
    Open,
    Plan,
    PlanNode,
    Relay,
)
from ductile.pipeline.compile.size import ONE_JOB, Size, Sizes
from ductile.pipeline.language.baggage import Claims
from ductile.pipeline.language.parse import (
    JOIN_SUFFIX,
    SWITCH_SUFFIX,
    Beside,
    Calls,
    InTurn,
    PluginReference,
    ReadPipeline,
    ReadStep,
    Sends,
)
from ductile.pipeline.language.templates import Template

END = End()
Ends = Callable[[int], Entry]
"""What follows the end of a branch, by its number."""


@frozen
class _Place:
    """Where in the plan something is being built."""

    pipeline: ReadPipeline
    prefix: str = ""
    longest: int = 0
    """Jobs before it, on the longest way."""
    least: int = 0
    """Jobs before it, on the shortest way."""
    calls: int = 0
    items: int = 0
    joins: tuple[str, ...] = ()

    def after(self, size: Size) -> "_Place":
        return evolve(self, longest=self.longest + size.longest, least=self.least + size.least)

    def inside(self, pipeline: ReadPipeline, path: str) -> "_Place":
        return evolve(self, pipeline=pipeline, prefix=f"{path}/", calls=self.calls + 1)


def build(pipeline: ReadPipeline, pipelines: Mapping[str, ReadPipeline], sizes: Sizes, fingerprint: str) -> Plan:
    """The plan of `pipeline`; `pipelines` and `sizes` know everything that it calls."""
    builder = _Builder(pipelines, sizes)
    entry = builder.in_turn(pipeline.steps, _Place(pipeline), END)
    places = tuple(reversed(builder.built))
    nodes = {place.path: place for place in places if isinstance(place, PlanNode)}
    written = pipeline.written
    return Plan(
        name=written.name,
        on=written.on,
        hook=written.on_hook,
        from_plugin=written.from_plugin,
        condition=pipeline.condition,
        execution_mode=written.execution_mode,
        timeout=written.timeout,
        max_depth=written.max_depth,
        longest=max(node.depth for node in nodes.values()),
        entry=entry,
        nodes=nodes,
        places=places,
        fingerprint=fingerprint,
        where=pipeline.where,
    )


@define(eq=False)
class _Builder:
    """What has been built of one plan, the last place first."""

    pipelines: Mapping[str, ReadPipeline]
    sizes: Sizes
    built: list[PlanNode | Gate] = field(factory=list)
    known_ends: dict[Entry, bool] = field(factory=dict)

    def in_turn(self, steps: tuple[ReadStep, ...], at: _Place, then: Entry) -> Entry:
        starts = list(accumulate((self.sizes[step] for step in steps), _Place.after, initial=at))
        for step, start in reversed(list(zip(steps, starts, strict=False))):
            then = self.step(step, start, then)
        return then

    def step(self, step: ReadStep, at: _Place, then: Entry) -> Entry:
        if step.foreach is not None:
            return self.each(step, at, then)
        if not step.join:
            return self.gated(step, at, self.action(step, at, lambda _: then), otherwise=then)
        join = self.join(step, at, then)
        inside = evolve(at, joins=(*at.joins, join.path))
        body = self.action(step, inside, lambda branch: Arrive(join, branch))
        return self.gated(step, at, Open(join, body), otherwise=then)

    def each(self, step: ReadStep, at: _Place, then: Entry) -> Entry:
        """The `if` of a step with `foreach` is asked for every item."""
        inside = evolve(at, items=at.items + 1)
        if not step.join:
            left = Leave(then)
            body = self.gated(step, at, self.action(step, inside, lambda _: left), otherwise=left)
            return self.loop(step, at, body, empty=then)
        join = self.join(step, at, then)
        inside = evolve(inside, joins=(*at.joins, join.path))
        body = self.action(step, inside, lambda branch: Arrive(join, branch, by_item=True))
        body = self.gated(step, at, body, otherwise=Arrive(join, by_item=True))
        return Open(join, self.loop(step, at, body, empty=END))

    def loop(self, step: ReadStep, at: _Place, body: Entry, *, empty: Entry) -> Each:
        assert step.foreach is not None
        where = f"{step.where}.foreach"
        return Each(at.prefix + step.id, where, step.foreach, step.max_items, body=body, empty=empty)

    def action(self, step: ReadStep, at: _Place, ends: Ends) -> Entry:
        match step.action:
            case InTurn(steps):
                return self.in_turn(steps, at, ends(0))
            case Beside(branches):
                entries = [self.step(branch, at, ends(number)) for number, branch in reversed([*enumerate(branches)])]
                return Fork(tuple(reversed(entries)))
            case Calls(name):
                return self.call(name, step, at, ends(0))
            case _:
                return self.job(step, at, ends(0))

    def call(self, name: str, step: ReadStep, at: _Place, then: Entry) -> Entry:
        called, path = self.pipelines[name], at.prefix + step.id
        entry = self.in_turn(called.steps, at.inside(called, path), then)
        if called.condition is None:
            return entry
        gate = Gate(f"{path}/{SWITCH_SUFFIX}", called.condition, None, called.name, f"{called.where}.if", entry, then)
        self.built.append(gate)
        return gate

    def gated(self, step: ReadStep, at: _Place, entry: Entry, *, otherwise: Entry) -> Entry:
        if step.condition is None:
            return entry
        plugin = step.action.plugin if isinstance(step.action, PluginReference) else None
        path, where = f"{at.prefix}{step.id}{SWITCH_SUFFIX}", f"{step.where}.if"
        gate = Gate(path, step.condition, plugin, at.pipeline.name, where, entry, otherwise)
        self.built.append(gate)
        return gate

    def job(self, step: ReadStep, at: _Place, then: Entry) -> Entry:
        on_error: Entry | None = None
        if step.on_error or step.tolerated:
            on_error = self.in_turn(step.on_error, at.after(ONE_JOB), then if step.tolerated else END)
        match step.action:
            case Sends(relay):
                what = _What("relay", RELAY, HANDLE, relay=relay)
            case PluginReference(plugin, command, with_, baggage):
                what = _What("uses", plugin, command, with_, baggage)
            case other:
                raise AssertionError(f"{other} has no job of its own")
        return Go(self.node(what, step.id, step, at, then, on_error))

    def join(self, step: ReadStep, at: _Place, then: Entry) -> PlanNode:
        waits = evolve(at, longest=at.longest + self.sizes[step].longest - 1)
        return self.node(_What("join", JOIN, HANDLE), f"{step.id}{JOIN_SUFFIX}", step, waits, then, None)

    def node(
        self, what: "_What", step_id: str, step: ReadStep, at: _Place, then: Entry, on_error: Entry | None
    ) -> PlanNode:
        node = PlanNode(
            path=at.prefix + step_id,
            kind=what.kind,
            plugin=what.plugin,
            command=what.command,
            pipeline=at.pipeline.name,
            step_id=step_id,
            where=step.where,
            with_=what.with_,
            baggage=what.baggage,
            relay=what.relay,
            tolerated=step.tolerated,
            depth=at.longest + 1,
            nearest=at.least + 1,
            call_depth=at.calls,
            foreach_depth=at.items,
            joins=at.joins,
            is_terminal=self.may_end(then),
            successors=then,
            on_error=on_error,
        )
        self.built.append(node)
        return node

    def may_end(self, entry: Entry) -> bool:
        """True if some way through `entry` leads to nothing at all.

        What follows was asked before, when it was built: the answer is never far down.
        """
        if entry not in self.known_ends:
            match entry:
                case Gate():
                    answer = self.may_end(entry.then) or self.may_end(entry.otherwise)
                case Fork():
                    answer = any(map(self.may_end, entry.branches))
                case Each():
                    answer = self.may_end(entry.body) or self.may_end(entry.empty)
                case Leave():
                    answer = self.may_end(entry.then)
                case _:
                    answer = isinstance(entry, End)
            self.known_ends[entry] = answer
        return self.known_ends[entry]


@frozen
class _What:
    """What a node is there for."""

    kind: Literal["uses", "relay", "join"]
    plugin: str
    command: str
    with_: Mapping[str, Template] = field(factory=dict)
    baggage: Claims | None = None
    relay: Relay | None = None
