"""`if:` conditions: parsing and evaluation.

Parsing happens once, at load, and prepares everything that does not depend on the scope. Evaluation never fails: an
absent value compares as null, and a value of another type is not equal, not less and does not match.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import field, frozen

from ductile.core.errors import Complaint, did_you_mean
from ductile.core.secret import HIDDEN
from ductile.core.units import quote_text
from ductile.pipeline.language.operators import OPERATORS, Check
from ductile.pipeline.language.paths import ABSENT, LanguageError, Path, Scope, describe_type, parse_path

MAX_DEPTH = 3
MAX_NODES = 20
MAX_SHOWN_TEXT = 200
MAX_SHOWN_MEMBERS = 20


class ConditionInvalid(LanguageError):
    """An invalid condition."""


@frozen
class Predicate:
    """A test of the value at one path."""

    path: Path
    op: str
    value: Any = None
    check: Check = field(kw_only=True, eq=False, repr=False)


@frozen
class AllOf:
    """A condition that is true if every member is true."""

    members: "tuple[Condition, ...]"


@frozen
class AnyOf:
    """A condition that is true if at least one member is true."""

    members: "tuple[Condition, ...]"


@frozen
class Not:
    """A condition that is true if its member is false."""

    member: "Condition"


Condition = Predicate | AllOf | AnyOf | Not


def holds(condition: Condition, scope: Scope) -> bool:
    """Evaluate `condition` in `scope`. Never fails."""
    match condition:
        case Predicate():
            return condition.check(scope.look_up(condition.path))
        case AllOf():
            return all(holds(member, scope) for member in condition.members)
        case AnyOf():
            return any(holds(member, scope) for member in condition.members)
        case Not():
            return not holds(condition.member, scope)


def explain(condition: Condition, scope: Scope) -> list[dict[str, Any]]:
    """Return every predicate with the value it found and its result, small enough for the journal.

    `found` is missing if the value is absent.
    """
    return [_explain_predicate(predicate, scope) for predicate in _predicates(condition)]


def paths_of(condition: Condition) -> tuple[Path, ...]:
    """Return every path that `condition` reads, in the order of the configuration."""
    return tuple(predicate.path for predicate in _predicates(condition))


def as_data(condition: Condition) -> dict[str, Any]:
    """Return the plain data that `condition` was parsed from."""
    match condition:
        case Predicate():
            return _predicate_data(condition)
        case AllOf():
            return {"all": [as_data(member) for member in condition.members]}
        case AnyOf():
            return {"any": [as_data(member) for member in condition.members]}
        case Not():
            return {"not": as_data(condition.member)}


def _predicates(condition: Condition) -> Iterator[Predicate]:
    match condition:
        case Predicate():
            yield condition
        case AllOf() | AnyOf():
            for member in condition.members:
                yield from _predicates(member)
        case Not():
            yield from _predicates(condition.member)


def _predicate_data(predicate: Predicate) -> dict[str, Any]:
    data: dict[str, Any] = {"path": str(predicate.path), "op": predicate.op}
    return data if predicate.op == "exists" else data | {"value": predicate.value}


def _explain_predicate(predicate: Predicate, scope: Scope) -> dict[str, Any]:
    found = scope.look_up(predicate.path)
    data = _predicate_data(predicate)
    if found is not ABSENT:
        # Plugin configuration may contain secrets. Payload and context are in the ledger anyway.
        data["found"] = HIDDEN if predicate.path.root == "config" else _preview(found)
    return data | {"holds": predicate.check(found)}


def _preview(value: Any, *, members: int = MAX_SHOWN_MEMBERS) -> Any:
    """Return `value` if it is small, otherwise a shortened form for the journal."""
    match value:
        case str() if len(value) > MAX_SHOWN_TEXT:
            return value[:MAX_SHOWN_TEXT] + "…"
        case dict() if len(value) <= members:
            return {_preview(name): _preview(member, members=0) for name, member in value.items()}
        case list() if len(value) <= members:
            return [_preview(item, members=0) for item in value]
        case dict() | list():
            return f"… ({len(value)} members)"
        case _:
            return value


# ── parsing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_PREDICATE_KEYS = ("path", "op", "value")
_GROUP_KEYS = ("all", "any", "not")
_KEYS = _PREDICATE_KEYS + _GROUP_KEYS
_ALIASES = {
    "and": "all",
    "or": "any",
    "=": "eq",
    "==": "eq",
    "equals": "eq",
    "is": "eq",
    "!=": "neq",
    "ne": "neq",
    "not": "neq",
    ">": "gt",
    ">=": "gte",
    "<": "lt",
    "<=": "lte",
}
"""Names in other languages, for suggestions. By spelling alone, `any` would be suggested for `and`."""
_SHAPE = "a condition is `path`, `op` and `value`, or exactly one of `all`, `any` and `not`"


def parse_condition(raw: Any, *, roots: Collection[str]) -> Condition:
    """Parse plain YAML data into a condition. Raises ConditionInvalid with every error."""
    if complaints := tuple(_complaints(raw, "", 1, roots)):
        raise ConditionInvalid(*complaints)
    condition = _build(raw, roots)
    if (parts := _size(condition)) > MAX_NODES:
        raise ConditionInvalid(
            Complaint(f"has {parts} parts, the limit is {MAX_NODES}; move the decision into a plugin")
        )
    return condition


def _build(raw: Mapping[str, Any], roots: Collection[str]) -> Condition:
    """Build the condition from data without errors."""
    match raw:
        case {"all": members}:
            return AllOf(tuple(_build(member, roots) for member in members))
        case {"any": members}:
            return AnyOf(tuple(_build(member, roots) for member in members))
        case {"not": member}:
            return Not(_build(member, roots))
    op, value = raw["op"], raw.get("value")
    return Predicate(parse_path(raw["path"], roots=roots), op, value, check=OPERATORS[op].prepare(value))


def _size(condition: Condition) -> int:
    match condition:
        case Predicate():
            return 1
        case AllOf() | AnyOf():
            return 1 + sum(map(_size, condition.members))
        case Not():
            return 1 + _size(condition.member)


def _complaints(raw: Any, where: str, depth: int, roots: Collection[str]) -> Iterator[Complaint]:
    if depth > MAX_DEPTH:
        yield Complaint(
            f"is nested more than {MAX_DEPTH} levels deep; flatten it, or move the decision into a plugin", where
        )
        return
    if not isinstance(raw, dict):
        yield Complaint(f"expected a condition, got {describe_type(raw)}; {_SHAPE}", where)
        return
    if unknown := [key for key in raw if key not in _KEYS]:
        yield from (Complaint(f"unknown key{_hint(key, _KEYS)}; {_SHAPE}", _join_path(where, key)) for key in unknown)
        return
    match list(raw):
        case ["not"]:
            yield from _complaints_about_one(raw["not"], _join_path(where, "not"), depth, roots)
        case ["all" | "any" as form]:
            yield from _complaints_about_members(raw[form], _join_path(where, form), depth, roots)
        case keys if keys and not set(keys) & set(_GROUP_KEYS):
            yield from _complaints_about_predicate(raw, where, roots)
        case keys:
            yield Complaint(f"has {' and '.join(keys) or 'no keys'}; {_SHAPE}", where)


def _complaints_about_one(raw: Any, where: str, depth: int, roots: Collection[str]) -> Iterator[Complaint]:
    if isinstance(raw, list):
        yield Complaint("requires one condition, not a list; wrap the list in `all` or `any`", where)
    else:
        yield from _complaints(raw, where, depth + 1, roots)


def _complaints_about_members(raw: Any, where: str, depth: int, roots: Collection[str]) -> Iterator[Complaint]:
    if not isinstance(raw, list) or not raw:
        yield Complaint(
            f"requires a list of conditions, got {'an empty list' if raw == [] else describe_type(raw)}", where
        )
        return
    for index, member in enumerate(raw):
        yield from _complaints(member, f"{where}[{index}]", depth + 1, roots)


def _complaints_about_predicate(raw: Mapping[str, Any], where: str, roots: Collection[str]) -> Iterator[Complaint]:
    if "path" not in raw:
        yield Complaint("`path` is missing: name the value to test, such as payload.status", where)
    else:
        try:
            parse_path(raw["path"], roots=roots)
        except LanguageError as error:
            yield Complaint(str(error), _join_path(where, "path"))
    op = raw.get("op")
    if "op" not in raw:
        yield Complaint(f"`op` is missing: one of {', '.join(OPERATORS)}", where)
    elif not isinstance(op, str) or op not in OPERATORS:
        found = f"{quote_text(op)}{_hint(op, OPERATORS)}" if isinstance(op, str) else describe_type(op)
        yield Complaint(f"expected one of {', '.join(OPERATORS)}, got {found}", _join_path(where, "op"))
    elif problem := _value_problem(op, raw):
        yield Complaint(problem, _join_path(where, "value") if "value" in raw else where)


def _value_problem(op: str, raw: Mapping[str, Any]) -> str | None:
    """Return the error in the comparison value of `op`; None if it is valid."""
    operand, has_value, value = OPERATORS[op].operand, "value" in raw, raw.get("value")
    if operand == "nothing":
        return f"`{op}` takes no `value`; remove it" if has_value else None
    if not has_value:
        return f"`value` is missing: `{op}` compares with {operand}"
    if value is None:
        return "`value` cannot be null; to test whether a value is present, use `exists`, alone or inside `not`"
    if operand not in ("a value", describe_type(value)):
        return f"`{op}` compares with {operand}, got {describe_type(value)}"
    try:
        OPERATORS[op].prepare(value)
    except ValueError as error:
        return str(error)
    return None


def _hint(word: str, known: Collection[str]) -> str:
    return did_you_mean(_ALIASES.get(word, word), known)


def _join_path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
