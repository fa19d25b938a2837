"""HTTP client of the running service, over its local socket or the address of `--api-url`.

Uses the standard library only, so that commands start fast.
"""

import http.client
import json
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import field, frozen

from ductile.cli.base import output
from ductile.cli.base.error_codes import EXIT_CODE_OF
from ductile.core.errors import DuctileError, NotAllowed, NotFound, ServiceUnreachable

CONNECT_TIMEOUT_SECONDS = 5.0
RESPONSE_TIMEOUT_SECONDS = 330.0


class _LocalConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket of the service."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CONNECT_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_TIMEOUT_SECONDS)
        self.sock.connect(str(self._path))


class ServiceRefused(DuctileError):
    """The service refused the request."""

    code, exit_code = "refused", 1
    hint = "Run `ductile system status` and `ductile logs` to find the cause."


class Busy(DuctileError):
    """The service is busy."""

    code, exit_code, status = "busy", 75, 503
    hint = "Retry in a moment."


@frozen
class Client:
    """The address of the service and the API key for it."""

    socket_path: Path | None = None
    url: str | None = None
    key: str | None = field(default=None, repr=False)

    def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request and return the JSON object of the response. Raise an error for a status of 400 or more."""
        return dict(self._request(method, path, body))

    def health(self) -> dict[str, Any]:
        """Return the health of the service, also while it is degraded."""
        return dict(self._request("GET", "/healthz", None, accepted=(503,)))

    def request_list(self, method: str, path: str) -> list[dict[str, Any]]:
        """Send a request and return the JSON list of the response."""
        return list(self._request(method, path, None))

    @property
    def authorization(self) -> dict[str, str]:
        """The authorization header. Raises NotAllowed, without the key, if no header can carry it."""
        if not self.key:
            return {}
        if not (self.key.isascii() and self.key.isprintable()):
            raise NotAllowed(
                "the API key has invalid characters", hint="Remove line breaks and non-ASCII characters from the key."
            )
        return {"authorization": f"Bearer {self.key}"}

    def _request(self, method: str, path: str, body: Any, *, accepted: Collection[int] = ()) -> Any:
        connection = self.connection()
        headers = {"content-type": "application/json"} | self.authorization
        try:
            connection.connect()
            connection.sock.settimeout(RESPONSE_TIMEOUT_SECONDS)
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            content = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServiceUnreachable(
                f"the service does not respond at {self.url or self.socket_path}: {error}",
                hint="Start the service with `ductile system start`.",
            ) from error
        finally:
            connection.close()
        output.detail(f"request: {method} {path} → {response.status}")
        is_error = response.status >= 400 and (response.status not in accepted or "error" in content)
        if is_error:
            raise error_from_response(response.status, content)
        return content

    def connection(self) -> http.client.HTTPConnection:
        """Return a connection to the service that is not open yet."""
        if self.url is None:
            assert self.socket_path is not None
            return _LocalConnection(self.socket_path)
        scheme, host, port = parse_url(self.url)
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        return kind(host, port, timeout=CONNECT_TIMEOUT_SECONDS)


def parse_url(url: str) -> tuple[str, str, int]:
    """Split a URL into scheme, host and port. Refuse a path, query or user name: they would be ignored."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        parts, port = urlsplit(""), 0
    if not parts.hostname:
        raise ServiceUnreachable(f"{url[:200]!r} is not a URL", hint="Write http://HOST:PORT.")
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        hint = "Write http://HOST:PORT. Give the token with --api-key."
        raise ServiceUnreachable("the URL has more than a host and a port", hint=hint)
    return parts.scheme, parts.hostname, port


def error_from_response(status: int, content: Any) -> DuctileError:
    """Turn an error response of the service into an error."""
    body = content if isinstance(content, dict) else {}
    kinds: dict[int, type[DuctileError]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 503: Busy}
    kind = kinds.get(status, ServiceRefused)
    error = kind(str(body.get("error", f"HTTP {status}")), hint=str(body.get("hint") or "") or None)
    error.code = str(body.get("code", error.code))  # type: ignore[misc]
    error.exit_code = EXIT_CODE_OF.get(error.code, kind.exit_code)  # type: ignore[misc]
    error.context = {"status": status, **(body.get("context") or {})}
    return error
