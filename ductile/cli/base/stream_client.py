"""The event stream as a client follows it: every row of the journal once and whole, over breaks and restarts.

Knows nothing of what events mean or where they are shown. `logs`, `job list --follow` and `system watch` use it.
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
from ductile.cli.base.client import CONNECT_SECONDS, Busy, Client, address_of, refusal
from ductile.cli.base.run_until_interrupted import lone
from ductile.core.errors import NotAllowed, ServiceUnreachable

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 3.0
SILENCE_SECONDS = 10.0
"""A service that does not answer a ping for so long is gone, even if nobody has closed the connection."""
LARGEST_MESSAGE = 64 * 1024 * 1024
POLICY_VIOLATION = 1008
SILENT = "the service does not answer"

Event = dict[str, Any]
"""A message of the stream: `seq`, `at`, `event`, `data`."""


class Lost(Exception):
    """There is no connection now; the words say why. It is worth trying again."""


@define(eq=False, kw_only=True)
class Follower:
    """One way through the journal. `place` is the last row that was heard; None: begin with what happens next."""

    service: Client
    hear: Callable[[list[Event]], Awaitable[None]]
    """Gets the events of one row. What it raises ends everything, but Lost: then it gets the row again."""
    notice: Callable[[str | None], None]
    """Told why the connection is lost, and None when it is there (again); never twice the same."""
    place: int | None = None
    wanted: Mapping[str, str] = field(factory=dict)
    """The filters of the stream: plugin, job, tree."""
    _is_there: bool | None = None

    async def follow(self) -> NoReturn:
        """Hears for ever. Raises what no waiting helps against: a refusal, or what `hear` raised."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._converse()
            except Lost as lost:
                pause = FIRST_PAUSE_SECONDS if self._is_there else min(pause * 2, LONGEST_PAUSE_SECONDS)
                self._notice(str(lost))
            await trio.sleep(pause)

    def _notice(self, loss: str | None) -> None:
        if self._is_there is not (loss is None):
            self._is_there = loss is None
            self.notice(loss)

    async def _converse(self) -> NoReturn:
        """One connection, from its opening to its end."""
        headers = [(name.encode(), value.encode()) for name, value in self.service.authorization.items()]
        stream, host = await _connected(self.service)
        query = urlencode({**self.wanted, **({"since": self.place} if self.place is not None else {})})
        try:
            async with stream, trio.open_nursery() as nursery:
                with trio.fail_after(CONNECT_SECONDS):
                    socket = await wrap_client_stream(
                        nursery,
                        stream,
                        host,
                        f"/events/ws?{query}",
                        extra_headers=headers,
                        max_message_size=LARGEST_MESSAGE,
                    )
                output.detail(f"asked: GET /events/ws?{query} → 101")
                nursery.start_soon(_cut_when_silent, socket, nursery.cancel_scope)
                await self._hear_all(socket)
        except BaseExceptionGroup as group:
            raise _translated(lone(group)) from None
        raise Lost(SILENT)

    async def _hear_all(self, socket: WebSocketConnection) -> NoReturn:
        row: list[Event] = []
        while True:
            event = _event(await socket.get_message())
            if event["event"] == "stream.opened":
                self._begin(event["seq"])
                continue
            row.append(event)
            # Only the last event of a row has it as its position: before that the row is not whole.
            if event["seq"] >= event["data"].get("seq", 0):
                await self.hear(row)
                self.place, row = event["seq"], []

    def _begin(self, position: int) -> None:
        # A position below ours is that of another journal, such as a restored one.
        self.place = position
        self._notice(None)


def _event(message: str | bytes) -> Event:
    try:
        event = json.loads(message)
        return {"seq": int(event["seq"]), "at": event["at"], "event": event["event"], "data": dict(event["data"])}
    except (ValueError, KeyError, TypeError):
        raise ServiceUnreachable("what answers there is not the event stream of a Ductile") from None


async def _connected(service: Client) -> tuple[trio.SocketStream | trio.SSLStream[trio.SocketStream], str]:
    """A connection, encrypted if the address says so, and the name of the host."""
    try:
        with trio.fail_after(CONNECT_SECONDS):
            if service.url is None:
                return await trio.open_unix_socket(str(service.socket_path)), "localhost"
            scheme, host, port = address_of(service.url)
            name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if scheme == "http":
                return await trio.open_tcp_stream(host, port), name
            context = ssl.create_default_context()
            encrypted = await trio.open_ssl_over_tcp_stream(host, port, ssl_context=context, https_compatible=True)
            await encrypted.do_handshake()
            return encrypted, name
    except trio.TooSlowError:
        raise Lost(SILENT) from None
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            words = f"the certificate of {service.url} is not trusted: {error.__cause__.verify_message}"
            raise ServiceUnreachable(words, hint="SSL_CERT_FILE names a file of certificates to trust") from None
        raise Lost(f"the connection broke: {error.__cause__ or error}") from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise Lost("the service is not running") from None
    except OSError as error:
        raise Lost(f"the service cannot be reached: {error}") from None


async def _cut_when_silent(socket: WebSocketConnection, conversation: trio.CancelScope) -> None:
    while True:
        await trio.sleep(SILENCE_SECONDS)
        with trio.move_on_after(SILENCE_SECONDS):
            try:
                await socket.ping()
            except ConnectionClosed:
                return
            continue
        conversation.cancel()


def _translated(error: BaseException) -> BaseException:
    """What an end of the conversation means: worth trying again, or not."""
    if isinstance(error, ConnectionRejected):
        refused = refusal(error.status_code, _content(error.body))
        return Lost(str(refused)) if isinstance(refused, Busy) or error.status_code >= 500 else refused
    if isinstance(error, trio.TooSlowError):
        return Lost(SILENT)
    if isinstance(error, ConnectionClosed):
        words = error.reason.reason if error.reason and error.reason.reason else "the connection broke"
        is_final = error.reason is not None and error.reason.code == POLICY_VIOLATION
        return NotAllowed(words) if is_final else Lost(words)
    return error


def _content(body: bytes | None) -> Any:
    try:
        return json.loads(body or b"")
    except ValueError:
        return None
