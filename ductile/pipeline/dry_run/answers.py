"""Simulated plugin answers for a dry run: their formats and their parser.

Does not know where the data comes from. The CLI and pipeline cases parse answers; the sandbox uses them.
"""

from collections.abc import Collection, Mapping
from typing import Any

from attrs import field, frozen

from ductile.core.errors import UsageInvalid, did_you_mean
from ductile.pipeline.language.paths import describe_type

FORMS = 'a list of events, {"fail": "why"}, or {"result": "text", "events": [ … ]}'


@frozen
class AnswerEvent:
    """One event of a simulated answer."""

    type: str
    payload: Mapping[str, Any] = field(factory=dict, repr=False)
    dedupe_key: str | None = None


@frozen(kw_only=True)
class PluginAnswer:
    """A simulated answer: a success with its events, or a final failure if `error` is set."""

    result: str = "simulated"
    events: tuple[AnswerEvent, ...] = ()
    error: str | None = None


SILENT = PluginAnswer()


def parse_answers(raw: Any, known: Collection[str]) -> dict[str, PluginAnswer]:
    """Parse plain data into answers by step. Raises UsageInvalid."""
    if not isinstance(raw, dict):
        raise UsageInvalid(f"answers must be an object of step → answer, got {describe_type(raw)}")
    for step in raw:
        if step not in known:
            hint = f"Known steps: {', '.join(known)}."
            raise UsageInvalid(f"step {step!r} does not exist{did_you_mean(step, known)}", hint=hint)
    return {step: _answer(step, answer) for step, answer in raw.items()}


def _answer(step: str, raw: Any) -> PluginAnswer:
    match raw:
        case list():
            return PluginAnswer(events=_events(step, raw))
        case {"fail": str(error), **rest} if not rest:
            return PluginAnswer(error=error)
        case dict() if raw.keys() <= {"result", "events"} and isinstance(raw.get("result", ""), str):
            events = _events(step, raw.get("events", []))
            return PluginAnswer(events=events, result=raw.get("result", SILENT.result))
    raise UsageInvalid(f"the answer for step {step} is not valid", hint=f"Write {FORMS}.")


def _events(step: str, raw: Any) -> tuple[AnswerEvent, ...]:
    if not isinstance(raw, list):
        raise UsageInvalid(f"the events of step {step} must be a list, got {describe_type(raw)}")
    return tuple(_event(step, number, event) for number, event in enumerate(raw))


def _event(step: str, number: int, raw: Any) -> AnswerEvent:
    match raw:
        case {"type": str(kind), **rest} if kind and rest.keys() <= {"payload", "dedupe_key"}:
            payload, key = rest.get("payload", {}), rest.get("dedupe_key")
            if isinstance(payload, dict) and isinstance(key, str | None):
                return AnswerEvent(kind, payload, key)
    raise UsageInvalid(
        f"event {number} of step {step} is not valid",
        hint='Write {"type": "name", "payload": {}}; dedupe_key is optional.',
    )
