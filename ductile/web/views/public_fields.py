"""The members of an explanation that a caller without the scope for texts may see.

Codes, names, ids, times and numbers are shown. Sentences, errors and values can quote plugins and payloads, so every
text that is not listed here is removed.
"""

from typing import Any, TypeVar, cast

T = TypeVar("T")
PUBLIC_TEXTS = frozenset(
    {
        "actor",
        "code",
        "command",
        "decision",
        "emitted_by",
        "event_id",
        "holder",
        "id",
        "job_id",
        "kind",
        "members",
        "next",
        "outcome_code",
        "parent_job_id",
        "pipeline",
        "plugin",
        "probe",
        "replay_of",
        "root_job_id",
        "run_id",
        "schedule_id",
        "source",
        "status",
        "step_id",
        "submitted_by",
        "target",
        "to",
        "until",
        "verdict",
        "via",
        "winner",
    }
)
"""Members whose texts are names, ids or codes. Members that end with `_at` are times."""


def without_texts(view: T) -> T:
    """Return the JSON object without texts that can quote plugins and payloads, at any depth."""
    members = cast(dict[str, Any], view)
    return cast(T, {name: _public(name, value) for name, value in members.items() if _is_shown(name, value)})


def _is_shown(name: str, value: Any) -> bool:
    return not isinstance(value, str) or name in PUBLIC_TEXTS or name.endswith("_at") or name == "at"


def _public(name: str, value: Any) -> Any:
    match value:
        case dict():
            return without_texts(value)
        case list():
            return [_public(name, member) for member in value if _is_shown(name, member)]
    return value
