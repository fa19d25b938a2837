"""A local SMTP server with configurable replies and optional STARTTLS."""

import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from attrs import define, field


@define
class SmtpServer:
    """The received mails, and replies that replace the default for a verb or for `RCPT <address>`."""

    port: int = 0
    mails: list[tuple[str, list[str], bytes]] = field(factory=list)
    replies: dict[str, str] = field(factory=dict)
    verbs: list[str] = field(factory=list)


@contextmanager
def start_smtp_server(tls: ssl.SSLContext | None = None) -> Iterator[SmtpServer]:
    """Start a server on a free local port. With `tls` it offers STARTTLS."""
    smtp_server = SmtpServer()

    class Handler(socketserver.StreamRequestHandler):
        def send_line(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()
            self.request.close()

        def handle(self) -> None:
            sender, recipients = "", list[str]()
            with suppress(OSError, ValueError):
                self.send_line("220 test")
                while line := self.rfile.readline().decode().strip():
                    verb = line.split()[0].upper()
                    smtp_server.verbs.append(verb)
                    address = line.partition("<")[2].partition(">")[0]
                    reply = smtp_server.replies.get(f"{verb} {address}") or smtp_server.replies.get(verb)
                    if reply is not None:
                        self.send_line(reply)
                    elif verb == "EHLO":
                        self.send_line(
                            "250-test\r\n250-SMTPUTF8\r\n250-8BITMIME\r\n"
                            + ("250-STARTTLS\r\n" if tls else "")
                            + "250 AUTH PLAIN"
                        )
                    elif verb == "STARTTLS" and tls:
                        self.send_line("220 go")
                        self.request = tls.wrap_socket(self.request, server_side=True)
                        self.setup()
                    elif verb == "AUTH":
                        self.send_line("235 ok")
                    elif verb == "MAIL":
                        sender = address
                        self.send_line("250 ok")
                    elif verb == "RCPT":
                        recipients.append(address)
                        self.send_line("250 ok")
                    elif verb == "DATA":
                        self.send_line("354 ok")
                        lines = iter(self.rfile.readline, b".\r\n")
                        smtp_server.mails.append((sender, recipients, b"".join(lines)))
                        self.send_line("250 ok")
                    elif verb == "QUIT":
                        self.send_line("221 bye")
                        return
                    else:
                        self.send_line("250 ok")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        smtp_server.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield smtp_server
        server.shutdown()
