"""The compiler: the plan of every construct, and every configuration error."""

from datetime import timedelta
from typing import Any

import pytest

from ductile.core.errors import NotFound
from ductile.pipeline.compile.compile import MAX_PLAN_JOBS
from ductile.pipeline.compile.plan import Gate, PlanNode
from ductile.pipeline.language.conditions import as_data
from ductile.pipeline.language.paths import Scope
from ductile.pipeline.language.templates import render
from tests.pipeline.cases import check_all
from tests.pipeline.compiling import compile_errors, compile_text, plan_of, shape

YES = "{path: payload.x, op: exists}"

SHAPES: list[tuple[str, str, list[str], dict[str, str]]] = [
    (
        "steps run in sequence",
        "{id: a, uses: p}, {id: b, uses: q}",
        [],
        {"start": "a", "a": "b", "b": "."},
    ),
    (
        "steps without an id are numbered in textual order, groups included",
        "{uses: p}, {steps: [{uses: q}, {id: own, uses: q}]}, {uses: r, on_error: [{uses: s}]}",
        [],
        {"start": "step_1", "step_1": "step_3", "step_3": "own", "own": "step_4", "step_4": "."}
        | {"step_4!": "step_5", "step_5": "."},
    ),
    (
        "a number that is already used is skipped",
        "{uses: p}, {id: step_2, uses: q}, {uses: r}",
        [],
        {"start": "step_1", "step_1": "step_2", "step_2": "step_3", "step_3": "."},
    ),
    (
        "a step whose if is false is bypassed",
        f"{{id: a, uses: p, if: {YES}}}, {{id: b, uses: q}}",
        [],
        {"start": "a__switch ? a : b", "a": "b", "b": "."},
    ),
    (
        "an if on a group bypasses all of it",
        f"{{id: g, if: {YES}, steps: [{{id: a, uses: p}}, {{id: b, uses: p}}]}}, {{id: c, uses: q}}",
        [],
        {"start": "g__switch ? a : c", "a": "b", "b": "c", "c": "."},
    ),
    (
        "an if on the last step may end the run",
        f"{{id: a, uses: p}}, {{id: b, uses: q, if: {YES}}}",
        [],
        {"start": "a", "a": "b__switch ? b : .", "b": "."},
    ),
    (
        "without join, the step after a split runs once per branch",
        "{id: s, split: [{id: a, uses: p}, {steps: [{id: b, uses: p}, {id: c, uses: p}]}]}, {id: d, uses: q}",
        [],
        {"start": "(a & b)", "a": "d", "b": "c", "c": "d", "d": "."},
    ),
    (
        "with join, it runs once after the join",
        "{id: s, join: true, split: [{id: a, uses: p}, {id: b, uses: p}]}, {id: d, uses: q}",
        [],
        {"start": "s__join{(a & b)}", "a": "s__join.0", "b": "s__join.1", "s__join": "d", "d": "."},
    ),
    (
        "an if on a joined split bypasses the join too",
        f"{{id: s, join: true, if: {YES}, split: [{{id: a, uses: p}}]}}, {{id: d, uses: q}}",
        [],
        {"start": "s__switch ? s__join{(a)} : d", "a": "s__join.0", "s__join": "d", "d": "."},
    ),
    (
        "joins nest",
        "{id: s, join: true, split:"
        " [{id: t, join: true, split: [{id: a, uses: p}, {id: b, uses: p}]}, {id: c, uses: p}]}",
        [],
        {"start": "s__join{(t__join{(a & b)} & c)}", "a": "t__join.0", "b": "t__join.1", "t__join": "s__join.0"}
        | {"c": "s__join.1", "s__join": "."},
    ),
    (
        "a split in a branch arrives with the number of the branch",
        "{id: s, join: true, split: [{split: [{id: a, uses: p}, {id: b, uses: p}]}, {id: c, uses: p}]}",
        [],
        {"start": "s__join{((a & b) & c)}", "a": "s__join.0", "b": "s__join.0", "c": "s__join.1", "s__join": "."},
    ),
    (
        "foreach runs its step for every item, and then leaves the item",
        "{id: a, uses: p, foreach: payload.items}, {id: b, uses: q}",
        [],
        {"start": "[payload.items: a; b]", "a": "<b", "b": "."},
    ),
    (
        "the if of a step with foreach is evaluated for every item",
        f"{{id: a, uses: p, foreach: payload.items, if: {YES}}}, {{id: b, uses: q}}",
        [],
        {"start": "[payload.items: a__switch ? a : <b; b]", "a": "<b", "b": "."},
    ),
    (
        "foreach with join continues once, also for an empty list",
        "{id: a, uses: p, foreach: payload.items, join: true}, {id: b, uses: q}",
        [],
        {"start": "a__join{[payload.items: a; .]}", "a": "a__join.item.0", "a__join": "b", "b": "."},
    ),
    (
        "a bypassed item arrives as well",
        f"{{id: a, uses: p, foreach: payload.items, join: true, if: {YES}}}",
        [],
        {"start": "a__join{[payload.items: a__switch ? a : a__join.item.0; .]}"}
        | {"a": "a__join.item.0", "a__join": "."},
    ),
    (
        "foreach on a group loops over all of it",
        "{id: g, foreach: payload.items, steps: [{id: a, uses: p}, {id: b, uses: p}]}, {id: c, uses: q}",
        [],
        {"start": "[payload.items: a; c]", "a": "b", "b": "<c", "c": "."},
    ),
    (
        "foreach in foreach leaves one item at a time",
        "{foreach: payload.rows, steps: [{id: a, uses: p, foreach: item.cells}, {id: b, uses: p}]}, {id: c, uses: q}",
        [],
        {"start": "[payload.rows: [item.cells: a; b]; c]", "a": "<b", "b": "<c", "c": "."},
    ),
    (
        "foreach may loop over the item itself",
        "{foreach: payload.rows, steps: [{id: a, uses: p, foreach: item}]}",
        [],
        {"start": "[payload.rows: [item: a; <.]; .]", "a": "<<."},
    ),
    (
        "a joined split with foreach waits for all branches of all items",
        "{id: s, foreach: payload.items, join: true, split: [{id: a, uses: p}, {id: b, uses: p}]}, {id: c, uses: q}",
        [],
        {"start": "s__join{[payload.items: (a & b); .]}", "a": "s__join.item.0", "b": "s__join.item.1"}
        | {"s__join": "c", "c": "."},
    ),
    (
        "a call runs the steps of the callee, then the step after the call",
        "{id: c, call: q}, {id: z, uses: p}",
        ["name: q, steps: [{id: a, uses: p}, {id: b, uses: p}]"],
        {"start": "c/a", "c/a": "c/b", "c/b": "z", "z": "."},
    ),
    (
        "a pipeline called twice has two sets of nodes",
        "{id: one, call: q}, {id: two, call: q}",
        ["name: q, steps: [{id: a, uses: p}]"],
        {"start": "one/a", "one/a": "two/a", "two/a": "."},
    ),
    (
        "calls nest",
        "{id: c, call: q}",
        ["name: q, steps: [{id: d, call: r}, {id: b, uses: p}]", "name: r, steps: [{id: a, uses: p}]"],
        {"start": "c/d/a", "c/d/a": "c/b", "c/b": "."},
    ),
    (
        "the if of a callee is evaluated after that of the step",
        f"{{id: c, call: q, if: {YES}}}, {{id: z, uses: p}}",
        [f"name: q, if: {YES}, steps: [{{id: a, uses: p}}]"],
        {"start": "c__switch ? c/__switch ? c/a : z : z", "c/a": "z", "z": "."},
    ),
    (
        "a call as the last step of a branch leads to the join",
        "{id: s, join: true, split: [{steps: [{id: a, uses: p}, {id: c, call: q}]}, {id: b, uses: p}]}",
        ["name: q, steps: [{id: a, uses: p}]"],
        {"start": "s__join{(a & b)}", "a": "c/a", "c/a": "s__join.0", "b": "s__join.1", "s__join": "."},
    ),
    (
        "foreach in a call that is itself in a foreach",
        "{id: c, call: q, foreach: payload.rows, join: true}",
        ["name: q, steps: [{id: a, uses: p, foreach: payload.cells}]"],
        {"start": "c__join{[payload.rows: [payload.cells: c/a; c__join.item.0]; .]}", "c/a": "<c__join.item.0"}
        | {"c__join": "."},
    ),
    (
        "without continue, the run ends after on_error",
        "{id: a, uses: p, on_error: [{id: h, uses: n}]}, {id: b, uses: q}",
        [],
        {"start": "a", "a": "b", "a!": "h", "h": ".", "b": "."},
    ),
    (
        "with continue, on_error leads to the next step",
        "{id: a, uses: p, on_error: [{id: h, uses: n}], continue: true}, {id: b, uses: q}",
        [],
        {"start": "a", "a": "b", "a!": "h", "h": "b", "b": "."},
    ),
    (
        "continue alone continues with the failure event",
        "{id: a, uses: p, continue: true}, {id: b, uses: q}",
        [],
        {"start": "a", "a": "b", "a!": "b", "b": "."},
    ),
    (
        "in a join, a tolerated failure arrives",
        "{id: s, join: true, split:"
        " [{id: a, uses: p, on_error: [{id: h, uses: n}], continue: true}, {id: b, uses: p}]}",
        [],
        {"start": "s__join{(a & b)}", "a": "s__join.0", "a!": "h", "h": "s__join.0", "b": "s__join.1", "s__join": "."},
    ),
    (
        "in a join, a failure that is not tolerated does not arrive",
        "{id: s, join: true, split: [{id: a, uses: p, on_error: [{id: h, uses: n}]}]}",
        [],
        {"start": "s__join{(a)}", "a": "s__join.0", "a!": "h", "h": ".", "s__join": "."},
    ),
    (
        "on_error may contain splits and calls",
        "{id: a, uses: p, continue: true, on_error:"
        " [{id: s, join: true, split: [{id: c, call: q}, {id: b, uses: n}]}]}",
        ["name: q, steps: [{id: x, uses: p}]"],
        {"start": "a", "a": ".", "a!": "s__join{(c/x & b)}", "c/x": "s__join.0", "b": "s__join.1", "s__join": "."},
    ),
    (
        "a relay is a job like any other",
        "{id: r, relay: {to: lab, event: x.y}, on_error: [{id: h, uses: n}]}, {id: b, uses: q}",
        [],
        {"start": "r", "r": "b", "r!": "h", "h": ".", "b": "."},
    ),
]


def test_every_construct_compiles_to_nodes_with_their_successors() -> None:
    """The plan has the next instruction of every job and needs nothing else to run."""

    def check(rule: str, steps: str, others: list[str], expected: dict[str, str]) -> None:
        assert shape(plan_of(steps, *others)) == expected

    check_all(SHAPES, check)


# ── nodes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("uses", "plugin", "command"),
    [
        ("mail", "mail", "handle"),
        ("mail.send", "mail", "send"),
        ("mail.handle", "mail", "handle"),
        ("dotted.alias", "dotted.alias", "handle"),
        ("dotted.alias.send", "dotted.alias", "send"),
    ],
)
def test_uses_is_a_plugin_an_alias_or_a_command(uses: str, plugin: str, command: str) -> None:
    """A dot separates a command unless it is part of a configured name."""
    plans = compile_text(f"[{{name: p, on: e, steps: [{{id: a, uses: {uses}}}]}}]", names={"dotted.alias"})
    node = plans.require("p").nodes["a"]
    assert (node.kind, node.plugin, node.command) == ("uses", plugin, command)


def test_a_node_has_its_pipeline_and_configuration_path() -> None:
    """Inside a call, these are the called pipeline and the step id there."""
    node = plan_of("{id: c, call: q}", "name: q, steps: [{id: g, steps: [{id: a, uses: p}]}]").nodes["c/a"]
    assert (node.path, node.pipeline, node.step_id) == ("c/a", "q", "a")
    assert node.where == "pipelines[1].steps[0].steps[0]"


def test_a_node_has_its_depth_in_calls_loops_and_joins() -> None:
    """The runtime counts hops by calls, and finds items and joins by the others."""
    plan = plan_of(
        "{id: s, join: true, split: [{id: c, call: q, foreach: payload.l, join: true}]}, {id: z, uses: p}",
        "name: q, steps: [{id: a, uses: p, foreach: payload.m}, {id: b, uses: p}]",
    )
    found = {path: (node.call_depth, node.foreach_depth, node.joins) for path, node in plan.nodes.items()}
    assert found == {
        "c/a": (1, 2, ("s__join", "c__join")),
        "c/b": (1, 1, ("s__join", "c__join")),
        "c__join": (0, 0, ("s__join",)),
        "s__join": (0, 0, ()),
        "z": (0, 0, ()),
    }


@pytest.mark.parametrize(
    ("steps", "longest", "depths"),
    [
        ("{id: a, uses: p}, {id: b, uses: p}", 2, {"a": (1, 1), "b": (2, 2)}),
        (f"{{id: a, uses: p, if: {YES}}}, {{id: b, uses: p}}", 3, {"a": (2, 2), "b": (3, 2)}),
        (f"{{id: a, uses: p, if: {YES}, foreach: payload.l}}, {{id: b, uses: p}}", 3, {"a": (2, 2), "b": (3, 1)}),
        (
            f"{{id: s, join: true, if: {YES}, split: [{{id: a, uses: p}}]}}, {{id: c, uses: p}}",
            4,
            {"a": (2, 2), "s__join": (3, 2), "c": (4, 2)},
        ),
        (
            f"{{id: s, join: true, foreach: payload.l, if: {YES}, uses: p}}, {{id: c, uses: p}}",
            4,
            {"s": (2, 2), "s__join": (3, 1), "c": (4, 2)},
        ),
        ("{id: a, uses: p, foreach: payload.l}, {id: b, uses: p}", 2, {"a": (1, 1), "b": (2, 1)}),
        (
            "{split: [{id: a, uses: p}, {steps: [{id: b, uses: p}, {id: c, uses: p}]}]}, {id: d, uses: p}",
            3,
            {"a": (1, 1), "b": (1, 1), "c": (2, 2), "d": (3, 2)},
        ),
        (
            "{id: s, join: true, split: [{steps: [{id: a, uses: p}, {id: b, uses: p}]}]}, {id: c, uses: p}",
            4,
            {"a": (1, 1), "b": (2, 2), "s__join": (3, 1), "c": (4, 2)},
        ),
        (
            "{id: a, uses: p, on_error: [{id: h, uses: n}, {id: i, uses: n}]}, {id: b, uses: p}",
            3,
            {"a": (1, 1), "h": (2, 2), "i": (3, 3), "b": (2, 2)},
        ),
        (
            "{id: a, uses: p, on_error: [{id: h, uses: n}], continue: true}, {id: b, uses: p}",
            3,
            {"a": (1, 1), "h": (2, 2), "b": (3, 2)},
        ),
    ],
)
def test_depth_counts_jobs_on_the_longest_and_shortest_path(
    steps: str, longest: int, depths: dict[str, tuple[int, int]]
) -> None:
    """An `if` is a job too. The default max_depth is the longest path, so it never truncates a run."""
    plan = plan_of(steps)
    assert {path: (node.depth, node.min_depth) for path, node in plan.nodes.items()} == depths
    assert (plan.longest_path, plan.depth_limit) == (longest, longest)


@pytest.mark.parametrize(
    ("steps", "terminal"),
    [
        ("{id: a, uses: p}, {id: b, uses: p}", ["b"]),
        (f"{{id: a, uses: p}}, {{id: b, uses: p, if: {YES}}}", ["a", "b"]),
        ("{id: a, uses: p}, {id: b, uses: p, foreach: payload.l}", ["a", "b"]),
        ("{split: [{id: a, uses: p}, {id: b, uses: p}]}", ["a", "b"]),
        ("{id: s, join: true, split: [{id: a, uses: p}, {id: b, uses: p}]}", ["s__join"]),
        ("{id: a, uses: p, on_error: [{id: h, uses: n}]}, {id: b, uses: p}", ["h", "b"]),
        ("{id: a, uses: p, on_error: [{id: h, uses: n}], continue: true}, {id: b, uses: p}", ["b"]),
    ],
)
def test_a_node_is_terminal_if_a_run_can_end_after_it(steps: str, terminal: list[str]) -> None:
    """The result of a synchronous run is that of the last such job."""
    assert [path for path, node in plan_of(steps).nodes.items() if node.is_terminal] == terminal


def test_a_gate_has_the_plugin_whose_configuration_it_reads() -> None:
    """`config.*` is the plugin of the step. Groups and calls have none."""
    plan = plan_of(
        f"{{id: a, uses: mail, if: {{path: config.x, op: exists}}}}, {{id: g, if: {YES}, steps: [{{uses: p}}]}}"
    )
    gates = {vertex.path: vertex for vertex in plan.vertices if isinstance(vertex, Gate)}
    assert [(path, gate.plugin) for path, gate in gates.items()] == [("a__switch", "mail"), ("g__switch", None)]
    assert as_data(gates["a__switch"].condition) == {"path": "config.x", "op": "exists"}
    assert gates["a__switch"].where == "pipelines[0].steps[0].if"


def test_vertices_are_in_textual_order_with_joins_after_their_branches() -> None:
    """No edge leads back."""
    plan = plan_of(
        f"{{id: a, uses: p, if: {YES}, on_error: [{{id: h, uses: n}}]}},"
        "{id: s, join: true, split: [{id: b, uses: p}, {id: c, call: q}]}, {id: z, uses: p}",
        f"name: q, if: {YES}, steps: [{{id: x, uses: p}}]",
    )
    assert [vertex.path for vertex in plan.vertices] == [
        "a__switch",
        "a",
        "h",
        "b",
        "c/__switch",
        "c/x",
        "s__join",
        "z",
    ]
    assert list(plan.nodes) == [vertex.path for vertex in plan.vertices if isinstance(vertex, PlanNode)]


def test_a_relay_accepts_bare_paths_and_templates() -> None:
    """Text that is not a path stays text."""
    node = plan_of(
        "{id: r, relay: {to: lab, event: x.y, dedupe_key: payload.id, baggage: {trace: context.trace},"
        " with: {a: payload.a, b: 'x {context.b}', c: backup.ready, d: 5}}}"
    ).nodes["r"]
    assert (node.kind, node.plugin, node.command) == ("relay", "core.relay", "handle")
    assert node.relay is not None
    assert node.relay.with_ is not None
    scope = Scope({"a": [1], "id": "7"}, {"b": 2})
    assert {name: render(template, scope) for name, template in node.relay.with_.items()} == {
        "a": [1],
        "b": "x 2",
        "c": "backup.ready",
        "d": 5,
    }
    assert node.relay.dedupe_key is not None
    assert render(node.relay.dedupe_key, scope) == "7"
    assert node.relay.baggage is not None
    assert [str(claim) for claim in node.relay.baggage.claims] == ["trace"]


def test_a_relay_without_with_sends_the_current_payload() -> None:
    """None differs from an empty mapping."""
    plan = plan_of("{id: a, relay: {to: lab, event: x}}, {id: b, relay: {to: lab, event: x, with: {}}}")
    relays = [node.relay for node in plan.nodes.values()]
    assert [relay.with_ for relay in relays if relay] == [None, {}]


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_has_the_configured_values_and_defaults() -> None:
    """All keys of a pipeline."""
    plans = compile_text(
        """
        - {name: a, on: x.y, from_plugin: mail, max_depth: 0, execution_mode: synchronous, timeout: 5s,
           if: {path: payload.x, op: exists}, steps: [{uses: p}]}
        - {name: b, on-hook: job.dead, steps: [{uses: p}]}
        """
    )
    a, b = plans.require("a"), plans.require("b")
    assert (a.on, a.hook, a.from_plugin, a.max_depth, a.depth_limit) == ("x.y", None, "mail", 0, 0)
    assert (a.execution_mode, a.timeout) == ("synchronous", timedelta(seconds=5))
    assert (b.on, b.hook, b.from_plugin, b.max_depth, b.depth_limit) == (None, "job.dead", None, None, 1)
    assert (b.execution_mode, b.timeout, b.condition) == ("async", timedelta(seconds=30), None)
    assert [a.accepts_source(source) for source in ("mail", "other", None)] == [True, False, False]
    assert [b.accepts_source(source) for source in ("mail", "other", None)] == [True, True, True]


def test_plans_are_found_by_event_and_hook_in_configuration_order() -> None:
    """Only exact matches."""
    plans = compile_text(
        "[{name: z, on: e, steps: [{uses: p}]}, {name: a, on: e, steps: [{uses: p}]},"
        " {name: h, on-hook: job.failed, steps: [{uses: p}]}]"
    )
    assert [plan.name for plan in plans.for_event("e")] == ["z", "a"]
    assert [plan.name for plan in plans.for_hook("job.failed")] == ["h"]
    assert plans.for_event("E") == plans.for_event("job.failed") == plans.for_hook("e") == ()
    with pytest.raises(NotFound, match="pipeline 'zz' does not exist"):
        plans.require("zz")


CALLER = "{name: a, on: e, steps: [{call: b}]}"


FINGERPRINTS: list[tuple[Any, ...]] = [
    ("{name: a, on: e, steps: [{uses: p}]}", "{on: e, steps: [{uses: p}], name: a}", True),
    (
        "{name: a, on: e, steps: [{uses: p, with: {x: 1, y: 2}}]}",
        "{name: a, on: e, steps: [{uses: p, with: {y: 2, x: 1}}]}",
        True,
    ),
    (
        "{name: a, on: e, steps: [{uses: p}]}",
        "{name: a, on: e, timeout: 30s, steps: [{uses: p, join: false}]}",
        True,
    ),
    ("{name: a, on: e, steps: [{uses: p}]}", "{name: a, on: e, steps: [{uses: q}]}", False),
    ("{name: a, on: e, steps: [{uses: p}]}", "{name: a, on: f, steps: [{uses: p}]}", False),
    (
        "{name: a, on: e, steps: [{uses: p, with: {x: 1}}]}",
        "{name: a, on: e, steps: [{uses: p, with: {x: '1'}}]}",
        False,
    ),
    ("{name: a, on: e, steps: [{uses: p}, {uses: q}]}", "{name: a, on: e, steps: [{uses: q}, {uses: p}]}", False),
    (
        f"{CALLER}, {{name: b, on: e, steps: [{{uses: p}}]}}",
        f"{CALLER}, {{name: b, on: e, steps: [{{uses: q}}]}}",
        False,
    ),
    (
        f"{CALLER}, {{name: b, on: e, steps: [{{uses: p}}]}}",
        f"{{name: b, on: e, steps: [{{uses: p}}]}}, {CALLER}",
        True,
    ),
]


def test_a_fingerprint_changes_only_with_the_definition() -> None:
    """Also with that of a called pipeline; not with key order or an explicit default."""

    def check(one: str, other: str, same: bool) -> None:
        first, second = (compile_text(f"[{text}]").require("a").fingerprint for text in (one, other))
        assert first.startswith("blake3:")
        assert (first == second) is same

    check_all(FINGERPRINTS, check)


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def p(steps: str, more: str = "on: e") -> str:
    return f"[{{name: p, {more}, steps: [{steps}]}}]"


REFUSED: list[tuple[str, str]] = [
    # kinds
    (
        p("{}"),
        "pipelines[0].steps[0]: needs exactly one of uses, call, relay, publish, steps, split; it has none of them",
    ),
    (
        p("{uses: a, call: b}"),
        "steps[0]: needs exactly one of uses, call, relay, publish, steps, split; it has uses and call",
    ),
    (p("{split: [{id: x}]}"), "pipelines[0].steps[0].split[0]: needs exactly one of"),
    (p("{uses: a, on_error: [{}]}"), "pipelines[0].steps[0].on_error[0]: needs exactly one of"),
    # triggers
    (p("{uses: a}", "on: e, on-hook: job.failed"), "pipelines[0]: needs exactly one of on, on-hook; it has both"),
    (p("{uses: a}", "timeout: 5s"), "pipelines[0]: needs exactly one of on, on-hook; it has none of them"),
    (
        p("{uses: a}", "on: ductile.step.failed"),
        "pipelines[0].on: 'ductile.step.failed' cannot be a trigger: ductile.* events",
    ),
    (p("{uses: a}", "on: ductile"), "pipelines[0].on: 'ductile' cannot be a trigger"),
    # ids
    (
        p("{id: a, uses: x}, {id: a, uses: y}"),
        "pipelines[0].steps[1].id: 'a' is used twice; pipelines[0].steps[0] already uses it",
    ),
    (p("{id: a, steps: [{id: a, uses: y}]}"), "pipelines[0].steps[0].steps[0].id: 'a' is used twice"),
    (p("{id: a, uses: x, on_error: [{id: a, uses: y}]}"), "pipelines[0].steps[0].on_error[0].id: 'a' is used twice"),
    (p("{id: a__switch, uses: x}"), "pipelines[0].steps[0].id: 'a__switch' is reserved: names ending in __switch"),
    (p("{id: a__join, uses: x}"), "pipelines[0].steps[0].id: 'a__join' is reserved: names ending in __join"),
    (
        p("{id: ductile, uses: x}"),
        "pipelines[0].steps[0].id: 'ductile' is reserved: `ductile` is used by Ductile itself",
    ),
    (p("{id: ductile.x, uses: x}"), "pipelines[0].steps[0].id: 'ductile.x' is reserved"),
    # uses
    (p("{uses: core.switch}"), "pipelines[0].steps[0].uses: 'core.switch' is internal to Ductile; use `if`"),
    (p("{uses: core.join}"), "is internal to Ductile"),
    (p("{uses: a.}"), "pipelines[0].steps[0].uses: 'a.' is not a plugin, an alias or `plugin.command`"),
    (p("{uses: .a}"), "'.a' is not a plugin, an alias or `plugin.command`"),
    (p("{uses: a.b c}"), "'a.b c' is not a plugin, an alias or `plugin.command`"),
    # keys that do not apply
    (
        p("{steps: [{uses: a}], with: {x: 1}}"),
        "pipelines[0].steps[0].with: is allowed only on a `uses` step; set it on the steps",
    ),
    (p("{call: a, baggage: {x: payload.x}}"), "pipelines[0].steps[0].baggage: is allowed only on a `uses` step"),
    (
        p("{relay: {to: a, event: b}, with: {x: 1}}"),
        "steps[0].with: is allowed only on a `uses` step; set it inside",
    ),
    (
        p("{split: [{uses: a}], on_error: [{uses: b}]}"),
        "steps[0].on_error: is allowed only on a `uses`, `relay` or `publish` step",
    ),
    (
        p("{steps: [{uses: a}], on_error: []}"),
        "steps[0].on_error: is allowed only on a `uses`, `relay` or `publish` step",
    ),
    (
        p("{call: a, continue: true}"),
        "pipelines[0].steps[0].continue: is allowed only on a `uses`, `relay` or `publish` step",
    ),
    (p("{uses: a, on_error: []}"), "pipelines[0].steps[0].on_error: is empty; add steps, or set `continue: true`"),
    (p("{uses: a, max_items: 5}"), "pipelines[0].steps[0].max_items: requires `foreach`"),
    (p("{uses: a, join: true}"), "pipelines[0].steps[0].join: requires `split` or"),
    (p("{steps: [{uses: a}], join: true}"), "pipelines[0].steps[0].join: requires `split` or `foreach`"),
    # item
    (p("{uses: a, with: {x: '{item}'}}"), "pipelines[0].steps[0].with.x: 'item' is not available here"),
    (
        p("{uses: a, if: {path: item.x, op: exists}}"),
        "steps[0].if.path: 'item.x' is not available here: `item` exists only",
    ),
    (p("{uses: a, baggage: {x: item.x}}"), "pipelines[0].steps[0].baggage.x: 'item.x' is not available here"),
    (p("{uses: a, foreach: item}"), "pipelines[0].steps[0].foreach: 'item' is not available here"),
    (
        p("{uses: a, foreach: payload.l}, {uses: b, with: {x: '{item}'}}"),
        "pipelines[0].steps[1].with.x: 'item' is not available here",
    ),
    (p("{relay: {to: a, event: b, with: {x: item.y}}}"), "steps[0].relay.with.x: 'item.y' is not available here"),
    # conditions
    (
        p("{uses: a}", "on: e, if: {path: config.x, op: exists}"),
        "pipelines[0].if.path: 'config.x' is not available here",
    ),
    (p("{uses: a}", "on: e, if: {path: item.x, op: exists}"), "pipelines[0].if.path: 'item.x' is not available here"),
    (p("{uses: a, if: {path: payload.x, op: equals, value: 1}}"), "steps[0].if.op: expected one of exists, eq"),
    (p("{uses: a, if: {all: [{path: payload.x, op: eq}]}}"), "pipelines[0].steps[0].if.all[0]: `value` is missing"),
    (p("{uses: a, if: {}}"), "pipelines[0].steps[0].if: "),
    (
        p("{steps: [{uses: a}], if: {path: config.x, op: exists}}"),
        "steps[0].if: config.x is not available here: `config` is the configuration of",
    ),
    (p("{call: p2, if: {path: config.x, op: exists}}"), "steps[0].if: config.x is not available here"),
    (p("{relay: {to: a, event: b}, if: {path: config.x, op: exists}}"), "steps[0].if: config.x is not available here"),
    # templates, claims and paths
    (p("{uses: a, with: {x: '{payload.x'}}"), "pipelines[0].steps[0].with.x: "),
    (p("{uses: a, with: {x: [{y: '{pay.x}'}]}}"), "pipelines[0].steps[0].with.x[0].y: 'pay.x' is not a path"),
    (p("{uses: a, baggage: {ductile.x: payload.x}}"), "steps[0].baggage.ductile.x: 'ductile.x' cannot be claimed"),
    (p("{uses: a, baggage: {from: payload}}"), "pipelines[0].steps[0].baggage.from: `namespace` is missing"),
    (p("{uses: a, baggage: {x: stdout}}"), "pipelines[0].steps[0].baggage.x: 'stdout' is not a path"),
    (p("{uses: a, foreach: payload}"), "pipelines[0].steps[0].foreach: 'payload' is the whole object"),
    (p("{uses: a, foreach: 'payload.x[0]'}"), "pipelines[0].steps[0].foreach: 'payload.x[0]' is not a path"),
    (p("{uses: a, foreach: '{payload.x}'}"), "pipelines[0].steps[0].foreach: expected a path without braces"),
    (p("{relay: {to: a, event: b, with: {x: paylod.x}}}"), "steps[0].relay.with.x: 'paylod.x' is not a path"),
    (
        p("{relay: {to: a, event: b, dedupe_key: constant}}"),
        "steps[0].relay.dedupe_key: is the same for every event; use a value",
    ),
    (p("{relay: {to: a, event: b, baggage: {x: y}}}"), "pipelines[0].steps[0].relay.baggage.x: 'y' is not a path"),
    # calls
    (p("{call: nowhere}"), "pipelines[0].steps[0].call: pipeline 'nowhere' does not exist"),
    (p("{id: a, uses: x, on_error: [{call: pp}]}"), "steps[0].on_error[0].call: pipeline 'pp' does not exist"),
    (p("{call: p}"), "pipelines[0].steps[0].call: pipelines call each other in a cycle: p → p"),
    (
        "[{name: a, on: e, steps: [{call: b}]}, {name: b, on: e, steps: [{split: [{call: c}]}]},"
        " {name: c, on: e, steps: [{call: a}]}]",
        "pipelines[0].steps[0].call: pipelines call each other in a cycle: a → b → c → a",
    ),
    # names and depth
    (
        "[{name: a, on: e, steps: [{uses: x}]}, {name: a, on: f, steps: [{uses: x}]}]",
        "pipelines[0].name: 'a' is also the name of pipelines[1]",
    ),
    (
        "[{name: a, on: e, steps: [{uses: x}]}, {name: a, on: f, steps: [{uses: x}]}]",
        "pipelines[1].name: 'a' is also the name of pipelines[0]",
    ),
    (
        p("{uses: a}, {id: b, uses: b}", "on: e, max_depth: 1"),
        "pipelines[0].max_depth: 1 is too small; step 'b' is never reached",
    ),
]


def test_invalid_pipelines_are_rejected_with_the_configuration_path() -> None:
    """At load, before any run."""

    def check(text: str, expected: str) -> None:
        errors = compile_errors(text)
        assert any(expected in line for line in errors), errors

    check_all(REFUSED, check)


def test_all_errors_are_reported_together() -> None:
    """Not only the first one."""
    errors = compile_errors(
        "[{name: a, steps: [{uses: x, if: {op: eq}, with: {x: '{'}}, {call: b}, {id: ductile, call: a}]}]"
    )
    assert [line.partition(": ")[0] for line in errors] == [
        "pipelines[0].steps[2].id",
        "pipelines[0]",
        "pipelines[0].steps[0].with.x",
        "pipelines[0].steps[0].if",
        "pipelines[0].steps[0].if",
        "pipelines[0].steps[1].call",
        "pipelines[0].steps[2].call",
    ]


@pytest.mark.parametrize(
    "steps",
    [
        "{uses: a, foreach: payload.l}, {uses: b}",
        "{split: [{uses: a}, {uses: b}]}",
    ],
)
def test_max_depth_may_be_less_than_the_longest_path(steps: str) -> None:
    """Only a step that no path can reach is an error."""
    assert compile_text(p(steps, "on: e, max_depth: 1")).require("p").depth_limit == 1


def doubling(levels: int, leaf: str = "{uses: x}") -> str:
    """Return pipelines that each call the next one twice."""
    calls = [f"- {{name: n{i}, on: e, steps: [{{call: n{i + 1}}}, {{call: n{i + 1}}}]}}" for i in range(levels)]
    return "\n".join([*calls, f"- {{name: n{levels}, on: e, steps: [{leaf}]}}"])


def test_a_pipeline_that_grows_exponentially_is_rejected_before_it_is_built() -> None:
    """Only the first pipeline over the limit is reported."""
    errors = compile_errors(doubling(200), max_call_depth=1000)
    grown = next(2**level for level in range(200) if 2**level > MAX_PLAN_JOBS)
    assert errors[0].startswith(
        f"pipelines[{200 - 13}].steps: has {grown:,} jobs including its calls; the limit is 5,000"
    )
    assert len(errors) == 1


def test_a_pipeline_may_be_as_large_as_the_limit() -> None:
    """4096 jobs."""
    plans = compile_text(doubling(12))
    assert len(plans.require("n0").nodes) == 4096
    assert plans.require("n0").longest_path == 4096


def test_all_plans_together_have_a_limit() -> None:
    """Many pipelines that call one large pipeline."""
    large = ", ".join(["{uses: x}"] * 4000)
    callers = [f"- {{name: c{i}, on: e, steps: [{{call: n}}]}}" for i in range(30)]
    errors = compile_errors("\n".join([*callers, f"- {{name: n, on: e, steps: [{large}]}}"]))
    assert errors == ["pipelines: have 124,000 jobs including their calls; the limit is 100,000"]


def test_the_nesting_of_calls_is_limited_by_the_hop_limit() -> None:
    """Deeper nesting would make every run dead."""
    chain = "\n".join(f"- {{name: n{i}, on: e, steps: [{{call: n{i + 1}}}]}}" for i in range(3))
    text = f"{chain}\n- {{name: n3, on: e, steps: [{{uses: x}}]}}"
    assert compile_text(text, max_call_depth=3).require("n0").nodes["step_1/step_1/step_1/step_1"].call_depth == 3
    assert compile_errors(text, max_call_depth=2) == [
        "pipelines[0].steps: nests calls 3 levels deep; service.limits.hops allows 2; "
        "start the other pipelines with an event instead"
    ]


def test_a_very_long_chain_of_calls_is_rejected_without_a_crash() -> None:
    """Independent of limits.hops."""
    text = "\n".join(f"- {{name: n{i}, on: e, steps: [{{call: n{i + 1}}}]}}" for i in range(2000))
    errors = compile_errors(f"{text}\n- {{name: n2000, on: e, steps: [{{uses: x}}]}}", max_call_depth=10_000)
    assert errors[0].startswith("pipelines[1950].steps: nests groups and calls 101 levels deep; the limit is 100")


def test_a_very_long_cycle_is_reported_without_a_crash() -> None:
    """Each of 2000 pipelines calls the next."""
    text = "\n".join(f"- {{name: n{i}, on: e, steps: [{{call: n{(i + 1) % 2000}}}]}}" for i in range(2000))
    (errors,) = compile_errors(text)
    assert errors.startswith("pipelines[0].steps[0].call: pipelines call each other in a cycle: n0 → n1 → n2 → ")
    assert errors.endswith("→ … → n1999 → n0")


def test_a_thousand_conditional_groups_do_not_multiply() -> None:
    """Successors are shared, so the size does not double at every gate."""
    gated = f"{{if: {YES}, split: [{{uses: x, if: {YES}}}, {{uses: y, if: {YES}}}]}}"
    plan = compile_text(p(", ".join([gated] * 1000))).require("p")
    assert len(plan.nodes) == 2000
    assert len(plan.vertices) == 5000


@pytest.mark.parametrize(
    "pipeline",
    [
        "{{name: same, on: e, steps: [{{uses: x}}]}}",
        "{{name: n{0}, on: e, steps: [{{call: missing{0}}}]}}",
        "{{name: n{0}, on: e, steps: [{{call: n{0}}}]}}",
        "{{name: n{0}, steps: [{{uses: x, with: {{a: '{{', b: '{{c}}'}}}}]}}",
    ],
)
def test_thousands_of_errors_are_truncated(pipeline: str) -> None:
    """The last line has the limit."""
    errors = compile_errors("\n".join(f"- {pipeline.format(number)}" for number in range(1000)))
    assert len(errors) == 501
    assert errors[-1] == "pipelines: too many errors; only the first 500 are listed"
