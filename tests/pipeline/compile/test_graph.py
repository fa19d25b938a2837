"""Graph algorithms: cycles, topological order and compiled routes."""

from ductile.pipeline.compile.graph import (
    compiled_routes,
    find_cycles,
    format_cycle,
    reverse_topological_order,
    topological_order,
)
from ductile.pipeline.compile.plan import PlanNode
from tests.pipeline.cases import check_all
from tests.pipeline.compiling import compile_text, plan_of

CYCLES: list[tuple[dict[str, list[str]], list[list[str]]]] = [
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


def test_every_cycle_is_found() -> None:
    """One for each back edge."""

    def check(successors: dict[str, list[str]], expected: list[list[str]]) -> None:
        assert list(find_cycles(successors)) == expected

    check_all(CYCLES, check)


def test_a_long_cycle_is_shortened() -> None:
    """Only the middle is left out."""
    assert format_cycle(["a", "b", "a"]) == "a → b → a"
    assert format_cycle([str(number) for number in range(100)]) == "0 → 1 → 2 → 3 → 4 → 5 → 6 → 7 → 8 → 9 → … → 98 → 99"


def test_reverse_topological_order_lists_successors_first() -> None:
    """Each vertex once."""
    successors = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}
    assert reverse_topological_order(["a", "c"], successors.__getitem__) == ["d", "b", "c", "a"]


def test_topological_order_lists_predecessors_first() -> None:
    """Joins come after their branches."""
    plan = plan_of("{id: s, join: true, split: [{id: a, uses: p}, {id: b, uses: p}]}, {id: c, uses: p}")
    order = [vertex.path for vertex in topological_order(plan) if isinstance(vertex, PlanNode)]
    assert order.index("s__join") > max(order.index("a"), order.index("b"))
    assert order[-1] == "c"


def test_compiled_routes_list_triggers_and_edges() -> None:
    """In textual order, complete."""
    condition = {"path": "payload.n", "op": "gt", "value": 1}
    plans = compile_text(
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
    step = {"pipeline": "p", "depth_lt": 5}
    one = {"kind": "uses", "step_id": "a", "plugin": "one", "command": "handle"}
    switch = {"kind": "switch", "step_id": "c__switch", "plugin": "core.switch", "command": "handle"}
    relay = {"kind": "relay", "step_id": "c/r", "plugin": "core.relay", "command": "handle", "call_pipeline": "q"}
    two = {"kind": "uses", "step_id": "b", "plugin": "two", "command": "poll"}
    three = {"kind": "uses", "step_id": "h", "plugin": "three", "command": "handle"}
    end = {"kind": "terminal"}
    true, false, failed = "ductile.switch.true", "ductile.switch.false", "ductile.step.failed"
    decided = step | {"step_id": "c__switch", "if": condition}
    returned = {"pipeline": "q", "depth_lt": 5, "step_id": "c/r"}
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
    found = [(route["id"], route["source"], route["destination"]) for route in compiled_routes(plans.require("p"))]
    assert found == expected
    assert {route["pipeline"] for route in compiled_routes(plans.require("p"))} == {"p"}
    first, last = compiled_routes(plans.require("q"))
    assert first["source"] == {"hook_signal": "job.failed"}
    assert last["source"] == {"pipeline": "q", "step_id": "r"}
