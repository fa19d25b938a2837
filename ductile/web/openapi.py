"""The OpenAPI 3.1 document of the API, built from the route table and the plugin manifests.

Pure functions of the table and of the plugins that a caller may see, and two routes that serve the document.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypedDict

from ductile import __version__
from ductile.config.snapshot import ConfiguredPlugin
from ductile.core.errors import NotFound
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import OPEN, Schema, schema_of
from ductile.core.instance.threads import run_in_thread
from ductile.plugin.manifest import Command, CommandType
from ductile.web.api.catalog import visible_plugins
from ductile.web.auth.auth import ANY_TOKEN
from ductile.web.context import AppContext
from ductile.web.messages import ErrorView, Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Argument, Header, Route, WebSocketRoute

TITLE = "Ductile Gateway"
MAX_CACHED_DOCUMENTS = 8
"""One document for each set of visible plugins."""
TRIGGER = "/plugin/{plugin}/{command}"
STATUS_DESCRIPTIONS = {
    101: "Switching to WebSocket",
    200: "Success",
    202: "Accepted and durable",
    204: "Success, no content",
    400: "Invalid request",
    401: "Missing or invalid token",
    403: "Insufficient scope",
    404: "Not found",
    409: "Conflict with the current state",
    413: "Body too large",
    415: "The body is not JSON",
    422: "The request cannot be processed",
    426: "WebSocket upgrade required",
    429: "Too many requests; try again after the seconds in Retry-After",
    503: "Temporarily unavailable",
    504: "Timeout",
}
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_SHORT_TYPES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
}


class OpenApiDocument(TypedDict):
    """An OpenAPI 3.1 document."""

    openapi: str
    info: dict[str, Any]
    tags: list[dict[str, str]]
    paths: dict[str, Any]
    components: dict[str, Any]


def routes(ctx: AppContext, table: Callable[[], Iterable[AnyRoute]]) -> Iterable[AnyRoute]:
    """Return the routes that describe `table`, as it is at the time of the request."""
    cache: dict[frozenset[str], tuple[object, bytes]] = {}

    async def describe(request: Request) -> Response:
        snapshot = ctx.snapshot()
        plugins = list(visible_plugins(snapshot, request))
        names = frozenset(configured.name for configured in plugins)
        cached = cache.get(names)
        if cached is None or cached[0] is not snapshot:
            # In a thread, because large configurations take long.
            text = await run_in_thread(lambda: strict_json.dumps(build_document(table(), plugins)).encode())
            if len(cache) >= MAX_CACHED_DOCUMENTS:
                cache.clear()
            cached = cache[names] = (snapshot, text)
        return encoded_json_response(cached[1])

    async def describe_plugin(request: Request) -> Response:
        configured = ctx.snapshot().plugin(request.params["plugin"])
        if not request.principal.can_see(configured.name):
            raise NotFound(f"plugin {configured.name!r} does not exist")
        return json_response(build_document((), [configured], _find_trigger(table())))

    yield Route(
        method="GET",
        path="/openapi.json",
        handler=describe,
        scope=ANY_TOKEN,
        summary="Get the OpenAPI 3.1 document of this API",
        group="discovery",
        responses={200: Annotated[OpenApiDocument, OPEN]},
    )
    yield Route(
        method="GET",
        path="/plugin/{plugin}/openapi.json",
        handler=describe_plugin,
        scope=ANY_TOKEN,
        summary="Get the OpenAPI 3.1 document of one plugin's commands",
        group="discovery",
        responses={200: Annotated[OpenApiDocument, OPEN]},
        error_statuses=(409,),
    )


def build_document(
    table: Iterable[AnyRoute], plugins: Iterable[ConfiguredPlugin], trigger: Route | None = None
) -> OpenApiDocument:
    """Build the OpenAPI document of the routes, with one operation per plugin command if a trigger route exists."""
    listed = [route for route in table if not _is_ingress(route)]
    trigger = trigger or _find_trigger(listed)
    paths: dict[str, dict[str, Any]] = {}
    for route in sorted(listed, key=lambda route: isinstance(route, WebSocketRoute)):
        operation = _websocket_operation(route) if isinstance(route, WebSocketRoute) else _operation(route)
        paths.setdefault(route.path, {}).setdefault(_method(route), operation)
    if trigger is not None:
        for configured in plugins:
            for command in configured.plugin.manifest.commands.values():
                paths[f"/plugin/{configured.name}/{command.name}"] = {
                    "post": _command_operation(configured.name, command, trigger)
                }
    schemas: dict[str, Any] = {}
    shared = {path: _extract_shared(item, schemas) for path, item in paths.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": __version__,
            "description": "A durable job runtime for plugins and pipelines.",
        },
        "tags": [{"name": name} for name in dict.fromkeys(_tags(shared))],
        "paths": shared,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"BearerAuth": {"type": "http", "scheme": "bearer"}},
        },
    }


def _is_ingress(route: AnyRoute) -> bool:
    """True for the signed relay ingress, which is not part of the public API."""
    return route.scope is None and route.method not in ("GET", "WEBSOCKET")


def _find_trigger(table: Iterable[AnyRoute]) -> Route | None:
    found = (route for route in table if isinstance(route, Route) and (route.method, route.path) == ("POST", TRIGGER))
    return next(found, None)


def _tags(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for item in paths.values():
        for operation in item.values():
            yield from operation.get("tags", ())


# ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _method(route: AnyRoute) -> str:
    return "get" if isinstance(route, WebSocketRoute) else route.method.lower()


def _operation(route: Route) -> dict[str, Any]:
    operation = _operation_base(route) | {"parameters": _parameters(route), "responses": _responses(route)}
    if route.request_body is not None:
        operation["requestBody"] = _request_body(route.request_body)
    return operation


def _websocket_operation(route: WebSocketRoute) -> dict[str, Any]:
    schemas = {101: None, 426: ErrorView, **dict.fromkeys(_error_statuses(route), ErrorView)}
    parameters = _path_parameters(route.path) + [_parameter("query", argument) for argument in route.query]
    responses = {str(status): _response(status, schema) for status, schema in sorted(schemas.items())}
    return _operation_base(route) | {"parameters": parameters, "responses": responses}


def _command_operation(plugin: str, command: Command, trigger: Route) -> dict[str, Any]:
    """Return the operation of the trigger route for one command."""
    payload = payload_schema(command.input_schema)
    parameters = [_parameter("query", argument) for argument in trigger.query]
    parameters += [_parameter("header", header) for header in trigger.headers]
    operation = _operation_base(trigger) | {
        "operationId": f"{plugin}__{command.name}",
        "summary": f"Run {plugin}.{command.name}",
        "tags": [f"plugin {plugin}"],
        "x-required-scope": "plugin:rw" if command.type is CommandType.WRITE else trigger.scope,
        "parameters": parameters,
        "requestBody": _request_body(
            {
                "type": "object",
                "properties": {"payload": {"anyOf": [payload, {"type": "null"}]}},
                "additionalProperties": False,
            }
        ),
        "responses": _responses(trigger),
    }
    if command.description:
        operation["description"] = command.description
    return operation


def _operation_base(route: AnyRoute) -> dict[str, Any]:
    name = re.sub(r"[^A-Za-z0-9]+", "_", route.path).strip("_") or "root"
    outline: dict[str, Any] = {"operationId": f"{route.method.lower()}_{name}", "summary": route.summary}
    if route.group:
        outline["tags"] = [route.group]
    if route.scope is None:
        return outline | {"security": []}
    return outline | {"security": [{"BearerAuth": []}], "x-required-scope": route.scope}


def _parameters(route: Route) -> list[dict[str, Any]]:
    query = [_parameter("query", argument) for argument in route.query]
    return _path_parameters(route.path) + query + [_parameter("header", header) for header in route.headers]


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "format": "uuid"} if path.startswith("/job/") else {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in re.findall(r"\{(\w+)\}", path)]


def _parameter(location: str, parameter: Argument | Header) -> dict[str, Any]:
    description = {"description": parameter.description} if parameter.description else {}
    return {
        "name": parameter.name,
        "in": location,
        "required": False,
        "schema": schema_of(parameter.kind),
        **description,
    }


def _request_body(kind: Any) -> dict[str, Any]:
    return {"required": False, "content": {"application/json": {"schema": schema_of(kind)}}}


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[int, dict[str, Any]] = {}
    for status, kind in route.responses.items():
        responses[status] = _response(status, kind, route.media_type)
    for status in _error_statuses(route):
        declared = route.responses.get(status)
        responses[status] = _response(status, ErrorView if declared is None else declared | ErrorView)
    return {str(status): response for status, response in sorted(responses.items())}


def _error_statuses(route: AnyRoute) -> set[int]:
    """Return the error statuses that follow from the route's properties, and those that it declares."""
    statuses = {400, 503}
    if route.scope is not None:
        statuses |= {401} if route.scope == ANY_TOKEN else {401, 403}
    if "{" in route.path:
        statuses.add(404)
    if isinstance(route, Route):
        statuses |= {413, 415} if route.request_body is not None else set()
        statuses.update(route.error_statuses)
    return statuses


def _response(status: int, kind: Any, media_type: str = "application/json") -> dict[str, Any]:
    response: dict[str, Any] = {"description": STATUS_DESCRIPTIONS.get(status, "Error")}
    if kind is not None:
        response["content"] = {media_type: {"schema": schema_of(kind)}}
    return response


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def payload_schema(declared: Mapping[str, Any] | None) -> Schema:
    """Return the `input_schema` of a manifest, compact or JSON Schema, as an OpenAPI schema.

    Falls back to a permissive schema where the input is invalid.
    """
    if not declared:
        return {"type": "object"}
    is_json_schema = (
        "properties" in declared or declared.get("type") == "object" or any(key[0:1] == "$" for key in declared)
    )
    if is_json_schema:
        return declared if _is_valid_schema(declared) else {"type": "object"}
    return {"type": "object", "properties": {name: _expand_type(value) for name, value in declared.items()}}


def _expand_type(value: Any) -> Schema:
    """Expand a type name such as `string` or `int`, or return a nested schema. Other text becomes the description."""
    if isinstance(value, str):
        name = _SHORT_TYPES.get(value, value)
        return {"type": name} if name in _TYPES else {"description": value}
    return value if isinstance(value, Mapping) and _is_valid_schema(value) else {}


def _is_valid_schema(schema: Any) -> bool:
    """True if the schema has valid types, properties and combinators, and no references."""
    if not isinstance(schema, Mapping) or "$ref" in schema or "$dynamicRef" in schema:
        return isinstance(schema, bool)
    kinds = schema.get("type", "object")
    known = all(isinstance(kind, str) and kind in _TYPES for kind in (kinds if isinstance(kinds, list) else [kinds]))
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not known or not isinstance(properties, Mapping) or not isinstance(required, list):
        return False
    nested = [*properties.values(), *(schema[key] for key in ("items", "additionalProperties", "not") if key in schema)]
    for key in ("anyOf", "oneOf", "allOf"):
        if not isinstance(schema.get(key, []), list):
            return False
        nested += schema.get(key, [])
    return all(isinstance(name, str) for name in required) and all(map(_is_valid_schema, nested))


def _extract_shared(data: Any, schemas: dict[str, Any]) -> Any:
    """Move every titled schema in `data` to `schemas`, and return `data` with references to them."""
    if isinstance(data, list | tuple):
        return [_extract_shared(item, schemas) for item in data]
    if not isinstance(data, Mapping):
        return data
    result = {name: _extract_shared(value, schemas) for name, value in data.items()}
    title = result.get("title")
    is_named = isinstance(title, str) and title.isidentifier() and result.get("type") == "object"
    if is_named and schemas.setdefault(str(title), result) == result:
        return {"$ref": f"#/components/schemas/{title}"}
    return result
