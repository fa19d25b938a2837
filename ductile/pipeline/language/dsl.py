"""The schema of `pipelines:`: one frozen class per YAML mapping, with every key, type, default and description.

The configuration loads these classes like its own sections. `parse` checks combinations of keys.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from attrs import fields, frozen, resolve_types

from ductile.core.formats.yaml_fields import (
    YAML_NAME,
    Count,
    EventType,
    ExternalSchema,
    Number,
    Span,
    Text,
    ValueRule,
    option,
    pattern,
)
from ductile.core.message import MAX_TOPIC_BYTES, TOPIC, TOPIC_HELP, is_topic
from ductile.core.units import format_duration
from ductile.pipeline.language.operators import OPERATORS

LABEL = pattern(
    "[^\\s/\\x00-\\x1f\\x7f](?:[^/\\x00-\\x1f\\x7f]*[^\\s/\\x00-\\x1f\\x7f])?",
    "one line of text without '/' and without leading or trailing whitespace",
)
AT_LEAST_ONE_STEP = ValueRule(lambda steps: len(steps) > 0, "a list of at least one step", {"minItems": 1})
ONE_TOPIC = ValueRule(
    is_topic,
    f"one topic, not a pattern: {TOPIC_HELP}, at most {MAX_TOPIC_BYTES} bytes",
    {"pattern": f"^(?:{TOPIC})$", "maxLength": MAX_TOPIC_BYTES},
)
REPLY_TIMEOUT = ValueRule(
    lambda span: timedelta(seconds=1) <= span <= timedelta(days=365), "a duration from 1s to 365d"
)

_CONDITION = {
    "type": ["object", "null"],
    "description": "`path`, `op` and `value`, or exactly one of `all`, `any` and `not`.",
    "properties": {
        "path": {"type": "string", "description": "the value to test, such as payload.status"},
        "op": {"enum": list(OPERATORS), "description": "the comparison operator"},
        "value": {"description": "the value to compare with"},
        "all": {"type": "array", "items": {"$ref": "#/$defs/Condition"}, "description": "every condition must be true"},
        "any": {
            "type": "array",
            "items": {"$ref": "#/$defs/Condition"},
            "description": "at least one condition must be true",
        },
        "not": {"$ref": "#/$defs/Condition", "description": "the condition must be false"},
    },
    "additionalProperties": False,
}

Label = Annotated[str, LABEL]
Topic = Annotated[str, ONE_TOPIC]
Signal: TypeAlias = Literal[
    "job.completed",
    "job.failed",
    "job.timed_out",
    "job.dead",
    "run.completed",
    "run.failed",
    "job.overdue",
    "schedule.late",
]
Mode: TypeAlias = Literal["async", "synchronous"]
_EXAMPLE = "{path: payload.status, op: eq, value: ok}"
ConditionData = Annotated[Mapping[str, Any], ExternalSchema("Condition", _CONDITION, _EXAMPLE)]


@frozen(kw_only=True)
class RelayStep:
    """`pipelines[].steps[].relay`: An event to send to another instance."""

    to: Text = option("name of the instance in `instances`")
    event: EventType = option("event type on the other instance")
    dedupe_key: Text | None = option("a path or template; events with the same value are accepted once", default=None)
    with_: Mapping[str, Any] | None = option(
        "payload to send: name → path, template or value; default: the current payload",
        default=None,
        name="with",
        private=True,
    )
    baggage: Mapping[str, Any] | None = option("baggage to send: path → source", default=None)


@frozen(kw_only=True)
class ReplyStep:
    """`pipelines[].steps[].publish.wait`: The reply that ends the step."""

    success_topic: Topic | None = option(
        "topic of a reply with which the step succeeds; default: `X.done` for `X.request`", default=None
    )
    failure_topic: Topic | None = option(
        "topic of a reply with which the step fails; default: `X.failed` for `X.request`", default=None
    )
    timeout: Annotated[timedelta, REPLY_TIMEOUT] = option(
        "time after which the step fails without a reply", default=timedelta(hours=24)
    )


@frozen(kw_only=True)
class PublishStep:
    """`pipelines[].steps[].publish`: A message to publish on a topic of the exchange."""

    topic: Topic = option("topic of the message")
    body: Text | None = option(
        "template of the body; a referenced value that is not text is published as JSON; default: the current payload",
        default=None,
        private=True,
    )
    metadata: Mapping[str, Any] | None = option(
        "metadata of the message: name → template or value", default=None, private=True
    )
    wait: ReplyStep | None = option("end the step with the reply to the message; `{}` uses the defaults", default=None)


@frozen(kw_only=True)
class Step:
    """`pipelines[].steps[]`: A step. Requires exactly one of `uses`, `call`, `relay`, `publish`, `steps`, `split`."""

    EXACTLY_ONE: ClassVar = ("uses", "call", "relay", "publish", "steps", "split")

    id: Label | None = option("identifier, unique within the pipeline; default: step_1, step_2 …", default=None)
    uses: Text | None = option("run the `handle` command of a plugin or alias, or `plugin.command`", default=None)
    call: Label | None = option("run the steps of another pipeline here", default=None)
    relay: RelayStep | None = option("send an event to another instance", default=None)
    publish: PublishStep | None = option("publish a message, and optionally wait for its reply", default=None)
    steps: "Annotated[tuple[Step, ...], AT_LEAST_ONE_STEP] | None" = option("run these steps in sequence", default=None)
    split: "Annotated[tuple[Step, ...], AT_LEAST_ONE_STEP] | None" = option("run these steps in parallel", default=None)
    if_: ConditionData | None = option("run the step only if this condition is true", default=None, name="if")
    with_: Mapping[str, Any] | None = option(
        "payload keys to add or replace: name → template or value (`uses` only)",
        default=None,
        name="with",
        private=True,
    )
    baggage: Mapping[str, Any] | None = option(
        "values to carry through the rest of the run: path → source (`uses` only)", default=None
    )
    foreach: Text | None = option(
        "run once for every element of the list at this path, available as `item`", default=None
    )
    max_items: Count | None = option("maximum length of the `foreach` list; default: 1000", default=None)
    join: bool = option(
        "wait for all branches or items, then continue once with all results (`split` and `foreach`)", default=False
    )
    on_error: "tuple[Step, ...] | None" = option(
        "steps to run after a final failure (`uses`, `relay` and `publish`)", default=None
    )
    continue_: bool = option(
        "a final failure does not fail the run, which continues after `on_error`", default=False, name="continue"
    )


@frozen(kw_only=True)
class Pipeline:
    """`pipelines[]`: A pipeline. Requires exactly one of `on` and `on-hook`."""

    EXACTLY_ONE: ClassVar = ("on", "on-hook")

    name: Label = option("unique name")
    on: Text | None = option("event type that starts the pipeline, matched exactly", default=None)
    on_hook: Signal | None = option(
        "end of a run or of a job, or schedule alarm, that starts the pipeline", default=None, name="on-hook"
    )
    from_plugin: Text | None = option("only events and job completions of this plugin", default=None)
    if_: ConditionData | None = option(
        "start only if this condition is true for the payload and the context", default=None, name="if"
    )
    max_depth: Number | None = option(
        "maximum number of jobs along one path with switches; 0: unlimited; default: the longest path of the pipeline",
        default=None,
    )
    execution_mode: Mode = option("`synchronous`: API requests wait for the result", default="async")
    timeout: Span = option("how long a synchronous API request waits", default=timedelta(seconds=30))
    steps: Annotated[tuple[Step, ...], AT_LEAST_ONE_STEP] = option("steps, in order")


resolve_types(Step)


def iter_steps(steps: tuple[Step, ...], where: str) -> Iterator[tuple[str, Step]]:
    """Yield every step and nested step with its configuration path, in textual order."""
    for index, step in enumerate(steps):
        path = f"{where}[{index}]"
        yield path, step
        for key in ("steps", "split", "on_error"):
            yield from iter_steps(getattr(step, key) or (), f"{path}.{key}")


def to_yaml_data(shape: Pipeline | Step | RelayStep | PublishStep | ReplyStep) -> dict[str, Any]:
    """Return the plain YAML data of `shape`, without default values."""
    data = {}
    for key in fields(type(shape)):
        value = getattr(shape, key.name)
        if value != key.default:
            data[key.metadata.get(YAML_NAME, key.name)] = _plain(value)
    return data


def _plain(value: Any) -> Any:
    match value:
        case RelayStep() | PublishStep() | ReplyStep() | Step():
            return to_yaml_data(value)
        case tuple():
            return [_plain(member) for member in value]
        case timedelta():
            return format_duration(value)
    return value
