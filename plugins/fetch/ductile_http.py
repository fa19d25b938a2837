"""HTTP for plugins that do not trust where they are sent, standard library only. Copy it with ductile_guard.py.

Every hop is judged anew: the name is resolved once, every address of it must be allowed, and the connection goes to
that very address. Size, redirects and the time for all of it are bounded. No proxy is used, no cookie kept.
"""

from __future__ import annotations

import re
import signal
import socket

from ductile_guard import Guard, Refused, host_of, port_of, split_url
from ductile_plugin import Failed, Final, is_deeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any
    from urllib.parse import SplitResult

LONGEST = 3600.0
"""Seconds; the clocks of the system do not take every number."""
# Python has codecs that no page is written in and that take hours for a hostile one.
_CHARSET = re.compile(
    r"utf-?(8|16|32)|us-ascii|ascii|iso|latin|windows|cp\d|koi8|mac|shift|euc|gb|big5|hz", re.IGNORECASE
)
_FOR_ALL = ("Accept", "User-Agent", "Content-Type")
_FRAMING = {"Host", "Connection", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Expect"}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


class Answer:
    """What came back in the end. Header names are lower case; `hops` are the URLs that were asked, in order."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, hops: list[str]) -> None:
        self.status, self.headers, self.body, self.hops = status, headers, body, hops

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def text(self) -> str:
        """The body in the charset it names, else UTF-8; what cannot be read becomes U+FFFD."""
        named = re.search(r"charset=[\"']?([A-Za-z0-9._-]+)", self.headers.get("content-type", ""), re.IGNORECASE)
        charset = named[1].lower() if named and _CHARSET.match(named[1]) else "utf-8-sig"
        try:
            return self.body.decode(charset, "replace")
        except (LookupError, UnicodeError):
            return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The value of the body, if Ductile can pass it on: strict JSON of at most 50 levels. Raises ValueError."""
        import json

        try:
            value = json.loads(self.text(), parse_constant=_finite, parse_float=_finite)
        except RecursionError as error:
            raise ValueError("too many levels") from error
        if is_deeper(value, 50):
            raise ValueError("more than 50 levels")
        return value

    def require_success(self) -> None:
        """Raises Failed for what may pass (408, 425, 429, 5xx), Final for every other status that is not 2xx or 304."""
        if 200 <= self.status < 300 or self.status == 304:
            return
        message = f"{host_of(split_url(self.hops[-1]))} answered with status {self.status}"
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
) -> Answer:
    """The answer within `timeout` seconds, after at most `max_redirects` redirects; with 0, one is an answer.

    `headers` go to the first origin only, apart from Accept, User-Agent and the Content-Type of a body.
    """
    timeout = min(timeout, LONGEST)
    hops = [url]
    sent = {name.title(): value for name, value in (headers or {}).items()}
    if framing := _FRAMING.intersection(sent):
        raise Final(f"the header {min(framing)} is not for you to set")
    for name, value in sent.items():
        if not _TOKEN.fullmatch(name) or not _LINE.fullmatch(value):
            raise Final(f"{name[:80]!r} is not a header of one line in Latin-1")
    with within(timeout, f"a complete answer from {host_of(split_url(url))}"):
        while True:
            parts = split_url(hops[-1])
            answer = _exchange(method, parts, guard, sent, body, timeout=timeout, max_bytes=max_bytes, hops=hops)
            target = answer.headers.get("location")
            if max_redirects == 0 or target is None or answer.status not in (301, 302, 303, 307, 308):
                return answer
            if len(hops) > max_redirects:
                raise Final(f"{host_of(parts)} redirects more than {max_redirects} times")
            following = _next_url(parts, target)
            hops.append(following.geturl())
            if _origin(following) != _origin(parts):
                sent = {name: value for name, value in sent.items() if name in _FOR_ALL}
            if answer.status < 307 and method != "HEAD":
                method, body = "GET", None
                sent.pop("Content-Type", None)


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:  # infinite, or not a number
        raise ValueError(f"{text[:40]} is not a number of JSON")
    return number


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, host_of(parts), port_of(parts)


def _next_url(parts: SplitResult, target: str) -> SplitResult:
    from urllib.parse import urljoin

    # Headers are read as Latin-1; what a server means by other bytes is UTF-8.
    said = target.strip().encode("latin-1", "replace").decode("utf-8", "replace")
    try:
        following = split_url(urljoin(parts.geturl(), said))
    except (Refused, ValueError) as refusal:
        raise Refused(f"{host_of(parts)} redirects to something that is not used: {refusal}") from refusal
    if parts.scheme == "https" and following.scheme == "http":
        raise Refused(f"{host_of(parts)} redirects from https to http")
    return following


class within:  # noqa: N801, reads as a word
    """Bounds everything inside, a server that sends a byte now and then included. Raises `failure` when it is over."""

    def __init__(self, seconds: float, what: str, failure: type[Failed] = Failed) -> None:
        self.seconds, self.what, self.failure = min(seconds, LONGEST), what, failure

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, max(self.seconds, 0.001))

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def _ring(self, *_: object) -> None:
        raise self.failure(f"{self.what}: not within {self.seconds:g} s")


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
) -> Answer:
    """One request to one address."""
    import http.client

    host, port = host_of(parts), port_of(parts)
    shown = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme]
    own = {
        "Host": shown if port == default else f"{shown}:{port}",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    connection = http.client.HTTPConnection(host, port)
    connection.auto_open = 0  # it speaks over the socket it is given and never looks for another one
    try:
        connection.sock = _connect(parts.scheme, host, guard.addresses(host, port), timeout)
        target = parts._replace(scheme="", netloc="").geturl()
        connection.request(method, target, body, {**headers, **own})
        response = connection.getresponse()
        fields = {name.lower(): re.sub(r"[\r\n]+\s*", " ", value) for name, value in response.getheaders()}
        return Answer(response.status, fields, b"".join(_body(response, fields, host, max_bytes)), hops)
    except TimeoutError as error:
        raise Failed(f"no answer from {host}:{port} within {timeout:g} s") from error
    except OSError as error:
        raise Failed(f"cannot speak with {host}:{port}: {error.strerror or error}") from error
    except http.client.HTTPException as error:
        raise Failed(f"{host}:{port} does not speak HTTP properly: {type(error).__name__}") from error
    except ValueError as error:
        raise Final(f"the request cannot be sent: {error}") from error
    finally:
        connection.close()


def _connect(scheme: str, host: str, addresses: list[tuple[Any, ...]], timeout: float) -> socket.socket:
    """A connection to the first of `addresses` that takes one."""
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
    """The body in pieces. Raises when it is larger than `max_bytes`, in a form that was not asked for, or cut off."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Final(f"{host} sent a compressed body, which was not asked for")
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
        raise Failed(f"{host} closed the connection before its answer was complete")
