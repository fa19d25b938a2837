"""What leads to what: circles, orders, and the plan as routes."""

import pytest

from ductile.pipeline.compile.graph import circles, compiled_routes, first_first, last_first, way
from ductile.pipeline.compile.plan import PlanNode
from tests.pipeline.written import compiled, plan_of

CIRCLES: list[tuple[dict[str, list[str]], list[list[str]]]] = [
    ({}, []),
    ({"a": ["b"], "b": ["c"]}, []),
    ({"a": ["b", "c"], "b": ["d"], "c": ["d"]}, []),
    ({"a": ["a"]}, [["a", "a"]]),
    ({"a": ["b"], "b": ["b"]}, [["b", "b"]]),
    ({"b": ["b"], "a": ["b"]}, [["b", "b"]]),
    ({"a": ["b"], "b": ["a"]}, [["a", "b", "a"]]),
    ({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}, [["a", "b", "c", "a"]]),
    ({"a": ["b", "c"], "b": ["a"], "c": ["a"]}, [["a", "b", "a"], ["a", "c", "a"]]),
    ({"a": ["b"], "b": ["a"], "c": ["d"], "d": ["c"]}, [["a", "b", "a"], ["c", "d", "c"]]),
]


@pytest.mark.parametrize(("following", "expected"), CIRCLES)
def test_every_circle_is_found_with_its_way(following: dict[str, list[str]], expected: list[list[str]]) -> None:
    """One for each way back."""
    assert list(circles(following)) == expected


def test_a_long_way_is_shortened() -> None:
    """Its beginning and its end are what people look for."""
    assert way(["a", "b", "a"]) == "a → b → a"
    assert way([str(number) for number in range(100)]) == "0 → 1 → 2 → 3 → 4 → 5 → 6 → 7 → 8 → 9 → … → 98 → 99"


def test_what_follows_comes_first() -> None:
    """And nothing comes twice."""
    following = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}
    assert last_first(["a", "c"], following.__getitem__) == ["d", "b", "c", "a"]


def test_everything_in_a_plan_comes_before_what_follows_it() -> None:
    """Joins after the branches they wait for."""
    plan = plan_of("{id: s, join: true, split: [{id: a, uses: p}, {id: b, uses: p}]}, {id: c, uses: p}")
    order = [thing.path for thing in first_first(plan) if isinstance(thing, PlanNode)]
    assert order.index("s__join") > max(order.index("a"), order.index("b"))
    assert order[-1] == "c"


def test_routes_say_what_starts_a_pipeline_and_what_follows_what() -> None:
    """In the form of the original, in textual order, complete."""
    condition = {"path": "payload.n", "op": "gt", "value": 1}
    plans = compiled(
        [
            {
                "name": "p",
                "on": "x.ready",
                "from_plugin": "src",
                "if": condition,
                "steps": [
                    {"id": "a", "uses": "one"},
                    {"id": "c", "call": "q", "if": condition},
                    {
                        "id": "b",
                        "uses": "two.poll",
                        "foreach": "payload.list",
                        "on_error": [{"id": "h", "uses": "three"}],
                    },
                ],
            },
            {
                "name": "q",
                "on-hook": "job.failed",
                "max_depth": 0,
                "steps": [{"id": "r", "relay": {"to": "l", "event": "e"}}],
            },
        ]
    )
    step = {"pipeline": "p", "depth_lt": 4}
    one = {"kind": "uses", "step_id": "a", "plugin": "one", "command": "handle"}
    switch = {"kind": "switch", "step_id": "c__switch", "plugin": "core.switch", "command": "handle"}
    relay = {"kind": "relay", "step_id": "c/r", "plugin": "core.relay", "command": "handle", "call_pipeline": "q"}
    two = {"kind": "uses", "step_id": "b", "plugin": "two", "command": "poll"}
    three = {"kind": "uses", "step_id": "h", "plugin": "three", "command": "handle"}
    end = {"kind": "terminal"}
    true, false, failed = "ductile.switch.true", "ductile.switch.false", "ductile.step.failed"
    decided = step | {"step_id": "c__switch", "if": condition}
    returned = {"pipeline": "q", "depth_lt": 4, "step_id": "c/r"}
    expected = [
        ("entry:a", {"trigger": "x.ready", "source_plugin": "src", "if": condition}, one),
        ("edge:a->c__switch", step | {"step_id": "a"}, switch),
        (f"edge:c__switch->c/r@{true}", decided | {"event_type": true}, relay),
        (f"edge:c__switch->b@{false}", decided | {"event_type": false, "foreach": "payload.list"}, two),
        (f"terminal:c__switch@{false}", decided | {"event_type": false}, end),
        ("edge:c/r->b", returned | {"foreach": "payload.list"}, two),
        ("terminal:c/r", returned, end),
        ("terminal:b", step | {"step_id": "b"}, end),
        (f"edge:b->h@{failed}", step | {"step_id": "b", "event_type": failed}, three),
        ("terminal:h", step | {"step_id": "h"}, end),
    ]
    found = [(route["id"], route["source"], route["destination"]) for route in compiled_routes(plans.named("p"))]
    assert found == expected
    assert {route["pipeline"] for route in compiled_routes(plans.named("p"))} == {"p"}
    first, last = compiled_routes(plans.named("q"))
    assert first["source"] == {"hook_signal": "job.failed"}
    assert last["source"] == {"pipeline": "q", "step_id": "r"}
