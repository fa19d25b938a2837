"""What the plugin of a step is told: its payload after `with`, and the context of its run."""

import json
from typing import Any

import pytest

from ductile.core.errors import NotFound
from ductile.core.model import Job
from ductile.pipeline.language.paths import PathAbsent
from ductile.pipeline.run.step_input import StepInput, step_of, tell
from tests.pipeline.runs import a_job
from tests.pipeline.written import compiled, plan_of

CONTROL = {"pipeline_instance_id": "run", "route_depth": 2, "route_max_depth": 3}


def told(step: str, payload: Any, context: Any = None, *, items: Any = None, command: str = "handle") -> StepInput:
    """What the job of that step gets (YAML flow), entered with that payload and that baggage."""
    control = CONTROL | ({"items": items, "indexes": [0] * len(items)} if items else {})
    content = {"type": "made", "event_id": "e", "payload": payload} if command == "handle" else payload
    job = a_job(
        plugin="x",
        command=command,
        pipeline="p",
        step_id="a",
        payload=json.dumps(content),
        context=json.dumps({**(context or {}), "ductile": control}),
    )
    wrapped = f"{{foreach: payload.list, steps: [{step}]}}" if items else step
    return tell(job, plan_of(wrapped).nodes["a"])


def payload_in(heard: StepInput, *, command: str = "handle") -> Any:
    content = json.loads(heard.payload or "null")
    return content["payload"] if command == "handle" else content


@pytest.mark.parametrize("job", [a_job(payload='{"n": 1}'), a_job(payload=None)])
def test_a_job_outside_of_every_run_is_told_what_it_was_asked_for(job: Job) -> None:
    """As it stands, without a context."""
    assert tell(job, None) == StepInput(job.payload, None)


def test_an_event_keeps_everything_but_its_payload() -> None:
    """Type and id are those of the event that entered the step."""
    content = json.loads(told("{id: a, uses: x, with: {m: 1}}", {"n": 1}).payload or "")
    assert content == {"type": "made", "event_id": "e", "payload": {"n": 1, "m": 1}}


def test_a_payload_that_nothing_is_added_to_is_handed_on_unread() -> None:
    """The very text; large payloads cost nothing here."""
    job = a_job(pipeline="p", step_id="a", payload='{"payload":  {"n": 1.0}}', context=json.dumps({"ductile": CONTROL}))
    assert tell(job, plan_of("{id: a, uses: x}").nodes["a"]).payload == job.payload


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
    """Types are kept, texts are rendered, and all entries read the payload as it came."""
    assert payload_in(told(f"{{id: a, uses: x, with: {remap}}}", payload, context)) == expected


def test_a_plugin_finds_the_baggage_among_its_payload_where_that_has_no_such_name() -> None:
    """As plugins of the original expect; the event always wins."""
    heard = told("{id: a, uses: x}", {"n": 1}, {"n": 2, "web": {"url": "u"}})
    assert payload_in(heard) == {"n": 1, "web": {"url": "u"}}


def test_a_command_other_than_handle_gets_its_payload_alone() -> None:
    """And `with` on it; the baggage is in the context."""
    heard = told("{id: a, uses: x.poll, with: {m: '{context.c}'}}", {"n": 1}, {"c": 5}, command="poll")
    assert payload_in(heard, command="poll") == {"n": 1, "m": 5}


def test_with_reads_the_innermost_item() -> None:
    """Whole, or a value in it."""
    heard = told("{id: a, uses: x, with: {one: '{item}', id: '#{item.id}'}}", {}, items=[{"id": 1}, {"id": 2}])
    assert payload_in(heard) == {"one": {"id": 2}, "id": "#2"}


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{payload.gone}", "with 'm': payload.gone is absent: payload has no 'gone'"),
        ("x {context.c.y}", "with 'm': context.c.y is absent: context.c is text, not an object"),
    ],
)
def test_a_template_that_refers_to_nothing_fails_the_job(template: str, reason: str) -> None:
    """No value is made up; the message says how far the path leads."""
    with pytest.raises(PathAbsent) as caught:
        told(f"{{id: a, uses: x, with: {{m: '{template}'}}}}", {"n": 1}, {"c": "text"})
    assert str(caught.value) == reason


def test_the_context_is_the_baggage_and_the_cores_own_keys() -> None:
    """Under `ductile`, and under flat names for plugins that look there."""
    heard = told("{id: a, uses: x}", {}, {"web": {"url": "u"}})
    own = {**CONTROL, "plugin": "x", "pipeline": "p", "step_id": "a"}
    assert json.loads(heard.context or "") == {
        "web": {"url": "u"},
        "ductile": own,
        **{f"ductile_{name}": value for name, value in own.items()},
    }


def test_baggage_is_never_overwritten_by_the_flat_names() -> None:
    """What an author claimed is what a plugin finds."""
    heard = told("{id: a, uses: x}", {}, {"ductile_plugin": "mine"})
    context = json.loads(heard.context or "")
    assert (context["ductile_plugin"], context["ductile"]["plugin"]) == ("mine", "x")


def test_the_step_of_a_job_is_found_by_its_path() -> None:
    """Inside of calls too; a job outside of every run has none."""
    plans = compiled("[{name: p, on: e, steps: [{id: a, call: q}]}, {name: q, on: f, steps: [{id: b, uses: x}]}]")
    node = step_of(plans, a_job(pipeline="p", step_id="a/b"))
    assert node is plans.named("p").nodes["a/b"]
    assert step_of(plans, a_job()) is None


@pytest.mark.parametrize(
    ("pipeline", "step", "reason"),
    [("gone", "a", "pipeline gone is not there any more"), ("p", "gone", "pipeline p has no step gone any more")],
)
def test_a_job_whose_step_was_removed_is_told_so(pipeline: str, step: str, reason: str) -> None:
    """The run ends visibly with that reason."""
    with pytest.raises(NotFound, match=f"^{reason}$"):
        step_of(compiled("[{name: p, on: e, steps: [{id: a, uses: x}]}]"), a_job(pipeline=pipeline, step_id=step))
