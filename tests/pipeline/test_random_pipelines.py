"""Whatever an author nests into what: the plan means what is written, and can be walked to its end."""

from collections import Counter
from itertools import count
from typing import Any

from attrs import define, frozen
from hypothesis import HealthCheck, given, settings

from ductile.pipeline.compile.graph import compiled_routes, edges, first_first
from ductile.pipeline.compile.plan import Arrive, Each, End, Entry, Fork, Gate, Go, Leave, Open, Plan, PlanNode
from ductile.pipeline.language.conditions import holds
from ductile.pipeline.language.paths import Scope
from tests.pipeline.random_pipelines import PAYLOAD, Data, each_step, some_pipelines
from tests.pipeline.written import compiled, shape

SCOPE = Scope(PAYLOAD, {})
MOST_RUNS = 20_000
thorough = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
brief = settings(thorough, max_examples=50)


class TooManyFollowUps(Exception):
    """Splits and loops multiply; such a run says nothing that a smaller one does not."""


# ── what is written, read literally ─────────────────────────────────────────────────────────────────────────────────


@frozen
class Came:
    """How often the end of something was reached, and whether something in it failed for good."""

    ends: int
    failed: bool = False


@define
class Literal:
    """Runs a pipeline as its YAML says, step inside step, and counts the jobs by their path."""

    pipelines: dict[str, Data]
    ids: dict[int, str]
    ran: Counter[str]

    @classmethod
    def of(cls, listed: list[Data]) -> "Literal":
        ids: dict[int, str] = {}
        for pipeline in listed:
            steps = each_step(pipeline["steps"])
            taken = {step.get("id") for step in steps}
            fresh = (name for number in count(1) if (name := f"step_{number}") not in taken)
            ids |= {id(step): step.get("id") or next(fresh) for step in steps}
        return cls({each["name"]: each for each in listed}, ids, Counter())

    def sequence(self, steps: list[Data], prefix: str) -> Came:
        ends, failed = 1, False
        for step in steps:
            came = [self.step(step, prefix) for _ in range(ends)]
            ends, failed = sum(each.ends for each in came), failed or any(each.failed for each in came)
        return Came(ends, failed)

    def step(self, step: Data, prefix: str) -> Came:
        path = prefix + self.ids[id(step)]
        if "foreach" not in step and not _is_true(step.get("if")):
            return Came(1)
        if step.get("join"):
            self.run(f"{path}__join")
        if "foreach" in step:
            items = PAYLOAD[step["foreach"].removeprefix("payload.")]
            came = [self.action(step, path, prefix) if _is_true(step.get("if")) else Came(1) for _ in items]  # type: ignore[attr-defined]
            whole = Came(sum(each.ends for each in came) if came else 1, any(each.failed for each in came))
        else:
            whole = self.action(step, path, prefix)
        if step.get("join"):
            return Came(0 if whole.failed else 1, whole.failed)
        return whole

    def action(self, step: Data, path: str, prefix: str) -> Came:
        if "steps" in step:
            return self.sequence(step["steps"], prefix)
        if "split" in step:
            came = [self.step(branch, prefix) for branch in step["split"]]
            return Came(sum(each.ends for each in came), any(each.failed for each in came))
        if "call" in step:
            callee = self.pipelines[step["call"]]
            return self.sequence(callee["steps"], f"{path}/") if _is_true(callee.get("if")) else Came(1)
        self.run(path)
        if step.get("uses") != "broken":
            return Came(1)
        handled = self.sequence(step.get("on_error", []), prefix)
        return handled if step.get("continue") else Came(0, failed=True)

    def run(self, path: str) -> None:
        self.ran[path] += 1
        if self.ran.total() > MOST_RUNS:
            raise TooManyFollowUps


def _is_true(condition: Data | None) -> bool:
    if condition is None:
        return True
    if "not" in condition:
        return not _is_true(condition["not"])
    return condition["path"].removeprefix("payload.") in PAYLOAD


# ── the plan, walked ────────────────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Waiting:
    """An open join."""

    node: PlanNode
    outer: "Waiting | None"
    items: int
    failed: bool = False


@define
class Walker:
    """Runs a plan: jobs are done at once, a join when everything that was entered inside it is over."""

    ran: Counter[str]

    def enter(self, entry: Entry, items: int = 0, join: Waiting | None = None) -> None:
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
                self.wait(Waiting(node, join, items), body)
            case Arrive(node, _, by_item):
                assert join is not None
                assert node is join.node, "only the innermost join is arrived at"
                assert items - join.items == by_item, "what was entered inside has been left"
            case End():
                pass

    def job(self, node: PlanNode, items: int, join: Waiting | None) -> None:
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

    def wait(self, waiting: Waiting, body: Entry) -> None:
        self.run(waiting.node)
        self.enter(body, waiting.items, waiting)
        if not waiting.failed:
            self.enter(waiting.node.successors, waiting.items, waiting.outer)
        elif waiting.outer is not None:
            waiting.outer.failed = True

    def run(self, node: PlanNode) -> None:
        self.ran[node.path] += 1
        if self.ran.total() > MOST_RUNS:
            raise TooManyFollowUps


def _open_joins(join: Waiting | None) -> tuple[str, ...]:
    return () if join is None else (*_open_joins(join.outer), join.node.path)


@thorough
@given(some_pipelines())
def test_a_plan_runs_the_jobs_that_are_written(listed: list[Data]) -> None:
    """As often as the text says, read step by step; inside the items and joins that the place claims."""
    for name, plan in compiled(listed).by_name.items():
        literal, walker = Literal.of(listed), Walker(Counter())
        try:
            literal.sequence(literal.pipelines[name]["steps"], "")
            walker.enter(plan.entry)
        except TooManyFollowUps:
            continue
        assert walker.ran == literal.ran


# ── the plan, looked at ─────────────────────────────────────────────────────────────────────────────────────────────


@brief
@given(some_pipelines())
def test_every_place_can_be_reached_and_nothing_leads_back(listed: list[Data]) -> None:
    """So every walk ends."""
    for plan in compiled(listed).by_name.values():
        order = first_first(plan)
        assert {thing for thing in order if isinstance(thing, PlanNode | Gate)} == set(plan.places)
        ranks = {place: rank for rank, place in enumerate(plan.places)}
        for edge in edges(plan):
            if edge.source is not None and edge.target is not None:
                assert ranks[edge.source] < ranks[edge.target]


@brief
@given(some_pipelines())
def test_a_plan_is_as_large_as_what_is_written(listed: list[Data]) -> None:
    """One node for each plugin, relay and join, calls inlined; the measure of depth holds on every way."""
    by_name = {each["name"]: each for each in listed}

    def size(steps: list[Data]) -> int:
        every = each_step(steps)
        jobs = sum(("uses" in step or "relay" in step) + ("join" in step) for step in every)
        return jobs + sum(size(by_name[step["call"]]["steps"]) for step in every if "call" in step)

    for name, plan in compiled(listed).by_name.items():
        assert len(plan.nodes) == size(by_name[name]["steps"])
        assert len({place.path for place in plan.places}) == len(plan.places)
        _check_depths(plan)


def _check_depths(plan: Plan) -> None:
    for edge in edges(plan):
        if isinstance(edge.source, PlanNode) and isinstance(edge.target, PlanNode):
            assert edge.source.depth < edge.target.depth
            assert edge.target.nearest <= edge.source.nearest + 1
    assert plan.longest == max(node.depth for node in plan.nodes.values())
    assert all(1 <= node.nearest <= node.depth for node in plan.nodes.values())


@brief
@given(some_pipelines())
def test_compiling_twice_gives_the_same(listed: list[Data]) -> None:
    """Names, shapes, routes and fingerprints."""
    first, second = compiled(listed), compiled(listed)
    for one, other in zip(first.by_name.values(), second.by_name.values(), strict=True):
        assert one.fingerprint == other.fingerprint
        assert shape(one) == shape(other)
        assert compiled_routes(one) == compiled_routes(other)


@brief
@given(some_pipelines())
def test_the_route_to_every_place_is_shown(listed: list[Data]) -> None:
    """Every place is the destination of a route; ids are unique; entries come first."""
    for plan in compiled(listed).by_name.values():
        routes = compiled_routes(plan)
        reached = {route["destination"].get("step_id") for route in routes}
        assert {place.path for place in plan.places} <= reached
        assert len({route["id"] for route in routes}) == len(routes)
        assert routes[0]["id"].startswith("entry:")
