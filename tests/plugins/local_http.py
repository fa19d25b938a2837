"""Servers that plugins talk to in tests: one that answers as told and remembers, and one that sends raw bytes."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field, frozen


@frozen
class Seen:
    """One request as it came in; header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@frozen
class Reply:
    """What the site says."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(factory=dict)


@define
class Site:
    """Answers each path with its reply, or with what a function makes of the request; remembers every request."""

    port: int = 0
    scheme: str = "http"
    host: str = "127.0.0.1"
    pages: dict[str, Reply | Callable[[Seen], Reply]] = field(factory=dict)
    seen: list[Seen] = field(factory=list)

    def url(self, path: str = "/") -> str:
        return f"{self.scheme}://{self.host}:{self.port}{path}"

    def answer(self, seen: Seen) -> Reply:
        self.seen.append(seen)
        page = self.pages.get(seen.path, Reply(b"nothing here", 404))
        return page(seen) if callable(page) else page


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    """A site on a free port of the loopback interface."""
    site = Site(scheme="https" if tls else "http", host="localhost" if tls else "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = site.answer(Seen(self.command, self.path, headers, body))
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(reply.body if self.command != "HEAD" else b"")

        do_GET = do_POST = do_HEAD = answer  # noqa: N815, the names that the base class calls

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def sending(pieces: Callable[[threading.Event], Iterable[bytes]]) -> Iterator[str]:
    """The URL of a server that sends these bytes to everybody, whatever is asked. The event is set at the end."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def speak(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            for piece in pieces(over):
                connection.sendall(piece)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=speak, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
