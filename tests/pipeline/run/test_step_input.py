"""The input of a plugin: the payload after `with`, and the context of the run."""

import json
from typing import Any

import pytest

from ductile.core.errors import NotFound
from ductile.core.model import Job
from ductile.pipeline.language.paths import PathAbsent
from ductile.pipeline.run.step_input import StepInput, build_step_input, find_step
from tests.pipeline.compiling import compile_text, plan_of
from tests.pipeline.factories import make_job

CONTROL = {"pipeline_instance_id": "run", "route_depth": 2, "route_max_depth": 3}


def input_of(step: str, payload: Any, context: Any = None, *, items: Any = None, command: str = "handle") -> StepInput:
    """Return the input of a step (YAML flow) with this payload and this baggage."""
    control = CONTROL | ({"items": items, "indexes": [0] * len(items)} if items else {})
    content = {"type": "made", "event_id": "e", "payload": payload} if command == "handle" else payload
    job = make_job(
        plugin="x",
        command=command,
        pipeline="p",
        step_id="a",
        payload=json.dumps(content),
        context=json.dumps({**(context or {}), "ductile": control}),
    )
    wrapped = f"{{foreach: payload.list, steps: [{step}]}}" if items else step
    return build_step_input(job, plan_of(wrapped).nodes["a"])


def payload_in(step_input: StepInput, *, command: str = "handle") -> Any:
    content = json.loads(step_input.payload or "null")
    return content["payload"] if command == "handle" else content


@pytest.mark.parametrize("job", [make_job(payload='{"n": 1}'), make_job(payload=None)])
def test_a_job_outside_of_a_run_gets_its_payload_unchanged(job: Job) -> None:
    """Without a context."""
    assert build_step_input(job, None) == StepInput(job.payload, None)


def test_with_changes_only_the_payload_of_the_event() -> None:
    """Type and id stay the same."""
    content = json.loads(input_of("{id: a, uses: x, with: {m: 1}}", {"n": 1}).payload or "")
    assert content == {"type": "made", "event_id": "e", "payload": {"n": 1, "m": 1}}


def test_an_unchanged_payload_is_not_parsed() -> None:
    """The same text is passed on."""
    job = make_job(
        pipeline="p", step_id="a", payload='{"payload":  {"n": 1.0}}', context=json.dumps({"ductile": CONTROL})
    )
    assert build_step_input(job, plan_of("{id: a, uses: x}").nodes["a"]).payload == job.payload


REMAPS: list[tuple[str, Any, Any, Any]] = [
    ("{m: '{payload.n}'}", {"n": 1}, {}, {"n": 1, "m": 1}),
    ("{n: 'n={payload.n}'}", {"n": 1}, {}, {"n": "n=1"}),
    ("{m: '{context.web.url}'}", {}, {"web": {"url": "u"}}, {"web": {"url": "u"}, "m": "u"}),
    ("{m: {deep: ['{payload.n}', 2]}}", {"n": None}, {}, {"n": None, "m": {"deep": [None, 2]}}),
    ("{m: '{{payload.n}}'}", {"n": 1}, {}, {"n": 1, "m": "{payload.n}"}),
    ("{a: '{payload.b}', b: '{payload.a}'}", {"a": 1, "b": 2}, {}, {"a": 2, "b": 1}),
]


@pytest.mark.parametrize(("remap", "payload", "context", "expected"), REMAPS)
def test_with_adds_and_replaces_keys_of_the_payload(remap: str, payload: Any, context: Any, expected: Any) -> None:
    """Types do not change, text is rendered, and all entries read the original payload."""
    assert payload_in(input_of(f"{{id: a, uses: x, with: {remap}}}", payload, context)) == expected


def test_baggage_is_merged_below_the_payload() -> None:
    """Values of the payload have priority."""
    step_input = input_of("{id: a, uses: x}", {"n": 1}, {"n": 2, "web": {"url": "u"}})
    assert payload_in(step_input) == {"n": 1, "web": {"url": "u"}}


def test_other_commands_get_the_payload_without_baggage() -> None:
    """`with` still applies."""
    step_input = input_of("{id: a, uses: x.poll, with: {m: '{context.c}'}}", {"n": 1}, {"c": 5}, command="poll")
    assert payload_in(step_input, command="poll") == {"n": 1, "m": 5}


def test_with_reads_the_innermost_item() -> None:
    """As a whole, or a value inside it."""
    step_input = input_of("{id: a, uses: x, with: {one: '{item}', id: '#{item.id}'}}", {}, items=[{"id": 1}, {"id": 2}])
    assert payload_in(step_input) == {"one": {"id": 2}, "id": "#2"}


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{payload.gone}", "with 'm': payload.gone is absent: payload has no 'gone'"),
        ("x {context.c.y}", "with 'm': context.c.y is absent: context.c is text, not an object"),
    ],
)
def test_a_template_with_an_absent_value_fails(template: str, reason: str) -> None:
    """The message names the first missing part."""
    with pytest.raises(PathAbsent) as caught:
        input_of(f"{{id: a, uses: x, with: {{m: '{template}'}}}}", {"n": 1}, {"c": "text"})
    assert str(caught.value) == reason


def test_the_context_has_the_baggage_and_the_reserved_keys() -> None:
    """Under `ductile`, and under flat names."""
    step_input = input_of("{id: a, uses: x}", {}, {"web": {"url": "u"}})
    own = {**CONTROL, "plugin": "x", "pipeline": "p", "step_id": "a"}
    assert json.loads(step_input.context or "") == {
        "web": {"url": "u"},
        "ductile": own,
        **{f"ductile_{name}": value for name, value in own.items()},
    }


def test_flat_names_do_not_overwrite_baggage() -> None:
    """The reserved object is still complete."""
    step_input = input_of("{id: a, uses: x}", {}, {"ductile_plugin": "mine"})
    context = json.loads(step_input.context or "")
    assert (context["ductile_plugin"], context["ductile"]["plugin"]) == ("mine", "x")


def test_the_step_of_a_job_is_found_by_its_path() -> None:
    """Also inside calls. A job outside of a run has none."""
    plans = compile_text("[{name: p, on: e, steps: [{id: a, call: q}]}, {name: q, on: f, steps: [{id: b, uses: x}]}]")
    node = find_step(plans, make_job(pipeline="p", step_id="a/b"))
    assert node is plans.require("p").nodes["a/b"]
    assert find_step(plans, make_job()) is None


@pytest.mark.parametrize(
    ("pipeline", "step", "reason"),
    [("gone", "a", "pipeline gone no longer exists"), ("p", "gone", "pipeline p no longer has step gone")],
)
def test_a_job_whose_step_was_removed_is_rejected(pipeline: str, step: str, reason: str) -> None:
    """The run ends with this reason."""
    with pytest.raises(NotFound, match=f"^{reason}$"):
        find_step(
            compile_text("[{name: p, on: e, steps: [{id: a, uses: x}]}]"), make_job(pipeline=pipeline, step_id=step)
        )
