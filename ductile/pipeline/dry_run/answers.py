"""Answers of plugins as somebody writes them down for a dry run.

Knows the few forms that are taken, not where the text came from. The command line reads them, `rehearse` uses them.
"""

from collections.abc import Collection, Mapping
from typing import Any

from attrs import field, frozen

from ductile.core.errors import UsageInvalid, did_you_mean
from ductile.pipeline.language.paths import kind_of

FORMS = 'a list of events, {"fail": "why"}, or {"result": "text", "events": [ … ]}'


@frozen
class Emitted:
    """One event of an answer."""

    type: str
    payload: Mapping[str, Any] = field(factory=dict, repr=False)
    dedupe_key: str | None = None


@frozen(kw_only=True)
class PluginAnswer:
    """What a plugin says: that it is done, with events or without, or that it has finally failed."""

    result: str = "simulated"
    events: tuple[Emitted, ...] = ()
    error: str | None = None


SILENT = PluginAnswer()


def read_answers(raw: Any, known: Collection[str]) -> dict[str, PluginAnswer]:
    """The answers by step that `raw` (plain data) spells out; UsageInvalid for what cannot be meant."""
    if not isinstance(raw, dict):
        raise UsageInvalid(f"answers are an object of step → answer, not {kind_of(raw)}")
    for step in raw:
        if step not in known:
            hint = f"steps with answers: {', '.join(known)}"
            raise UsageInvalid(f"there is no step {step!r} to answer for{did_you_mean(step, known)}", hint=hint)
    return {step: _answer(step, given) for step, given in raw.items()}


def _answer(step: str, given: Any) -> PluginAnswer:
    match given:
        case list():
            return PluginAnswer(events=_events(step, given))
        case {"fail": str(error), **rest} if not rest:
            return PluginAnswer(error=error)
        case dict() if given.keys() <= {"result", "events"} and isinstance(given.get("result", ""), str):
            events = _events(step, given.get("events", []))
            return PluginAnswer(events=events, result=given.get("result", SILENT.result))
    raise UsageInvalid(f"the answer of {step} cannot be read", hint=f"write {FORMS}")


def _events(step: str, given: Any) -> tuple[Emitted, ...]:
    if not isinstance(given, list):
        raise UsageInvalid(f"the events of {step} are a list, not {kind_of(given)}")
    return tuple(_event(step, number, event) for number, event in enumerate(given))


def _event(step: str, number: int, given: Any) -> Emitted:
    match given:
        case {"type": str(kind), **rest} if kind and rest.keys() <= {"payload", "dedupe_key"}:
            payload, key = rest.get("payload", {}), rest.get("dedupe_key")
            if isinstance(payload, dict) and isinstance(key, str | None):
                return Emitted(kind, payload, key)
    raise UsageInvalid(
        f"event {number} of {step} cannot be read", hint='write {"type": "name", "payload": {}}; dedupe_key is optional'
    )
