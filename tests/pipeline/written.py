"""From YAML text to pipelines and plans, and plans as short texts that a test can compare."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from ductile.config.load.structure import make_converter
from ductile.core.errors import ConfigInvalid, PipelineInvalid
from ductile.core.formats import strict_yaml
from ductile.pipeline.compile.compile import compile_pipelines
from ductile.pipeline.compile.plan import Arrive, Each, End, Entry, Fork, Gate, Go, Leave, Open, Plan, Plans
from ductile.pipeline.language.dsl import Pipeline


def pipelines(text: str | Sequence[Any]) -> tuple[Pipeline, ...]:
    """The pipelines that `text` (or the data of it) lists."""
    content = text if isinstance(text, str) else strict_yaml.dump(list(text))
    document = strict_yaml.load(content.encode(), source="p.yaml")
    pipelines: tuple[Pipeline, ...] = make_converter().structure(document, tuple[Pipeline, ...])
    return pipelines


def compiled(text: str | Sequence[Any], *, names: Collection[str] = (), most_calls: int = 20) -> Plans:
    return compile_pipelines(pipelines(text), names=names, most_calls=most_calls)


def plan_of(steps: str, *others: str) -> Plan:
    """The plan of a pipeline `p` with these steps (YAML flow), beside others (`name: …, steps: …`)."""
    listed = [f"- {{name: p, on: e, steps: [{steps}]}}", *(f"- {{on: e, {other}}}" for other in others)]
    return compiled("\n".join(listed)).named("p")


def refusals(text: str, *, names: Collection[str] = (), most_calls: int = 20) -> list[str]:
    """What the compiler complains about; it must complain."""
    with pytest.raises(PipelineInvalid) as caught:
        compiled(text, names=names, most_calls=most_calls)
    assert isinstance(caught.value, ConfigInvalid)
    assert {complaint.category for complaint in caught.value.complaints} == {"pipelines"}
    return [f"{complaint.path}: {complaint.message}" for complaint in caught.value.complaints]


def drawn(entry: Entry) -> str:
    """An entry in one line. `a` is a job; `g ? x : y` a gate; `x & y` a fork; `[list: x; y]` a loop, y if it is empty;
    `<x` leaves the item; `j{x}` opens a join; `j.0` arrives there, `j.item.0` for an item; `.` is the end."""
    match entry:
        case Go(node):
            return node.path
        case Gate():
            return f"{entry.path} ? {drawn(entry.then)} : {drawn(entry.otherwise)}"
        case Fork(branches):
            return f"({' & '.join(map(drawn, branches))})"
        case Each():
            return f"[{entry.source}: {drawn(entry.body)}; {drawn(entry.empty)}]"
        case Leave(then):
            return f"<{drawn(then)}"
        case Open(join, body):
            return f"{join.path}{{{drawn(body)}}}"
        case Arrive(join, branch, by_item):
            return f"{join.path}{'.item' if by_item else ''}.{branch}"
        case End():
            return "."


def shape(plan: Plan) -> dict[str, str]:
    """What is entered at the start, after each node, and after its failure (`!`)."""
    shown = {"start": drawn(plan.entry)}
    for path, node in plan.nodes.items():
        shown[path] = drawn(node.successors)
        if node.on_error is not None:
            shown[f"{path}!"] = drawn(node.on_error)
    return shown
