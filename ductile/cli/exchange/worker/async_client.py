"""HTTP client of the service for commands that run tasks: one request per connection, cancelled with its task."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import h11
import trio
from attrs import define

from ductile.cli.base import output
from ductile.cli.base.client import Client, error_from_response
from ductile.cli.base.stream_client import Lost, open_connection
from ductile.core.errors import ServiceUnreachable

RECEIVE_BYTES = 64 << 10
REQUEST_TIMEOUT = 30.0
"""Seconds until a response, beyond the time for which the request waits."""
HINT = "Start the service with `ductile system start`."


@define(eq=False)
class SentRequest:
    """A request that was sent, and its connection."""

    name: str
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]
    connection: h11.Connection

    async def response(self) -> Any:
        """Return the JSON of the response. Raises the error that it describes, or ServiceUnreachable."""
        status, content = 0, bytearray()
        try:
            while not isinstance(event := self.connection.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    self.connection.receive_data(bytes(await self.stream.receive_some(RECEIVE_BYTES)))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    content += event.data
                elif isinstance(event, h11.ConnectionClosed):
                    raise ServiceUnreachable("the service closed the connection", hint=HINT)
            answer = json.loads(bytes(content))
        except (trio.BrokenResourceError, h11.ProtocolError, ValueError) as error:
            raise ServiceUnreachable(f"the service does not respond: {error}", hint=HINT) from error
        output.detail(f"request: {self.name} → {status}")
        if status >= 400:
            raise error_from_response(status, answer)
        return answer

    async def end_of_requests(self) -> None:
        """Tell the service that no response is needed. What it has sent before can still be read."""
        if isinstance(self.stream, trio.SocketStream):
            with suppress(trio.BrokenResourceError):
                await self.stream.send_eof()


@asynccontextmanager
async def send_request(service: Client, method: str, path: str, body: Any) -> AsyncIterator[SentRequest]:
    """Send a request with a JSON body; the connection is open for the length of the block."""
    content = json.dumps(body).encode()
    try:
        stream, host = await open_connection(service)
    except Lost as lost:
        raise ServiceUnreachable(f"{lost}: {service.url or service.socket_path}", hint=HINT) from lost
    async with stream:
        headers = {"host": host, "connection": "close", "content-type": "application/json"} | service.authorization
        length = {"content-length": str(len(content))}
        connection = h11.Connection(h11.CLIENT)
        request = h11.Request(method=method, target=path, headers=list((headers | length).items()))
        parts = [connection.send(event) for event in (request, h11.Data(data=content), h11.EndOfMessage())]
        with suppress(trio.BrokenResourceError):  # a service can respond and close before it has read the whole body
            await stream.send_all(b"".join(part for part in parts if part))
        yield SentRequest(f"{method} {path}", stream, connection)


async def request_json(service: Client, method: str, path: str, body: Any) -> Any:
    """Send a request and return the JSON of the response. Raises as `SentRequest.response` does."""
    try:
        with trio.fail_after(REQUEST_TIMEOUT):
            async with send_request(service, method, path, body) as sent:
                return await sent.response()
    except trio.TooSlowError:
        raise ServiceUnreachable(f"the service did not respond within {REQUEST_TIMEOUT:.0f} s", hint=HINT) from None
