"""Building blocks for configuration classes: documented keys, and value rules as type annotations.

Each annotation has three uses: the loader enforces it, the JSON Schema and the reference page publish it. Rules that
only one section needs are defined there.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Annotated, Any

from attrs import NOTHING, field, frozen

DOC = "doc"
YAML_NAME = "yaml"


def option(
    doc: str, *, default: Any = NOTHING, factory: Any = None, name: str | None = None, private: bool = False
) -> Any:
    """Define a YAML key with its documentation and default (none: required).

    `name` is for keys that are Python keywords. `private` values may contain secrets and are omitted from the repr.
    """
    metadata = {DOC: doc} | ({YAML_NAME: name} if name else {})
    if factory is not None:
        return field(factory=factory, metadata=metadata, repr=not private)
    return field(default=default, metadata=metadata, repr=not private)


@frozen(eq=False)
class ValueRule:
    """A check of one value, the description of allowed values, and the JSON Schema equivalent."""

    allows: Callable[[Any], bool] = field(repr=False)
    allowed: str
    schema: dict[str, Any] = field(factory=dict)


@frozen(eq=False)
class TextType:
    """A type with its own text format, such as a byte size."""

    parse: Callable[[str], Any] = field(repr=False)
    schema: dict[str, Any] = field(factory=dict)


@frozen
class SingleOrList:
    """An annotation for a list that may be written as a single value."""


@frozen(eq=False)
class ExternalSchema:
    """An annotation for a mapping that another module parses: its name, JSON Schema and an example."""

    name: str
    schema: dict[str, Any]
    example: str


def at_least(minimum: int) -> ValueRule:
    return ValueRule(lambda number: number >= minimum, f"{minimum} or more", {"minimum": minimum})


def pattern(regex: str, allowed: str) -> ValueRule:
    @cache
    def compiled() -> re.Pattern[str]:  # lazily: most configurations use few of the keys
        return re.compile(regex, re.ASCII)

    return ValueRule(lambda text: compiled().fullmatch(text) is not None, allowed, {"pattern": f"^(?:{regex})$"})


def _is_one_line(text: str) -> bool:
    return bool(text.strip()) and _CONTROL.search(text) is None


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

POSITIVE = ValueRule(lambda span: span > timedelta(), "longer than zero")
NOT_NEGATIVE = ValueRule(lambda span: span >= timedelta(), "zero or longer")
ONE_LINE = ValueRule(_is_one_line, "text that is not blank and has no control characters", {"pattern": "\\S"})
SLUG = pattern("[a-z0-9]+(?:-[a-z0-9]+)*", "lower-case words joined by '-', such as home-lab")
EVENT_TYPE = pattern("[a-z0-9]+(?:[._-][a-z0-9]+)*", "lower-case words joined by '.', '_' or '-', such as backup.ready")
NAME = pattern("[A-Za-z0-9_][A-Za-z0-9_.-]*", "letters, digits, '_', '-' and '.'")
COMMAND = pattern("[A-Za-z][A-Za-z0-9_-]*", "a command name: a letter, then letters, digits, '_' or '-'")

Text = Annotated[str, ONE_LINE]
Count = Annotated[int, at_least(1)]
Number = Annotated[int, at_least(0)]
Span = Annotated[timedelta, POSITIVE]
Retention = Annotated[timedelta, NOT_NEGATIVE]
Slug = Annotated[str, SLUG]
EventType = Annotated[str, EVENT_TYPE]
Name = Annotated[str, NAME]
