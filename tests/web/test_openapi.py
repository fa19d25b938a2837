"""The OpenAPI document: operations of routes, and payload schemas of manifests."""

from typing import Any, TypedDict

import pytest
from jsonschema import Draft202012Validator

from ductile.web.messages import Request, Response, WebSocket
from ductile.web.openapi import build_document, payload_schema
from ductile.web.routing import Argument, Header, Route, WebSocketRoute


class ThingView(TypedDict):
    a: str


async def handle(request: Request) -> Response:
    return Response()


async def handle_websocket(request: Request, websocket: WebSocket) -> None:
    return None


def operation_of(route: Route | WebSocketRoute) -> dict[str, Any]:
    (item,) = build_document([route], [])["paths"].values()
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
            {"method": "POST", "path": "/x", "scope": "token", "request_body": ThingView},
            {"200", "400", "401", "413", "415", "503"},
        ),
        ({"method": "GET", "path": "/x", "error_statuses": (409, 504)}, {"200", "400", "409", "503", "504"}),
    ],
)
def test_error_statuses_follow_from_the_properties_of_a_route(route: dict[str, Any], statuses: set[str]) -> None:
    """Scope, path parameters and body imply errors; the route declares all others."""
    assert set(operation_of(Route(handler=handle, responses={200: str}, **route))["responses"]) == statuses


def test_an_operation_has_all_properties_of_its_route() -> None:
    operation = operation_of(
        Route(
            method="POST",
            path="/x/{plugin}",
            handler=handle,
            scope="plugin:rw",
            summary="Do it",
            group="objects",
            query=(Argument("dry_run", bool, "Check only"),),
            headers=(Header("If-Match", str),),
            request_body=ThingView,
            responses={202: str},
        )
    )
    assert [(item["name"], item["in"], item["required"]) for item in operation["parameters"]] == [
        ("plugin", "path", True),
        ("dry_run", "query", False),
        ("If-Match", "header", False),
    ]
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Thing"}
    assert (operation["operationId"], operation["x-required-scope"], operation["tags"]) == (
        "post_x_plugin",
        "plugin:rw",
        ["objects"],
    )
    assert operation["security"] == [{"BearerAuth": []}]


def test_a_websocket_is_a_get_with_101_or_426() -> None:
    responses = operation_of(WebSocketRoute(path="/x", handler=handle_websocket, scope="token"))["responses"]
    assert set(responses) == {"101", "400", "401", "426", "503"}


def test_the_relay_ingress_is_not_part_of_the_document() -> None:
    """It has no scope, because its requests are signed."""
    assert build_document([Route(method="POST", path="/ingress/{peer}", handler=handle)], [])["paths"] == {}


def test_a_class_is_a_shared_component() -> None:
    """Operations reference it. A different schema with the same title stays inline."""
    other = {"type": "object", "title": "Thing", "properties": {"b": {"type": "string"}}}
    made = build_document(
        [
            Route(method="GET", path=f"/{name}", handler=handle, responses={200: schema})
            for name, schema in (("x", ThingView), ("y", ThingView), ("z", other))
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


PAYLOAD_SCHEMAS: list[tuple[dict[str, Any] | None, dict[str, Any]]] = [
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
]


def test_an_input_schema_becomes_a_valid_payload_schema() -> None:
    """From compact and JSON Schema form. An invalid schema becomes a permissive one."""
    wrong = []
    for declared, expected in PAYLOAD_SCHEMAS:
        schema = payload_schema(declared)
        Draft202012Validator.check_schema(schema)
        if schema != expected:
            wrong.append((declared, schema))
    assert wrong == []
