"""Which web pages may use the API from a browser: those of the origins that the operator lists, and no others.

Pure. A browser asks before it sends (preflight) and looks at the answer's headers before a page may read it; whoever is
not a browser is not concerned.
"""

from collections.abc import Callable, Collection

from attrs import evolve

from ductile.web.messages import Headers, Request, Response

Origins = Callable[[], Collection[str]]
"""Those of the moment; nobody asks unless a browser does."""

PREFLIGHT: Headers = (
    ("access-control-allow-methods", "GET, POST, PUT, DELETE, OPTIONS"),
    (
        "access-control-allow-headers",
        "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-CSRF-Token",
    ),
    ("access-control-max-age", "300"),
)
READABLE: Headers = (("access-control-expose-headers", "Idempotent-Replayed, Link, Retry-After"), ("vary", "Origin"))


def is_allowed(request: Request, origins: Origins) -> bool:
    origin = request.headers.get("origin")
    return origin is not None and len(origin) == 1 and origin[0] in origins()


def preflight(request: Request, origins: Origins) -> Response | None:
    """The answer to a browser that asks whether its page may send; None for any other request."""
    if request.method != "OPTIONS" or not is_allowed(request, origins):
        return None
    return Response(status=204, headers=PREFLIGHT)


def readable(request: Request | None, response: Response, origins: Origins) -> Response:
    """The answer, with what lets the page that asked read it, if it may."""
    if request is None or not is_allowed(request, origins):
        return response
    origin = request.headers["origin"][0]
    own: Headers = (("access-control-allow-origin", origin), ("access-control-allow-credentials", "true"))
    return evolve(response, headers=(*response.headers, *own, *READABLE))
