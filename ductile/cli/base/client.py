"""How commands talk to the running service: its local socket, or the address somebody names.

Plain HTTP from the standard library; a command that only asks a question imports nothing more.
"""

import http.client
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import field, frozen

from ductile.cli.agents.error_codes import EXIT_CODE_OF
from ductile.cli.base import output
from ductile.core.errors import DuctileError, NotAllowed, NotFound, ServiceUnreachable

CONNECT_SECONDS = 5.0
LONGEST_ANSWER_SECONDS = 330.0


class _LocalConnection(http.client.HTTPConnection):
    """HTTP over the service's unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CONNECT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_SECONDS)
        self.sock.connect(str(self._path))


class ServiceRefused(DuctileError):
    """The service refused."""

    code, exit_code = "refused", 1
    hint = "`ductile system status` tells how the service is, `ductile logs` what it did"


class Busy(DuctileError):
    """The service cannot do this now."""

    code, exit_code, status = "busy", 75, 503
    hint = "try again in a moment"


@frozen
class Client:
    """Where the service is and how to get in."""

    socket_path: Path | None = None
    url: str | None = None
    key: str | None = field(default=None, repr=False)

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The JSON answer; a refusal or no answer is an error with what to do."""
        return dict(self._answer(method, path, body))

    def ask_list(self, method: str, path: str) -> list[dict[str, Any]]:
        """The same where the answer is a list."""
        return list(self._answer(method, path, None))

    @property
    def authorization(self) -> dict[str, str]:
        """The header that lets us in. NotAllowed for a key that no header can carry, without showing it."""
        if not self.key:
            return {}
        if not (self.key.isascii() and self.key.isprintable()):
            raise NotAllowed("the API key has characters that no token has", hint="look for a line break in it")
        return {"authorization": f"Bearer {self.key}"}

    def _answer(self, method: str, path: str, body: Any) -> Any:
        connection = self.connection()
        headers = {"content-type": "application/json"} | self.authorization
        try:
            connection.connect()
            connection.sock.settimeout(LONGEST_ANSWER_SECONDS)
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            content = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServiceUnreachable(
                f"the service does not answer at {self.url or self.socket_path}: {error}",
                hint="is it running? start it with `ductile system start`",
            ) from error
        finally:
            connection.close()
        output.detail(f"asked: {method} {path} → {answer.status}")
        if answer.status >= 400:
            raise refusal(answer.status, content)
        return content

    def connection(self) -> http.client.HTTPConnection:
        """A connection to the service, not open yet."""
        if self.url is None:
            assert self.socket_path is not None
            return _LocalConnection(self.socket_path)
        scheme, host, port = address_of(self.url)
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        return kind(host, port, timeout=CONNECT_SECONDS)


def address_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Nothing else would be asked for, so an address that says more is refused."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        parts, port = urlsplit(""), 0
    if not parts.hostname:
        raise ServiceUnreachable(f"{url[:200]!r} is not an address", hint="write http://HOST:PORT")
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        hint = "write http://HOST:PORT; the API has an address of its own, and its token comes with --api-key"
        raise ServiceUnreachable("the address has more than a host and a port", hint=hint)
    return parts.scheme, parts.hostname, port


def refusal(status: int, content: Any) -> DuctileError:
    """What the service said no with, as an error of ours."""
    answer = content if isinstance(content, dict) else {}
    kinds: dict[int, type[DuctileError]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 503: Busy}
    kind = kinds.get(status, ServiceRefused)
    error = kind(str(answer.get("error", f"HTTP {status}")), hint=str(answer.get("hint") or "") or None)
    error.code = str(answer.get("code", error.code))  # type: ignore[misc]
    error.exit_code = EXIT_CODE_OF.get(error.code, kind.exit_code)  # type: ignore[misc]
    error.context = {"status": status, **(answer.get("context") or {})}
    return error
