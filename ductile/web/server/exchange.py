"""A request and its response in progress: routing and authorization from the head, and the access log entry.

Knows h11's request and the site. Does not know sockets: the protocol creates an exchange, the app responds to it.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache

import h11
import trio
from attrs import define, field

from ductile.web.messages import Headers, HTTPError, Request, Response, refusal_response
from ductile.web.routing import AnyRoute, WebSocketRoute, decode_path, decode_query
from ductile.web.server.limits import too_large
from ductile.web.server.site import AccessLogEntry, Site

WEBSOCKET_VERSION = "13"
RawHeaders = list[tuple[bytes, bytes]]


@define(eq=False, kw_only=True)
class Exchange:
    """A request with a complete head, or one that was refused before its head was complete."""

    site: Site
    peer: str
    abort: Callable[[], None]
    """Close the connection immediately."""
    uid: int | None = None
    started_at: float = field(factory=trio.current_time)
    request: Request | None = None
    route: AnyRoute | None = None
    refusal: Response | None = None
    """The error response, if the head alone determines it."""
    is_head: bool = False
    has_body: bool = False
    status: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    is_refused: bool = False
    """The protocol has sent an error response: the rest of the request is invalid or too slow."""
    is_complete: bool = False
    """The last byte of the response was written to the socket."""
    until: Callable[[], Awaitable[None]] | None = None
    is_answered: trio.Event = field(factory=trio.Event)
    """Set when the response has started."""
    has_ended: trio.Event = field(factory=trio.Event)
    """Set when the app has finished this request."""
    _is_reported: bool = False

    def decide(self, head: h11.Request) -> None:
        """Match and authorize the request from its head alone, before its body is read."""
        headers = group_headers(head.headers)
        self.is_head = head.method == b"HEAD"
        self.received_bytes = sum(len(name) + len(value) + 4 for name, value in head.headers) + len(head.target)
        length = int(headers.get("content-length", ("0",))[0])
        self.has_body = length > 0 or "transfer-encoding" in headers
        try:
            self.request = self._request(head, headers)
            wants_websocket = self._wants_websocket(head, headers)
            self.route, self.request = self.site.admit(self.request, wants_websocket=wants_websocket)
            if isinstance(self.route, WebSocketRoute):
                require_handshake(headers)
            elif length > self.route.max_body:
                raise too_large(self.route.max_body)
        except HTTPError as refusal:
            self.refusal = refusal.response

    def report(self) -> None:
        """Write the access log entry, once."""
        if self._is_reported:
            return
        self._is_reported = True
        request = self.request
        self.site.on_request(
            AccessLogEntry(
                peer=self.peer,
                method=request.method if request else "",
                path=request.path if request else "",
                route=self.route,
                status=self.status,
                duration_seconds=trio.current_time() - self.started_at,
                received_bytes=self.received_bytes,
                sent_bytes=self.sent_bytes,
                principal=request.principal if request else None,
            )
        )

    def _request(self, head: h11.Request, headers: Mapping[str, tuple[str, ...]]) -> Request:
        path, _, query = head.target.decode("ascii").partition("?")
        self.peer = self.site.trusted_proxies().client_of(self.peer, headers.get("x-forwarded-for", ()))
        return Request(
            method=head.method.decode("ascii"),
            path=decode_path(path),
            query=decode_query(query),
            headers=headers,
            peer=self.peer,
            uid=self.uid,
        )

    def _wants_websocket(self, head: h11.Request, headers: Mapping[str, tuple[str, ...]]) -> bool:
        return (
            "upgrade" in headers
            and head.method == b"GET"
            and head.http_version == b"1.1"
            and not self.has_body
            and "upgrade" in _tokens(headers, "connection")
            and "websocket" in _tokens(headers, "upgrade")
        )


def group_headers(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, tuple[str, ...]]:
    """Return all values of each header, by lower-case name."""
    headers: dict[str, tuple[str, ...]] = {}
    for raw_name, raw_value in fields:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = (*headers[name], value) if name in headers else (value,)
    return headers


def require_handshake(headers: Mapping[str, tuple[str, ...]]) -> None:
    """Raise HTTPError if the headers are not a valid WebSocket handshake."""
    if headers.get("sec-websocket-version") != (WEBSOCKET_VERSION,):
        raise HTTPError(
            refusal_response(
                426,
                "websocket_version_unknown",
                f"only WebSocket version {WEBSOCKET_VERSION} is supported",
                hint=f"Send Sec-WebSocket-Version: {WEBSOCKET_VERSION}.",
                headers=(
                    ("connection", "upgrade"),
                    ("upgrade", "websocket"),
                    ("sec-websocket-version", WEBSOCKET_VERSION),
                ),
            )
        )
    keys = headers.get("sec-websocket-key", ())
    if len(keys) != 1 or not _WEBSOCKET_KEY.fullmatch(keys[0]):
        message = "invalid WebSocket handshake: exactly one Sec-WebSocket-Key of 16 bytes in base64 is required"
        raise HTTPError(refusal_response(400, "bad_handshake", message, hint="Connect with a WebSocket client."))


def strip_upgrade(head: h11.Request) -> h11.Request:
    """Return the request without Upgrade headers."""
    if not any(name == b"upgrade" for name, _ in head.headers):
        return head
    return _with_headers(head, [(name, value) for name, value in head.headers if name != b"upgrade"])


def clean_handshake(head: h11.Request) -> h11.Request:
    """Return a plain WebSocket handshake: no HTTP/2, compression, subprotocol or cookie."""
    upgrade = (b"connection", b"upgrade")
    headers = [(name, value) for name, value in head.headers if name not in upgrade and name not in _DROPPED_HEADERS]
    return _with_headers(head, [*headers, (b"connection", b"upgrade"), (b"upgrade", b"websocket")])


def raw_headers(headers: Headers) -> RawHeaders:
    """Encode the headers. Raises ValueError for an invalid name or value, such as one with a line break."""
    return [_raw_header(name, value) for name, value in headers]


@lru_cache(maxsize=512)  # most responses share a few headers
def _raw_header(name: str, value: str) -> tuple[bytes, bytes]:
    if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
        raise ValueError(f"header {name!r} cannot be sent as it is")
    return name.encode("ascii"), value.encode("latin-1")


def _with_headers(head: h11.Request, headers: RawHeaders) -> h11.Request:
    return h11.Request(method=head.method, target=head.target, headers=headers, http_version=head.http_version)


def _tokens(headers: Mapping[str, tuple[str, ...]], name: str) -> set[str]:
    return {token.strip().lower() for value in headers.get(name, ()) for token in value.split(",")}


_DROPPED_HEADERS = (b"sec-websocket-extensions", b"sec-websocket-protocol", b"http2-settings", b"cookie")
_WEBSOCKET_KEY = re.compile(r"[A-Za-z0-9+/]{22}==")
"""16 bytes in base64 (RFC 6455)."""
_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FIELD_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")
