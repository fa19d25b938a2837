"""The API described by itself: the route table and the manifests as OpenAPI 3.1.

Pure functions of the table and of the plugins a caller may see; the two handlers only hand them over. Nothing is said
here that a route or a manifest does not say.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ductile import __version__
from ductile.config.snapshot import ConfiguredPlugin
from ductile.core.errors import NotFound
from ductile.core.formats import strict_json
from ductile.core.threads import run_in_thread
from ductile.plugin.manifest import Command, CommandType
from ductile.web.api.catalog import seen_lanes
from ductile.web.auth.auth import ANY_TOKEN
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.openapi.schemas import ERROR, Schema, anything, by_name, nullable, record, text
from ductile.web.routes import AnyRoute, ChannelRoute, Route

TITLE = "Ductile Gateway"
MOST_KEPT = 8
"""Descriptions for callers who see different plugins."""
TRIGGER = "/plugin/{plugin}/{command}"
DOCUMENT = record(
    {"openapi": text(), "info": by_name(anything()), "paths": by_name(anything()), "components": by_name(anything())},
    is_closed=False,
    description="An OpenAPI 3.1 document.",
)
MEANINGS = {
    101: "The connection speaks WebSocket from now on",
    200: "Done",
    202: "Accepted: it is durable and goes on by itself",
    204: "Done, and there is nothing to say",
    400: "The request cannot be understood",
    401: "No valid token",
    403: "The token may not do this",
    404: "There is nothing with that name or id",
    409: "It is there, but this cannot be done with it now",
    413: "Too large",
    415: "The body is not JSON",
    422: "Understood, but not possible",
    426: "This path speaks WebSocket only",
    503: "Try again later",
    504: "It takes too long",
}
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_SHORT = {"str": "string", "text": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array"}


def routes(desk: AppContext, table: Callable[[], Iterable[AnyRoute]]) -> Iterable[AnyRoute]:
    """The description of everything in `table`, whatever is in it by the time it is asked for."""

    known: dict[frozenset[str], tuple[object, bytes]] = {}

    async def describe(request: Request) -> Response:
        snapshot = desk.snapshot()
        lanes = list(seen_lanes(snapshot, request))
        seen = frozenset(lane.name for lane in lanes)
        made = known.get(seen)
        if made is None or made[0] is not snapshot:
            # Large configurations take a while; nobody else waits for it, and one description serves everybody.
            text = await run_in_thread(lambda: strict_json.dumps(document(table(), lanes)).encode())
            if len(known) >= MOST_KEPT:
                known.clear()
            made = known[seen] = (snapshot, text)
        return encoded_json_response(made[1])

    async def describe_plugin(request: Request) -> Response:
        lane = desk.snapshot().lane(request.params["plugin"])
        if not request.principal.sees(lane.name):
            raise NotFound(f"there is no plugin {lane.name!r}")
        return json_response(document((), [lane], _trigger_in(table())))

    yield Route(
        method="GET",
        path="/openapi.json",
        handler=describe,
        scope=ANY_TOKEN,
        summary="This API as OpenAPI 3.1",
        group="discovery",
        gives={200: DOCUMENT},
    )
    yield Route(
        method="GET",
        path="/plugin/{plugin}/openapi.json",
        handler=describe_plugin,
        scope=ANY_TOKEN,
        summary="The commands of one plugin as OpenAPI 3.1",
        group="discovery",
        gives={200: DOCUMENT},
        refuses=(409,),
    )


def document(
    table: Iterable[AnyRoute], lanes: Iterable[ConfiguredPlugin], trigger: Route | None = None
) -> dict[str, Any]:
    """The OpenAPI document of these routes, and of every command of these plugins if there is a route to run them."""
    listed = [route for route in table if not _is_ingress(route)]
    trigger = trigger or _trigger_in(listed)
    paths: dict[str, dict[str, Any]] = {}
    for route in sorted(listed, key=lambda route: isinstance(route, ChannelRoute)):
        operation = _channel(route) if isinstance(route, ChannelRoute) else _operation(route)
        paths.setdefault(route.path, {}).setdefault(_method(route), operation)
    if trigger is not None:
        for lane in lanes:
            for command in lane.plugin.manifest.commands.values():
                paths[f"/plugin/{lane.name}/{command.name}"] = {"post": _command(lane.name, command, trigger)}
    schemas: dict[str, Any] = {}
    shared = {path: _shared(item, schemas) for path, item in paths.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": __version__,
            "description": "An automation runtime: jobs in, plugins run, everything on record.",
        },
        "tags": [{"name": name} for name in dict.fromkeys(_groups(shared))],
        "paths": shared,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"BearerAuth": {"type": "http", "scheme": "bearer"}},
        },
    }


def _is_ingress(route: AnyRoute) -> bool:
    """True for what other instances send to, signed: nothing for callers."""
    return route.scope is None and route.method not in ("GET", "WEBSOCKET")


def _trigger_in(table: Iterable[AnyRoute]) -> Route | None:
    found = (route for route in table if isinstance(route, Route) and (route.method, route.path) == ("POST", TRIGGER))
    return next(found, None)


def _groups(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for item in paths.values():
        for operation in item.values():
            yield from operation.get("tags", ())


# ── one operation ───────────────────────────────────────────────────────────────────────────────────────────────────


def _method(route: AnyRoute) -> str:
    return "get" if isinstance(route, ChannelRoute) else route.method.lower()


def _operation(route: Route) -> dict[str, Any]:
    operation = _outline(route) | {"parameters": _parameters(route), "responses": _responses(route)}
    if route.takes is not None:
        operation["requestBody"] = _body(route.takes)
    return operation


def _channel(route: ChannelRoute) -> dict[str, Any]:
    answers = {101: None, 426: ERROR, **dict.fromkeys(_refusals(route), ERROR)}
    parameters = _in_path(route.path) + [_parameter("query", argument) for argument in route.asks]
    responses = {str(status): _answer(status, schema) for status, schema in sorted(answers.items())}
    return _outline(route) | {"parameters": parameters, "responses": responses}


def _command(plugin: str, command: Command, trigger: Route) -> dict[str, Any]:
    """The trigger route, with everything known about one command."""
    payload = payload_schema(command.input_schema)
    asked = [_parameter("query", argument) for argument in trigger.asks]
    asked += [_parameter("header", header) for header in trigger.heeds]
    operation = _outline(trigger) | {
        "operationId": f"{plugin}__{command.name}",
        "summary": f"Run {plugin}.{command.name}",
        "tags": [f"plugin {plugin}"],
        "x-required-scope": "plugin:rw" if command.type is CommandType.WRITE else trigger.scope,
        "parameters": asked,
        "requestBody": _body(record({}, {"payload": nullable(payload)})),
        "responses": _responses(trigger),
    }
    if command.description:
        operation["description"] = command.description
    return operation


def _outline(route: AnyRoute) -> dict[str, Any]:
    words = re.sub(r"[^A-Za-z0-9]+", "_", route.path).strip("_") or "root"
    outline: dict[str, Any] = {"operationId": f"{route.method.lower()}_{words}", "summary": route.summary}
    if route.group:
        outline["tags"] = [route.group]
    if route.scope is None:
        return outline | {"security": []}
    return outline | {"security": [{"BearerAuth": []}], "x-required-scope": route.scope}


def _parameters(route: Route) -> list[dict[str, Any]]:
    asked = [_parameter("query", argument) for argument in route.asks]
    return _in_path(route.path) + asked + [_parameter("header", header) for header in route.heeds]


def _in_path(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "format": "uuid"} if path.startswith("/job/") else {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in re.findall(r"\{(\w+)\}", path)]


def _parameter(place: str, asked: Any) -> dict[str, Any]:
    described = {"description": asked.description} if asked.description else {}
    return {"name": asked.name, "in": place, "required": False, "schema": asked.schema, **described}


def _body(schema: Schema) -> dict[str, Any]:
    return {"required": False, "content": {"application/json": {"schema": schema}}}


def _responses(route: Route) -> dict[str, Any]:
    answers: dict[int, dict[str, Any]] = {}
    for status, schema in route.gives.items():
        answers[status] = _answer(status, schema, route.media)
    for status in _refusals(route):
        also = route.gives.get(status)
        answers[status] = _answer(status, ERROR if also is None else {"anyOf": [also, ERROR]})
    return {str(status): answer for status, answer in sorted(answers.items())}


def _refusals(route: AnyRoute) -> set[int]:
    """The statuses of the errors that follow from what the route is, and of its own."""
    statuses = {400, 503}
    if route.scope is not None:
        statuses |= {401} if route.scope == ANY_TOKEN else {401, 403}
    if "{" in route.path:
        statuses.add(404)
    if isinstance(route, Route):
        statuses |= {413, 415} if route.takes is not None else set()
        statuses.update(route.refuses)
    return statuses


def _answer(status: int, schema: Schema | None, media: str = "application/json") -> dict[str, Any]:
    answer: dict[str, Any] = {"description": MEANINGS.get(status, "See the error")}
    if schema is not None:
        answer["content"] = {media: {"schema": schema}}
    return answer


# ── schemas ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def payload_schema(written: Mapping[str, Any] | None) -> Schema:
    """A manifest's `input_schema`, compact or JSON Schema, as one that OpenAPI takes; loose where it cannot be read."""
    if not written:
        return {"type": "object"}
    is_whole = "properties" in written or written.get("type") == "object" or any(key[0:1] == "$" for key in written)
    if is_whole:
        return written if _is_sound(written) else {"type": "object"}
    return {"type": "object", "properties": {name: _expanded(value) for name, value in written.items()}}


def _expanded(value: Any) -> Schema:
    """`string`, `int`, or a schema of its own; anything else is shown as a remark."""
    if isinstance(value, str):
        name = _SHORT.get(value, value)
        return {"type": name} if name in _TYPES else {"description": value}
    return value if isinstance(value, Mapping) and _is_sound(value) else {}


def _is_sound(schema: Any) -> bool:
    """True if the parts of a schema that readers trip over are what they must be, and it refers to nothing outside."""
    if not isinstance(schema, Mapping) or "$ref" in schema or "$dynamicRef" in schema:
        return isinstance(schema, bool)
    kinds = schema.get("type", "object")
    known = all(isinstance(kind, str) and kind in _TYPES for kind in (kinds if isinstance(kinds, list) else [kinds]))
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not known or not isinstance(properties, Mapping) or not isinstance(required, list):
        return False
    inside = [*properties.values(), *(schema[key] for key in ("items", "additionalProperties", "not") if key in schema)]
    for key in ("anyOf", "oneOf", "allOf"):
        if not isinstance(schema.get(key, []), list):
            return False
        inside += schema.get(key, [])
    return all(isinstance(name, str) for name in required) and all(map(_is_sound, inside))


def _shared(data: Any, schemas: dict[str, Any]) -> Any:
    """`data` with every schema that has a title replaced by a reference to it, and put into `schemas` once."""
    if isinstance(data, list | tuple):
        return [_shared(item, schemas) for item in data]
    if not isinstance(data, Mapping):
        return data
    inside = {name: _shared(value, schemas) for name, value in data.items()}
    title = inside.get("title")
    is_named = isinstance(title, str) and title.isidentifier() and inside.get("type") == "object"
    if is_named and schemas.setdefault(str(title), inside) == inside:
        return {"$ref": f"#/components/schemas/{title}"}
    return inside
