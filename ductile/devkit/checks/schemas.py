"""Validate values against the schemas of a manifest, in JSON Schema or in the compact form.

Supports `type`, `properties`, `required`, `items` and `enum`, and ignores other keywords.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def full_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Expand the compact form, such as `{city: string}`, to JSON Schema."""
    if isinstance(schema.get("type"), str | list) and ("properties" in schema or schema["type"] == "object"):
        return schema
    members = {name: kind if isinstance(kind, dict) else {"type": kind} for name, kind in schema.items()}
    return {"type": "object", "properties": members}


def schema_violations(schema: Any, value: Any, at: str = "payload") -> Iterator[str]:
    """Yield every violation of `schema` in `value`."""
    if not isinstance(schema, Mapping):
        return
    expected: Any = schema.get("type")
    kinds: list[str] = expected if isinstance(expected, list) else [str(expected)]
    if all(kind in _KINDS for kind in kinds) and not any(_is(kind, value) for kind in kinds):
        yield f"{at} is not {' or '.join(kinds)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is not one of the values of its enum"
    if isinstance(value, dict):
        yield from (f"{at}.{name} is missing" for name in schema.get("required") or () if name not in value)
        for name, inner in (schema.get("properties") or {}).items():
            if name in value:
                yield from schema_violations(inner, value[name], f"{at}.{name}")
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from schema_violations(schema["items"], item, f"{at}[{index}]")


def _is(kind: str, value: Any) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
