"""JSON Schema of the configuration, generated from the section classes.

For editors and agents. It accepts what `load.structure` accepts, as far as JSON Schema can express it.
"""

import types
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from ductile.config.sections.settings import Settings
from ductile.core.formats.yaml_fields import DOC, YAML_NAME, ExternalSchema, SingleOrList, TextType, ValueRule
from ductile.core.secret import Secret
from ductile.core.units import format_duration

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = {"type": "string", "pattern": "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}"}
_YES_OR_NO = "^(?:[Yy]|[Yy]es|YES|[Oo]n|ON|[Tt]rue|TRUE|[Nn]|[Nn]o|NO|[Oo]ff|OFF|[Ff]alse|FALSE)$"
_SPAN = "^\\s*(?:[+-]?(?:[0-9]*\\.?[0-9]*(?:ns|us|µs|μs|ms|s|m|h|d|w))+|[+-]?0)\\s*$"
_SCALARS: dict[Any, dict[str, Any]] = {
    bool: {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": _YES_OR_NO}, _REFERENCE]},
    int: {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^-?[0-9]{1,18}$"}, _REFERENCE]},
    str: {"type": ["string", "number", "boolean"]},
    timedelta: {"anyOf": [{"type": "string", "pattern": _SPAN}, {"const": 0}, _REFERENCE]},
    datetime: {"type": "string", "format": "date-time"},
    Path: {"type": "string", "minLength": 1},
    Secret: {"type": ["string", "number"], "minLength": 1},
    Any: {},
}


def schema() -> dict[str, Any]:
    """Return the schema of config.yaml and of every included file."""
    definitions: dict[str, Any] = {}
    root = _object(Settings, definitions)
    root["patternProperties"] = {"^x-": {}}
    root["properties"]["database"] = {"$ref": "#/$defs/State"}
    for name in ("log_level", "log_format"):
        root["properties"][name] = {"type": "string", "deprecated": True, "description": f"use service.{name}"}
    return {"$schema": DIALECT, "title": "Ductile configuration", **root, "$defs": dict(sorted(definitions.items()))}


def _object(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    kinds = get_type_hints(cls, include_extras=True)
    properties, required = {}, []
    for field in attrs.fields(cls):
        name = field.metadata.get(YAML_NAME, field.name)
        described = _of(kinds[field.name], definitions)
        if field.default is attrs.NOTHING:
            required.append(name)
        else:
            described = _or_null(described)
        properties[name] = described | {"description": field.metadata[DOC]} | _default(field)
    if cls.__name__ == "PluginEntry":
        properties |= _DEPRECATED_IN_PLUGINS
    one_of = getattr(cls, "EXACTLY_ONE", ())
    section = {"type": ["object", "null"], "description": " ".join((cls.__doc__ or "").split())}
    return (
        section
        | {"properties": properties, "additionalProperties": False}
        | ({"required": required} if required else {})
        | ({"oneOf": [_has(name) for name in one_of]} if one_of else {})
    )


def _has(name: str) -> dict[str, Any]:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


_DEPRECATED_IN_PLUGINS = {
    "timeout": {"deprecated": True, "description": "use timeouts", "type": ["string", "integer"]},
    "max_attempts": {"deprecated": True, "description": "use retry.max_attempts", "type": "integer"},
    "description": {"deprecated": True, "description": "move it to the manifest", "type": "string"},
}


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(args[0], args[1:], definitions)
    if origin in (Union, types.UnionType):
        (inner,) = [option for option in args if option is not types.NoneType]
        return _or_null(_of(inner, definitions))
    if origin is Literal:
        return {"anyOf": [{"enum": list(args)}, _REFERENCE]}
    if origin is tuple:
        return {"type": ["array", "null"], "items": _of(args[0], definitions)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        members = {"additionalProperties": _of(args[1], definitions)} if args[1] is not Any else {}
        return {"type": ["object", "null"], **members, **_names(args[0])}
    if attrs.has(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    return dict(_SCALARS[kind])


def _annotated(inner: Any, notes: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    for grammar in (note for note in notes if isinstance(note, ExternalSchema)):
        definitions[grammar.name] = grammar.schema
        return {"$ref": f"#/$defs/{grammar.name}"}
    readers = [note for note in notes if isinstance(note, TextType)]
    described = dict(readers[0].schema) if readers else _of(inner, definitions)
    for rule in (note for note in notes if isinstance(note, ValueRule)):
        described |= rule.schema
    if any(isinstance(note, SingleOrList) for note in notes):
        return {"anyOf": [described, described["items"]]}
    return {"anyOf": [described, _REFERENCE]} if "pattern" in described else described


def _names(kind: Any) -> dict[str, Any]:
    """Return the rules for the keys of a mapping."""
    if get_origin(kind) is not Annotated:
        return {}
    rules = [note.schema for note in get_args(kind)[1:] if isinstance(note, ValueRule)]
    return {"propertyNames": {name: value for rule in rules for name, value in rule.items()}}


def _or_null(described: dict[str, Any]) -> dict[str, Any]:
    """Also accept null: a key without a value counts as absent."""
    null = {"type": "null"}
    if isinstance(described.get("type"), list | str):
        types_ = described["type"] if isinstance(described["type"], list) else [described["type"]]
        return described | {"type": list(dict.fromkeys([*types_, "null"]))}
    if "anyOf" in described:
        alternatives = described["anyOf"]
        return described | {"anyOf": alternatives if null in alternatives else [*alternatives, null]}
    return described


def _default(field: "attrs.Attribute[Any]") -> dict[str, Any]:
    match field.default:
        case bool() | int() | str() as plain:
            return {"default": plain}
        case timedelta() as span:
            return {"default": format_duration(span)}
        case Path() as path:
            return {"default": str(path)}
    return {}
