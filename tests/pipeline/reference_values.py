"""Conditions, templates and claims of the reference interpreter, for JSON without nulls."""

import json
import re
from typing import Any

Data = dict[str, Any]


class Refused(Exception):
    """A value that is absent, or a claim that would change a value."""


def look_up(path: str, scope: Any) -> Any:
    """Return the value at a path; None if it is absent."""
    for name in path.split("."):
        scope = scope.get(name) if isinstance(scope, dict) else None
    return scope


def require(path: str, scope: Data) -> Any:
    if (value := look_up(path, scope)) is None:
        raise Refused(path)
    return value


def is_true(condition: Any, scope: Data) -> bool:
    match condition:
        case None:
            return True
        case {"not": inner}:
            return not is_true(inner, scope)
        case {"all": members}:
            return all(is_true(member, scope) for member in members)
        case {"path": path, "op": "exists"}:
            return look_up(path, scope) is not None
        case {"path": path, "op": "eq", "value": value}:
            return bool(look_up(path, scope) == value)
        case {"path": path, "op": "gt", "value": value}:
            actual = look_up(path, scope)
            return isinstance(actual, int) and actual > value
    raise AssertionError(condition)


def render(text: str, scope: Data) -> Any:
    if single := re.fullmatch(r"{([^{}]+)}", text):
        return require(single[1], scope)
    return re.sub(r"{([^{}]+)}", lambda part: _as_text(require(part[1], scope)), text)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def apply_claims(claims: Data, scope: Data) -> Data:
    """Return the context with the claimed values. Raises Refused."""
    context: Data = scope["context"]
    single = {target: source for target, source in claims.items() if target not in ("from", "namespace")}
    for target, source in single.items():
        context = _merge(context, _nested(target, require(source, scope)))
    if "from" in claims:
        value = require(claims["from"], scope)
        if not isinstance(value, dict):
            raise Refused(claims["from"])
        context = _merge(context, _nested(claims["namespace"], value))
    return context


def _nested(path: str, value: Any) -> Data:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def _merge(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {name: _merge(old[name], new[name]) if name in old else new[name] for name in new}
    if old != new:
        raise Refused(str(new))
    return old
