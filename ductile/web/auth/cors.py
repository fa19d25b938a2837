"""CORS: which web origins may use the API from a browser.

Pure. The operator lists the origins in `api.allowed_origins`. Requests without an Origin header are not affected.
"""

from collections.abc import Callable, Collection

from attrs import evolve

from ductile.web.messages import Headers, Request, Response

Origins = Callable[[], Collection[str]]
"""Returns the allowed origins of the current configuration."""

PREFLIGHT_HEADERS: Headers = (
    ("access-control-allow-methods", "GET, POST, PUT, DELETE, OPTIONS"),
    (
        "access-control-allow-headers",
        "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-CSRF-Token",
    ),
    ("access-control-max-age", "300"),
)
EXPOSED_HEADERS: Headers = (
    ("access-control-expose-headers", "Idempotent-Replayed, Link, Retry-After"),
    ("vary", "Origin"),
)


def is_allowed(request: Request, origins: Origins) -> bool:
    origin = request.headers.get("origin")
    return origin is not None and len(origin) == 1 and origin[0] in origins()


def preflight(request: Request, origins: Origins) -> Response | None:
    """Return the response to a CORS preflight of an allowed origin; None for any other request."""
    if request.method != "OPTIONS" or not is_allowed(request, origins):
        return None
    return Response(status=204, headers=PREFLIGHT_HEADERS)


def with_cors_headers(request: Request | None, response: Response, origins: Origins) -> Response:
    """Add CORS headers to the response if the origin of the request is allowed."""
    if request is None or not is_allowed(request, origins):
        return response
    origin = request.headers["origin"][0]
    allow: Headers = (("access-control-allow-origin", origin), ("access-control-allow-credentials", "true"))
    return evolve(response, headers=(*response.headers, *allow, *EXPOSED_HEADERS))
