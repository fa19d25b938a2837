"""Paths such as `payload.user.id`: their syntax and their lookup in a scope.

Conditions, templates and baggage use it. A path is names and dots: no list indexes, no escapes.
"""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from itertools import islice
from typing import Any, Final

from attrs import field, frozen

from ductile.core.errors import Complaint, did_you_mean
from ductile.core.units import quote_text

MAX_SEGMENTS = 32
"""Bounds the nesting of baggage, so that a context always stays within the JSON depth limit."""
MAX_SUGGESTION_NAMES = 200
"""How many names of an object are searched for a suggestion."""
CLOSE_TO_ROOT = 0.8

# Characters of indexes, wildcards, filters and expressions. Such a path would never match, so it is rejected.
_NOT_IN_A_NAME = re.compile(r"""[\s\x00-\x1f\x7f-\x9f\[\]{}()<>|=,"'`\\*?]""")
_AVAILABILITY = {
    "item": "`item` exists only inside a step with `foreach`",
    "config": "`config` is available only in the `if` of a step",
}


class _Absent(Enum):
    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent.ABSENT
"""The result of a lookup that finds nothing. A present null is None."""


class LanguageError(ValueError):
    """Invalid pipeline syntax. Each complaint has the path of the invalid value, relative to what was parsed."""

    def __init__(self, *complaints: Complaint) -> None:
        super().__init__("\n".join(map(str, complaints)))
        self.complaints = complaints


class PathInvalid(LanguageError):
    """An invalid path."""


@frozen
class Path:
    """A root and the names below it; without names, the whole root."""

    root: str
    segments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join((self.root, *self.segments))


class PathAbsent(LookupError):
    """A path without a value."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


@frozen
class Scope:
    """The values that paths can read at one point of a run. Plain JSON data; never modified."""

    payload: Mapping[str, Any]
    context: Mapping[str, Any]
    config: Mapping[str, Any] = field(factory=dict, repr=False)
    item: Any = ABSENT

    def look_up(self, path: Path) -> Any:
        """Return the value at `path`, or ABSENT if a name is missing or its parent is not an object."""
        value = getattr(self, path.root)
        for name in path.segments:
            if not _is_object(value):
                return ABSENT
            value = value.get(name, ABSENT)
        return value

    def require(self, path: Path) -> Any:
        """Return the value at `path`. Raises PathAbsent, which names the first missing part."""
        value = self.look_up(path)
        if value is ABSENT:
            raise PathAbsent(path, f"{path} is absent: {self._absence_reason(path)}")
        return value

    def _absence_reason(self, path: Path) -> str:
        value, reached = getattr(self, path.root), path.root
        for name in path.segments:
            if not _is_object(value):
                return f"{reached} is {describe_type(value)}, not an object"
            if name not in value:
                return f"{reached} has no {quote_text(name)}{did_you_mean(name, islice(value, MAX_SUGGESTION_NAMES))}"
            value, reached = value[name], f"{reached}.{name}"
        return _AVAILABILITY["item"]


def parse_path(text: Any, *, roots: Collection[str], allow_whole: bool = False) -> Path:
    """Parse a path. Raises PathInvalid.

    `allow_whole` permits a root without names. `item` never needs names, because it is often a plain value.
    """
    if not isinstance(text, str):
        raise _refused(f"expected a path such as payload.status, got {describe_type(text)}")
    if text.startswith("{") and text.endswith("}"):
        raise _refused(f"expected a path without braces, got {quote_text(text)}")
    _require_names_and_dots(text)
    root, *segments = text.split(".")
    _require_root(root, text, roots)
    if not segments and root != "item" and not allow_whole:
        raise _refused(f"{quote_text(text)} is the whole object; name a value inside it, such as {root}.status")
    if len(segments) > MAX_SEGMENTS:
        raise _refused(f"{quote_text(text)} has more than {MAX_SEGMENTS} names")
    return Path(root, tuple(segments))


def _require_names_and_dots(text: str) -> None:
    if "[" in text:
        advice = "use `foreach`, or select the element in the plugin"
        raise _refused(f"{quote_text(text)} is not a path: lists cannot be indexed; {advice}")
    if found := _NOT_IN_A_NAME.search(text):
        what = "whitespace" if found[0].isspace() else quote_text(found[0])
        raise _refused(f"{quote_text(text)} is not a path: names cannot contain {what}")
    if not all(text.split(".")):
        raise _refused(f"{quote_text(text)} is not a path: a name is missing" + (" next to a dot" if text else ""))


def _require_root(root: str, text: str, roots: Collection[str]) -> None:
    if root in roots:
        return
    known = sorted(roots, key=_ORDER.index)
    if root in _AVAILABILITY:
        raise _refused(f"{quote_text(text)} is not available here: {_AVAILABILITY[root]}")
    is_bare = root == text  # more often the name of a value than a misspelled root
    hint = did_you_mean(root, known, cutoff=CLOSE_TO_ROOT) if is_bare else did_you_mean(root, known)
    if is_bare and not hint:
        hint = f" (did you mean {quote_text(f'payload.{text}')}?)"
    raise _refused(f"{quote_text(text)} is not a path: it must start with {_join_with_or(known)}{hint}")


_ORDER = ("payload", "context", "config", "item")


def _join_with_or(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _refused(message: str) -> PathInvalid:
    return PathInvalid(Complaint(message))


def _is_object(value: Any) -> bool:
    # The check for Mapping is several times slower, and nearly every object is a dict.
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101


def json_equal(left: Any, right: Any) -> bool:
    """Compare two JSON values: numbers by value, everything else by type and value, recursively."""
    return left is right or (left == right and _same_types(left, right))


def _same_types(left: Any, right: Any) -> bool:
    """Tell booleans from numbers in two values that are equal in Python, where True == 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict):
        return all(_same_types(member, right[name]) for name, member in left.items())
    if isinstance(left, list):
        return all(map(_same_types, left, right))
    return True


def describe_type(value: Any) -> str:
    """Name the type of a JSON value, for messages that must not show the value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"
