"""A site: one route table, who may use it, and who is told about it.

The single place where a route's scope is checked and the edge of a request, where any error becomes an answer. Does
not know how requests arrive.
"""

from collections.abc import Callable
from typing import TypeAlias

from attrs import evolve, field, frozen

from ductile.core.errors import DuctileError, did_you_mean
from ductile.web.auth.cors import Origins, preflight, readable
from ductile.web.messages import HTTPError, Request, Response, error_response, refusal_response
from ductile.web.routes import AnyRoute, Route, Table
from ductile.web.server.proxies import NO_PROXIES, TrustedProxies


@frozen(kw_only=True)
class Served:
    """One finished exchange, for the access log and the counters. No query and no headers: those can hold secrets."""

    peer: str
    method: str
    path: str
    route: AnyRoute | None
    status: int  # 0: the client left before it was answered
    duration_seconds: float
    received_bytes: int
    sent_bytes: int
    principal: object = None


TAKEN_AS_JSON = ("application/json", "application/x-www-form-urlencoded", "text/plain", "")

Authorize: TypeAlias = Callable[[AnyRoute, Request], Request | Response]


@frozen(kw_only=True)
class Site:
    """What a server serves. `authorize` returns the request, with its principal, or the answer that refuses it."""

    table: Table
    authorize: Authorize
    origins: Origins = tuple
    """The web origins whose pages may read the answers."""
    trusted_proxies: Callable[[], TrustedProxies] = field(default=lambda: NO_PROXIES)
    """The proxies whose `X-Forwarded-For` names the peer."""
    on_request: Callable[[Served], None] = field(default=lambda _: None)
    on_fault: Callable[[BaseException, str], None] = field(default=lambda _error, _where: None)

    def admit(self, request: Request, *, wants_websocket: bool = False) -> tuple[AnyRoute, Request]:
        """The route that answers, and the request with its principal; a `Refusal` where there is none, no right, or
        an argument that it does not have."""
        if request.method == "WEBSOCKET":  # a name of ours in the table, not a method
            raise HTTPError(refusal_response(501, "method_unknown", "there is no such method", hint="use GET or POST"))
        if answer := preflight(request, self.origins):
            raise HTTPError(answer)
        match = self.table.match("WEBSOCKET" if wants_websocket else request.method, request.path)
        try:
            admitted = self.authorize(match.route, evolve(request, params=match.params) if match.params else request)
        except DuctileError as error:
            raise HTTPError(error_response(error)) from error
        except Exception as error:
            raise HTTPError(self.fault(error, match.route)) from error
        if isinstance(admitted, Response):
            raise HTTPError(admitted)
        if request.query and match.route.scope is not None:
            _require_known(match.route, request)
        return match.route, admitted

    async def answer(self, route: Route, request: Request) -> Response:
        """What the handler returns; what it raises instead, as an answer that says no more than it should."""
        try:
            _require_json(route, request)
            response = await route.handler(request)
        except HTTPError as refusal:
            response = refusal.response
        except DuctileError as error:
            response = error_response(error)
        except Exception as error:
            response = self.fault(error, route)
        return self.dressed(request, response)

    def dressed(self, request: Request | None, response: Response) -> Response:
        """The answer as the page in a browser needs it."""
        return readable(request, response, self.origins)

    def fault(self, error: Exception, route: AnyRoute) -> Response:
        """Our own mistake is reported to the operator in full and to the client not at all."""
        self.on_fault(error, f"{route.method} {route.path}")
        return refusal_response(500, "internal_error", "something went wrong here", hint="the service's log says what")


def _require_known(route: AnyRoute, request: Request) -> None:
    """A mistyped argument is refused: to ignore it would answer another question, or do what was only to be tried.
    Not asked of what is open to everybody: probes and senders of webhooks add arguments of their own."""
    known = [argument.name for argument in route.asks]
    unknown = next((name for name in request.query if name not in known), None)
    if unknown is not None:
        words = f"there is no argument ?{unknown[:80]}= here{did_you_mean(unknown[:80], known)}"
        hint = f"known: {', '.join(known)}" if known else "this route takes no arguments"
        raise HTTPError(refusal_response(400, "argument_unknown", words, hint=hint, context={"known": known}))


def _require_json(route: Route, request: Request) -> None:
    """A body that calls itself something else is refused, where JSON is taken; one without a type, or with the type
    that simple clients give everything, is read as JSON."""
    declared = request.header("content-type") if route.takes is not None and request.body else None
    if declared is None or declared in TAKEN_AS_JSON:
        return
    media = declared.partition(";")[0].strip().lower()
    if media not in TAKEN_AS_JSON and not media.endswith("+json"):
        hint = "send JSON with `Content-Type: application/json`"
        raise HTTPError(
            refusal_response(415, "media_type_unknown", f"a body of {media[:80]!r} is not taken", hint=hint)
        )
