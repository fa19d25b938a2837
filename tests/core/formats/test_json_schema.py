"""The JSON Schema of `TypedDict` classes."""

from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from jsonschema import Draft202012Validator

from ductile.core.formats.json_schema import OPEN, Count, Keywords, Omittable, Timestamp, schema_of, without_none


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class _Base(TypedDict):
    name: Annotated[str, "The name"]


class PartView(_Base):
    """A part.

    Of a thing.
    """

    made_at: Omittable[Timestamp]
    note: NotRequired[Annotated[str, "A note"]]


class ThingBody(TypedDict, total=False):
    part: PartView


PART = {
    "type": "object",
    "title": "Part",
    "description": "A part. Of a thing.",
    "properties": {
        "name": {"type": "string", "description": "The name"},
        "made_at": {"type": "string", "format": "date-time"},
        "note": {"type": "string", "description": "A note"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
THING = {"type": "object", "title": "Thing", "properties": {"part": PART}, "additionalProperties": False}
SCHEMAS: list[tuple[Any, dict[str, Any]]] = [
    (str, {"type": "string"}),
    (Any, {}),
    (float, {"type": "number"}),
    (Colour, {"type": "string", "enum": ["red", "blue"]}),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (bool | None, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
    (
        Annotated[list[Count | None], "Counts", Keywords(maxItems=3)],
        {
            "type": "array",
            "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]},
            "description": "Counts",
            "maxItems": 3,
        },
    ),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (PartView, PART),
    (Annotated[PartView, OPEN], PART | {"additionalProperties": True}),
    (ThingBody, THING),
    (list[ThingBody] | PartView, {"anyOf": [{"type": "array", "items": THING}, PART]}),
    ({"type": "null"}, {"type": "null"}),
]


def test_a_type_becomes_its_schema() -> None:
    wrong = []
    for kind, expected in SCHEMAS:
        schema = schema_of(kind)
        Draft202012Validator.check_schema(schema)
        if schema != expected:
            wrong.append((kind, schema))
    assert wrong == []


def test_a_member_that_is_none_is_omitted() -> None:
    part: PartView = {"name": "a", "made_at": None}
    assert without_none(part) == {"name": "a"}
