"""A site: a route table with its authorization, access log and error handling.

The only place that checks the scope of a route, and the edge of a request, where every exception becomes a response.
Does not know sockets.
"""

from collections.abc import Callable
from typing import TypeAlias

from attrs import evolve, field, frozen

from ductile.core.errors import DuctileError, did_you_mean
from ductile.web.auth.cors import Origins, preflight, with_cors_headers
from ductile.web.messages import HTTPError, Request, Response, error_response, refusal_response
from ductile.web.routing import AnyRoute, Route, RouteTable
from ductile.web.server.proxies import NO_PROXIES, TrustedProxies


@frozen(kw_only=True)
class AccessLogEntry:
    """A finished request, for the access log and the counters. Without query and headers, which can contain secrets."""

    peer: str
    method: str
    path: str
    route: AnyRoute | None
    status: int  # 0: the client disconnected before a response
    duration_seconds: float
    received_bytes: int
    sent_bytes: int
    principal: object = None


JSON_MEDIA_TYPES = ("application/json", "application/x-www-form-urlencoded", "text/plain", "")

Authorize: TypeAlias = Callable[[AnyRoute, Request], Request | Response]


@frozen(kw_only=True)
class Site:
    """What a server serves. `authorize` returns the request with its principal, or an error response."""

    table: RouteTable
    authorize: Authorize
    origins: Origins = tuple
    """The web origins whose pages may read the responses."""
    trusted_proxies: Callable[[], TrustedProxies] = field(default=lambda: NO_PROXIES)
    """The proxies whose `X-Forwarded-For` header is trusted."""
    on_request: Callable[[AccessLogEntry], None] = field(default=lambda _: None)
    on_fault: Callable[[BaseException, str], None] = field(default=lambda _error, _where: None)

    def admit(self, request: Request, *, wants_websocket: bool = False) -> tuple[AnyRoute, Request]:
        """Return the matching route, and the request with its principal.

        Raises HTTPError if no route matches, the scope is missing, or the query has an unknown argument.
        """
        if request.method == "WEBSOCKET":  # the internal method name of WebSocket routes
            raise HTTPError(refusal_response(501, "method_unknown", "unknown method", hint="Use GET or POST."))
        if response := preflight(request, self.origins):
            raise HTTPError(response)
        match = self.table.match("WEBSOCKET" if wants_websocket else request.method, request.path)
        try:
            admitted = self.authorize(match.route, evolve(request, params=match.params) if match.params else request)
        except DuctileError as error:
            raise HTTPError(error_response(error)) from error
        except Exception as error:
            raise HTTPError(self.report_fault(error, match.route)) from error
        if isinstance(admitted, Response):
            raise HTTPError(admitted)
        if request.query and match.route.scope is not None:
            _require_known_arguments(match.route, request)
        return match.route, admitted

    async def handle(self, route: Route, request: Request) -> Response:
        """Call the handler and return its response. An exception becomes an error response without internal details."""
        try:
            _require_json_body(route, request)
            response = await route.handler(request)
        except HTTPError as refusal:
            response = refusal.response
        except DuctileError as error:
            response = error_response(error)
        except Exception as error:
            response = self.report_fault(error, route)
        return self.with_cors_headers(request, response)

    def with_cors_headers(self, request: Request | None, response: Response) -> Response:
        """Add the CORS headers that the request's origin needs."""
        return with_cors_headers(request, response, self.origins)

    def report_fault(self, error: Exception, route: AnyRoute) -> Response:
        """Report an unexpected exception to the operator, and return a response without its details."""
        self.on_fault(error, f"{route.method} {route.path}")
        return refusal_response(500, "internal_error", "internal error", hint="See the log of the service.")


def _require_known_arguments(route: AnyRoute, request: Request) -> None:
    """Refuse a query argument that the route does not have.

    Ignoring a mistyped `dry_run` would change data. Routes without a scope are exempt: probes and webhook senders add
    arguments of their own.
    """
    known = [argument.name for argument in route.query]
    unknown = next((name for name in request.query if name not in known), None)
    if unknown is not None:
        message = f"unknown query argument {unknown[:80]!r}{did_you_mean(unknown[:80], known)}"
        hint = f"Known arguments: {', '.join(known)}." if known else "This route has no query arguments."
        raise HTTPError(refusal_response(400, "argument_unknown", message, hint=hint, context={"known": known}))


def _require_json_body(route: Route, request: Request) -> None:
    """Refuse a body with another media type than JSON, on routes with a JSON body.

    Bodies without a type, or with the default type of simple clients, are read as JSON.
    """
    declared = request.header("content-type") if route.request_body is not None and request.body else None
    if declared is None or declared in JSON_MEDIA_TYPES:
        return
    media = declared.partition(";")[0].strip().lower()
    if media not in JSON_MEDIA_TYPES and not media.endswith("+json"):
        hint = "Send JSON with `Content-Type: application/json`."
        message = f"media type {media[:80]!r} is not supported"
        raise HTTPError(refusal_response(415, "media_type_unknown", message, hint=hint))
