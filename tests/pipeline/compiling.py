"""Compile pipelines from YAML text, and format plans as short text for comparison."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from ductile.config.load.structure import make_converter
from ductile.core.errors import ConfigInvalid, PipelineInvalid
from ductile.core.formats import strict_yaml
from ductile.pipeline.compile.compile import compile_pipelines
from ductile.pipeline.compile.plan import Arrive, Each, End, Fork, Gate, Go, Instruction, Leave, Open, Plan, Plans
from ductile.pipeline.language.dsl import Pipeline


def parse_pipelines(text: str | Sequence[Any]) -> tuple[Pipeline, ...]:
    """Parse a list of pipelines from YAML text or data."""
    content = text if isinstance(text, str) else strict_yaml.dump(list(text))
    document = strict_yaml.load(content.encode(), source="p.yaml")
    parse_pipelines: tuple[Pipeline, ...] = make_converter().structure(document, tuple[Pipeline, ...])
    return parse_pipelines


def compile_text(text: str | Sequence[Any], *, names: Collection[str] = (), max_call_depth: int = 20) -> Plans:
    return compile_pipelines(parse_pipelines(text), names=names, max_call_depth=max_call_depth)


def plan_of(steps: str, *others: str) -> Plan:
    """Compile a pipeline `p` with these steps (YAML flow), and others (`name: …, steps: …`)."""
    listed = [f"- {{name: p, on: e, steps: [{steps}]}}", *(f"- {{on: e, {other}}}" for other in others)]
    return compile_text("\n".join(listed)).require("p")


def compile_errors(text: str, *, names: Collection[str] = (), max_call_depth: int = 20) -> list[str]:
    """Return the errors of the compiler, which must reject the text."""
    with pytest.raises(PipelineInvalid) as caught:
        compile_text(text, names=names, max_call_depth=max_call_depth)
    assert isinstance(caught.value, ConfigInvalid)
    assert {complaint.category for complaint in caught.value.complaints} == {"pipelines"}
    return [f"{complaint.path}: {complaint.message}" for complaint in caught.value.complaints]


def format_instruction(entry: Instruction) -> str:
    """Format an instruction on one line.

    `a` is a job; `g ? x : y` a gate; `x & y` a fork; `[list: x; y]` a loop, y if the list is empty; `<x` leaves the
    item; `j{x}` opens a join; `j.0` arrives there, `j.item.0` for an item; `.` is the end.
    """
    match entry:
        case Go(node):
            return node.path
        case Gate():
            return f"{entry.path} ? {format_instruction(entry.then)} : {format_instruction(entry.otherwise)}"
        case Fork(branches):
            return f"({' & '.join(map(format_instruction, branches))})"
        case Each():
            return f"[{entry.source}: {format_instruction(entry.body)}; {format_instruction(entry.empty)}]"
        case Leave(then):
            return f"<{format_instruction(then)}"
        case Open(join, body):
            return f"{join.path}{{{format_instruction(body)}}}"
        case Arrive(join, branch, by_item):
            return f"{join.path}{'.item' if by_item else ''}.{branch}"
        case End():
            return "."


def shape(plan: Plan) -> dict[str, str]:
    """Return the instructions at the start, after each node, and after its failure (`!`)."""
    shown = {"start": format_instruction(plan.entry)}
    for path, node in plan.nodes.items():
        shown[path] = format_instruction(node.successors)
        if node.on_error is not None:
            shown[f"{path}!"] = format_instruction(node.on_error)
    return shown
