"""`ductile api`: one request to the HTTP API, the answer as it comes.

Knows nothing of what the API answers but this: the fields of a trigger go into its `payload`. Requests, and the token
with them, go to this machine or its own network, never further.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import NotAllowed, ServiceUnreachable, UsageInvalid

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

    from ductile.cli.base.client import Client

_TRIGGER = re.compile(r"/plugin/[^/?]+/[^/?]+|/pipeline/[^/?]+")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
KEPT = "/?&=%:@!$'()*+,;~-._[]"
"""What stays as it is in an endpoint; all else is percent-encoded."""
CHUNK = 64 * 1024


@click.command("api")
@click.argument("endpoint")
@click.option("-X", "--method", help="The method. Default: POST with a body or fields, else GET.")
@click.option("-f", "--field", "fields", multiple=True, help="NAME=VALUE: JSON if it reads as JSON, else text.")
@click.option("-H", "--header", "headers", multiple=True, help="'NAME: VALUE'.")
@click.option("-b", "--body", help="The body as it is; - is stdin.")
@click.option("-i", "--include", is_flag=True, help="Print the status and the headers of the answer, too.")
@click.option("-c", "--config", "config_path", type=click.Path(path_type=Path), help="The configuration, as elsewhere.")
@click.option("--config-dir", type=click.Path(path_type=Path), help="The same as --config.")
@options.service
@options.dry_run
@options.as_json
def command(
    endpoint: str,
    method: str | None,
    fields: tuple[str, ...],
    headers: tuple[str, ...],
    body: str | None,
    include: bool,
    dry_run: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Send one request to the HTTP API and print the answer as it comes; exit 1 if its status is 400 or more.

    It goes through the local socket, which needs no token; --api-url names another service, on this machine or in its
    private network. Fields are members of `payload` for POST /plugin/… and /pipeline/…, query arguments for GET, and
    members of the body otherwise. An answer that goes on, such as /events, is printed while it does. --json is for
    errors of this command; the API speaks JSON by itself.

    Example: ductile api /plugin/echo/poll -f message=hi
    """
    verb, path, sent = _request(endpoint, method, _fields(fields), _read_body(body))
    written = _headers(headers, has_body=sent is not None)
    if dry_run:
        shown = {"method": verb, "path": path, "headers": written, "body": sent, "dry_run": True}
        output.show(shown, as_json=as_json, human=lambda one: [f"would send {verb} {path}", *([sent] if sent else [])])
        return 0
    return _send(verb, path, sent, written, include=include, where=where)


# ── the request ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _request(
    endpoint: str, method: str | None, fields: dict[str, Any] | None, body: str | None
) -> tuple[str, str, str | None]:
    """Method, path and body."""
    import json
    from urllib.parse import urlencode

    if fields is not None and body is not None:
        raise UsageInvalid("--field and --body both make the body; give one of them")
    path = _path(endpoint)
    verb = method.upper() if method else "GET" if fields is None and body is None else "POST"
    if not _TOKEN.fullmatch(verb):
        raise UsageInvalid(f"{verb[:40]!r} is not a method")
    if fields is None:
        return verb, path, body
    if verb in ("GET", "HEAD"):
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        return verb, f"{path}{'&' if '?' in path else '?'}{urlencode(texts)}", None
    content = {"payload": fields} if _TRIGGER.fullmatch(path.partition("?")[0]) else fields
    return verb, path, json.dumps(content, ensure_ascii=False)


def _path(endpoint: str) -> str:
    from urllib.parse import quote

    if "://" in endpoint.partition("?")[0]:
        raise UsageInvalid("ENDPOINT is a path such as /jobs", hint="name another service with --api-url")
    if _CONTROL.search(endpoint) or "#" in endpoint:
        raise UsageInvalid("ENDPOINT has a character that no path has")
    return quote(f"/{endpoint.lstrip('/')}", safe=KEPT)


def _fields(written: Iterable[str]) -> dict[str, Any] | None:
    """NAME=VALUE each; None if there are none."""
    from ductile.core.errors import Unreadable
    from ductile.core.formats import strict_json

    fields: dict[str, Any] = {}
    for text in written:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageInvalid(f"--field {text[:80]!r} is not NAME=VALUE")
        if name in fields:
            raise UsageInvalid(f"--field {name[:80]!r} is given twice")
        try:
            fields[name] = strict_json.loads(value, source=name)
        except Unreadable:
            fields[name] = value
    return fields or None


def _read_body(body: str | None) -> str | None:
    if body != "-":
        return body
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageInvalid(f"stdin: {error}") from error


def _headers(written: Iterable[str], *, has_body: bool) -> dict[str, str]:
    headers = {"content-type": "application/json"} if has_body else {}
    for text in written:
        name, colon, value = text.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or _CONTROL.search(value) or not value.isascii():
            raise UsageInvalid(f"--header {text[:80]!r} is not 'NAME: VALUE'")
        headers[name.lower()] = value.strip()
    return headers


# ── the answer ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _send(verb: str, path: str, body: str | None, headers: dict[str, str], *, include: bool, where: Any) -> int:
    """Everything the service answers is on stdout; what to exit with."""
    from ductile.cli.base.connect import client_for

    service = client_for(where)
    keyed, connection = service.authorization | headers, service.connection()
    with closing(connection):
        with _reaching(service):
            _open(connection, is_local=service.url is None)
            with suppress(BrokenPipeError, ConnectionResetError):  # a refusal may come before all of the body is sent
                connection.request(verb, path, body.encode() if body is not None else None, keyed)
            answer = connection.getresponse()
        output.detail(f"asked: {verb} {path} → {answer.status}")
        if include:
            headers_told = [f"{name}: {value}" for name, value in answer.getheaders()]
            for line in (f"HTTP/1.1 {answer.status} {answer.reason}", *headers_told, ""):
                output.tell(line)
            sys.stdout.flush()
        if answer.getheader("content-type", "").startswith("text/event-stream"):
            connection.sock.settimeout(None)
        _print(_chunks(service, answer))
    return 1 if answer.status >= 400 else 0


@contextmanager
def _reaching(service: "Client") -> Iterator[None]:
    from http.client import HTTPException

    try:
        yield
    except (OSError, HTTPException, UnicodeError) as error:
        raise ServiceUnreachable(
            f"the service does not answer at {service.url or service.socket_path}: {error}",
            hint="is it running? start it with `ductile system start`",
        ) from error


def _open(connection: "HTTPConnection", *, is_local: bool) -> None:
    """Connected, and not to a stranger."""
    import socket

    from ductile.cli.base.client import LONGEST_ANSWER_SECONDS

    if not is_local:
        found = socket.getaddrinfo(connection.host, connection.port, type=socket.SOCK_STREAM)
        _require_near(connection.host, [str(entry[4][0]) for entry in found])
    connection.connect()
    if not is_local:  # a name may stand for another address the next time it is asked
        _require_near(connection.host, [connection.sock.getpeername()[0]])
    connection.sock.settimeout(LONGEST_ANSWER_SECONDS)


def _require_near(host: str, addresses: Iterable[str]) -> None:
    """Each is this machine or in its private network."""
    import ipaddress

    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if not (address.is_private or address.is_loopback or address.is_link_local):
            raise NotAllowed(
                f"--api-url: {host} is {address}, neither this machine nor in its private network",
                hint="this command would send your token there; for services in the open internet use another client",
            )


def _chunks(service: "Client", answer: "HTTPResponse") -> Iterator[bytes]:
    from http.client import IncompleteRead

    with _reaching(service):
        while chunk := answer.read1(CHUNK):
            yield chunk
        if answer.length:
            raise IncompleteRead(b"", answer.length)


def _print(chunks: Iterable[bytes]) -> None:
    """Each as soon as it is there; the last line is ended. Whoever looks is shown nothing that a terminal obeys."""
    from codecs import getincrementaldecoder

    from ductile.cli.base.terminal import cleaned

    out, last, is_seen = sys.stdout.buffer, b"\n", sys.stdout.isatty()
    reader = getincrementaldecoder("utf-8")("backslashreplace")
    for chunk in chunks:
        out.write(cleaned(reader.decode(chunk)).encode() if is_seen else chunk)
        out.flush()
        last = chunk
    if not last.endswith(b"\n"):
        click.echo()
