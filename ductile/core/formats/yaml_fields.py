"""How classes for YAML describe themselves: keys with their one-line explanation, value rules as type annotations.

One annotation serves three readers: the loader enforces it, the JSON Schema publishes it, the reference page prints it.
Knows no section; rules that only one room needs stand there.
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
    """A YAML key: what it does, and its default (none = required). `name` is for keys that are Python keywords.

    `private` values may hold the operator's secrets and are left out of the section's repr.
    """
    metadata = {DOC: doc} | ({YAML_NAME: name} if name else {})
    if factory is not None:
        return field(factory=factory, metadata=metadata, repr=not private)
    return field(default=default, metadata=metadata, repr=not private)


@frozen(eq=False)
class ValueRule:
    """A test for one value, the words for what is allowed, and its JSON Schema counterpart."""

    allows: Callable[[Any], bool] = field(repr=False)
    allowed: str
    schema: dict[str, Any] = field(factory=dict)


@frozen(eq=False)
class TextType:
    """A type that is written as text with a grammar of its own, such as a byte size."""

    parse: Callable[[str], Any] = field(repr=False)
    schema: dict[str, Any] = field(factory=dict)


@frozen
class Lone:
    """A list that may be written as its only member."""


@frozen(eq=False)
class Grammar:
    """Plain data that another room reads: its name and its JSON Schema."""

    name: str
    schema: dict[str, Any]


def at_least(least: int) -> ValueRule:
    return ValueRule(lambda number: number >= least, f"{least} or more", {"minimum": least})


def pattern(regex: str, allowed: str) -> ValueRule:
    @cache
    def compiled() -> re.Pattern[str]:  # when it is needed: most texts have few of the keys
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
