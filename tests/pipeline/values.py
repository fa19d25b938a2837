"""How the reference reads values: conditions, templates and claims in a few lines, for JSON without nulls."""

import json
import re
from typing import Any

Data = dict[str, Any]


class Refused(Exception):
    """A value is not there, or must not change."""


def found(path: str, scope: Any) -> Any:
    """The value at a path; None if there is none."""
    for name in path.split("."):
        scope = scope.get(name) if isinstance(scope, dict) else None
    return scope


def needed(path: str, scope: Data) -> Any:
    if (value := found(path, scope)) is None:
        raise Refused(path)
    return value


def is_true(question: Any, scope: Data) -> bool:
    match question:
        case None:
            return True
        case {"not": inner}:
            return not is_true(inner, scope)
        case {"all": members}:
            return all(is_true(member, scope) for member in members)
        case {"path": path, "op": "exists"}:
            return found(path, scope) is not None
        case {"path": path, "op": "eq", "value": value}:
            return bool(found(path, scope) == value)
        case {"path": path, "op": "gt", "value": value}:
            seen = found(path, scope)
            return isinstance(seen, int) and seen > value
    raise AssertionError(question)


def rendered(text: str, scope: Data) -> Any:
    if alone := re.fullmatch(r"{([^{}]+)}", text):
        return needed(alone[1], scope)
    return re.sub(r"{([^{}]+)}", lambda part: _as_text(needed(part[1], scope)), text)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def claimed(claims: Data, scope: Data) -> Data:
    """The context with what is claimed; Refused if that would change what is there."""
    context: Data = scope["context"]
    single = {target: source for target, source in claims.items() if target not in ("from", "namespace")}
    for target, source in single.items():
        context = _together(context, _nested(target, needed(source, scope)))
    if "from" in claims:
        value = needed(claims["from"], scope)
        if not isinstance(value, dict):
            raise Refused(claims["from"])
        context = _together(context, _nested(claims["namespace"], value))
    return context


def _nested(path: str, value: Any) -> Data:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def _together(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {name: _together(old[name], new[name]) if name in old else new[name] for name in new}
    if old != new:
        raise Refused(str(new))
    return old
