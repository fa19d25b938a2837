"""The ways a message can go: each checks its configuration when it is made, and sends when it is called."""

from __future__ import annotations

import json
import os
import re
import sys

from ductile_plugin import EX_CONFIG, Failed, Final, Job, Misconfigured, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from run import Message

MOST_VARIABLE = 100_000  # bytes; the system's own limit is little more
SECURITY = {"starttls": 587, "tls": 465, "none": 25}


def timeout_of(config: Mapping[str, Any]) -> float:
    return min(float(setting(config, "timeout_seconds", float, 20, least=0.1)), 3600.0)


def texts(config: Mapping[str, Any], key: str, default: Any) -> list[str]:
    """A list of texts, or one text."""
    value = config.get(key)
    entries = [value] if isinstance(value, str) else setting(config, key, list, default)
    if not all(isinstance(entry, str) and entry for entry in entries):
        raise Misconfigured(f"{key} must be a list of texts")
    return list(entries)


class Webhook:
    """POST of a JSON object. The URL is the operator's; a redirect is not followed."""

    KEYS: tuple[str, ...] = ("url", "headers", "text_field", "include_payload")

    def __init__(self, config: Mapping[str, Any], url: str | None = None) -> None:
        from ductile_guard import Guard

        self.url: str = setting(config, "url", str, *((url,) if url else ()))
        self.timeout = timeout_of(config)
        self.headers: dict[str, str] = setting(config, "headers", dict, {})
        self.text_field: str = setting(config, "text_field", str, "text")
        self.include_payload: bool = setting(config, "include_payload", bool, False)
        if not all(isinstance(value, str) for value in self.headers.values()):
            raise Misconfigured("headers must be a mapping of names to texts")
        self.guard = Guard.of({}, trusted_urls=[self.url])

    def __call__(self, job: Job, message: Message) -> str:
        body: dict[str, Any] = {"title": message.title, self.text_field: message.text}
        if self.include_payload:
            body["payload"] = message.payload
        return self.post(body, message)

    def post(self, body: Mapping[str, Any], message: Message) -> str:
        from ductile_http import request

        headers = {"Content-Type": "application/json", "User-Agent": "ductile-notify", "Idempotency-Key": message.id}
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        answer = request(
            "POST", self.url, guard=self.guard, timeout=self.timeout, headers={**headers, **self.headers}, body=data
        )
        answer.require_success()
        return f"status {answer.status}"


class Ntfy(Webhook):
    """A message to a topic of an ntfy server, as JSON, so that every character arrives."""

    KEYS = ("url", "topic", "token", "priority", "tags")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config, "https://ntfy.sh")
        self.topic: str = setting(config, "topic")
        self.priority: int = setting(config, "priority", int, 3, least=1)
        self.tags = texts(config, "tags", [])
        if token := setting(config, "token", str, ""):
            self.headers = {"Authorization": f"Bearer {token}"}

    def __call__(self, job: Job, message: Message) -> str:
        asked = message.payload.get("priority")
        priority = asked if isinstance(asked, int) and 1 <= asked <= 5 else min(self.priority, 5)
        body = {"topic": self.topic, "title": message.title, "message": message.text, "priority": int(priority)}
        return self.post({**body, "tags": self.tags} if self.tags else body, message)


class Mail:
    """One mail to all recipients."""

    KEYS = ("host", "port", "security", "username", "password", "from", "to")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.host: str = setting(config, "host")
        self.security: str = setting(config, "security", str, "starttls")
        if self.security not in SECURITY:
            raise Misconfigured(f"security must be one of {', '.join(SECURITY)}, not {self.security!r}")
        self.port: int = setting(config, "port", int, SECURITY[self.security], least=1)
        if self.port > 65535:
            raise Misconfigured(f"port must be 65535 or less, not {self.port}")
        self.username: str = setting(config, "username", str, "")
        self.password: str = setting(config, "password", str, "")
        if self.username and self.security == "none":
            raise Misconfigured("a password is not sent without encryption; set security to starttls or tls")
        self.sender: str = setting(config, "from")
        self.recipients = texts(config, "to", [])
        if not self.recipients:
            raise Misconfigured("to is missing; it must be an address or a list of addresses")
        self.timeout = timeout_of(config)

    def __call__(self, job: Job, message: Message) -> str:
        import smtplib

        from ductile_http import within

        mail = self.mail(message)
        try:
            with within(self.timeout, f"mail to {self.host}"):
                refused = self.deliver(mail)
        except smtplib.SMTPRecipientsRefused as error:
            raise verdict(
                f"{self.host} refuses every recipient", [code for code, _ in error.recipients.values()]
            ) from error
        except smtplib.SMTPResponseException as error:
            raise verdict(
                f"{self.host} refuses: {error.smtp_code} {reply(error.smtp_error)}", [error.smtp_code]
            ) from error
        except smtplib.SMTPNotSupportedError as error:
            raise Final(f"{self.host} cannot do what is asked of it: {error}") from error
        except UnicodeError as error:
            raise Misconfigured(f"host is not the name of a host: {self.host!r}") from error
        except (smtplib.SMTPException, OSError) as error:
            raise Failed(f"cannot send mail over {self.host}:{self.port}: {type(error).__name__}: {error}") from error
        for address, (code, text) in refused.items():
            job.log("warn", f"{address} was refused: {code} {reply(text)}")
        return f"{len(self.recipients) - len(refused)} of {len(self.recipients)} recipients"

    def mail(self, message: Message) -> Any:
        from email.message import EmailMessage
        from email.utils import formatdate

        mail = EmailMessage()
        try:
            mail["From"], mail["To"] = self.sender, ", ".join(self.recipients)
            found = [address.addr_spec for key in ("From", "To") for address in mail[key].addresses]
        except (ValueError, IndexError):
            found = []
        if len(found) != 1 + len(self.recipients) or not all(re.fullmatch(".+@.+", address) for address in found):
            raise Misconfigured("from, and each entry of to, must be one mail address")
        mail["Subject"] = message.title.encode("utf-8", "replace").decode()
        mail["Date"] = formatdate()
        # Every attempt has the same one, so that a mailbox can tell that it is the same message.
        mail["Message-ID"] = f"<{message.id}@ductile>"
        mail.set_content(message.text.encode("utf-8", "replace").decode())
        return mail

    def deliver(self, mail: Any) -> dict[str, tuple[int, bytes]]:
        """The mail is with the server; recipients that it refused come back."""
        import smtplib
        from contextlib import suppress

        server = self.connected()
        try:
            refused: dict[str, tuple[int, bytes]] = server.send_message(mail, self.sender, self.recipients)
            with suppress(smtplib.SMTPException, OSError, Failed):  # it has the mail; its goodbye does not matter
                server.quit()
            return refused
        finally:
            server.close()

    def connected(self) -> Any:
        import smtplib
        import ssl

        if self.security == "tls":
            server: Any = smtplib.SMTP_SSL(
                self.host, self.port, timeout=self.timeout, context=ssl.create_default_context()
            )
        else:
            server = smtplib.SMTP(self.host, self.port, timeout=self.timeout)
        if self.security == "starttls":
            server.starttls(context=ssl.create_default_context())
        if self.username:
            server.login(self.username, self.password)
        return server


def verdict(message: str, codes: list[int]) -> Failed:
    """A refusal with 4xx may pass, one with 5xx will not."""
    return Failed(message) if any(code < 500 for code in codes) else Final(message)


def reply(text: bytes | str) -> str:
    return (text.decode("utf-8", "replace") if isinstance(text, bytes) else text)[:200]


class Command:
    """A program of the operator's. It reads the text on stdin; nothing of the message is an argument."""

    KEYS = ("command",)

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.command = [] if isinstance(config.get("command"), str) else texts(config, "command", [])
        if not self.command:
            raise Misconfigured("command must be a list: the program and its arguments")
        self.timeout = timeout_of(config)

    def __call__(self, job: Job, message: Message) -> str:
        import subprocess

        text = message.text.replace("\0", "").encode("utf-8", "replace")
        told = {"DUCTILE_TITLE": message.title.replace("\0", "").encode("utf-8", "replace"), "DUCTILE_TEXT": text}
        clean = {key: value[:MOST_VARIABLE].decode("utf-8", "ignore") for key, value in told.items()}
        try:
            done = subprocess.run(
                self.command,
                input=text,
                stdout=sys.stderr.fileno(),
                env={**os.environ, **clean},
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{self.command[0]} did not end within {self.timeout:g} s") from error
        except (OSError, ValueError) as error:
            raise Misconfigured(f"cannot run {self.command[0]}: {getattr(error, 'strerror', error)}") from error
        if done.returncode == EX_CONFIG:
            raise Misconfigured(f"{self.command[0]} ended with exit code {EX_CONFIG}")
        if done.returncode != 0:
            raise Failed(f"{self.command[0]} ended with exit code {done.returncode}")
        return self.command[0]
