"""JSON objects as `TypedDict` classes, and the JSON Schema of such a class.

A class is the only declaration of an object: mypy checks the function that builds it, and the OpenAPI document has the
schema. In `Annotated`, a string is the description of the value, and a mapping has other keywords of JSON Schema.
"""

from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

T = TypeVar("T")
Schema: TypeAlias = Mapping[str, Any]


class Keywords(dict[str, Any]):
    """Keywords of JSON Schema for an annotated type. Hashable, because the type can be part of a union."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


_OMITTABLE = Keywords()
OPEN = Keywords(additionalProperties=True)
"""Marks an object that has members besides those of its class."""

Timestamp = Annotated[str, Keywords(format="date-time")]
Count = Annotated[int, Keywords(minimum=0)]
Ordinal = Annotated[int, Keywords(minimum=1)]
Omittable = Annotated[T | None, _OMITTABLE]
"""A member that is omitted if it is None: the function that builds the object returns `without_none(…)`."""

_SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
}


def without_none(view: T) -> T:
    """Return the object without the members that are None."""
    members = cast(Mapping[str, Any], view)
    return cast(T, {name: value for name, value in members.items() if value is not None})


def schema_of(kind: Any) -> Schema:
    """Return the schema of a type. A schema is returned unchanged."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        schema = dict(schema_of(args[0]))
        for note in args[1:]:
            schema |= {"description": note} if isinstance(note, str) else note
        return schema
    if origin is NotRequired:
        return schema_of(args[0])
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(option) for option in args]}
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if origin is list:
        return {"type": "array", "items": schema_of(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(args[1])}
    if is_typeddict(kind):
        return _object(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [str(member.value) for member in kind]}
    return kind if isinstance(kind, Mapping) else _SCALARS[kind]


@cache
def _object(cls: Any) -> Schema:
    """Return the schema of a `TypedDict`. Its title is the class name without `View` or `Body`."""
    kinds = get_type_hints(cls, include_extras=True)
    required = [name for name, kind in kinds.items() if name in cls.__required_keys__ and not _is_omittable(kind)]
    schema: dict[str, Any] = {
        "type": "object",
        "title": cls.__name__.removesuffix("View").removesuffix("Body"),
        "description": " ".join((cls.__doc__ or "").split()),
        "properties": {name: schema_of(_of_present(kind)) for name, kind in kinds.items()},
        "required": required,
        "additionalProperties": False,
    }
    return {name: value for name, value in schema.items() if value not in ("", [])}


def _is_omittable(kind: Any) -> bool:
    return get_origin(kind) is Annotated and _OMITTABLE in get_args(kind)


def _of_present(kind: Any) -> Any:
    """Return the type of an omittable member when it is present."""
    if not _is_omittable(kind):
        return kind
    return Union[tuple(option for option in get_args(get_args(kind)[0]) if option is not NoneType)]  # noqa: UP007
