"""The one route table: which handler answers which method and path, with which scope and limits.

Decides 404, 405 and 426 and nothing else. Pure: no I/O, no knowledge of who asks. The server, the documentation and
the scope tests all read the same table.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

from attrs import field, frozen

from ductile.core.errors import DuctileError
from ductile.web.messages import Channel, HTTPError, Request, Response, refusal_response
from ductile.web.openapi.schemas import Argument, Header, Schema

MIB = 1024 * 1024
MAX_QUERY_ARGUMENTS = 100
PATHS_HINT = "the paths of the API are in its /openapi.json, those of webhooks in `ductile webhook list`"
ENCODING_HINT = "write it as percent-encoded UTF-8"

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
ChannelHandler: TypeAlias = Callable[[Request, Channel], Awaitable[None]]


@frozen(kw_only=True)
class Route:
    """One method on one path. `{name}` in the path stands for one non-empty segment."""

    method: str
    path: str
    handler: Handler
    scope: str | None = None  # None: open to everyone; "token": to everyone with a token
    summary: str = ""
    group: str = ""  # the chapter of the description it belongs to
    asks: tuple[Argument, ...] = ()  # query arguments
    heeds: tuple[Header, ...] = ()  # request headers
    takes: Schema | None = None  # the JSON body; None: it has none
    gives: Mapping[int, Schema] = field(factory=dict)  # what it answers when it does what was asked, by status
    refuses: tuple[int, ...] = ()  # statuses of its errors, beyond those that every such route can have
    media: str = "application/json"  # what `gives` is encoded as
    max_body: int = MIB
    waits: bool = False  # waits or streams on purpose: when the client hangs up, the handler is cancelled


@frozen(kw_only=True)
class ChannelRoute:
    """A path that speaks WebSocket."""

    path: str
    handler: ChannelHandler
    scope: str | None = None
    summary: str = ""
    group: str = ""
    asks: tuple[Argument, ...] = ()
    method: str = field(default="WEBSOCKET", init=False)


AnyRoute: TypeAlias = Route | ChannelRoute


@frozen
class Match:
    """The route that answers, and what its `{names}` stand for."""

    route: AnyRoute
    params: Mapping[str, str]


class _Node:
    """One path segment of the table, and what may follow it."""

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, AnyRoute] = {}


class Table:
    """Routes by path. Literal segments win over `{names}`; two routes for one method and shape cannot be built."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        self.routes = tuple(routes)
        self._static: dict[str, dict[str, AnyRoute]] = {}
        self._root = _Node()
        self._names: dict[int, tuple[str, ...]] = {}
        for route in self.routes:
            self._add(route)

    def match(self, method: str, path: str) -> Match:
        """The route for this method and decoded path; a `Refusal` with 404, 405 or 426 when there is none."""
        found = self._static.get(path)
        if found is not None:
            return Match(self._choose(found, method), {})
        segments = path.split("/")[1:]
        values: list[str] = []
        node = _walk(self._root, segments, 0, values)
        if node is None:
            raise HTTPError(refusal_response(404, "not_found", "there is nothing at this path", hint=PATHS_HINT))
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
            raise DuctileError(
                f"two routes answer {route.method} {route.path}: {found[route.method].path} is the first"
            )
        found[route.method] = route

    @staticmethod
    def _choose(found: Mapping[str, AnyRoute], method: str) -> AnyRoute:
        route = found.get(method) or (found.get("GET") if method == "HEAD" else None)
        if route is not None:
            return route
        if method == "WEBSOCKET":  # RFC 9110 7.8: a server may ignore the wish to upgrade
            return Table._choose(found, "GET")
        if method == "GET" and "WEBSOCKET" in found:
            raise HTTPError(
                refusal_response(
                    426,
                    "upgrade_required",
                    "this path speaks WebSocket only",
                    hint="connect with a WebSocket client, or follow GET /events",
                    headers=(("connection", "upgrade"), ("upgrade", "websocket")),
                )
            )
        allowed = _allowed(found)
        raise HTTPError(
            refusal_response(
                405,
                "method_not_allowed",
                f"this path does not answer {method}",
                hint=f"allowed: {allowed}",
                headers=(("allow", allowed),),
            )
        )


def decode_path(raw: str) -> str:
    """The path behind its percent-encoding. Refused with 400: what could be read in two ways, or hides a separator."""
    if _PLAIN.fullmatch(raw) and "/." not in raw:
        return raw
    if not _ESCAPED.fullmatch(raw):
        raise _bad_path("it is not correctly percent-encoded")
    if _ENCODED_SEPARATOR.search(raw):
        raise _bad_path("it has an encoded slash or backslash")
    try:
        path = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise _bad_path("it is not UTF-8") from None
    if _CONTROL.search(path):
        raise _bad_path("it has a control character")
    if any(segment in (".", "..") for segment in path.split("/")):
        raise _bad_path("it has a dot segment")
    return path


def decode_query(raw: str) -> dict[str, tuple[str, ...]]:
    """Query arguments in order, each with all its values; more than a hundred or broken encoding is refused."""
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
            hint='write it like "/job/{id}": non-empty segments, no trailing slash',
        )
    return segments[1:]


def _child(node: _Node, segment: str) -> _Node:
    if not segment.startswith("{"):
        return node.literal.setdefault(segment, _Node())
    if node.parameter is None:
        node.parameter = _Node()
    return node.parameter


def _walk(node: _Node, segments: list[str], at: int, values: list[str]) -> _Node | None:
    """The node that answers these segments, its parameters in `values`; goes no deeper than the table itself."""
    if at == len(segments):
        return node if node.routes else None
    segment = segments[at]
    literal = node.literal.get(segment)
    if literal is not None:
        found = _walk(literal, segments, at + 1, values)
        if found is not None:
            return found
    if node.parameter is None or not segment:
        return None
    values.append(segment)
    found = _walk(node.parameter, segments, at + 1, values)
    if found is None:
        values.pop()
    return found


def _allowed(found: Mapping[str, AnyRoute]) -> str:
    methods = {method for method in found if method != "WEBSOCKET"} or {"GET"}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _bad_path(reason: str) -> HTTPError:
    return HTTPError(refusal_response(400, "bad_path", f"the path cannot be read: {reason}", hint=ENCODING_HINT))


def _bad_query(reason: str) -> HTTPError:
    return HTTPError(refusal_response(400, "bad_query", f"the query cannot be read: {reason}", hint=ENCODING_HINT))
