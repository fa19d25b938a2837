"""A mail server for tests: takes mail, refuses the addresses it is told to, can be asked for TLS."""

import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from attrs import define, field


@define
class Mailbox:
    """What arrived, and how the server answers. `replies` replaces the answer to a verb or to `RCPT <address>`."""

    port: int = 0
    mails: list[tuple[str, list[str], bytes]] = field(factory=list)
    replies: dict[str, str] = field(factory=dict)
    verbs: list[str] = field(factory=list)


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Mailbox]:
    """A mail server on a free port; with `tls` it offers STARTTLS."""
    mailbox = Mailbox()

    class Conversation(socketserver.StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()
            self.request.close()

        def handle(self) -> None:
            sender, recipients = "", list[str]()
            with suppress(OSError, ValueError):
                self.say("220 test")
                while line := self.rfile.readline().decode().strip():
                    verb = line.split()[0].upper()
                    mailbox.verbs.append(verb)
                    address = line.partition("<")[2].partition(">")[0]
                    reply = mailbox.replies.get(f"{verb} {address}") or mailbox.replies.get(verb)
                    if reply is not None:
                        self.say(reply)
                    elif verb == "EHLO":
                        self.say(
                            "250-test\r\n250-SMTPUTF8\r\n250-8BITMIME\r\n"
                            + ("250-STARTTLS\r\n" if tls else "")
                            + "250 AUTH PLAIN"
                        )
                    elif verb == "STARTTLS" and tls:
                        self.say("220 go")
                        self.request = tls.wrap_socket(self.request, server_side=True)
                        self.setup()
                    elif verb == "AUTH":
                        self.say("235 welcome")
                    elif verb == "MAIL":
                        sender = address
                        self.say("250 ok")
                    elif verb == "RCPT":
                        recipients.append(address)
                        self.say("250 ok")
                    elif verb == "DATA":
                        self.say("354 go on")
                        lines = iter(self.rfile.readline, b".\r\n")
                        mailbox.mails.append((sender, recipients, b"".join(lines)))
                        self.say("250 taken")
                    elif verb == "QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 ok")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Conversation) as server:
        server.daemon_threads = True
        mailbox.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield mailbox
        server.shutdown()
