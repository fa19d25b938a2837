"""A minimal HTTP/1.1 client for one request: connect, send, read the response, close. For relays and the heartbeat.

Follows no redirects, uses no proxy and no keep-alive; truncates long responses. The caller sets the deadline; a
cancelled request leaves no connection open.
"""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from urllib.parse import quote, urlsplit

import h11
import trio
from attrs import field, frozen

from ductile import __version__

MAX_RESPONSE_BYTES = 64 << 10
MAX_HEAD_BYTES = 32 << 10
RECEIVE_BYTES = 16 << 10


class NoResponse(Exception):
    """There was no HTTP response; the message is the reason."""


@frozen
class HttpResponse:
    """A response. Header names are in lower case; the body is truncated to `MAX_RESPONSE_BYTES`."""

    status: int
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


async def send_request(method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> HttpResponse:
    """Send a request with a JSON body, if any, and return the response. Raises NoResponse if there is none."""
    try:
        stream = await _connect(url)
    except (OSError, ValueError, trio.BrokenResourceError) as error:
        raise NoResponse(_message(error)) from error
    async with stream:
        try:
            return await _exchange(stream, _request(method, url, headers, body), body)
        except (OSError, ValueError, trio.BrokenResourceError, h11.ProtocolError) as error:
            raise NoResponse(_message(error)) from error


async def _connect(url: str) -> trio.abc.Stream:
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    stream = await trio.open_tcp_stream(host, parts.port or (443 if is_tls else 80))
    return await _in_tls(stream, host) if is_tls else stream


async def _in_tls(stream: trio.SocketStream, host: str) -> trio.abc.Stream:
    inside = trio.SSLStream(stream, _trust(), server_hostname=host, https_compatible=True)
    try:
        await inside.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(inside)
        raise
    return inside


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def _request(method: str, url: str, headers: Mapping[str, str], body: bytes) -> h11.Request:
    parts = urlsplit(url)
    every = {"Host": parts.netloc, "User-Agent": f"ductile/{__version__}", "Connection": "close"}
    if body or method == "POST":
        every |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    if parts.query:
        target += "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~")
    return h11.Request(method=method, target=target, headers=list((every | dict(headers)).items()))


async def _exchange(stream: trio.abc.Stream, request: h11.Request, body: bytes) -> HttpResponse:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    pieces = [connection.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage())]
    with suppress(trio.BrokenResourceError):  # a server may respond and close before it has read the whole body
        await stream.send_all(b"".join(piece for piece in pieces if piece))
    return await _read_response(stream, connection)


async def _read_response(stream: trio.abc.Stream, connection: h11.Connection) -> HttpResponse:
    head: h11.Response | None = None
    body = b""
    while True:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                data = await stream.receive_some(RECEIVE_BYTES)
                if not data and head is None:
                    raise NoResponse("the connection was closed without a response")
                connection.receive_data(bytes(data))
            case h11.Response():
                head = event
            case h11.Data():
                body += event.data
            case h11.InformationalResponse():
                continue
            case _:
                break
        if len(body) >= MAX_RESPONSE_BYTES:
            break
    if head is None:
        raise NoResponse("the response is not HTTP")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return HttpResponse(head.status_code, headers, body[:MAX_RESPONSE_BYTES])


def _message(error: BaseException) -> str:
    """Return the most specific message: trio and ssl wrap the actual cause."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    source = cause if cause is not None and str(cause) else error
    return getattr(source, "strerror", None) or str(source) or type(source).__name__
