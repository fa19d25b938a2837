"""The compiler: what every construct becomes, and what is refused."""

from datetime import timedelta

import pytest

from ductile.core.errors import NotFound
from ductile.pipeline.compile.compile import MOST_JOBS
from ductile.pipeline.compile.plan import Gate, PlanNode
from ductile.pipeline.language.conditions import as_data
from ductile.pipeline.language.paths import Scope
from ductile.pipeline.language.templates import render
from tests.pipeline.written import compiled, plan_of, refusals, shape

YES = "{path: payload.x, op: exists}"

SHAPES: list[tuple[str, str, list[str], dict[str, str]]] = [
    (
        "steps run one after the other",
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
        "a number that the author took is skipped",
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
        "without join, what follows a split is entered once per branch end",
        "{id: s, split: [{id: a, uses: p}, {steps: [{id: b, uses: p}, {id: c, uses: p}]}]}, {id: d, uses: q}",
        [],
        {"start": "(a & b)", "a": "d", "b": "c", "c": "d", "d": "."},
    ),
    (
        "with join it is entered by the join",
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
        "a split in a branch has all its ends at the branch's place",
        "{id: s, join: true, split: [{split: [{id: a, uses: p}, {id: b, uses: p}]}, {id: c, uses: p}]}",
        [],
        {"start": "s__join{((a & b) & c)}", "a": "s__join.0", "b": "s__join.0", "c": "s__join.1", "s__join": "."},
    ),
    (
        "foreach enters its step for every item, and leaves the item behind",
        "{id: a, uses: p, foreach: payload.items}, {id: b, uses: q}",
        [],
        {"start": "[payload.items: a; b]", "a": "<b", "b": "."},
    ),
    (
        "the if of a step with foreach is asked for every item",
        f"{{id: a, uses: p, foreach: payload.items, if: {YES}}}, {{id: b, uses: q}}",
        [],
        {"start": "[payload.items: a__switch ? a : <b; b]", "a": "<b", "b": "."},
    ),
    (
        "foreach with join goes on once, also when there is no item",
        "{id: a, uses: p, foreach: payload.items, join: true}, {id: b, uses: q}",
        [],
        {"start": "a__join{[payload.items: a; .]}", "a": "a__join.item.0", "a__join": "b", "b": "."},
    ),
    (
        "an item that is bypassed arrives as well",
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
        "a call runs the steps of the callee, then what follows the call",
        "{id: c, call: q}, {id: z, uses: p}",
        ["name: q, steps: [{id: a, uses: p}, {id: b, uses: p}]"],
        {"start": "c/a", "c/a": "c/b", "c/b": "z", "z": "."},
    ),
    (
        "a pipeline called twice has two sets of places",
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
        "the if of a callee gates the call, after the step's own",
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
        "without continue, on_error leads nowhere",
        "{id: a, uses: p, on_error: [{id: h, uses: n}]}, {id: b, uses: q}",
        [],
        {"start": "a", "a": "b", "a!": "h", "h": ".", "b": "."},
    ),
    (
        "with continue it leads to what follows the step",
        "{id: a, uses: p, on_error: [{id: h, uses: n}], continue: true}, {id: b, uses: q}",
        [],
        {"start": "a", "a": "b", "a!": "h", "h": "b", "b": "."},
    ),
    (
        "continue alone goes on with the failure itself",
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
        "in a join, a failure that is not tolerated does not",
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


@pytest.mark.parametrize(
    ("steps", "others", "expected"), [case[1:] for case in SHAPES], ids=[case[0] for case in SHAPES]
)
def test_every_construct_becomes_places_and_what_follows_them(
    steps: str, others: list[str], expected: dict[str, str]
) -> None:
    """The plan says for every job what is entered after it; nothing else needs to be known to run it."""
    assert shape(plan_of(steps, *others)) == expected


# ── places ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
def test_uses_names_a_plugin_or_alias_or_one_of_its_commands(uses: str, plugin: str, command: str) -> None:
    """A dot comes before a command unless it is part of a configured name."""
    plans = compiled(f"[{{name: p, on: e, steps: [{{id: a, uses: {uses}}}]}}]", names={"dotted.alias"})
    node = plans.named("p").nodes["a"]
    assert (node.kind, node.plugin, node.command) == ("uses", plugin, command)


def test_a_place_knows_where_it_is_written() -> None:
    """Inside a call: the called pipeline, the step's own id there, and its place in the configuration."""
    node = plan_of("{id: c, call: q}", "name: q, steps: [{id: g, steps: [{id: a, uses: p}]}]").nodes["c/a"]
    assert (node.path, node.pipeline, node.step_id) == ("c/a", "q", "a")
    assert node.where == "pipelines[1].steps[0].steps[0]"


def test_a_place_knows_how_deep_in_calls_items_and_joins_it_is() -> None:
    """The runtime counts crossings by the first, and finds items and joins by the others."""
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
        (f"{{id: a, uses: p, if: {YES}}}, {{id: b, uses: p}}", 2, {"a": (1, 1), "b": (2, 1)}),
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
def test_depth_is_counted_in_jobs_along_the_longest_and_the_shortest_way(
    steps: str, longest: int, depths: dict[str, tuple[int, int]]
) -> None:
    """A pipeline without max_depth can never be cut short by its own length."""
    plan = plan_of(steps)
    assert {path: (node.depth, node.nearest) for path, node in plan.nodes.items()} == depths
    assert (plan.longest, plan.depth_limit) == (longest, longest)


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
def test_a_place_is_terminal_when_the_run_may_end_with_it(steps: str, terminal: list[str]) -> None:
    """The result of a synchronous run is that of the last such job."""
    assert [path for path, node in plan_of(steps).nodes.items() if node.is_terminal] == terminal


def test_a_gate_knows_whose_configuration_it_may_read() -> None:
    """`config.*` means the plugin of the gated step; groups and calls have none."""
    plan = plan_of(
        f"{{id: a, uses: mail, if: {{path: config.x, op: exists}}}}, {{id: g, if: {YES}, steps: [{{uses: p}}]}}"
    )
    gates = {place.path: place for place in plan.places if isinstance(place, Gate)}
    assert [(path, gate.plugin) for path, gate in gates.items()] == [("a__switch", "mail"), ("g__switch", None)]
    assert as_data(gates["a__switch"].condition) == {"path": "config.x", "op": "exists"}
    assert gates["a__switch"].where == "pipelines[0].steps[0].if"


def test_places_are_in_textual_order_with_a_join_after_what_it_waits_for() -> None:
    """Nothing leads back to an earlier one."""
    plan = plan_of(
        f"{{id: a, uses: p, if: {YES}, on_error: [{{id: h, uses: n}}]}},"
        "{id: s, join: true, split: [{id: b, uses: p}, {id: c, call: q}]}, {id: z, uses: p}",
        f"name: q, if: {YES}, steps: [{{id: x, uses: p}}]",
    )
    assert [place.path for place in plan.places] == ["a__switch", "a", "h", "b", "c/__switch", "c/x", "s__join", "z"]
    assert list(plan.nodes) == [place.path for place in plan.places if isinstance(place, PlanNode)]


def test_a_relay_takes_bare_paths_and_templates() -> None:
    """Both forms of the original; a text that is no path stays a text."""
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


def test_a_relay_without_with_sends_the_payload_as_it_is() -> None:
    """None is not the same as nothing."""
    plan = plan_of("{id: a, relay: {to: lab, event: x}}, {id: b, relay: {to: lab, event: x, with: {}}}")
    relays = [node.relay for node in plan.nodes.values()]
    assert [relay.with_ for relay in relays if relay] == [None, {}]


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_carries_what_the_author_set() -> None:
    """And the defaults of what they did not."""
    plans = compiled(
        """
        - {name: a, on: x.y, from_plugin: mail, max_depth: 0, execution_mode: synchronous, timeout: 5s,
           if: {path: payload.x, op: exists}, steps: [{uses: p}]}
        - {name: b, on-hook: job.dead, steps: [{uses: p}]}
        """
    )
    a, b = plans.named("a"), plans.named("b")
    assert (a.on, a.hook, a.from_plugin, a.max_depth, a.depth_limit) == ("x.y", None, "mail", 0, 0)
    assert (a.execution_mode, a.timeout) == ("synchronous", timedelta(seconds=5))
    assert (b.on, b.hook, b.from_plugin, b.max_depth, b.depth_limit) == (None, "job.dead", None, None, 1)
    assert (b.execution_mode, b.timeout, b.condition) == ("async", timedelta(seconds=30), None)
    assert [a.takes_from(source) for source in ("mail", "other", None)] == [True, False, False]
    assert [b.takes_from(source) for source in ("mail", "other", None)] == [True, True, True]


def test_plans_are_found_by_event_and_signal_in_the_order_of_the_configuration() -> None:
    """Exact matches only."""
    plans = compiled(
        "[{name: z, on: e, steps: [{uses: p}]}, {name: a, on: e, steps: [{uses: p}]},"
        " {name: h, on-hook: job.failed, steps: [{uses: p}]}]"
    )
    assert [plan.name for plan in plans.on("e")] == ["z", "a"]
    assert [plan.name for plan in plans.on_hook("job.failed")] == ["h"]
    assert plans.on("E") == plans.on("job.failed") == plans.on_hook("e") == ()
    with pytest.raises(NotFound, match="there is no pipeline 'zz'"):
        plans.named("zz")


CALLER = "{name: a, on: e, steps: [{call: b}]}"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
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
    ],
)
def test_a_fingerprint_changes_with_the_shape_and_only_with_it(one: str, other: str, same: bool) -> None:
    """Also with that of a called pipeline; not with the order of keys, or a default that is written out."""
    first, second = (compiled(f"[{text}]").named("a").fingerprint for text in (one, other))
    assert first.startswith("blake3:")
    assert (first == second) is same


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def p(steps: str, more: str = "on: e") -> str:
    return f"[{{name: p, {more}, steps: [{steps}]}}]"


REFUSED: list[tuple[str, str]] = [
    # kinds
    (p("{}"), "pipelines[0].steps[0]: needs exactly one of uses, call, relay, steps, split; it has none of them"),
    (p("{uses: a, call: b}"), "steps[0]: needs exactly one of uses, call, relay, steps, split; it has uses and call"),
    (p("{split: [{id: x}]}"), "pipelines[0].steps[0].split[0]: needs exactly one of"),
    (p("{uses: a, on_error: [{}]}"), "pipelines[0].steps[0].on_error[0]: needs exactly one of"),
    # triggers
    (p("{uses: a}", "on: e, on-hook: job.failed"), "pipelines[0]: needs exactly one of on, on-hook; it has both"),
    (p("{uses: a}", "timeout: 5s"), "pipelines[0]: needs exactly one of on, on-hook; it has none of them"),
    (
        p("{uses: a}", "on: ductile.step.failed"),
        "pipelines[0].on: 'ductile.step.failed' starts nothing: events of ductile.*",
    ),
    (p("{uses: a}", "on: ductile"), "pipelines[0].on: 'ductile' starts nothing"),
    # ids
    (
        p("{id: a, uses: x}, {id: a, uses: y}"),
        "pipelines[0].steps[1].id: 'a' is used twice; pipelines[0].steps[0] has it already",
    ),
    (p("{id: a, steps: [{id: a, uses: y}]}"), "pipelines[0].steps[0].steps[0].id: 'a' is used twice"),
    (p("{id: a, uses: x, on_error: [{id: a, uses: y}]}"), "pipelines[0].steps[0].on_error[0].id: 'a' is used twice"),
    (p("{id: a__switch, uses: x}"), "pipelines[0].steps[0].id: 'a__switch' is reserved: names that end in __switch"),
    (p("{id: a__join, uses: x}"), "pipelines[0].steps[0].id: 'a__join' is reserved: names that end in __join"),
    (p("{id: ductile, uses: x}"), "pipelines[0].steps[0].id: 'ductile' is reserved: ductile is the core's own name"),
    (p("{id: ductile.x, uses: x}"), "pipelines[0].steps[0].id: 'ductile.x' is reserved"),
    # uses
    (p("{uses: core.switch}"), "pipelines[0].steps[0].uses: 'core.switch' is a part of Ductile; write `if`"),
    (p("{uses: core.join}"), "is a part of Ductile"),
    (p("{uses: a.}"), "pipelines[0].steps[0].uses: 'a.' is not a plugin, an alias or plugin.command"),
    (p("{uses: .a}"), "'.a' is not a plugin, an alias or plugin.command"),
    (p("{uses: a.b c}"), "'a.b c' is not a plugin, an alias or plugin.command"),
    # keys where they mean nothing
    (
        p("{steps: [{uses: a}], with: {x: 1}}"),
        "pipelines[0].steps[0].with: works on a `uses` step only; put it on the steps",
    ),
    (p("{call: a, baggage: {x: payload.x}}"), "pipelines[0].steps[0].baggage: works on a `uses` step only"),
    (
        p("{relay: {to: a, event: b}, with: {x: 1}}"),
        "steps[0].with: works on a `uses` step only; a relay has its own inside",
    ),
    (p("{split: [{uses: a}], on_error: [{uses: b}]}"), "steps[0].on_error: works on a `uses` or `relay` step only"),
    (p("{steps: [{uses: a}], on_error: []}"), "steps[0].on_error: works on a `uses` or `relay` step only"),
    (p("{call: a, continue: true}"), "pipelines[0].steps[0].continue: works on a `uses` or `relay` step only"),
    (p("{uses: a, on_error: []}"), "pipelines[0].steps[0].on_error: has no steps; write some, or `continue: true`"),
    (p("{uses: a, max_items: 5}"), "pipelines[0].steps[0].max_items: works with `foreach` only"),
    (p("{uses: a, join: true}"), "pipelines[0].steps[0].join: has nothing to wait for: it works on a `split`, or with"),
    (p("{steps: [{uses: a}], join: true}"), "pipelines[0].steps[0].join: has nothing to wait for"),
    # item
    (p("{uses: a, with: {x: '{item}'}}"), "pipelines[0].steps[0].with.x: 'item' cannot be read here"),
    (
        p("{uses: a, if: {path: item.x, op: exists}}"),
        "steps[0].if.path: 'item.x' cannot be read here: `item` exists only",
    ),
    (p("{uses: a, baggage: {x: item.x}}"), "pipelines[0].steps[0].baggage.x: 'item.x' cannot be read here"),
    (p("{uses: a, foreach: item}"), "pipelines[0].steps[0].foreach: 'item' cannot be read here"),
    (
        p("{uses: a, foreach: payload.l}, {uses: b, with: {x: '{item}'}}"),
        "pipelines[0].steps[1].with.x: 'item' cannot be read here",
    ),
    (p("{relay: {to: a, event: b, with: {x: item.y}}}"), "steps[0].relay.with.x: 'item.y' cannot be read here"),
    # conditions
    (p("{uses: a}", "on: e, if: {path: config.x, op: exists}"), "pipelines[0].if.path: 'config.x' cannot be read here"),
    (p("{uses: a}", "on: e, if: {path: item.x, op: exists}"), "pipelines[0].if.path: 'item.x' cannot be read here"),
    (p("{uses: a, if: {path: payload.x, op: equals, value: 1}}"), "steps[0].if.op: expected one of exists, eq"),
    (p("{uses: a, if: {all: [{path: payload.x, op: eq}]}}"), "pipelines[0].steps[0].if.all[0]: `value` is missing"),
    (p("{uses: a, if: {}}"), "pipelines[0].steps[0].if: "),
    (
        p("{steps: [{uses: a}], if: {path: config.x, op: exists}}"),
        "steps[0].if: config.x cannot be read here: `config` is that of",
    ),
    (p("{call: p2, if: {path: config.x, op: exists}}"), "steps[0].if: config.x cannot be read here"),
    (p("{relay: {to: a, event: b}, if: {path: config.x, op: exists}}"), "steps[0].if: config.x cannot be read here"),
    # templates, claims and paths
    (p("{uses: a, with: {x: '{payload.x'}}"), "pipelines[0].steps[0].with.x: "),
    (p("{uses: a, with: {x: [{y: '{pay.x}'}]}}"), "pipelines[0].steps[0].with.x[0].y: 'pay.x' is not a path"),
    (p("{uses: a, baggage: {ductile.x: payload.x}}"), "steps[0].baggage.ductile.x: 'ductile.x' cannot be claimed"),
    (p("{uses: a, baggage: {from: payload}}"), "pipelines[0].steps[0].baggage.from: `namespace` is missing"),
    (p("{uses: a, baggage: {x: stdout}}"), "pipelines[0].steps[0].baggage.x: 'stdout' is not a path"),
    (p("{uses: a, foreach: payload}"), "pipelines[0].steps[0].foreach: 'payload' is all of it"),
    (p("{uses: a, foreach: 'payload.x[0]'}"), "pipelines[0].steps[0].foreach: 'payload.x[0]' is not a path"),
    (p("{uses: a, foreach: '{payload.x}'}"), "pipelines[0].steps[0].foreach: expected a path without braces"),
    (p("{relay: {to: a, event: b, with: {x: paylod.x}}}"), "steps[0].relay.with.x: 'paylod.x' is not a path"),
    (
        p("{relay: {to: a, event: b, dedupe_key: constant}}"),
        "steps[0].relay.dedupe_key: is the same for every event; name a value",
    ),
    (p("{relay: {to: a, event: b, baggage: {x: y}}}"), "pipelines[0].steps[0].relay.baggage.x: 'y' is not a path"),
    # calls
    (p("{call: nowhere}"), "pipelines[0].steps[0].call: there is no pipeline 'nowhere'"),
    (p("{id: a, uses: x, on_error: [{call: pp}]}"), "steps[0].on_error[0].call: there is no pipeline 'pp'"),
    (p("{call: p}"), "pipelines[0].steps[0].call: pipelines call each other in a circle: p → p"),
    (
        "[{name: a, on: e, steps: [{call: b}]}, {name: b, on: e, steps: [{split: [{call: c}]}]},"
        " {name: c, on: e, steps: [{call: a}]}]",
        "pipelines[0].steps[0].call: pipelines call each other in a circle: a → b → c → a",
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
        "pipelines[0].max_depth: 1 is too little; step 'b' can never be reached",
    ),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED)
def test_what_cannot_be_meant_is_refused_with_its_place(text: str, expected: str) -> None:
    """At load, not when a run gets there."""
    told = refusals(text)
    assert any(expected in line for line in told), told


def test_every_mistake_is_told_at_once() -> None:
    """One run of the doctor, not one per mistake."""
    told = refusals("[{name: a, steps: [{uses: x, if: {op: eq}, with: {x: '{'}}, {call: b}, {id: ductile, call: a}]}]")
    assert [line.partition(": ")[0] for line in told] == [
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
        f"{{uses: a, if: {YES}}}, {{uses: b}}",
        "{uses: a, foreach: payload.l}, {uses: b}",
        "{split: [{uses: a}, {uses: b}]}",
    ],
)
def test_max_depth_may_be_less_than_the_longest_way(steps: str) -> None:
    """Only a step that no way can reach is a mistake."""
    assert compiled(p(steps, "on: e, max_depth: 1")).named("p").depth_limit == 1


def doubling(levels: int, leaf: str = "{uses: x}") -> str:
    """Pipelines of which each calls the next twice."""
    calls = [f"- {{name: n{i}, on: e, steps: [{{call: n{i + 1}}}, {{call: n{i + 1}}}]}}" for i in range(levels)]
    return "\n".join([*calls, f"- {{name: n{levels}, on: e, steps: [{leaf}]}}"])


def test_a_pipeline_that_grows_without_measure_is_refused_before_it_is_built() -> None:
    """Twelve lines can mean millions of jobs; the first pipeline that is too large is named."""
    told = refusals(doubling(200), most_calls=1000)
    grown = next(2**level for level in range(200) if 2**level > MOST_JOBS)
    assert told[0].startswith(f"pipelines[{200 - 13}].steps: has {grown:,} jobs with all its calls; 5,000 are allowed")
    assert len(told) == 1


def test_a_pipeline_may_be_as_large_as_the_limit() -> None:
    """2^12 jobs."""
    plans = compiled(doubling(12))
    assert len(plans.named("n0").nodes) == 4096
    assert plans.named("n0").longest == 4096


def test_all_plans_together_have_a_limit_too() -> None:
    """Many pipelines that call one large one."""
    large = ", ".join(["{uses: x}"] * 4000)
    callers = [f"- {{name: c{i}, on: e, steps: [{{call: n}}]}}" for i in range(30)]
    told = refusals("\n".join([*callers, f"- {{name: n, on: e, steps: [{large}]}}"]))
    assert told == ["pipelines: have 124,000 jobs with all their calls; 100,000 are allowed in all"]


def test_calls_nest_as_deep_as_a_chain_may_have_hops() -> None:
    """Deeper, every run would end dead."""
    chain = "\n".join(f"- {{name: n{i}, on: e, steps: [{{call: n{i + 1}}}]}}" for i in range(3))
    text = f"{chain}\n- {{name: n3, on: e, steps: [{{uses: x}}]}}"
    assert compiled(text, most_calls=3).named("n0").nodes["step_1/step_1/step_1/step_1"].call_depth == 3
    assert refusals(text, most_calls=2) == [
        "pipelines[0].steps: nests calls 3 deep; service.limits.hops allows 2; "
        "start the other pipelines with an event instead"
    ]


def test_a_very_long_chain_of_calls_is_refused_and_does_not_crash() -> None:
    """Whatever limits.hops says."""
    text = "\n".join(f"- {{name: n{i}, on: e, steps: [{{call: n{i + 1}}}]}}" for i in range(2000))
    told = refusals(f"{text}\n- {{name: n2000, on: e, steps: [{{uses: x}}]}}", most_calls=10_000)
    assert told[0].startswith("pipelines[1950].steps: nests groups and calls 101 deep; 100 are allowed")


def test_a_very_long_circle_is_told_and_does_not_crash() -> None:
    """Each pipeline calls the next."""
    text = "\n".join(f"- {{name: n{i}, on: e, steps: [{{call: n{(i + 1) % 2000}}}]}}" for i in range(2000))
    (told,) = refusals(text)
    assert told.startswith("pipelines[0].steps[0].call: pipelines call each other in a circle: n0 → n1 → n2 → ")
    assert told.endswith("→ … → n1999 → n0")


def test_a_thousand_gated_groups_are_compiled_in_one_go() -> None:
    """What follows is shared, so that its size does not double at every gate."""
    gated = f"{{if: {YES}, split: [{{uses: x, if: {YES}}}, {{uses: y, if: {YES}}}]}}"
    plan = compiled(p(", ".join([gated] * 1000))).named("p")
    assert len(plan.nodes) == 2000
    assert len(plan.places) == 5000


@pytest.mark.parametrize(
    "pipeline",
    [
        "{{name: same, on: e, steps: [{{uses: x}}]}}",
        "{{name: n{0}, on: e, steps: [{{call: missing{0}}}]}}",
        "{{name: n{0}, on: e, steps: [{{call: n{0}}}]}}",
        "{{name: n{0}, steps: [{{uses: x, with: {{a: '{{', b: '{{c}}'}}}}]}}",
    ],
)
def test_thousands_of_mistakes_are_told_in_part(pipeline: str) -> None:
    """Quickly, and with a word that there is more."""
    told = refusals("\n".join(f"- {pipeline.format(number)}" for number in range(1000)))
    assert len(told) == 501
    assert told[-1] == "pipelines: there is more; these are the first 500 mistakes"
