"""Does a value look as somebody wrote it down? The few rules of fixtures and of pipeline cases. Pure.

An object holds if every member that is written holds; a list, if it is as long and every item holds; anything else, if
it is equal. Texts like `${any}` are patterns.
"""

import re
from collections.abc import Iterator
from typing import Any

from ductile import strict_json

PATTERN = re.compile(r"\$\{(any|text|number|absent|contains:(.+))\}", re.DOTALL)
ESCAPE = "$${"
"""How a text begins that is meant as it stands, although it begins like a pattern."""
LONGEST_TOLD = 200


def mismatches(expected: Any, found: Any, *, exact: bool = False, at: str = "") -> Iterator[str]:
    """Every difference in one line each: where, what was expected, what was found. `exact` allows no more members."""
    match expected:
        case str() if (pattern := PATTERN.fullmatch(expected)) is not None:
            if not _fits(pattern, found):
                yield f"{at}: expected {expected}, found {_told(found)}"
        case dict() if isinstance(found, dict):
            yield from _members(expected, found, exact, at)
        case list() if isinstance(found, list):
            if len(expected) != len(found):
                yield f"{at}: expected {len(expected)} items, found {len(found)}: {_told(found)}"
                return
            for index, (one, other) in enumerate(zip(expected, found, strict=True)):
                yield from mismatches(one, other, exact=exact, at=f"{at}[{index}]")
        case _:
            wanted = expected[1:] if isinstance(expected, str) and expected.startswith(ESCAPE) else expected
            if wanted != found or not (type(wanted) is type(found) or _are_numbers(wanted, found)):
                yield f"{at}: expected {_told(wanted)}, found {_told(found)}"


def _members(expected: dict[str, Any], found: dict[str, Any], exact: bool, at: str) -> Iterator[str]:
    for name, value in expected.items():
        inside = f"{at}.{name}" if at else name
        if value == "${absent}":
            if name in found:
                yield f"{inside}: expected to be absent, found {_told(found[name])}"
        elif name not in found:
            yield f"{inside}: expected {_told(value)}, but it is absent"
        else:
            yield from mismatches(value, found[name], exact=exact, at=inside)
    if exact:
        yield from (f"{at}.{name}: not expected, found {_told(found[name])}" for name in found if name not in expected)


def _fits(pattern: re.Match[str], found: Any) -> bool:
    match pattern[1]:
        case "any":
            return True
        case "text":
            return isinstance(found, str)
        case "number":
            return _are_numbers(found, 0)
        case "absent":
            return False
    return isinstance(found, str) and pattern[2] in found


def _are_numbers(one: Any, other: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))


def _told(value: Any) -> str:
    text = strict_json.dumps(value)
    return text if len(text) <= LONGEST_TOLD else f"{text[:LONGEST_TOLD]}…"
