"""The OpenAPI document: what follows from a route, and what a manifest's schema becomes."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ductile.web.messages import Channel, Request, Response
from ductile.web.openapi.openapi import document, payload_schema
from ductile.web.openapi.schemas import Argument, Header, boolean, record, text
from ductile.web.routes import ChannelRoute, Route


async def nothing(request: Request) -> Response:
    return Response()


async def silence(request: Request, channel: Channel) -> None:
    return None


def described(route: Route | ChannelRoute) -> dict[str, Any]:
    (item,) = document([route], [])["paths"].values()
    (operation,) = item.values()
    return dict(operation)


@pytest.mark.parametrize(
    ("route", "statuses"),
    [
        ({"method": "GET", "path": "/x"}, {"200", "400", "503"}),
        ({"method": "GET", "path": "/x", "scope": "token"}, {"200", "400", "401", "503"}),
        ({"method": "GET", "path": "/x", "scope": "jobs:ro"}, {"200", "400", "401", "403", "503"}),
        ({"method": "GET", "path": "/x/{id}"}, {"200", "400", "404", "503"}),
        (
            {"method": "POST", "path": "/x", "scope": "token", "takes": record({})},
            {"200", "400", "401", "413", "415", "503"},
        ),
        ({"method": "GET", "path": "/x", "refuses": (409, 504)}, {"200", "400", "409", "503", "504"}),
    ],
)
def test_errors_follow_from_what_a_route_is(route: dict[str, Any], statuses: set[str]) -> None:
    """A scope can be missing, a name unknown, a body too large; the rest a route says itself."""
    assert set(described(Route(handler=nothing, gives={200: text()}, **route))["responses"]) == statuses


def test_a_route_is_described_with_all_that_it_says() -> None:
    """Arguments, headers, body, scope and chapter."""
    about = described(
        Route(
            method="POST",
            path="/x/{plugin}",
            handler=nothing,
            scope="plugin:rw",
            summary="Do it",
            group="things",
            asks=(Argument("dry_run", boolean(), "Only look"),),
            heeds=(Header("If-Match", text()),),
            takes=record({"a": text()}),
            gives={202: text()},
        )
    )
    assert [(one["name"], one["in"], one["required"]) for one in about["parameters"]] == [
        ("plugin", "path", True),
        ("dry_run", "query", False),
        ("If-Match", "header", False),
    ]
    assert about["requestBody"]["content"]["application/json"]["schema"]["required"] == ["a"]
    assert (about["operationId"], about["x-required-scope"], about["tags"]) == (
        "post_x_plugin",
        "plugin:rw",
        ["things"],
    )
    assert about["security"] == [{"BearerAuth": []}]


def test_a_websocket_is_a_get_that_is_upgraded() -> None:
    """101 if all is well, 426 for who does not ask for it."""
    answers = described(ChannelRoute(path="/x", handler=silence, scope="token"))["responses"]
    assert set(answers) == {"101", "400", "401", "426", "503"}


def test_what_other_instances_send_to_is_not_for_callers() -> None:
    """Signed ingress has no token, so it is no part of the description."""
    assert document([Route(method="POST", path="/ingress/{peer}", handler=nothing)], [])["paths"] == {}


def test_a_schema_with_a_title_is_written_once() -> None:
    """Routes refer to it; another one with the same title stays where it is."""
    shared, other = record({"a": text()}, title="Thing"), record({"b": text()}, title="Thing")
    made = document(
        [
            Route(method="GET", path=f"/{name}", handler=nothing, gives={200: schema})
            for name, schema in (("x", shared), ("y", shared), ("z", other))
        ],
        [],
    )
    schemas = [
        made["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        for path in ["/x", "/y", "/z"]
    ]
    assert schemas[:2] == [{"$ref": "#/components/schemas/Thing"}] * 2
    assert schemas[2]["properties"] == {"b": {"type": "string"}}
    assert made["components"]["schemas"].keys() == {"Thing", "Error"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, {"type": "object"}),
        ({}, {"type": "object"}),
        ({"message": "string"}, {"type": "object", "properties": {"message": {"type": "string"}}}),
        (
            {"n": "int", "ok": "bool", "x": "float", "all": "list"},
            {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "ok": {"type": "boolean"},
                    "x": {"type": "number"},
                    "all": {"type": "array"},
                },
            },
        ),
        ({"when": "RFC 3339"}, {"type": "object", "properties": {"when": {"description": "RFC 3339"}}}),
        ({"type": "string"}, {"type": "object", "properties": {"type": {"type": "string"}}}),
        (
            {"a": {"type": "string", "minLength": 1}},
            {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}},
        ),
        ({"a": 5, "b": {"type": "nonsense"}}, {"type": "object", "properties": {"a": {}, "b": {}}}),
        ({"type": "object", "required": ["a"]}, {"type": "object", "required": ["a"]}),
        ({"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "string"}}}),
        ({"type": "object", "properties": {"a": {"$ref": "#/x"}}}, {"type": "object"}),
        ({"type": "object", "properties": ["a"]}, {"type": "object"}),
        ({"type": "object", "properties": {"a": {"items": {"type": "text"}}}}, {"type": "object"}),
        ({"type": "object", "anyOf": "x"}, {"type": "object"}),
        ({"type": "object", "required": "a"}, {"type": "object"}),
    ],
)
def test_what_a_manifest_takes_is_told_as_a_schema(written: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    """Compact and whole schemas; what cannot be read is told loosely, never wrongly."""
    found = payload_schema(written)
    Draft202012Validator.check_schema(found)
    assert found == expected
