"""Functions that build JSON schemas (OpenAPI 3.1) for route descriptions.

Pure. A schema with a title becomes a shared component of the OpenAPI document.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from attrs import frozen

Schema: TypeAlias = Mapping[str, Any]


@frozen
class Argument:
    """A query argument of a route."""

    name: str
    schema: Schema
    description: str = ""


@frozen
class Header:
    """A request header that a route reads."""

    name: str
    schema: Schema
    description: str = ""


def _described(schema: dict[str, Any], description: str) -> Schema:
    return {**schema, "description": description} if description else schema


def text(description: str = "", **rules: Any) -> Schema:
    return _described({"type": "string", **rules}, description)


def choice(options: Iterable[str], description: str = "") -> Schema:
    return _described({"type": "string", "enum": [str(option) for option in options]}, description)


def timestamp(description: str = "") -> Schema:
    return _described({"type": "string", "format": "date-time"}, description)


def integer(description: str = "", **rules: Any) -> Schema:
    return _described({"type": "integer", **rules}, description)


def number(description: str = "", **rules: Any) -> Schema:
    return _described({"type": "number", **rules}, description)


def boolean(description: str = "") -> Schema:
    return _described({"type": "boolean"}, description)


def any_value(description: str = "") -> Schema:
    return _described({}, description)


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema, description: str = "", **rules: Any) -> Schema:
    return _described({"type": "array", "items": items, **rules}, description)


def mapping(values: Schema, description: str = "") -> Schema:
    """An object with arbitrary keys, whose values have the same schema."""
    return _described({"type": "object", "additionalProperties": values}, description)


def record(
    required: Mapping[str, Schema],
    optional: Mapping[str, Schema] | None = None,
    *,
    title: str = "",
    description: str = "",
    is_closed: bool = True,
) -> Schema:
    """An object with these members; a closed object has no others."""
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
        "error": text("Error message"),
        "code": text("Stable error code"),
        "status": integer("HTTP status"),
        "hint": text("How to fix it; may be empty"),
        "context": mapping(any_value(), "Values that the message refers to"),
    },
    title="Error",
    description="An error response.",
)
