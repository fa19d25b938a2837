"""Local servers for plugins: an HTTP server with canned replies, and one that sends raw bytes."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field, frozen


@frozen
class ReceivedRequest:
    """A received request; header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@frozen
class Reply:
    """A canned reply."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(factory=dict)


@define
class HttpServer:
    """Replies for each path, as values or functions of the request, and the received requests."""

    port: int = 0
    scheme: str = "http"
    host: str = "127.0.0.1"
    pages: dict[str, Reply | Callable[[ReceivedRequest], Reply]] = field(factory=dict)
    requests: list[ReceivedRequest] = field(factory=list)

    def url(self, path: str = "/") -> str:
        return f"{self.scheme}://{self.host}:{self.port}{path}"

    def reply_to(self, request: ReceivedRequest) -> Reply:
        self.requests.append(request)
        page = self.pages.get(request.path, Reply(b"not found", 404))
        return page(request) if callable(page) else page


@contextmanager
def start_http_server(tls: ssl.SSLContext | None = None) -> Iterator[HttpServer]:
    """Start a server on a free local port."""
    http_server = HttpServer(scheme="https" if tls else "http", host="localhost" if tls else "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = http_server.reply_to(ReceivedRequest(self.command, self.path, headers, body))
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(reply.body if self.command != "HEAD" else b"")

        do_GET = do_POST = do_HEAD = reply  # noqa: N815, the names of the base class

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    http_server.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield http_server
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def start_raw_server(pieces: Callable[[threading.Event], Iterable[bytes]]) -> Iterator[str]:
    """Start a server that sends these bytes to every client, and yield its URL. The event is set at the end."""
    stopped = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def send(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            for piece in pieces(stopped):
                connection.sendall(piece)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=send, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        stopped.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
