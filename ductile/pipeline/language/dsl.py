"""What an author may write: one frozen class per YAML shape of `pipelines:`, with every key, default and explanation.

Says which keys there are and of which type. What a combination of them means, and whether it means anything, is
`read`'s; the configuration reads these classes like its own sections.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from attrs import fields, frozen, resolve_types

from ductile.core.formats.yaml_fields import (
    YAML_NAME,
    Count,
    EventType,
    Grammar,
    Number,
    Span,
    Text,
    ValueRule,
    option,
    pattern,
)
from ductile.core.units import format_duration
from ductile.pipeline.language.operators import OPERATORS

LABEL = pattern(
    "[^\\s/\\x00-\\x1f\\x7f](?:[^/\\x00-\\x1f\\x7f]*[^\\s/\\x00-\\x1f\\x7f])?",
    "one line of text without '/', not blank and with no blanks around it",
)
SOME = ValueRule(lambda steps: len(steps) > 0, "a list of at least one step", {"minItems": 1})

_CONDITION = {
    "type": ["object", "null"],
    "description": "`path`, `op` and `value`, or exactly one of `all`, `any` and `not`.",
    "properties": {
        "path": {"type": "string", "description": "the value to look at, such as payload.status"},
        "op": {"enum": list(OPERATORS), "description": "how it is compared"},
        "value": {"description": "what it is compared with"},
        "all": {"type": "array", "items": {"$ref": "#/$defs/Condition"}, "description": "every one must hold"},
        "any": {"type": "array", "items": {"$ref": "#/$defs/Condition"}, "description": "one must hold"},
        "not": {"$ref": "#/$defs/Condition", "description": "must not hold"},
    },
    "additionalProperties": False,
}

Label = Annotated[str, LABEL]
Signal: TypeAlias = Literal["job.completed", "job.failed", "job.timed_out", "job.dead", "job.overdue", "schedule.late"]
Mode: TypeAlias = Literal["async", "synchronous"]
Question = Annotated[Mapping[str, Any], Grammar("Condition", _CONDITION)]


@frozen(kw_only=True)
class RelayStep:
    """`pipelines[].steps[].relay`: an event for another instance."""

    to: Text = option("the instance, by its name in `instances`")
    event: EventType = option("the event's type over there")
    dedupe_key: Text | None = option("a path or template: events with the same value are taken once", default=None)
    with_: Mapping[str, Any] | None = option(
        "the payload that is sent: name → path, template or value; default: the payload as it came",
        default=None,
        name="with",
        private=True,
    )
    baggage: Mapping[str, Any] | None = option("the context that is sent along: path → source", default=None)


@frozen(kw_only=True)
class Step:
    """`pipelines[].steps[]`: one thing to do. Exactly one of uses, call, relay, steps, split."""

    EXACTLY_ONE: ClassVar = ("uses", "call", "relay", "steps", "split")

    id: Label | None = option("unique in the pipeline; default: step_1, step_2 …", default=None)
    uses: Text | None = option("run a plugin or alias (its `handle`), or one `plugin.command`", default=None)
    call: Label | None = option("run the steps of another pipeline here", default=None)
    relay: RelayStep | None = option("send an event to another instance", default=None)
    steps: "Annotated[tuple[Step, ...], SOME] | None" = option("run these one after the other", default=None)
    split: "Annotated[tuple[Step, ...], SOME] | None" = option("run these beside each other", default=None)
    if_: Question | None = option("only if this holds; else go on behind the step", default=None, name="if")
    with_: Mapping[str, Any] | None = option(
        "payload keys to add or replace: name → template or value (`uses` only)",
        default=None,
        name="with",
        private=True,
    )
    baggage: Mapping[str, Any] | None = option(
        "values to keep for the rest of the run: path → source (`uses` only)", default=None
    )
    foreach: Text | None = option("once for every element of the list at this path, as `item`", default=None)
    max_items: Count | None = option("the longest list that `foreach` takes; default: 1000", default=None)
    join: bool = option("go on once, with all results (`split` and `foreach`)", default=False)
    on_error: "tuple[Step, ...] | None" = option("steps after a final failure (`uses` and `relay`)", default=None)
    continue_: bool = option(
        "a final failure does not fail the run; it goes on after `on_error`", default=False, name="continue"
    )


@frozen(kw_only=True)
class Pipeline:
    """`pipelines[]`: a workflow. Exactly one of on, on-hook."""

    EXACTLY_ONE: ClassVar = ("on", "on-hook")

    name: Label = option("unique")
    on: Text | None = option("the event type that starts it, matched exactly", default=None)
    on_hook: Signal | None = option(
        "the end of a job, or a schedule's alarm, that starts it", default=None, name="on-hook"
    )
    from_plugin: Text | None = option("only events, or ends of jobs, of this plugin", default=None)
    if_: Question | None = option("only if this holds for the payload and the context", default=None, name="if")
    max_depth: Number | None = option(
        "the most jobs along one way through it; 0: unlimited; default: as many as it has", default=None
    )
    execution_mode: Mode = option("`synchronous`: an API caller waits for the result", default="async")
    timeout: Span = option("how long such a caller waits", default=timedelta(seconds=30))
    steps: Annotated[tuple[Step, ...], SOME] = option("what is done, in this order")


resolve_types(Step)


def textual(steps: tuple[Step, ...], where: str) -> Iterator[tuple[str, Step]]:
    """Every step and what is inside it, each with its place, in the order in which they are written."""
    for index, step in enumerate(steps):
        place = f"{where}[{index}]"
        yield place, step
        for key in ("steps", "split", "on_error"):
            yield from textual(getattr(step, key) or (), f"{place}.{key}")


def written(shape: Pipeline | Step | RelayStep) -> dict[str, Any]:
    """`shape` as the plain data of its YAML, without what is left to defaults."""
    data = {}
    for key in fields(type(shape)):
        value = getattr(shape, key.name)
        if value != key.default:
            data[key.metadata.get(YAML_NAME, key.name)] = _plain(value)
    return data


def _plain(value: Any) -> Any:
    match value:
        case RelayStep() | Step():
            return written(value)
        case tuple():
            return [_plain(member) for member in value]
        case timedelta():
            return format_duration(value)
    return value
