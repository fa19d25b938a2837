"""The `pipelines:` schema: keys, defaults, and conversion back to plain data."""

from datetime import timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from ductile.core.formats.yaml_fields import DOC, YAML_NAME
from ductile.pipeline.language.dsl import Pipeline, PublishStep, RelayStep, ReplyStep, Step, iter_steps, to_yaml_data
from tests.pipeline.compiling import parse_pipelines
from tests.pipeline.random_pipelines import Data, pipelines_strategy

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
        "publish": None,
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
    PublishStep: {"topic": attrs.NOTHING, "body": None, "metadata": None, "wait": None},
    ReplyStep: {"success_topic": None, "failure_topic": None, "timeout": timedelta(hours=24)},
}


@pytest.mark.parametrize("shape", KEYS)
def test_every_key_has_its_default_and_a_description(shape: type) -> None:
    """NOTHING marks a required key."""
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
    - publish: {topic: a.request, body: "{payload.x}", metadata: {n: 1}, wait: {timeout: 5m}}
    - split: [{steps: [{uses: b, if: {path: config.x, op: lt, value: 1.5}}]}, {uses: c, on_error: [{uses: d}]}]
      join: true
"""


def test_a_pipeline_converts_back_to_yaml_data() -> None:
    """With the YAML names, and without default values."""
    (pipeline,) = parse_pipelines(FULL)
    data = to_yaml_data(pipeline)
    assert list(data) == ["name", "on-hook", "from_plugin", "if", "max_depth", "execution_mode", "timeout", "steps"]
    assert data["timeout"] == "1m30s"
    assert data["steps"][2]["on_error"] == []
    assert parse_pipelines([data]) == (pipeline,)
    assert "async" not in to_yaml_data(
        parse_pipelines("[{name: a, on: e, execution_mode: async, steps: [{uses: x}]}]")[0]
    )


@settings(deadline=None, max_examples=50)
@given(pipelines_strategy())
def test_converting_to_yaml_data_and_back_changes_nothing(listed: list[Data]) -> None:
    """For random pipelines."""
    read = parse_pipelines(listed)
    assert parse_pipelines([to_yaml_data(pipeline) for pipeline in read]) == read


def test_steps_are_listed_in_textual_order() -> None:
    """Including nested, split and error steps, each with its configuration path."""
    (pipeline,) = parse_pipelines(FULL)
    assert [path for path, _ in iter_steps(pipeline.steps, "steps")] == [
        "steps[0]",
        "steps[1]",
        "steps[2]",
        "steps[3]",
        "steps[4]",
        "steps[4].split[0]",
        "steps[4].split[0].steps[0]",
        "steps[4].split[1]",
        "steps[4].split[1].on_error[0]",
    ]


def test_the_repr_of_a_step_hides_with_values() -> None:
    """`with` can contain expanded secrets."""
    (pipeline,) = parse_pipelines(
        "[{name: a, on: e, steps: [{uses: x, with: {k: hush}}, {relay: {to: l, event: e, with: {k: hush}}}, "
        "{publish: {topic: t, body: hush, metadata: {k: hush}}}]}]"
    )
    assert "hush" not in repr(pipeline)
