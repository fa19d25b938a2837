"""A route, and the table that finds the route of a method and path. `api_routes` lists the routes of the API.

Decodes paths and queries, and decides 404, 405 and 426. Pure: no I/O, and no authorization. The server, the OpenAPI
document and the scope tests read the same table.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

from attrs import field, frozen

from ductile.core.errors import DuctileError
from ductile.web.messages import HTTPError, Request, Response, WebSocket, refusal_response

MIB = 1024 * 1024
MAX_QUERY_ARGUMENTS = 100
PATHS_HINT = "See /openapi.json for the paths of the API, and `ductile webhook list` for webhook paths."
ENCODING_HINT = "Use percent-encoded UTF-8."

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
WebSocketHandler: TypeAlias = Callable[[Request, WebSocket], Awaitable[None]]


@frozen
class Argument:
    """A query argument of a route, with the type of its value."""

    name: str
    kind: Any
    description: str = ""


@frozen
class Header:
    """A request header that a route reads, with the type of its value."""

    name: str
    kind: Any
    description: str = ""


@frozen(kw_only=True)
class Route:
    """A method on a path, with its handler and description. `{name}` in the path matches one non-empty segment."""

    method: str
    path: str
    handler: Handler
    scope: str | None = None  # None: public; "token": any valid token
    summary: str = ""
    group: str = ""  # the OpenAPI tag
    query: tuple[Argument, ...] = ()
    headers: tuple[Header, ...] = ()
    request_body: Any = None  # the type of the JSON body; None: no body
    responses: Mapping[int, Any] = field(factory=dict)  # the types of the responses of a successful request, by status
    error_statuses: tuple[int, ...] = ()  # in addition to those that follow from the route
    media_type: str = "application/json"  # of `responses`
    max_body: int = MIB
    waits: bool = False  # the handler waits or streams; it is cancelled when the client disconnects


@frozen(kw_only=True)
class WebSocketRoute:
    """A WebSocket path."""

    path: str
    handler: WebSocketHandler
    scope: str | None = None
    summary: str = ""
    group: str = ""
    query: tuple[Argument, ...] = ()
    method: str = field(default="WEBSOCKET", init=False)


AnyRoute: TypeAlias = Route | WebSocketRoute


@frozen
class Match:
    """A matched route with its path parameters."""

    route: AnyRoute
    params: Mapping[str, str]


class _Node:
    """A path segment of the table, with its child segments and routes."""

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, AnyRoute] = {}


class RouteTable:
    """Routes by path. Literal segments take precedence over `{names}`. Raises DuctileError for ambiguous routes."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        self.routes = tuple(routes)
        self._static: dict[str, dict[str, AnyRoute]] = {}
        self._root = _Node()
        self._names: dict[int, tuple[str, ...]] = {}
        for route in self.routes:
            self._add(route)

    def match(self, method: str, path: str) -> Match:
        """Return the route for a method and a decoded path. Raises HTTPError with 404, 405 or 426 if there is none."""
        found = self._static.get(path)
        if found is not None:
            return Match(self._choose(found, method), {})
        segments = path.split("/")[1:]
        values: list[str] = []
        node = _find_node(self._root, segments, 0, values)
        if node is None:
            raise HTTPError(refusal_response(404, "not_found", "no such path", hint=PATHS_HINT))
        route = self._choose(node.routes, method)
        return Match(route, dict(zip(self._names[id(route)], values, strict=True)))

    def _add(self, route: AnyRoute) -> None:
        segments = _segments_of(route)
        names = tuple(segment[1:-1] for segment in segments if segment.startswith("{"))
        self._names[id(route)] = names
        if names:
            node = self._root
            for segment in segments:
                node = _child(node, segment)
            found = node.routes
        else:
            found = self._static.setdefault(route.path, {})
        if route.method in found:
            raise DuctileError(f"two routes for {route.method} {route.path}: the first is {found[route.method].path}")
        found[route.method] = route

    @staticmethod
    def _choose(found: Mapping[str, AnyRoute], method: str) -> AnyRoute:
        route = found.get(method) or (found.get("GET") if method == "HEAD" else None)
        if route is not None:
            return route
        if method == "WEBSOCKET":  # RFC 9110 7.8: a server may ignore an upgrade request
            return RouteTable._choose(found, "GET")
        if method == "GET" and "WEBSOCKET" in found:
            raise HTTPError(
                refusal_response(
                    426,
                    "upgrade_required",
                    "this path is a WebSocket",
                    hint="Connect with a WebSocket client, or use GET /events.",
                    headers=(("connection", "upgrade"), ("upgrade", "websocket")),
                )
            )
        allowed = _allowed(found)
        raise HTTPError(
            refusal_response(
                405,
                "method_not_allowed",
                f"method {method} is not allowed for this path",
                hint=f"Allowed: {allowed}.",
                headers=(("allow", allowed),),
            )
        )


def decode_path(raw: str) -> str:
    """Decode the percent-encoding of a path. Raises HTTPError 400 for ambiguous paths and encoded separators."""
    if _PLAIN.fullmatch(raw) and "/." not in raw:
        return raw
    if not _ESCAPED.fullmatch(raw):
        raise _bad_path("it is not correctly percent-encoded")
    if _ENCODED_SEPARATOR.search(raw):
        raise _bad_path("it contains an encoded slash or backslash")
    try:
        path = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise _bad_path("it is not UTF-8") from None
    if _CONTROL.search(path):
        raise _bad_path("it contains a control character")
    if any(segment in (".", "..") for segment in path.split("/")):
        raise _bad_path("it contains a dot segment")
    return path


def decode_query(raw: str) -> dict[str, tuple[str, ...]]:
    """Decode the query arguments, in order, each with all its values. Raises HTTPError 400 for an invalid query."""
    if not raw:
        return {}
    if not _ESCAPED.fullmatch(raw):
        raise _bad_query("it is not correctly percent-encoded")
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_ARGUMENTS)
    except UnicodeDecodeError:
        raise _bad_query("it is not UTF-8") from None
    except ValueError:
        raise _bad_query(f"it has more than {MAX_QUERY_ARGUMENTS} arguments") from None
    arguments: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        arguments[name] = (*arguments.get(name, ()), value)
    return arguments


_PLAIN = re.compile(r"[!-$&-\[\]-~]*")
_ESCAPED = re.compile(r"(?:[!-$&-~]|%[0-9A-Fa-f]{2})*")
_ENCODED_SEPARATOR = re.compile(r"%(?:2f|5c)|\\", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SEGMENT = re.compile(r"[^{}/%?#]+|\{[a-z_]+\}")


def _segments_of(route: AnyRoute) -> list[str]:
    segments = route.path.split("/")
    well_formed = route.path.startswith("/") and all(map(_SEGMENT.fullmatch, segments[1:]))
    if not well_formed and route.path != "/":
        raise DuctileError(
            f"{route.path!r} is not a route path",
            hint='Write it like "/job/{id}": non-empty segments, no trailing slash.',
        )
    return segments[1:]


def _child(node: _Node, segment: str) -> _Node:
    if not segment.startswith("{"):
        return node.literal.setdefault(segment, _Node())
    if node.parameter is None:
        node.parameter = _Node()
    return node.parameter


def _find_node(node: _Node, segments: list[str], at: int, values: list[str]) -> _Node | None:
    """Return the node that matches the segments, and append its parameters to `values`.

    The recursion is limited by the depth of the table, not by the length of the path.
    """
    if at == len(segments):
        return node if node.routes else None
    segment = segments[at]
    literal = node.literal.get(segment)
    if literal is not None:
        found = _find_node(literal, segments, at + 1, values)
        if found is not None:
            return found
    if node.parameter is None or not segment:
        return None
    values.append(segment)
    found = _find_node(node.parameter, segments, at + 1, values)
    if found is None:
        values.pop()
    return found


def _allowed(found: Mapping[str, AnyRoute]) -> str:
    methods = {method for method in found if method != "WEBSOCKET"} or {"GET"}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _bad_path(reason: str) -> HTTPError:
    return HTTPError(refusal_response(400, "bad_path", f"invalid path: {reason}", hint=ENCODING_HINT))


def _bad_query(reason: str) -> HTTPError:
    return HTTPError(refusal_response(400, "bad_query", f"invalid query: {reason}", hint=ENCODING_HINT))
