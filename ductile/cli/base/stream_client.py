"""WebSocket client of the event stream: delivers each journal row once and whole, across reconnects.

Used by `logs`, `job list --follow` and `system watch`. Knows nothing of what events mean or how they are shown.
"""

import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import urlencode

import trio
from attrs import define, field
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection, wrap_client_stream

from ductile.cli.base import output
from ductile.cli.base.client import CONNECT_TIMEOUT_SECONDS, Busy, Client, error_from_response, parse_url
from ductile.cli.base.run_until_interrupted import unwrap
from ductile.core.errors import NotAllowed, ServiceUnreachable

MIN_RECONNECT_SECONDS, MAX_RECONNECT_SECONDS = 0.2, 3.0
PING_TIMEOUT_SECONDS = 10.0
"""A service that does not respond to a ping within this time counts as disconnected, even if the connection is open."""
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
POLICY_VIOLATION = 1008
NO_RESPONSE = "the service does not respond"

Event = dict[str, Any]
"""A message of the stream: `seq`, `at`, `event`, `data`."""


class Lost(Exception):
    """The connection is lost and will be retried; the message is the reason."""


@define(eq=False, kw_only=True)
class Follower:
    """A subscription to the journal. `position` is the last delivered row; None starts with the next event."""

    service: Client
    on_row: Callable[[list[Event]], Awaitable[None]]
    """Receives the events of one row. An exception ends the subscription; Lost delivers the row again."""
    on_connection: Callable[[str | None], None]
    """Receives the reason when the connection is lost, and None when it is open; never the same state twice."""
    position: int | None = None
    filters: Mapping[str, str] = field(factory=dict)
    """The filters of the stream: plugin, job, tree."""
    _is_connected: bool | None = None

    async def follow(self) -> NoReturn:
        """Follow the stream forever. Raise errors that reconnecting cannot fix: a refusal, exceptions of `on_row`."""
        delay = MIN_RECONNECT_SECONDS
        while True:
            try:
                await self._connect_and_read()
            except Lost as lost:
                delay = MIN_RECONNECT_SECONDS if self._is_connected else min(delay * 2, MAX_RECONNECT_SECONDS)
                self._report(str(lost))
            await trio.sleep(delay)

    def _report(self, loss: str | None) -> None:
        if self._is_connected is not (loss is None):
            self._is_connected = loss is None
            self.on_connection(loss)

    async def _connect_and_read(self) -> NoReturn:
        """Read from one connection until it ends."""
        headers = [(name.encode(), value.encode()) for name, value in self.service.authorization.items()]
        stream, host = await open_connection(self.service)
        query = urlencode({**self.filters, **({"since": self.position} if self.position is not None else {})})
        try:
            async with stream, trio.open_nursery() as nursery:
                with trio.fail_after(CONNECT_TIMEOUT_SECONDS):
                    socket = await wrap_client_stream(
                        nursery,
                        stream,
                        host,
                        f"/events/ws?{query}",
                        extra_headers=headers,
                        max_message_size=MAX_MESSAGE_BYTES,
                    )
                output.detail(f"request: GET /events/ws?{query} → 101")
                nursery.start_soon(_close_when_silent, socket, nursery.cancel_scope)
                await self._read_rows(socket)
        except BaseExceptionGroup as group:
            raise _translated(unwrap(group)) from None
        raise Lost(NO_RESPONSE)

    async def _read_rows(self, socket: WebSocketConnection) -> NoReturn:
        row: list[Event] = []
        while True:
            event = _event(await socket.get_message())
            if event["event"] == "stream.opened":
                self._begin(event["seq"])
                continue
            row.append(event)
            # Only the last event of a row carries its sequence number; until then the row is incomplete.
            if event["seq"] >= event["data"].get("seq", 0):
                await self.on_row(row)
                self.position, row = event["seq"], []

    def _begin(self, position: int) -> None:
        # A lower position belongs to another journal, such as a restored one.
        self.position = position
        self._report(None)


def _event(message: str | bytes) -> Event:
    try:
        event = json.loads(message)
        return {"seq": int(event["seq"]), "at": event["at"], "event": event["event"], "data": dict(event["data"])}
    except (ValueError, KeyError, TypeError):
        raise ServiceUnreachable("the response is not the event stream of a Ductile service") from None


async def open_connection(service: Client) -> tuple[trio.SocketStream | trio.SSLStream[trio.SocketStream], str]:
    """Open a connection, with TLS for https, and return it with the host name. Raises Lost."""
    try:
        with trio.fail_after(CONNECT_TIMEOUT_SECONDS):
            if service.url is None:
                return await trio.open_unix_socket(str(service.socket_path)), "localhost"
            scheme, host, port = parse_url(service.url)
            name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if scheme == "http":
                return await trio.open_tcp_stream(host, port), name
            context = ssl.create_default_context()
            encrypted = await trio.open_ssl_over_tcp_stream(host, port, ssl_context=context, https_compatible=True)
            await encrypted.do_handshake()
            return encrypted, name
    except trio.TooSlowError:
        raise Lost(NO_RESPONSE) from None
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            message = f"the certificate of {service.url} is not trusted: {error.__cause__.verify_message}"
            raise ServiceUnreachable(message, hint="Set SSL_CERT_FILE to a file of trusted certificates.") from None
        raise Lost(f"the connection broke: {error.__cause__ or error}") from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise Lost("the service is not running") from None
    except OSError as error:
        raise Lost(f"the service cannot be reached: {error}") from None


async def _close_when_silent(socket: WebSocketConnection, connection: trio.CancelScope) -> None:
    while True:
        await trio.sleep(PING_TIMEOUT_SECONDS)
        with trio.move_on_after(PING_TIMEOUT_SECONDS):
            try:
                await socket.ping()
            except ConnectionClosed:
                return
            continue
        connection.cancel()


def _translated(error: BaseException) -> BaseException:
    """Decide whether the end of the connection is worth a reconnect (Lost) or final."""
    if isinstance(error, ConnectionRejected):
        refused = error_from_response(error.status_code, _content(error.body))
        return Lost(str(refused)) if isinstance(refused, Busy) or error.status_code >= 500 else refused
    if isinstance(error, trio.TooSlowError):
        return Lost(NO_RESPONSE)
    if isinstance(error, ConnectionClosed):
        message = error.reason.reason if error.reason and error.reason.reason else "the connection broke"
        is_final = error.reason is not None and error.reason.code == POLICY_VIOLATION
        return NotAllowed(message) if is_final else Lost(message)
    return error


def _content(body: bytes | None) -> Any:
    try:
        return json.loads(body or b"")
    except ValueError:
        return None
