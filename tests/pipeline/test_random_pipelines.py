"""Properties of random pipelines: the plan runs the configured jobs, and every execution ends."""

from collections import Counter
from itertools import count
from typing import Any

from attrs import define, frozen
from hypothesis import HealthCheck, given, settings

from ductile.pipeline.compile.graph import compiled_routes, edges, topological_order
from ductile.pipeline.compile.plan import Arrive, Each, End, Fork, Gate, Go, Instruction, Leave, Open, Plan, PlanNode
from ductile.pipeline.language.conditions import holds
from ductile.pipeline.language.paths import Scope
from tests.pipeline.compiling import compile_text, shape
from tests.pipeline.random_pipelines import PAYLOAD, Data, each_step, pipelines_strategy

SCOPE = Scope(PAYLOAD, {})
MAX_RUNS = 20_000
thorough = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
brief = settings(thorough, max_examples=50)


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
    def of(cls, listed: list[Data]) -> "DirectInterpreter":
        ids: dict[int, str] = {}
        for pipeline in listed:
            steps = each_step(pipeline["steps"])
            taken = {step.get("id") for step in steps}
            fresh = (name for number in count(1) if (name := f"step_{number}") not in taken)
            ids |= {id(step): step.get("id") or next(fresh) for step in steps}
        return cls({each["name"]: each for each in listed}, ids, Counter())

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
            whole = Result(sum(each.ends for each in results) if results else 1, any(each.failed for each in results))
        else:
            whole = self.action(step, path, prefix)
        if step.get("join"):
            return Result(0 if whole.failed else 1, whole.failed)
        return whole

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

    def wait(self, waiting: OpenJoin, body: Instruction) -> None:
        self.run(waiting.node)
        self.enter(body, waiting.items, waiting)
        if not waiting.failed:
            self.enter(waiting.node.successors, waiting.items, waiting.outer)
        elif waiting.outer is not None:
            waiting.outer.failed = True

    def run(self, node: PlanNode) -> None:
        self.ran[node.path] += 1
        if self.ran.total() > MAX_RUNS:
            raise TooManyFollowUps


def _open_joins(join: OpenJoin | None) -> tuple[str, ...]:
    return () if join is None else (*_open_joins(join.outer), join.node.path)


@thorough
@given(pipelines_strategy())
def test_a_plan_runs_the_configured_jobs(listed: list[Data]) -> None:
    """As often as a direct interpretation of the YAML, inside the same loops and joins."""
    for name, plan in compile_text(listed).by_name.items():
        interpreter, walker = DirectInterpreter.of(listed), PlanWalker(Counter())
        try:
            interpreter.sequence(interpreter.pipelines[name]["steps"], "")
            walker.enter(plan.entry)
        except TooManyFollowUps:
            continue
        assert walker.ran == interpreter.ran


# ── properties of the plan ──────────────────────────────────────────────────────────────────────────────────────────


@brief
@given(pipelines_strategy())
def test_every_vertex_is_reachable_and_there_are_no_cycles(listed: list[Data]) -> None:
    """So every execution ends."""
    for plan in compile_text(listed).by_name.values():
        order = topological_order(plan)
        assert {thing for thing in order if isinstance(thing, PlanNode | Gate)} == set(plan.vertices)
        ranks = {vertex: rank for rank, vertex in enumerate(plan.vertices)}
        for edge in edges(plan):
            if edge.source is not None and edge.target is not None:
                assert ranks[edge.source] < ranks[edge.target]


@brief
@given(pipelines_strategy())
def test_a_plan_has_one_node_per_configured_job(listed: list[Data]) -> None:
    """Calls are inlined, and depths increase along every edge."""
    by_name = {each["name"]: each for each in listed}

    def size(steps: list[Data]) -> int:
        every = each_step(steps)
        jobs = sum(("uses" in step or "relay" in step) + ("join" in step) for step in every)
        return jobs + sum(size(by_name[step["call"]]["steps"]) for step in every if "call" in step)

    for name, plan in compile_text(listed).by_name.items():
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


@brief
@given(pipelines_strategy())
def test_compiling_twice_gives_the_same_plan(listed: list[Data]) -> None:
    """Names, shapes, routes and fingerprints."""
    first, second = compile_text(listed), compile_text(listed)
    for one, other in zip(first.by_name.values(), second.by_name.values(), strict=True):
        assert one.fingerprint == other.fingerprint
        assert shape(one) == shape(other)
        assert compiled_routes(one) == compiled_routes(other)


@brief
@given(pipelines_strategy())
def test_compiled_routes_reach_every_vertex(listed: list[Data]) -> None:
    """Ids are unique, and the entry comes first."""
    for plan in compile_text(listed).by_name.values():
        routes = compiled_routes(plan)
        reached = {route["destination"].get("step_id") for route in routes}
        assert {vertex.path for vertex in plan.vertices} <= reached
        assert len({route["id"] for route in routes}) == len(routes)
        assert routes[0]["id"].startswith("entry:")
