"""The channels of notify. Creating one validates its configuration, and calling it sends a message."""

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

MAX_VARIABLE_BYTES = 100_000  # Linux limits a variable to 128 KiB
SECURITY = {"starttls": 587, "tls": 465, "none": 25}


def timeout_of(config: Mapping[str, Any]) -> float:
    return min(float(setting(config, "timeout_seconds", float, 20, minimum=0.1)), 3600.0)


def texts(config: Mapping[str, Any], key: str, default: Any) -> list[str]:
    """Return a list of strings; the value may be a single string."""
    value = config.get(key)
    entries = [value] if isinstance(value, str) else setting(config, key, list, default)
    if not all(isinstance(entry, str) and entry for entry in entries):
        raise Misconfigured(f"{key} must be a string or a list of strings")
    return list(entries)


class Webhook:
    """Send a JSON object with POST to a configured URL. Redirects are not followed."""

    KEYS: tuple[str, ...] = ("url", "headers", "text_field", "include_payload")

    def __init__(self, config: Mapping[str, Any], url: str | None = None) -> None:
        from ductile_guard import Guard

        self.url: str = setting(config, "url", str, *((url,) if url else ()))
        self.timeout = timeout_of(config)
        self.headers: dict[str, str] = setting(config, "headers", dict, {})
        self.text_field: str = setting(config, "text_field", str, "text")
        self.include_payload: bool = setting(config, "include_payload", bool, False)
        if not all(isinstance(value, str) for value in self.headers.values()):
            raise Misconfigured("headers must map names to strings")
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
        response = request(
            "POST", self.url, guard=self.guard, timeout=self.timeout, headers={**headers, **self.headers}, body=data
        )
        response.require_success()
        return f"status {response.status}"


class Ntfy(Webhook):
    """Publish to a topic of an ntfy server. Uses JSON, because headers cannot carry every character."""

    KEYS = ("url", "topic", "token", "priority", "tags")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config, "https://ntfy.sh")
        self.topic: str = setting(config, "topic")
        self.priority: int = setting(config, "priority", int, 3, minimum=1)
        self.tags = texts(config, "tags", [])
        if token := setting(config, "token", str, ""):
            self.headers = {"Authorization": f"Bearer {token}"}

    def __call__(self, job: Job, message: Message) -> str:
        requested = message.payload.get("priority")
        priority = requested if isinstance(requested, int) and 1 <= requested <= 5 else min(self.priority, 5)
        body = {"topic": self.topic, "title": message.title, "message": message.text, "priority": int(priority)}
        return self.post({**body, "tags": self.tags} if self.tags else body, message)


class Mail:
    """Send one mail to all recipients."""

    KEYS = ("host", "port", "security", "username", "password", "from", "to")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.host: str = setting(config, "host")
        self.security: str = setting(config, "security", str, "starttls")
        if self.security not in SECURITY:
            raise Misconfigured(f"security must be one of {', '.join(SECURITY)}, not {self.security!r}")
        self.port: int = setting(config, "port", int, SECURITY[self.security], minimum=1)
        if self.port > 65535:
            raise Misconfigured(f"port must be at most 65535, not {self.port}")
        self.username: str = setting(config, "username", str, "")
        self.password: str = setting(config, "password", str, "")
        if self.username and self.security == "none":
            raise Misconfigured("username and password require encryption; set security to starttls or tls")
        self.sender: str = setting(config, "from")
        self.recipients = texts(config, "to", [])
        if not self.recipients:
            raise Misconfigured("to is missing; it must be an address or a list of addresses")
        self.timeout = timeout_of(config)

    def __call__(self, job: Job, message: Message) -> str:
        import smtplib

        from ductile_http import time_limit

        mail = self.mail(message)
        try:
            with time_limit(self.timeout, f"mail to {self.host}"):
                rejected = self.deliver(mail)
        except smtplib.SMTPRecipientsRefused as error:
            raise rejection(
                f"{self.host} rejected every recipient", [code for code, _ in error.recipients.values()]
            ) from error
        except smtplib.SMTPResponseException as error:
            raise rejection(
                f"{self.host} rejected the mail: {error.smtp_code} {reply_text(error.smtp_error)}", [error.smtp_code]
            ) from error
        except smtplib.SMTPNotSupportedError as error:
            raise Final(f"{self.host} does not support a required extension: {error}") from error
        except UnicodeError as error:
            raise Misconfigured(f"host is not a valid host name: {self.host!r}") from error
        except (smtplib.SMTPException, OSError) as error:
            raise Failed(
                f"cannot send mail through {self.host}:{self.port}: {type(error).__name__}: {error}"
            ) from error
        for address, (code, text) in rejected.items():
            job.log("warn", f"{self.host} rejected {address}: {code} {reply_text(text)}")
        return f"{len(self.recipients) - len(rejected)} of {len(self.recipients)} recipients"

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
            raise Misconfigured("from and each entry of to must be a single mail address")
        mail["Subject"] = message.title.encode("utf-8", "replace").decode()
        mail["Date"] = formatdate()
        # The same for every attempt, so that mail servers can detect duplicates.
        mail["Message-ID"] = f"<{message.id}@ductile>"
        mail.set_content(message.text.encode("utf-8", "replace").decode())
        return mail

    def deliver(self, mail: Any) -> dict[str, tuple[int, bytes]]:
        """Send the mail and return the recipients that the server rejected."""
        import smtplib
        from contextlib import suppress

        server = self.connect()
        try:
            rejected: dict[str, tuple[int, bytes]] = server.send_message(mail, self.sender, self.recipients)
            with suppress(smtplib.SMTPException, OSError, Failed):  # the mail is already accepted
                server.quit()
            return rejected
        finally:
            server.close()

    def connect(self) -> Any:
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


def rejection(message: str, codes: list[int]) -> Failed:
    """Return Failed if any reply code is temporary (4xx), otherwise Final."""
    return Failed(message) if any(code < 500 for code in codes) else Final(message)


def reply_text(text: bytes | str) -> str:
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
        variables = {"DUCTILE_TITLE": message.title.replace("\0", "").encode("utf-8", "replace"), "DUCTILE_TEXT": text}
        environ = {key: value[:MAX_VARIABLE_BYTES].decode("utf-8", "ignore") for key, value in variables.items()}
        try:
            done = subprocess.run(
                self.command,
                input=text,
                stdout=sys.stderr.fileno(),
                env={**os.environ, **environ},
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{self.command[0]} did not finish within {self.timeout:g} s") from error
        except (OSError, ValueError) as error:
            raise Misconfigured(f"cannot run {self.command[0]}: {getattr(error, 'strerror', error)}") from error
        if done.returncode == EX_CONFIG:
            raise Misconfigured(f"{self.command[0]} exited with code {EX_CONFIG}")
        if done.returncode != 0:
            raise Failed(f"{self.command[0]} exited with code {done.returncode}")
        return self.command[0]
