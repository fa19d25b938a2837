"""The request, response and WebSocket types of handlers, and the JSON shape of errors.

Does not know sockets, Quart or routes, so tests can call a handler with plain values.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from typing import Annotated, Any, Protocol, TypedDict

from attrs import field, frozen

from ductile.core.errors import DuctileError, LedgerError
from ductile.core.formats import strict_json

Headers = tuple[tuple[str, str], ...]

SAFE_HEADERS: Headers = (
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("content-security-policy", "default-src 'none'"),
)
JSON_HEADERS: Headers = (("content-type", "application/json"), *SAFE_HEADERS)
RETRY_AFTER_SECONDS = 5


@frozen(kw_only=True)
class Request:
    """A complete HTTP request. The path is decoded, header names are lower case, the body is within its limit."""

    method: str
    path: str
    query: Mapping[str, tuple[str, ...]] = field(factory=dict)
    headers: Mapping[str, tuple[str, ...]] = field(factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    peer: str = ""
    uid: int | None = None
    """The user id of a client of the unix socket."""
    params: Mapping[str, str] = field(factory=dict)
    principal: Any = None

    def header(self, name: str) -> str | None:
        """Return the value of a header, repeated fields joined with commas (RFC 9110); None if it is absent."""
        values = self.headers.get(name)
        return ", ".join(values) if values else None

    def argument(self, name: str) -> str | None:
        """Return the value of a query argument; None if it is absent. Raises HTTPError 400 if it is repeated."""
        values = self.query.get(name, ())
        if len(values) > 1:
            raise HTTPError(
                refusal_response(
                    400,
                    "argument_repeated",
                    f"query argument {name!r} is repeated {len(values)} times",
                    hint="Send it once.",
                )
            )
        return values[0] if values else None


@frozen(kw_only=True)
class Response:
    """A response. The body is bytes or, except for POST, a stream whose chunks are sent as they are produced."""

    status: int = 200
    headers: Headers = ()
    body: bytes | AsyncIterable[bytes] = field(default=b"", repr=False)
    until: Callable[[], Awaitable[None]] | None = None
    """When it returns, the stream is aborted, even if the client does not read. For routes with `waits`."""


class ErrorView(TypedDict):
    """An error response."""

    error: Annotated[str, "Error message"]
    code: Annotated[str, "Stable error code"]
    status: Annotated[int, "HTTP status"]
    hint: Annotated[str, "How to fix it; may be empty"]
    context: Annotated[dict[str, Any], "Values that the message refers to"]


class WebSocket(Protocol):
    """A WebSocket connection. Its handler is cancelled when the client disconnects."""

    async def accept(self) -> None: ...

    async def send(self, message: str | bytes) -> None: ...

    async def receive(self) -> str | bytes: ...

    async def close(self, code: int, reason: str = "") -> None: ...

    def abort(self) -> None:
        """Close the connection immediately, even during a write that the client does not read."""


class HTTPError(Exception):
    """A refused request, with its error response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def json_response(data: Any, status: int = 200, headers: Headers = ()) -> Response:
    """Encode `data` as a JSON response, with headers against sniffing, caching and active content."""
    return encoded_json_response(strict_json.dumps(data).encode(), status, headers)


def encoded_json_response(text: bytes, status: int = 200, headers: Headers = ()) -> Response:
    """Return a JSON response from text that is already encoded."""
    return Response(status=status, headers=(*JSON_HEADERS, *headers), body=text)


def error_response(error: DuctileError, headers: Headers = ()) -> Response:
    """Return the JSON error response of an exception. A 429 or 503 has a Retry-After header.

    Clients must not see the path of the ledger.
    """
    message = error.reason if isinstance(error, LedgerError) else str(error)
    return refusal_response(error.status, error.code, message, hint=error.hint, context=error.context, headers=headers)


def refusal_response(
    status: int,
    code: str,
    message: str,
    *,
    hint: str,
    context: Mapping[str, Any] | None = None,
    headers: Headers = (),
) -> Response:
    """Return a JSON error response."""
    if status in (429, 503):
        headers = (*headers, ("retry-after", str(RETRY_AFTER_SECONDS)))
    data = ErrorView(error=message, code=code, status=status, hint=hint, context=dict(context or {}))
    return json_response(data, status, headers)
