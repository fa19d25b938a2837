"""Hypothesis strategies for valid pipelines as plain data, with every construct nested in every other.

All paths refer to `PAYLOAD`, so that the result is predictable. The plugin `broken` fails.
"""

from typing import Any

from hypothesis import strategies as st

PAYLOAD = {"there": 1, "some": [1, 2], "none": []}
HOLDS = {"path": "payload.there", "op": "exists"}
FAILS = {"path": "payload.gone", "op": "exists"}
PLUGINS = ("alpha", "beta", "gamma.poll", "broken")

Data = dict[str, Any]


@st.composite
def pipelines_strategy(draw: st.DrawFn, max_leaves: int = 8) -> list[Data]:
    """Generate one to three pipelines. Each may call those after it, so there are no cycles."""
    listed: list[Data] = []
    for name in draw(st.sampled_from([("p",), ("p", "q"), ("p", "q", "r")]))[::-1]:
        steps = draw(st.lists(_steps([each["name"] for each in listed], max_leaves), min_size=1, max_size=4))
        pipeline: Data = {"name": name, "on": f"{name}.wanted", "steps": steps}
        if condition := draw(_conditions):
            pipeline["if"] = condition
        listed.insert(0, pipeline)
    for pipeline in listed:
        _name_some_steps(draw, pipeline)
    return listed


_conditions = st.sampled_from([None, None, None, HOLDS, FAILS, {"not": FAILS}])


def _steps(callable_names: list[str], max_leaves: int) -> st.SearchStrategy[Data]:
    leaves: list[Data] = [{"uses": plugin} for plugin in PLUGINS]
    leaves += [{"relay": {"to": "lab", "event": "x"}}, *({"call": name} for name in callable_names)]

    def groups(inner: st.SearchStrategy[Data]) -> st.SearchStrategy[Data]:
        members = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            _modified(members.map(lambda steps: {"steps": steps})),
            _modified(members.map(lambda steps: {"split": steps})),
            _with_error_steps(st.sampled_from(PLUGINS).map(lambda plugin: {"uses": plugin}), members),
        )

    return st.recursive(_modified(st.sampled_from(leaves)), groups, max_leaves=max_leaves)


@st.composite
def _modified(draw: st.DrawFn, steps: st.SearchStrategy[Data]) -> Data:
    """Add an `if`, a `foreach` and a `join` where they are allowed."""
    step = dict(draw(steps))
    if condition := draw(_conditions):
        step["if"] = condition
    if draw(st.integers(0, 3)) == 0:
        step["foreach"] = draw(st.sampled_from(["payload.some", "payload.none"]))
    if ("split" in step or "foreach" in step) and draw(st.booleans()):
        step["join"] = True
    return step


@st.composite
def _with_error_steps(draw: st.DrawFn, steps: st.SearchStrategy[Data], handling: st.SearchStrategy[list[Data]]) -> Data:
    step = draw(_modified(steps))
    step["continue"] = draw(st.booleans())
    if not step["continue"] or draw(st.booleans()):
        step["on_error"] = draw(handling)
    return step


def _name_some_steps(draw: st.DrawFn, pipeline: Data) -> None:
    for number, step in enumerate(each_step(pipeline["steps"])):
        if draw(st.integers(0, 2)) == 0:
            step["id"] = f"own_{number}"


def each_step(steps: list[Data]) -> "list[Data]":
    """Return every step and nested step, in textual order."""
    found = []
    for step in steps:
        inner = [*step.get("steps", ()), *step.get("split", ()), *step.get("on_error", ())]
        found += [step, *each_step(inner)]
    return found
