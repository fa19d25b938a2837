"""Functions that build the schema of the checks in `api/diagnostics`. Other responses have a class."""

from collections.abc import Iterable, Mapping
from typing import Any

from ductile.core.formats.json_schema import Schema


def _described(schema: dict[str, Any], description: str) -> Schema:
    return {**schema, "description": description} if description else schema


def text(description: str = "") -> Schema:
    return _described({"type": "string"}, description)


def choice(options: Iterable[str]) -> Schema:
    return {"type": "string", "enum": list(options)}


def timestamp() -> Schema:
    return {"type": "string", "format": "date-time"}


def boolean(description: str = "") -> Schema:
    return _described({"type": "boolean"}, description)


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(required: Mapping[str, Schema], *, title: str = "") -> Schema:
    """An object with these members and no others."""
    return {
        **({"title": title} if title else {}),
        "type": "object",
        "properties": required,
        "required": list(required),
        "additionalProperties": False,
    }
