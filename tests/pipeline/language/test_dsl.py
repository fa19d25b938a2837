"""What an author may write: the keys, their defaults, and the way back to plain data."""

from datetime import timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from ductile.core.formats.yaml_fields import DOC, YAML_NAME
from ductile.pipeline.language.dsl import Pipeline, RelayStep, Step, textual, written
from tests.pipeline.random_pipelines import Data, some_pipelines
from tests.pipeline.written import pipelines

KEYS: dict[type, dict[str, Any]] = {
    Pipeline: {
        "name": attrs.NOTHING,
        "on": None,
        "on-hook": None,
        "from_plugin": None,
        "if": None,
        "max_depth": None,
        "execution_mode": "async",
        "timeout": timedelta(seconds=30),
        "steps": attrs.NOTHING,
    },
    Step: {
        "id": None,
        "uses": None,
        "call": None,
        "relay": None,
        "steps": None,
        "split": None,
        "if": None,
        "with": None,
        "baggage": None,
        "foreach": None,
        "max_items": None,
        "join": False,
        "on_error": None,
        "continue": False,
    },
    RelayStep: {"to": attrs.NOTHING, "event": attrs.NOTHING, "dedupe_key": None, "with": None, "baggage": None},
}


@pytest.mark.parametrize("shape", KEYS)
def test_every_key_is_there_with_its_default_and_an_explanation(shape: type) -> None:
    """The language as a whole; NOTHING means that the key is required."""
    fields = attrs.fields(shape)
    assert {field.metadata.get(YAML_NAME, field.name): field.default for field in fields} == KEYS[shape]
    assert all(field.metadata[DOC] for field in fields)


FULL = """
- name: all of it
  on-hook: job.timed_out
  from_plugin: mail
  if: {any: [{path: payload.a, op: eq, value: [1, {b: null}]}, {not: {path: context.c, op: exists}}]}
  max_depth: 0
  execution_mode: synchronous
  timeout: 1m30s
  steps:
    - {id: a, uses: mail.send, with: {x: [1, {y: '{payload.z}'}], n: null}, baggage: {from: payload, namespace: m}}
    - {call: other, foreach: payload.list, max_items: 5, join: true}
    - relay: {to: lab, event: x.y, dedupe_key: payload.id, with: {a: payload.a}, baggage: {t: context.t}}
      on_error: []
      continue: true
    - split: [{steps: [{uses: b, if: {path: config.x, op: lt, value: 1.5}}]}, {uses: c, on_error: [{uses: d}]}]
      join: true
"""


def test_a_pipeline_can_be_written_out_again() -> None:
    """Under the names that YAML has, without what was left to defaults."""
    (pipeline,) = pipelines(FULL)
    data = written(pipeline)
    assert list(data) == ["name", "on-hook", "from_plugin", "if", "max_depth", "execution_mode", "timeout", "steps"]
    assert data["timeout"] == "1m30s"
    assert data["steps"][2]["on_error"] == []
    assert pipelines([data]) == (pipeline,)
    assert "async" not in written(pipelines("[{name: a, on: e, execution_mode: async, steps: [{uses: x}]}]")[0])


@settings(deadline=None, max_examples=50)
@given(some_pipelines())
def test_writing_out_and_reading_again_changes_nothing(listed: list[Data]) -> None:
    """For whatever was written."""
    read = pipelines(listed)
    assert pipelines([written(pipeline) for pipeline in read]) == read


def test_steps_are_found_in_the_order_in_which_they_are_written() -> None:
    """Groups, splits and error steps included, each with its place."""
    (pipeline,) = pipelines(FULL)
    assert [place for place, _ in textual(pipeline.steps, "steps")] == [
        "steps[0]",
        "steps[1]",
        "steps[2]",
        "steps[3]",
        "steps[3].split[0]",
        "steps[3].split[0].steps[0]",
        "steps[3].split[1]",
        "steps[3].split[1].on_error[0]",
    ]


def test_the_representation_of_a_step_shows_no_values_for_plugins() -> None:
    """`with` may hold what `${NAME}` stands for."""
    (pipeline,) = pipelines(
        "[{name: a, on: e, steps: [{uses: x, with: {k: hush}}, {relay: {to: l, event: e, with: {k: hush}}}]}]"
    )
    assert "hush" not in repr(pipeline)
