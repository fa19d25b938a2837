"""`if:` predicates: what an author may ask, and the answer for one scope.

A condition is read once, at load, with everything prepared that does not depend on the scope. Asking it then never
fails: an absent value compares as null, and a value of another type is simply not equal, less or matching.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import field, frozen

from ductile.core.errors import Complaint, did_you_mean
from ductile.core.secret import HIDDEN
from ductile.core.units import shown
from ductile.pipeline.language.operators import OPERATORS, Check
from ductile.pipeline.language.paths import ABSENT, LanguageError, Path, Scope, kind_of, parse_path

MAX_DEPTH = 3
MAX_NODES = 20
MAX_SHOWN_TEXT = 200
MAX_SHOWN_MEMBERS = 20


class ConditionInvalid(LanguageError):
    """A condition cannot be read."""


@frozen
class Predicate:
    """One question about the value at one path."""

    path: Path
    op: str
    value: Any = None
    check: Check = field(kw_only=True, eq=False, repr=False)


@frozen
class AllOf:
    """True when every member is."""

    members: "tuple[Condition, ...]"


@frozen
class AnyOf:
    """True when at least one member is."""

    members: "tuple[Condition, ...]"


@frozen
class Not:
    """True when its member is not."""

    member: "Condition"


Condition = Predicate | AllOf | AnyOf | Not


def holds(condition: Condition, scope: Scope) -> bool:
    """Whether `condition` is true in `scope`; there is an answer for all JSON values."""
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
    """Every predicate with what it found and its answer, short enough to be kept; an absent value has no `found`."""
    return [_explained(predicate, scope) for predicate in _predicates(condition)]


def paths_of(condition: Condition) -> tuple[Path, ...]:
    """Every path that `condition` reads, in the order they are written."""
    return tuple(predicate.path for predicate in _predicates(condition))


def as_data(condition: Condition) -> dict[str, Any]:
    """The plain data that `condition` was read from."""
    match condition:
        case Predicate():
            return _written(condition)
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


def _written(predicate: Predicate) -> dict[str, Any]:
    data: dict[str, Any] = {"path": str(predicate.path), "op": predicate.op}
    return data if predicate.op == "exists" else data | {"value": predicate.value}


def _explained(predicate: Predicate, scope: Scope) -> dict[str, Any]:
    found = scope.look_up(predicate.path)
    data = _written(predicate)
    if found is not ABSENT:
        # What an operator configured for a plugin may be a secret; what flows through a run is on record anyway.
        data["found"] = HIDDEN if predicate.path.root == "config" else _glimpse(found)
    return data | {"holds": predicate.check(found)}


def _glimpse(value: Any, *, members: int = MAX_SHOWN_MEMBERS) -> Any:
    """`value` if it is small, else enough of it to recognise it: the journal is no place for megabytes."""
    match value:
        case str() if len(value) > MAX_SHOWN_TEXT:
            return value[:MAX_SHOWN_TEXT] + "…"
        case dict() if len(value) <= members:
            return {_glimpse(name): _glimpse(member, members=0) for name, member in value.items()}
        case list() if len(value) <= members:
            return [_glimpse(item, members=0) for item in value]
        case dict() | list():
            return f"… ({len(value)} members)"
        case _:
            return value


# --- reading what an author wrote -------------------------------------------------------------------------------------

_ASKING = ("path", "op", "value")
_COMBINING = ("all", "any", "not")
_KEYS = _ASKING + _COMBINING
_ELSEWHERE = {
    "and": "all",
    "or": "any",
    "=": "eq",
    "==": "eq",
    "!=": "neq",
    ">": "gt",
    ">=": "gte",
    "<": "lt",
    "<=": "lte",
}
"""What other languages call it; by its letters alone, `and` would be taken for `any`."""
_SHAPE = "a condition is `path`, `op` and `value`, or exactly one of `all`, `any` and `not`"


def parse_condition(raw: Any, *, roots: Collection[str]) -> Condition:
    """The condition that `raw` (plain YAML data) spells out; ConditionInvalid tells everything wrong with it."""
    if complaints := tuple(_complaints(raw, "", 1, roots)):
        raise ConditionInvalid(*complaints)
    condition = _read(raw, roots)
    if (parts := _size(condition)) > MAX_NODES:
        raise ConditionInvalid(Complaint(f"has {parts} parts, at most {MAX_NODES} are allowed; let a plugin decide"))
    return condition


def _read(raw: Mapping[str, Any], roots: Collection[str]) -> Condition:
    """`raw` is known to be free of mistakes."""
    match raw:
        case {"all": members}:
            return AllOf(tuple(_read(member, roots) for member in members))
        case {"any": members}:
            return AnyOf(tuple(_read(member, roots) for member in members))
        case {"not": member}:
            return Not(_read(member, roots))
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
        yield Complaint(f"is nested more than {MAX_DEPTH} deep; flatten it, or let a plugin decide", where)
        return
    if not isinstance(raw, dict):
        yield Complaint(f"expected a condition, got {kind_of(raw)}; {_SHAPE}", where)
        return
    if unknown := [key for key in raw if key not in _KEYS]:
        yield from (Complaint(f"unknown key{_hint(key, _KEYS)}; {_SHAPE}", _below(where, key)) for key in unknown)
        return
    match list(raw):
        case ["not"]:
            yield from _complaints_about_one(raw["not"], _below(where, "not"), depth, roots)
        case ["all" | "any" as form]:
            yield from _complaints_about_members(raw[form], _below(where, form), depth, roots)
        case keys if keys and not set(keys) & set(_COMBINING):
            yield from _complaints_about_predicate(raw, where, roots)
        case keys:
            yield Complaint(f"has {' and '.join(keys) or 'nothing to ask'}; {_SHAPE}", where)


def _complaints_about_one(raw: Any, where: str, depth: int, roots: Collection[str]) -> Iterator[Complaint]:
    if isinstance(raw, list):
        yield Complaint("takes one condition, not a list; put `all` or `any` around the list", where)
    else:
        yield from _complaints(raw, where, depth + 1, roots)


def _complaints_about_members(raw: Any, where: str, depth: int, roots: Collection[str]) -> Iterator[Complaint]:
    if not isinstance(raw, list) or not raw:
        yield Complaint(f"takes a list of conditions, got {'an empty one' if raw == [] else kind_of(raw)}", where)
        return
    for index, member in enumerate(raw):
        yield from _complaints(member, f"{where}[{index}]", depth + 1, roots)


def _complaints_about_predicate(raw: Mapping[str, Any], where: str, roots: Collection[str]) -> Iterator[Complaint]:
    if "path" not in raw:
        yield Complaint("`path` is missing: name the value to look at, such as payload.status", where)
    else:
        try:
            parse_path(raw["path"], roots=roots)
        except LanguageError as error:
            yield Complaint(str(error), _below(where, "path"))
    op = raw.get("op")
    if "op" not in raw:
        yield Complaint(f"`op` is missing: one of {', '.join(OPERATORS)}", where)
    elif not isinstance(op, str) or op not in OPERATORS:
        told = f"{shown(op)}{_hint(op, OPERATORS)}" if isinstance(op, str) else kind_of(op)
        yield Complaint(f"expected one of {', '.join(OPERATORS)}, got {told}", _below(where, "op"))
    elif problem := _value_problem(op, raw):
        yield Complaint(problem, _below(where, "value") if "value" in raw else where)


def _value_problem(op: str, raw: Mapping[str, Any]) -> str | None:
    """What is wrong with the value that `op` is to compare with, if anything is."""
    wants, given, value = OPERATORS[op].wants, "value" in raw, raw.get("value")
    if wants == "nothing":
        return f"`{op}` asks only whether the path is there; leave `value` out" if given else None
    if not given:
        return f"`value` is missing: `{op}` compares with {wants}"
    if value is None:
        return "nothing can be compared with null; `exists`, or `not` around it, tells whether a value is there"
    if wants not in ("a value", kind_of(value)):
        return f"`{op}` compares with {wants}, got {kind_of(value)}"
    try:
        OPERATORS[op].prepare(value)
    except ValueError as error:
        return str(error)
    return None


def _hint(word: str, known: Collection[str]) -> str:
    return did_you_mean(_ELSEWHERE.get(word, word), known)


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
