"""Properties of random pipelines: the plan runs the configured jobs, and every execution ends."""

from collections import Counter
from itertools import count
from typing import Any

import pytest
from attrs import define, frozen
from hypothesis import HealthCheck, given, settings

from ductile.pipeline.compile.graph import compiled_routes, edges, topological_order
from ductile.pipeline.compile.plan import Arrive, Each, End, Fork, Gate, Go, Instruction, Leave, Open, Plan, PlanNode
from ductile.pipeline.language.conditions import holds
from ductile.pipeline.language.paths import Scope
from tests.pipeline.compiling import compile_text, shape
from tests.pipeline.random_pipelines import PAYLOAD, Data, each_step, pipelines_strategy

pytestmark = pytest.mark.slow

SCOPE = Scope(PAYLOAD, {})
MAX_RUNS = 20_000
thorough = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
quick = settings(thorough, max_examples=50)


class TooManyFollowUps(Exception):
    """The run is too large to compare; smaller runs cover the same constructs."""


# ── direct interpretation of the YAML ───────────────────────────────────────────────────────────────────────────────


@frozen
class Result:
    """The number of ends that were reached, and whether a step failed."""

    ends: int
    failed: bool = False


@define
class DirectInterpreter:
    """Interprets the YAML of a pipeline recursively and counts the jobs by path."""

    pipelines: dict[str, Data]
    ids: dict[int, str]
    ran: Counter[str]

    @classmethod
    def of(cls, pipelines: list[Data]) -> "DirectInterpreter":
        ids: dict[int, str] = {}
        for pipeline in pipelines:
            steps = each_step(pipeline["steps"])
            explicit_ids = {step.get("id") for step in steps}
            unused_ids = (name for number in count(1) if (name := f"step_{number}") not in explicit_ids)
            ids |= {id(step): step.get("id") or next(unused_ids) for step in steps}
        return cls({each["name"]: each for each in pipelines}, ids, Counter())

    def sequence(self, steps: list[Data], prefix: str) -> Result:
        ends, failed = 1, False
        for step in steps:
            results = [self.step(step, prefix) for _ in range(ends)]
            ends, failed = sum(each.ends for each in results), failed or any(each.failed for each in results)
        return Result(ends, failed)

    def step(self, step: Data, prefix: str) -> Result:
        path = prefix + self.ids[id(step)]
        if "foreach" not in step and not _is_true(step.get("if")):
            return Result(1)
        if step.get("join"):
            self.run(f"{path}__join")
        if "foreach" in step:
            items = PAYLOAD[step["foreach"].removeprefix("payload.")]
            results = [self.action(step, path, prefix) if _is_true(step.get("if")) else Result(1) for _ in items]  # type: ignore[attr-defined]
            result = Result(sum(each.ends for each in results) if results else 1, any(each.failed for each in results))
        else:
            result = self.action(step, path, prefix)
        if step.get("join"):
            return Result(0 if result.failed else 1, result.failed)
        return result

    def action(self, step: Data, path: str, prefix: str) -> Result:
        if "steps" in step:
            return self.sequence(step["steps"], prefix)
        if "split" in step:
            results = [self.step(branch, prefix) for branch in step["split"]]
            return Result(sum(each.ends for each in results), any(each.failed for each in results))
        if "call" in step:
            callee = self.pipelines[step["call"]]
            return self.sequence(callee["steps"], f"{path}/") if _is_true(callee.get("if")) else Result(1)
        self.run(path)
        if step.get("uses") != "broken":
            return Result(1)
        handled = self.sequence(step.get("on_error", []), prefix)
        return handled if step.get("continue") else Result(0, failed=True)

    def run(self, path: str) -> None:
        self.ran[path] += 1
        if self.ran.total() > MAX_RUNS:
            raise TooManyFollowUps


def _is_true(condition: Data | None) -> bool:
    if condition is None:
        return True
    if "not" in condition:
        return not _is_true(condition["not"])
    return condition["path"].removeprefix("payload.") in PAYLOAD


# ── execution of the plan ───────────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class OpenJoin:
    """An open join."""

    node: PlanNode
    outer: "OpenJoin | None"
    items: int
    failed: bool = False


@define
class PlanWalker:
    """Executes a plan synchronously and counts the jobs by path."""

    ran: Counter[str]

    def enter(self, entry: Instruction, items: int = 0, join: OpenJoin | None = None) -> None:
        match entry:
            case Go(node):
                self.job(node, items, join)
            case Gate():
                self.enter(entry.then if holds(entry.condition, SCOPE) else entry.otherwise, items, join)
            case Fork(branches):
                for branch in branches:
                    self.enter(branch, items, join)
            case Each():
                found: Any = SCOPE.look_up(entry.source)
                for _ in found:
                    self.enter(entry.body, items + 1, join)
                if not found:
                    self.enter(entry.empty, items, join)
            case Leave(then):
                self.enter(then, items - 1, join)
            case Open(node, body):
                self.wait(OpenJoin(node, join, items), body)
            case Arrive(node, _, by_item):
                assert join is not None
                assert node is join.node, "only the innermost join is arrived at"
                assert items - join.items == by_item, "what was entered inside has been left"
            case End():
                pass

    def job(self, node: PlanNode, items: int, join: OpenJoin | None) -> None:
        self.run(node)
        assert node.foreach_depth == items
        assert node.joins == _open_joins(join)
        if node.plugin != "broken":
            return self.enter(node.successors, items, join)
        if not node.tolerated and join is not None:
            join.failed = True
        if node.on_error is not None:
            self.enter(node.on_error, items, join)
        return None

    def wait(self, open_join: OpenJoin, body: Instruction) -> None:
        self.run(open_join.node)
        self.enter(body, open_join.items, open_join)
        if not open_join.failed:
            self.enter(open_join.node.successors, open_join.items, open_join.outer)
        elif open_join.outer is not None:
            open_join.outer.failed = True

    def run(self, node: PlanNode) -> None:
        self.ran[node.path] += 1
        if self.ran.total() > MAX_RUNS:
            raise TooManyFollowUps


def _open_joins(join: OpenJoin | None) -> tuple[str, ...]:
    return () if join is None else (*_open_joins(join.outer), join.node.path)


@thorough
@given(pipelines_strategy())
def test_a_plan_runs_the_configured_jobs(pipelines: list[Data]) -> None:
    """As often as a direct interpretation of the YAML, inside the same loops and joins."""
    for name, plan in compile_text(pipelines).by_name.items():
        interpreter, walker = DirectInterpreter.of(pipelines), PlanWalker(Counter())
        try:
            interpreter.sequence(interpreter.pipelines[name]["steps"], "")
            walker.enter(plan.entry)
        except TooManyFollowUps:
            continue
        assert walker.ran == interpreter.ran


# ── properties of the plan ──────────────────────────────────────────────────────────────────────────────────────────


@quick
@given(pipelines_strategy())
def test_every_vertex_is_reachable_and_there_are_no_cycles(pipelines: list[Data]) -> None:
    """So every execution ends."""
    for plan in compile_text(pipelines).by_name.values():
        order = topological_order(plan)
        assert {each for each in order if isinstance(each, PlanNode | Gate)} == set(plan.vertices)
        ranks = {vertex: rank for rank, vertex in enumerate(plan.vertices)}
        for edge in edges(plan):
            if edge.source is not None and edge.target is not None:
                assert ranks[edge.source] < ranks[edge.target]


@quick
@given(pipelines_strategy())
def test_a_plan_has_one_node_per_configured_job(pipelines: list[Data]) -> None:
    """Calls are inlined, and depths increase along every edge."""
    by_name = {each["name"]: each for each in pipelines}

    def size(steps: list[Data]) -> int:
        every = each_step(steps)
        jobs = sum(("uses" in step or "relay" in step) + ("join" in step) for step in every)
        return jobs + sum(size(by_name[step["call"]]["steps"]) for step in every if "call" in step)

    for name, plan in compile_text(pipelines).by_name.items():
        assert len(plan.nodes) == size(by_name[name]["steps"])
        assert len({vertex.path for vertex in plan.vertices}) == len(plan.vertices)
        _check_depths(plan)


def _check_depths(plan: Plan) -> None:
    for edge in edges(plan):
        if isinstance(edge.source, PlanNode) and isinstance(edge.target, PlanNode):
            assert edge.source.depth < edge.target.depth
            assert edge.target.min_depth <= edge.source.min_depth + 1
    assert plan.longest_path == max(node.depth for node in plan.nodes.values())
    assert all(1 <= node.min_depth <= node.depth for node in plan.nodes.values())


@quick
@given(pipelines_strategy())
def test_compiling_twice_gives_the_same_plan(pipelines: list[Data]) -> None:
    """Names, shapes, routes and fingerprints."""
    first, second = compile_text(pipelines), compile_text(pipelines)
    for one, other in zip(first.by_name.values(), second.by_name.values(), strict=True):
        assert one.fingerprint == other.fingerprint
        assert shape(one) == shape(other)
        assert compiled_routes(one) == compiled_routes(other)


@quick
@given(pipelines_strategy())
def test_compiled_routes_reach_every_vertex(pipelines: list[Data]) -> None:
    """Ids are unique, and the entry comes first."""
    for plan in compile_text(pipelines).by_name.values():
        routes = compiled_routes(plan)
        reached = {route["destination"].get("step_id") for route in routes}
        assert {vertex.path for vertex in plan.vertices} <= reached
        assert len({route["id"] for route in routes}) == len(routes)
        assert routes[0]["id"].startswith("entry:")
