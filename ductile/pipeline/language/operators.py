"""The operators of predicates. Each prepares its check once, at load.

A prepared check accepts every JSON value, and ABSENT as null, and never fails.
"""

import operator
from collections.abc import Callable
from typing import Any, Literal

from attrs import frozen

from ductile.core.units import quote_text
from ductile.pipeline.language.paths import ABSENT, json_equal

Check = Callable[[Any], bool]


@frozen
class Operator:
    """The type of value that an operator compares with, and the check it prepares."""

    operand: Literal["nothing", "a value", "a list", "a number", "text"]
    prepare: Callable[[Any], Check]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exists(_: Any) -> Check:
    return lambda found: found is not ABSENT


def _eq(value: Any) -> Check:
    return lambda found: json_equal(found, value)


def _neq(value: Any) -> Check:
    return lambda found: not json_equal(found, value)


def _in(values: list[Any]) -> Check:
    texts = frozenset(value for value in values if isinstance(value, str))
    others = [value for value in values if not isinstance(value, str)]

    def check(found: Any) -> bool:
        if isinstance(found, str):
            return found in texts
        known = None if found is ABSENT else found
        return any(json_equal(known, value) for value in others)

    return check


def _order(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Check]:
    return lambda value: lambda found: _is_number(found) and compare(found, value)


def _text(compare: Callable[[str, str], bool]) -> Callable[[str], Check]:
    """Compare case-insensitively, with Unicode case folding: `STRASSE` equals `straße`."""

    def prepare(value: str) -> Check:
        folded = value.casefold()
        return lambda found: isinstance(found, str) and compare(found.casefold(), folded)

    return prepare


def _regex(pattern: str) -> Check:
    # Imported late: the import takes longer than loading most configurations, and few use a pattern.
    import re2

    options = re2.Options()
    options.log_errors = False  # otherwise the library writes to stderr
    options.never_capture = True
    try:
        # Bytes, because for text the library also computes character offsets.
        match = re2.compile(pattern.encode(), options).fullmatch
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"{quote_text(pattern)} is not a valid RE2 regular expression: {_reason(error)}") from error
    return lambda found: isinstance(found, str) and match(found.encode(errors="replace")) is not None


def _reason(error: Exception) -> str:
    message = error.args[0] if len(error.args) == 1 else str(error)
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


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
