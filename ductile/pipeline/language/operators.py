"""What a predicate can ask of one value: each operator prepares its question once, at load.

A prepared question has an answer for every JSON value and for ABSENT, which counts as null; it never fails. Only
conditions ask.
"""

import operator
from collections.abc import Callable
from typing import Any, Literal

from attrs import frozen

from ductile.core.units import shown
from ductile.pipeline.language.paths import ABSENT, same

Check = Callable[[Any], bool]


@frozen
class Operator:
    """What a predicate compares with, and the question it makes of that."""

    wants: Literal["nothing", "a value", "a list", "a number", "text"]
    prepare: Callable[[Any], Check]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exists(_: Any) -> Check:
    return lambda found: found is not ABSENT


def _eq(value: Any) -> Check:
    return lambda found: same(found, value)


def _neq(value: Any) -> Check:
    return lambda found: not same(found, value)


def _in(values: list[Any]) -> Check:
    texts = frozenset(value for value in values if isinstance(value, str))
    others = [value for value in values if not isinstance(value, str)]

    def check(found: Any) -> bool:
        if isinstance(found, str):
            return found in texts
        known = None if found is ABSENT else found
        return any(same(known, value) for value in others)

    return check


def _order(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Check]:
    return lambda value: lambda found: _is_number(found) and compare(found, value)


def _text(compare: Callable[[str, str], bool]) -> Callable[[str], Check]:
    """Without regard to case, as Unicode folds it: `STRASSE` is `straße`."""

    def prepare(value: str) -> Check:
        folded = value.casefold()
        return lambda found: isinstance(found, str) and compare(found.casefold(), folded)

    return prepare


def _regex(pattern: str) -> Check:
    # Costs more to load than most configurations cost to read, and few of them have a pattern.
    import re2

    options = re2.Options()
    options.log_errors = False  # else the library writes to stderr on its own
    options.never_capture = True
    try:
        # As bytes: for text the library would also count every character, which a yes or no does not need.
        match = re2.compile(pattern.encode(), options).fullmatch
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"{shown(pattern)} is not a regular expression in RE2's notation: {_reason(error)}") from error
    return lambda found: isinstance(found, str) and match(found.encode(errors="replace")) is not None


def _reason(error: Exception) -> str:
    told = error.args[0] if len(error.args) == 1 else str(error)
    return told.decode(errors="replace") if isinstance(told, bytes) else str(told)


OPERATORS = {
    "exists": Operator("nothing", _exists),
    "eq": Operator("a value", _eq),
    "neq": Operator("a value", _neq),
    "in": Operator("a list", _in),
    "gt": Operator("a number", _order(operator.gt)),
    "gte": Operator("a number", _order(operator.ge)),
    "lt": Operator("a number", _order(operator.lt)),
    "lte": Operator("a number", _order(operator.le)),
    "contains": Operator("text", _text(operator.contains)),
    "startswith": Operator("text", _text(str.startswith)),
    "endswith": Operator("text", _text(str.endswith)),
    "regex": Operator("text", _regex),
}
