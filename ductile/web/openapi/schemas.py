"""JSON schemas in few words: how a route tells what it takes and what it gives.

Pure values in the dialect of OpenAPI 3.1. A schema with a title is one that several routes share; the description of
the API lists it once under that name.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from attrs import frozen

Schema: TypeAlias = Mapping[str, Any]


@frozen
class Argument:
    """One query argument of a route."""

    name: str
    schema: Schema
    description: str = ""


@frozen
class Header:
    """One request header that means something to a route."""

    name: str
    schema: Schema
    description: str = ""


def _described(schema: dict[str, Any], description: str) -> Schema:
    return {**schema, "description": description} if description else schema


def text(description: str = "", **rules: Any) -> Schema:
    return _described({"type": "string", **rules}, description)


def choice(options: Iterable[str], description: str = "") -> Schema:
    return _described({"type": "string", "enum": [str(option) for option in options]}, description)


def moment(description: str = "") -> Schema:
    return _described({"type": "string", "format": "date-time"}, description)


def integer(description: str = "", **rules: Any) -> Schema:
    return _described({"type": "integer", **rules}, description)


def number(description: str = "", **rules: Any) -> Schema:
    return _described({"type": "number", **rules}, description)


def boolean(description: str = "") -> Schema:
    return _described({"type": "boolean"}, description)


def anything(description: str = "") -> Schema:
    return _described({}, description)


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def listing(items: Schema, description: str = "", **rules: Any) -> Schema:
    return _described({"type": "array", "items": items, **rules}, description)


def by_name(values: Schema, description: str = "") -> Schema:
    """An object whose keys are names and whose values all look alike."""
    return _described({"type": "object", "additionalProperties": values}, description)


def record(
    required: Mapping[str, Schema],
    optional: Mapping[str, Schema] | None = None,
    *,
    title: str = "",
    description: str = "",
    is_closed: bool = True,
) -> Schema:
    """An object with these members; a closed one has no others."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
    }
    if not schema["required"]:
        del schema["required"]
    if is_closed:
        schema["additionalProperties"] = False
    if title:
        schema["title"] = title
    return _described(schema, description)


ERROR = record(
    {
        "error": text("What is wrong, in words"),
        "code": text("A stable name for it"),
        "status": integer("The HTTP status"),
        "hint": text("What to do about it; empty if nobody knows"),
        "context": by_name(anything(), "What the words speak of"),
    },
    title="Error",
    description="The shape of every error.",
)
