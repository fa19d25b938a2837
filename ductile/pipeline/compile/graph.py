"""What leads to what: circles among names, the order of a plan, and the plan as a list of routes for people.

Only looks. Plans share what follows, so every walk here visits each thing once.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from attrs import frozen

from ductile.pipeline.compile.plan import (
    HANDLE,
    JOIN_COMPLETED,
    STEP_FAILED,
    SWITCH,
    SWITCH_FALSE,
    SWITCH_TRUE,
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
)
from ductile.pipeline.language.conditions import as_data

T = TypeVar("T", bound=Hashable)
MOST_SHOWN = 12


def circles(following: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """One circle for each way back to a name that is being followed; iterative, so that length cannot hurt."""
    done: set[str] = set()
    for start in following:
        if start in done:
            continue
        trail, waiting = {start: None}, [iter(following[start])]
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
                waiting.append(iter(following.get(step, ())))


def way(names: list[str]) -> str:
    """`a → b → a`, with the middle left out when it is long."""
    shown = names if len(names) <= MOST_SHOWN else [*names[: MOST_SHOWN - 2], "…", *names[-2:]]
    return " → ".join(shown)


def last_first(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> list[T]:
    """Everything that can be reached, each after all that follows it; there must be no circle."""
    order: dict[T, None] = {}
    seen: set[T] = set()
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        waiting = [(start, iter(following(start)))]
        while waiting:
            one, rest = waiting[-1]
            nearest = next((step for step in rest if step not in seen), None)
            if nearest is None:
                order[one] = None
                waiting.pop()
            else:
                seen.add(nearest)
                waiting.append((nearest, iter(following(nearest))))
    return list(order)


def first_first(plan: Plan) -> list[Entry | PlanNode]:
    """Every instruction and node of the plan, each before all that follows it."""
    start: list[Entry | PlanNode] = [plan.entry]
    return last_first(start, _next)[::-1]


def _next(thing: Entry | PlanNode) -> tuple[Entry | PlanNode, ...]:
    match thing:
        case PlanNode():
            return (thing.successors,) if thing.on_error is None else (thing.successors, thing.on_error)
        case Go(node):
            return (node,)
        case Open(join, body):
            return (body, join)
        case Arrive(join):
            return (join,)
        case Gate():
            return (thing.then, thing.otherwise)
        case Fork(branches):
            return branches
        case Each():
            return (thing.body, thing.empty)
        case Leave(then):
            return (then,)
    return ()


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Edge:
    """One way from a place to the next."""

    source: PlanNode | Gate | None
    """None: what starts the pipeline."""
    event: str | None
    """The type that takes this way; None: any that the step emits."""
    target: PlanNode | Gate | None
    """None: the end."""
    foreach: str | None = None
    """The list whose every element goes this way."""


def edges(plan: Plan) -> Iterator[Edge]:
    """Every way from place to place, in textual order."""
    for source in (None, *plan.places):
        for event, entry in _ways_out(plan, source):
            yield from (Edge(source, event, target, foreach) for target, foreach in _targets(entry).items())


def compiled_routes(plan: Plan) -> list[dict[str, Any]]:
    """The plan as routes `{id, pipeline, source, destination}` for people and programs, in textual order."""
    return [
        {"id": _id(edge), "pipeline": plan.name, "source": _source(plan, edge), "destination": _destination(edge)}
        for edge in edges(plan)
    ]


def _ways_out(plan: Plan, source: PlanNode | Gate | None) -> Iterator[tuple[str | None, Entry]]:
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


def _targets(entry: Entry) -> dict[PlanNode | Gate | None, str | None]:
    """The places that `entry` leads to next, each with the list it is entered for."""
    targets: dict[PlanNode | Gate | None, str | None] = {}
    seen: set[Entry] = set()
    waiting: list[tuple[Entry, str | None, PlanNode | None]] = [(entry, None, None)]
    while waiting:
        one, foreach, join = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        match one:
            case Go(target) | Arrive(target):
                targets.setdefault(target, foreach)
            case Gate():
                targets.setdefault(one, foreach)
            case End():
                # Inside a join that was just opened, nothing to do means that there is nothing to wait for.
                targets.setdefault(join, foreach)
            case Fork(branches):
                waiting.extend((branch, foreach, join) for branch in reversed(branches))
            case Each():
                waiting += [(one.empty, foreach, join), (one.body, str(one.source), join)]
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
