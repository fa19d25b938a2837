"""Random valid pipelines as plain data, of every construct inside every other, small enough to run through.

What they read is fixed, so that a test can tell what must happen: see `PAYLOAD`. A plugin called `broken` fails.
"""

from typing import Any

from hypothesis import strategies as st

PAYLOAD = {"there": 1, "some": [1, 2], "none": []}
HOLDS = {"path": "payload.there", "op": "exists"}
FAILS = {"path": "payload.gone", "op": "exists"}
PLUGINS = ("alpha", "beta", "gamma.poll", "broken")

Data = dict[str, Any]


@st.composite
def some_pipelines(draw: st.DrawFn, most_leaves: int = 8) -> list[Data]:
    """One to three pipelines; each may call those after it, so that there is never a circle."""
    listed: list[Data] = []
    for name in draw(st.sampled_from([("p",), ("p", "q"), ("p", "q", "r")]))[::-1]:
        steps = draw(st.lists(_steps([each["name"] for each in listed], most_leaves), min_size=1, max_size=4))
        pipeline: Data = {"name": name, "on": f"{name}.wanted", "steps": steps}
        if condition := draw(_conditions):
            pipeline["if"] = condition
        listed.insert(0, pipeline)
    for pipeline in listed:
        _name_some_steps(draw, pipeline)
    return listed


_conditions = st.sampled_from([None, None, None, HOLDS, FAILS, {"not": FAILS}])


def _steps(callable_names: list[str], most_leaves: int) -> st.SearchStrategy[Data]:
    leaves: list[Data] = [{"uses": plugin} for plugin in PLUGINS]
    leaves += [{"relay": {"to": "lab", "event": "x"}}, *({"call": name} for name in callable_names)]

    def groups(inner: st.SearchStrategy[Data]) -> st.SearchStrategy[Data]:
        members = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            _modified(members.map(lambda steps: {"steps": steps})),
            _modified(members.map(lambda steps: {"split": steps})),
            _with_error_steps(st.sampled_from(PLUGINS).map(lambda plugin: {"uses": plugin}), members),
        )

    return st.recursive(_modified(st.sampled_from(leaves)), groups, max_leaves=most_leaves)


@st.composite
def _modified(draw: st.DrawFn, steps: st.SearchStrategy[Data]) -> Data:
    """With an `if`, a `foreach` and a `join` where they may be."""
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
    """All of them and what is inside them, in textual order."""
    found = []
    for step in steps:
        inner = [*step.get("steps", ()), *step.get("split", ()), *step.get("on_error", ())]
        found += [step, *each_step(inner)]
    return found
