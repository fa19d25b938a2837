"""HTTP requests to untrusted URLs. Standard library only. Requires ductile_guard.py and ductile_plugin.py.

Every redirect is checked: the host name is resolved once, each address must be allowed, and the connection uses that
address. Size, redirects and total time are limited. Proxies and cookies are not used.
"""

from __future__ import annotations

import re
import signal
import socket

from ductile_guard import Guard, Refused, host_of, port_of, split_url
from ductile_plugin import Failed, Final, exceeds_depth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any
    from urllib.parse import SplitResult

MAX_SECONDS = 3600.0
"""The longest time limit; setitimer rejects very large numbers."""
# Other codecs of Python are not used on the web, and some take hours on hostile input.
_CHARSET = re.compile(
    r"utf-?(8|16|32)|us-ascii|ascii|iso|latin|windows|cp\d|koi8|mac|shift|euc|gb|big5|hz", re.IGNORECASE
)
_CROSS_ORIGIN_HEADERS = ("Accept", "User-Agent", "Content-Type")
_FRAMING = {"Host", "Connection", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Expect"}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


class Response:
    """The last response. Header names are lower case; `hops` are the requested URLs in order."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, hops: list[str]) -> None:
        self.status, self.headers, self.body, self.hops = status, headers, body, hops

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def text(self) -> str:
        """Decode the body with the declared charset, by default UTF-8. Invalid bytes become U+FFFD."""
        named = re.search(r"charset=[\"']?([A-Za-z0-9._-]+)", self.headers.get("content-type", ""), re.IGNORECASE)
        charset = named[1].lower() if named and _CHARSET.match(named[1]) else "utf-8-sig"
        try:
            return self.body.decode(charset, "replace")
        except (LookupError, UnicodeError):
            return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Parse the body as strict JSON of at most 50 levels, so that it fits in an event. Raises ValueError."""
        import json

        try:
            value = json.loads(self.text(), parse_constant=_finite, parse_float=_finite)
        except RecursionError as error:
            raise ValueError("too many levels") from error
        if exceeds_depth(value, 50):
            raise ValueError("more than 50 levels")
        return value

    def require_success(self) -> None:
        """Raise Failed for temporary errors (408, 425, 429, 5xx), Final for other statuses than 2xx and 304."""
        if 200 <= self.status < 300 or self.status == 304:
            return
        message = f"{host_of(split_url(self.hops[-1]))} responded with status {self.status}"
        if self.status >= 500 or self.status in (408, 425, 429):
            raise Failed(message, retry_after=self._retry_after())
        raise Final(message)

    def _retry_after(self) -> float | None:
        text = self.headers.get("retry-after", "").strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return float(text)
        import time
        from email.utils import parsedate_to_datetime

        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (TypeError, ValueError, IndexError, OverflowError):
            return None


def request(
    method: str,
    url: str,
    *,
    guard: Guard,
    timeout: float,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    max_bytes: int = 1 << 20,
    max_redirects: int = 0,
) -> Response:
    """Send a request and return the response, within `timeout` seconds in total. Raises Failed or Final.

    Follows at most `max_redirects` redirects; with 0, a redirect is returned as the response. A redirect to another
    origin gets only the headers Accept, User-Agent and Content-Type.
    """
    timeout = min(timeout, MAX_SECONDS)
    hops = [url]
    sent = {name.title(): value for name, value in (headers or {}).items()}
    if framing := _FRAMING.intersection(sent):
        raise Final(f"the header {min(framing)} must not be set")
    for name, value in sent.items():
        if not _TOKEN.fullmatch(name) or not _LINE.fullmatch(value):
            raise Final(f"{name[:80]!r} is not a valid header: it must be one line of Latin-1")
    with time_limit(timeout, f"a complete response from {host_of(split_url(url))}"):
        while True:
            parts = split_url(hops[-1])
            response = _exchange(method, parts, guard, sent, body, timeout=timeout, max_bytes=max_bytes, hops=hops)
            target = response.headers.get("location")
            if max_redirects == 0 or target is None or response.status not in (301, 302, 303, 307, 308):
                return response
            if len(hops) > max_redirects:
                raise Final(f"{host_of(parts)} redirected more than {max_redirects} times")
            next_url = _next_url(parts, target)
            hops.append(next_url.geturl())
            if _origin(next_url) != _origin(parts):
                sent = {name: value for name, value in sent.items() if name in _CROSS_ORIGIN_HEADERS}
            if response.status < 307 and method != "HEAD":
                method, body = "GET", None
                sent.pop("Content-Type", None)


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:  # Infinity or NaN
        raise ValueError(f"{text[:40]} is not a JSON number")
    return number


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, host_of(parts), port_of(parts)


def _next_url(parts: SplitResult, target: str) -> SplitResult:
    from urllib.parse import urljoin

    # http.client decodes headers as Latin-1; servers send UTF-8.
    location = target.strip().encode("latin-1", "replace").decode("utf-8", "replace")
    try:
        next_url = split_url(urljoin(parts.geturl(), location))
    except (Refused, ValueError) as refusal:
        raise Refused(f"{host_of(parts)} redirected to a URL that is not allowed: {refusal}") from refusal
    if parts.scheme == "https" and next_url.scheme == "http":
        raise Refused(f"{host_of(parts)} redirected from https to http")
    return next_url


class time_limit:  # noqa: N801, used like a function
    """Limit the time of a block, even if a server sends one byte at a time. Raises `failure` when the time is over."""

    def __init__(self, seconds: float, what: str, failure: type[Failed] = Failed) -> None:
        self.seconds, self.what, self.failure = min(seconds, MAX_SECONDS), what, failure

    def __enter__(self) -> None:
        self.previous_handler = signal.signal(signal.SIGALRM, self._expire)
        signal.setitimer(signal.ITIMER_REAL, max(self.seconds, 0.001))

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.previous_handler)

    def _expire(self, *_: object) -> None:
        raise self.failure(f"{self.what}: timed out after {self.seconds:g} s")


def _exchange(
    method: str,
    parts: SplitResult,
    guard: Guard,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    timeout: float,
    max_bytes: int,
    hops: list[str],
) -> Response:
    """Send one request to one of the allowed addresses of its host."""
    import http.client

    host, port = host_of(parts), port_of(parts)
    bracketed = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme]
    fixed = {
        "Host": bracketed if port == default else f"{bracketed}:{port}",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    connection = http.client.HTTPConnection(host, port)
    connection.auto_open = 0  # use the given socket only; do not connect again
    try:
        connection.sock = _connect(parts.scheme, host, guard.addresses(host, port), timeout)
        target = parts._replace(scheme="", netloc="").geturl()
        connection.request(method, target, body, {**headers, **fixed})
        response = connection.getresponse()
        fields = {name.lower(): re.sub(r"[\r\n]+\s*", " ", value) for name, value in response.getheaders()}
        return Response(response.status, fields, b"".join(_body(response, fields, host, max_bytes)), hops)
    except TimeoutError as error:
        raise Failed(f"{host}:{port} did not respond within {timeout:g} s") from error
    except OSError as error:
        raise Failed(f"connection to {host}:{port} failed: {error.strerror or error}") from error
    except http.client.HTTPException as error:
        raise Failed(f"{host}:{port} sent an invalid HTTP response: {type(error).__name__}") from error
    except ValueError as error:
        raise Final(f"the request cannot be sent: {error}") from error
    finally:
        connection.close()


def _connect(scheme: str, host: str, addresses: list[tuple[Any, ...]], timeout: float) -> socket.socket:
    """Connect to the first of `addresses` that accepts a connection."""
    last: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(timeout)
            sock.connect(address)
            if scheme == "http":
                return sock
            import ssl

            return ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
    raise last or OSError(f"{host} has no address")


def _body(response: Any, headers: Mapping[str, str], host: str, max_bytes: int) -> Iterator[bytes]:
    """Yield the body in pieces. Raises Final if it is compressed or too large, Failed if it is incomplete."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Final(f"{host} sent a compressed body, which was not requested")
    size = 0
    too_large = Final(f"{host} sent more than {max_bytes} bytes")
    if response.length is not None and response.length > max_bytes:
        raise too_large
    while piece := response.read(min(65536, max_bytes + 1)):
        size += len(piece)
        if size > max_bytes:
            raise too_large
        yield piece
    if response.length:
        raise Failed(f"{host} closed the connection before the response was complete")
