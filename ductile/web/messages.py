"""Our own request, response and socket: what a handler sees and what it returns.

Knows nothing of sockets, of Quart or of routes, so a handler can be called from a test with plain values. The protocol
builds requests, the app sends responses.
"""

import re
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from typing import Any, Protocol

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
_PATH = re.compile(r"^/.*?: ")
"""Where the ledger is, which is nobody's business who can only ask."""


@frozen(kw_only=True)
class Request:
    """One HTTP request, complete: the path is decoded, header names are lower case, the body is within its cap."""

    method: str
    path: str
    query: Mapping[str, tuple[str, ...]] = field(factory=dict)
    headers: Mapping[str, tuple[str, ...]] = field(factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    peer: str = ""
    params: Mapping[str, str] = field(factory=dict)
    principal: Any = None

    def header(self, name: str) -> str | None:
        """The field's value, several joined as RFC 9110 reads them; None when it was not sent."""
        values = self.headers.get(name)
        return ", ".join(values) if values else None

    def argument(self, name: str) -> str | None:
        """The one value of a query argument, None when absent; given twice is refused."""
        values = self.query.get(name, ())
        if len(values) > 1:
            raise HTTPError(
                refusal_response(
                    400, "argument_repeated", f"?{name}= is given {len(values)} times", hint="give it once"
                )
            )
        return values[0] if values else None


@frozen(kw_only=True)
class Response:
    """An answer: a body in one piece, or pieces as they come (each is sent as soon as it is there; not for POST)."""

    status: int = 200
    headers: Headers = ()
    body: bytes | AsyncIterable[bytes] = field(default=b"", repr=False)
    until: Callable[[], Awaitable[None]] | None = None
    """When it returns, the rest of a stream is not sent, even if the client does not read. For routes with `waits`."""


class Channel(Protocol):
    """A WebSocket as its handler sees it. When the client leaves, the handler is cancelled."""

    async def accept(self) -> None: ...

    async def send(self, message: str | bytes) -> None: ...

    async def receive(self) -> str | bytes: ...

    async def close(self, code: int, reason: str = "") -> None: ...

    def cut(self) -> None:
        """The connection is over at once, even in the middle of a message that the client does not read."""


class HTTPError(Exception):
    """The request is answered without doing what it asks."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def json_response(data: Any, status: int = 200, headers: Headers = ()) -> Response:
    """`data` as JSON, with the headers that keep a browser from reading anything else into it."""
    return encoded_json_response(strict_json.dumps(data).encode(), status, headers)


def encoded_json_response(text: bytes, status: int = 200, headers: Headers = ()) -> Response:
    """JSON that only passes through, as it is."""
    return Response(status=status, headers=(*JSON_HEADERS, *headers), body=text)


def error_response(error: DuctileError, headers: Headers = ()) -> Response:
    """The one JSON shape of every error; a 503 says when to come back."""
    words = _PATH.sub("", str(error)) if isinstance(error, LedgerError) else str(error)
    return refusal_response(error.status, error.code, words, hint=error.hint, context=error.context, headers=headers)


def refusal_response(
    status: int,
    code: str,
    message: str,
    *,
    hint: str,
    context: Mapping[str, Any] | None = None,
    headers: Headers = (),
) -> Response:
    """The JSON shape of an error that never was an exception."""
    if status == 503:
        headers = (*headers, ("retry-after", str(RETRY_AFTER_SECONDS)))
    data = {"error": message, "code": code, "status": status, "hint": hint, "context": dict(context or {})}
    return json_response(data, status, headers)
