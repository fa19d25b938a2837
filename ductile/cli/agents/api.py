"""`ductile api`: send one request to the HTTP API and print the response unchanged.

Sends requests, and the token with them, only to this machine and to private networks. Knows one rule of the API: the
fields of a trigger go into its `payload`.
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
UNQUOTED = "/?&=%:@!$'()*+,;~-._[]"
"""Characters of an endpoint that are not percent-encoded."""
CHUNK_BYTES = 64 * 1024


@click.command("api")
@click.argument("endpoint")
@click.option("-X", "--method", help="HTTP method. Default: POST with a body or fields, otherwise GET.")
@click.option(
    "-f", "--field", "fields", multiple=True, help="NAME=VALUE. A valid JSON value is sent as JSON, otherwise as text."
)
@click.option("-H", "--header", "headers", multiple=True, help="Request header 'NAME: VALUE'.")
@click.option("-b", "--body", help="Request body; - reads stdin.")
@click.option("-i", "--include", is_flag=True, help="Print the status and headers of the response too.")
@click.option(
    "-c", "--config", "config_path", type=click.Path(path_type=Path), help="Configuration directory or config.yaml."
)
@click.option("--config-dir", type=click.Path(path_type=Path), help="Alias of --config.")
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
    """Send a request to the HTTP API and print the response. Exit 1 for a status of 400 or more.

    The request uses the local socket, which needs no token. --api-url selects another service on this machine or in a
    private network. Fields become members of `payload` for POST /plugin/… and /pipeline/…, query arguments for GET, and
    members of the body otherwise. Streams such as /events are printed as they arrive. --json affects only errors of
    this command; the API always returns JSON.

    Example: ductile api /plugin/echo/poll -f message=hi
    """
    verb, path, content = _request(endpoint, method, _fields(fields), _read_body(body))
    parsed_headers = _headers(headers, has_body=content is not None)
    if dry_run:
        shown = {"method": verb, "path": path, "headers": parsed_headers, "body": content, "dry_run": True}
        output.show(
            shown, as_json=as_json, human=lambda _: [f"would send {verb} {path}", *([content] if content else [])]
        )
        return 0
    return _send(verb, path, content, parsed_headers, include=include, where=where)


# ── request ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _request(
    endpoint: str, method: str | None, fields: dict[str, Any] | None, body: str | None
) -> tuple[str, str, str | None]:
    """Return the method, the path and the body."""
    import json
    from urllib.parse import urlencode

    if fields is not None and body is not None:
        raise UsageInvalid("--field and --body are mutually exclusive")
    path = _path(endpoint)
    verb = method.upper() if method else "GET" if fields is None and body is None else "POST"
    if not _TOKEN.fullmatch(verb):
        raise UsageInvalid(f"{verb[:40]!r} is not an HTTP method")
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
        raise UsageInvalid("ENDPOINT must be a path such as /jobs", hint="Select another service with --api-url.")
    if _CONTROL.search(endpoint) or "#" in endpoint:
        raise UsageInvalid("ENDPOINT has a character that is not allowed in a path")
    return quote(f"/{endpoint.lstrip('/')}", safe=UNQUOTED)


def _fields(texts: Iterable[str]) -> dict[str, Any] | None:
    """Parse each NAME=VALUE; None if there are none."""
    from ductile.core.errors import Unreadable
    from ductile.core.formats import strict_json

    fields: dict[str, Any] = {}
    for text in texts:
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


def _headers(texts: Iterable[str], *, has_body: bool) -> dict[str, str]:
    headers = {"content-type": "application/json"} if has_body else {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or _CONTROL.search(value) or not value.isascii():
            raise UsageInvalid(f"--header {text[:80]!r} is not 'NAME: VALUE'")
        headers[name.lower()] = value.strip()
    return headers


# ── response ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _send(verb: str, path: str, body: str | None, headers: dict[str, str], *, include: bool, where: Any) -> int:
    """Send the request, print the response and return the exit code."""
    from ductile.cli.base.connect import client_for

    service = client_for(where)
    all_headers, connection = service.authorization | headers, service.connection()
    with closing(connection):
        with _translating_errors(service):
            _open(connection, is_local=service.url is None)
            with suppress(
                BrokenPipeError, ConnectionResetError
            ):  # the service may refuse before it has read the whole body
                connection.request(verb, path, body.encode() if body is not None else None, all_headers)
            response = connection.getresponse()
        output.detail(f"request: {verb} {path} → {response.status}")
        if include:
            header_lines = [f"{name}: {value}" for name, value in response.getheaders()]
            for line in (f"HTTP/1.1 {response.status} {response.reason}", *header_lines, ""):
                output.print_line(line)
            sys.stdout.flush()
        if response.getheader("content-type", "").startswith("text/event-stream"):
            connection.sock.settimeout(None)
        _print(_chunks(service, response))
    return 1 if response.status >= 400 else 0


@contextmanager
def _translating_errors(service: "Client") -> Iterator[None]:
    from http.client import HTTPException

    try:
        yield
    except (OSError, HTTPException, UnicodeError) as error:
        raise ServiceUnreachable(
            f"the service does not respond at {service.url or service.socket_path}: {error}",
            hint="Start the service with `ductile system start`.",
        ) from error


def _open(connection: "HTTPConnection", *, is_local: bool) -> None:
    """Open the connection; refuse hosts outside private networks."""
    import socket

    from ductile.cli.base.client import RESPONSE_TIMEOUT_SECONDS

    if not is_local:
        found = socket.getaddrinfo(connection.host, connection.port, type=socket.SOCK_STREAM)
        _require_private(connection.host, [str(entry[4][0]) for entry in found])
    connection.connect()
    if not is_local:  # the name may have resolved to another address
        _require_private(connection.host, [connection.sock.getpeername()[0]])
    connection.sock.settimeout(RESPONSE_TIMEOUT_SECONDS)


def _require_private(host: str, addresses: Iterable[str]) -> None:
    """Raise NotAllowed unless every address is local or private."""
    import ipaddress

    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if not (address.is_private or address.is_loopback or address.is_link_local):
            raise NotAllowed(
                f"--api-url: {host} is {address}, which is not in a private network",
                hint="This command sends tokens to private networks only. Use another client for public services.",
            )


def _chunks(service: "Client", response: "HTTPResponse") -> Iterator[bytes]:
    from http.client import IncompleteRead

    with _translating_errors(service):
        while chunk := response.read1(CHUNK_BYTES):
            yield chunk
        if response.length:
            raise IncompleteRead(b"", response.length)


def _print(chunks: Iterable[bytes]) -> None:
    """Print each chunk as it arrives and end the last line. Escape control characters for a terminal."""
    from codecs import getincrementaldecoder

    from ductile.cli.base.terminal import escape_controls

    out, last, is_terminal = sys.stdout.buffer, b"\n", sys.stdout.isatty()
    reader = getincrementaldecoder("utf-8")("backslashreplace")
    for chunk in chunks:
        out.write(escape_controls(reader.decode(chunk)).encode() if is_terminal else chunk)
        out.flush()
        last = chunk
    if not last.endswith(b"\n"):
        click.echo()
