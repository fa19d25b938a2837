"""Graph algorithms on plans: cycles, topological order, edges and the list of compiled routes.

Read-only. Instructions share their successors, so every traversal visits each one once.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from attrs import frozen

from ductile.core.model import HANDLE
from ductile.pipeline.compile.plan import (
    JOIN_COMPLETED,
    STEP_FAILED,
    SWITCH,
    SWITCH_FALSE,
    SWITCH_TRUE,
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
from ductile.pipeline.language.conditions import as_data

T = TypeVar("T", bound=Hashable)
MAX_CYCLE_NAMES = 12


def find_cycles(successors: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Yield one cycle for each back edge. Iterative, so that long chains do not exceed the recursion limit."""
    done: set[str] = set()
    for start in successors:
        if start in done:
            continue
        trail, waiting = {start: None}, [iter(successors[start])]
        while waiting:
            step = next(waiting[-1], None)
            if step is None:
                done.add(trail.popitem()[0])
                waiting.pop()
            elif step in trail:
                names = list(trail)
                yield [*names[names.index(step) :], step]
            elif step not in done:
                trail[step] = None
                waiting.append(iter(successors.get(step, ())))


def format_cycle(names: list[str]) -> str:
    """Format as `a → b → a`, without the middle of a long cycle."""
    shown = names if len(names) <= MAX_CYCLE_NAMES else [*names[: MAX_CYCLE_NAMES - 2], "…", *names[-2:]]
    return " → ".join(shown)


def reverse_topological_order(starts: Iterable[T], successors: Callable[[T], Iterable[T]]) -> list[T]:
    """Return everything reachable from `starts`, each after all its successors. The graph must be acyclic."""
    order: dict[T, None] = {}
    seen: set[T] = set()
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(successors(start)))]
        while stack:
            vertex, rest = stack[-1]
            successor = next((step for step in rest if step not in seen), None)
            if successor is None:
                order[vertex] = None
                stack.pop()
            else:
                seen.add(successor)
                stack.append((successor, iter(successors(successor))))
    return list(order)


def topological_order(plan: Plan) -> list[Instruction | PlanNode]:
    """Return every instruction and node of the plan, each before its successors."""
    start: list[Instruction | PlanNode] = [plan.entry]
    return reverse_topological_order(start, _successors)[::-1]


def _successors(vertex: Instruction | PlanNode) -> tuple[Instruction | PlanNode, ...]:
    match vertex:
        case PlanNode():
            return (vertex.successors,) if vertex.on_error is None else (vertex.successors, vertex.on_error)
        case Go(node):
            return (node,)
        case Open(join, body):
            return (body, join)
        case Arrive(join):
            return (join,)
        case Gate():
            return (vertex.then, vertex.otherwise)
        case Fork(branches):
            return branches
        case Each():
            return (vertex.body, vertex.empty)
        case Leave(then):
            return (then,)
    return ()


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Edge:
    """An edge between two nodes or gates."""

    source: PlanNode | Gate | None
    """None for the trigger of the pipeline."""
    event: str | None
    """The event type that follows this edge; None for every event of the step."""
    target: PlanNode | Gate | None
    """None for the end of the run."""
    foreach: str | None = None
    """The list whose elements follow this edge."""


def edges(plan: Plan) -> Iterator[Edge]:
    """Yield every edge of the plan, in textual order."""
    for source in (None, *plan.vertices):
        for event, entry in _exits(plan, source):
            yield from (Edge(source, event, target, foreach) for target, foreach in _targets(entry).items())


def compiled_routes(plan: Plan) -> list[dict[str, Any]]:
    """Return the edges as `{id, pipeline, source, destination}`, in textual order."""
    return [
        {"id": _id(edge), "pipeline": plan.name, "source": _source(plan, edge), "destination": _destination(edge)}
        for edge in edges(plan)
    ]


def _exits(plan: Plan, source: PlanNode | Gate | None) -> Iterator[tuple[str | None, Instruction]]:
    match source:
        case None:
            yield plan.on or plan.hook, plan.entry
        case Gate():
            yield SWITCH_TRUE, source.then
            yield SWITCH_FALSE, source.otherwise
        case PlanNode():
            yield JOIN_COMPLETED if source.kind == "join" else None, source.successors
            if source.on_error is not None:
                yield STEP_FAILED, source.on_error


def _targets(entry: Instruction) -> dict[PlanNode | Gate | None, str | None]:
    """Return the next nodes and gates after `entry`, each with the `foreach` list that leads to it."""
    targets: dict[PlanNode | Gate | None, str | None] = {}
    seen: set[Instruction] = set()
    waiting: list[tuple[Instruction, str | None, PlanNode | None]] = [(entry, None, None)]
    while waiting:
        instruction, foreach, join = waiting.pop()
        if instruction in seen:
            continue
        seen.add(instruction)
        match instruction:
            case Go(target) | Arrive(target):
                targets.setdefault(target, foreach)
            case Gate():
                targets.setdefault(instruction, foreach)
            case End():
                # A join that was just opened without jobs inside has nothing to wait for.
                targets.setdefault(join, foreach)
            case Fork(branches):
                waiting.extend((branch, foreach, join) for branch in reversed(branches))
            case Each():
                waiting += [(instruction.empty, foreach, join), (instruction.body, str(instruction.source), join)]
            case Leave(then):
                waiting.append((then, None, join))
            case Open(opened, body):
                waiting.append((body, foreach, opened))
    return targets


def _id(edge: Edge) -> str:
    target = edge.target.path if edge.target else None
    if edge.source is None:
        return f"entry:{target}"
    event = f"@{edge.event}" if edge.event else ""
    return f"terminal:{edge.source.path}{event}" if target is None else f"edge:{edge.source.path}->{target}{event}"


def _source(plan: Plan, edge: Edge) -> dict[str, Any]:
    source = edge.source
    data: dict[str, Any]
    if source is None:
        data = {"trigger": plan.on, "hook_signal": plan.hook, "source_plugin": plan.from_plugin}
        condition = plan.condition
    else:
        limit = plan.depth_limit or None
        data = {"pipeline": source.pipeline, "step_id": source.path, "event_type": edge.event, "depth_lt": limit}
        condition = source.condition if isinstance(source, Gate) else None
    data |= {"if": as_data(condition) if condition else None, "foreach": edge.foreach}
    return {key: value for key, value in data.items() if value is not None}


def _destination(edge: Edge) -> dict[str, Any]:
    target = edge.target
    match target:
        case None:
            return {"kind": "terminal"}
        case Gate():
            data = {"kind": "switch", "step_id": target.path, "plugin": SWITCH, "command": HANDLE}
        case PlanNode():
            data = {"kind": target.kind, "step_id": target.path, "plugin": target.plugin, "command": target.command}
    return data | ({"call_pipeline": target.pipeline} if "/" in target.path else {})
