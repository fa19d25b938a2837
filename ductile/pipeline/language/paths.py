"""`payload.user.id`: how a workflow names a value, and how the value is found.

Knows what an author may write and what is in reach at one moment of a run (the scope), not what the value is for:
conditions, templates and baggage read their paths here. No list indexing and no escapes: a path is names and dots.
"""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from itertools import islice
from typing import Any, Final

from attrs import field, frozen

from ductile.core.errors import Complaint, did_you_mean
from ductile.core.units import shown

MAX_SEGMENTS = 32
"""More than anybody reads, and few enough that what is nested by a path can be written as JSON and read again."""
MAX_GUESSES = 200
"""Among how many names the one that was meant is looked for."""

# What people write who expect indexes, wildcards, filters or expressions: better refused than never found.
_NOT_IN_A_NAME = re.compile(r"""[\s\x00-\x1f\x7f-\x9f\[\]{}()<>|=,"'`\\*?]""")
_ELSEWHERE = {
    "item": "`item` exists only inside a step with `foreach`",
    "config": "`config` can be read only in the `if` of a step",
}


class _Absent(Enum):
    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent.ABSENT
"""What is found where nothing is. A null that is there is None."""


class LanguageError(ValueError):
    """What an author wrote cannot be read. Each complaint has its place inside what was written as its path."""

    def __init__(self, *complaints: Complaint) -> None:
        super().__init__("\n".join(map(str, complaints)))
        self.complaints = complaints


class PathInvalid(LanguageError):
    """A path cannot be read."""


@frozen
class Path:
    """A root and the names below it; no names means all of the root."""

    root: str
    segments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join((self.root, *self.segments))


class PathAbsent(LookupError):
    """A path leads to nothing."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


@frozen
class Scope:
    """The values that paths can reach at one moment of a run: plain JSON data, which nobody changes."""

    payload: Mapping[str, Any]
    context: Mapping[str, Any]
    config: Mapping[str, Any] = field(factory=dict, repr=False)
    item: Any = ABSENT

    def look_up(self, path: Path) -> Any:
        """The value at `path`, or ABSENT when a name is missing or its parent is no object."""
        value = getattr(self, path.root)
        for name in path.segments:
            if not _is_object(value):
                return ABSENT
            value = value.get(name, ABSENT)
        return value

    def require(self, path: Path) -> Any:
        """The value at `path`; PathAbsent says how far the path leads."""
        value = self.look_up(path)
        if value is ABSENT:
            raise PathAbsent(path, f"{path} is absent: {self._dead_end(path)}")
        return value

    def _dead_end(self, path: Path) -> str:
        value, reached = getattr(self, path.root), path.root
        for name in path.segments:
            if not _is_object(value):
                return f"{reached} is {kind_of(value)}, not an object"
            if name not in value:
                return f"{reached} has no {shown(name)}{did_you_mean(name, islice(value, MAX_GUESSES))}"
            value, reached = value[name], f"{reached}.{name}"
        return _ELSEWHERE["item"]


def parse_path(text: Any, *, roots: Collection[str], allow_whole: bool = False) -> Path:
    """The path that `text` writes; PathInvalid says what is wrong with it.

    A root may stand alone if `allow_whole`. `item` always may: it is a value, and often one without names below it.
    """
    if not isinstance(text, str):
        raise _refused(f"expected a path such as payload.status, got {kind_of(text)}")
    if text.startswith("{") and text.endswith("}"):
        raise _refused(f"expected a path without braces, got {shown(text)}")
    _require_names_and_dots(text)
    root, *segments = text.split(".")
    _require_root(root, text, roots)
    if not segments and root != "item" and not allow_whole:
        raise _refused(f"{shown(text)} is all of it; name a value in it, such as {root}.status")
    if len(segments) > MAX_SEGMENTS:
        raise _refused(f"{shown(text)} has more than {MAX_SEGMENTS} names")
    return Path(root, tuple(segments))


def _require_names_and_dots(text: str) -> None:
    if "[" in text:
        raise _refused(f"{shown(text)} is not a path: lists cannot be indexed; use `foreach`, or let the plugin choose")
    if found := _NOT_IN_A_NAME.search(text):
        what = "a blank" if found[0].isspace() else shown(found[0])
        raise _refused(f"{shown(text)} is not a path: {what} cannot be part of a name")
    if not all(text.split(".")):
        raise _refused(f"{shown(text)} is not a path: a name is missing" + (" beside a dot" if text else ""))


def _require_root(root: str, text: str, roots: Collection[str]) -> None:
    if root in roots:
        return
    known = sorted(roots, key=_ORDER.index)
    if root in _ELSEWHERE:
        raise _refused(f"{shown(text)} cannot be read here: {_ELSEWHERE[root]}")
    hint = did_you_mean(root, known) if root != text else f" (did you mean {shown(f'payload.{text}')}?)"
    raise _refused(f"{shown(text)} is not a path: it must begin with {_either(known)}{hint}")


_ORDER = ("payload", "context", "config", "item")


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _refused(message: str) -> PathInvalid:
    return PathInvalid(Complaint(message))


def _is_object(value: Any) -> bool:
    # Asking for a Mapping is several times slower, and nearly every object is a dict.
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: numbers by value, everything else by type and value, all the way down."""
    return one is other or (one == other and _same_kinds(one, other))


def _same_kinds(one: Any, other: Any) -> bool:
    """For two values that Python finds equal, to whom true is 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict):
        return all(_same_kinds(member, other[name]) for name, member in one.items())
    if isinstance(one, list):
        return all(map(_same_kinds, one, other))
    return True


def kind_of(value: Any) -> str:
    """What a JSON value is, in words for a message that must not show the value."""
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
