"""One POST to another host over HTTP/1.1: connect, send, read the answer, close.

Follows no redirect, uses no proxy and keeps no connection; an answer is read up to a cap. Knows nothing of what is
sent. The deadline is the caller's: a cancelled post leaves nothing open. Relays are sent with it.
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

MOST_ANSWER = 64 << 10
MOST_HEAD = 32 << 10
RECEIVED_AT_ONCE = 16 << 10


class Unanswered(Exception):
    """Nobody answered in HTTP; the message says what happened instead."""


@frozen
class HttpAnswer:
    """What came back; header names are in lower case, the body is cut at the cap."""

    status: int
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


async def post(url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
    """The answer to one POST of JSON; Unanswered if there was none."""
    try:
        stream = await _connect(url)
    except (OSError, ValueError, trio.BrokenResourceError) as error:
        raise Unanswered(_words(error)) from error
    async with stream:
        try:
            return await _exchange(stream, _request(url, headers, body), body)
        except (OSError, ValueError, trio.BrokenResourceError, h11.ProtocolError) as error:
            raise Unanswered(_words(error)) from error


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


def _request(url: str, headers: Mapping[str, str], body: bytes) -> h11.Request:
    parts = urlsplit(url)
    every = {
        "Host": parts.netloc,
        "User-Agent": f"ductile/{__version__}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    return h11.Request(method="POST", target=target, headers=list(every.items()))


async def _exchange(stream: trio.abc.Stream, request: h11.Request, body: bytes) -> HttpAnswer:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
    pieces = [connection.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage())]
    with suppress(trio.BrokenResourceError):  # whoever refuses a body while it comes has answered already
        await stream.send_all(b"".join(piece for piece in pieces if piece))
    return await _answer(stream, connection)


async def _answer(stream: trio.abc.Stream, connection: h11.Connection) -> HttpAnswer:
    head: h11.Response | None = None
    body = b""
    while True:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                data = await stream.receive_some(RECEIVED_AT_ONCE)
                if not data and head is None:
                    raise Unanswered("the connection was closed without an answer")
                connection.receive_data(bytes(data))
            case h11.Response():
                head = event
            case h11.Data():
                body += event.data
            case h11.InformationalResponse():
                continue
            case _:
                break
        if len(body) >= MOST_ANSWER:
            break
    if head is None:
        raise Unanswered("what came back is no answer")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return HttpAnswer(head.status_code, headers, body[:MOST_ANSWER])


def _words(error: BaseException) -> str:
    """The most telling words: trio and TLS hide the reason behind the error."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    told = cause if cause is not None and str(cause) else error
    return getattr(told, "strerror", None) or str(told) or type(told).__name__
