"""Webhook endpoints and deliveries for commands, read from the configuration and the ledger.

Also signs and posts the request of `webhook send`, and verifies deliveries for `webhook verify`.
"""

import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from ductile.cli.base import output
from ductile.config.files.sources import find_config
from ductile.config.load.load import Config, load
from ductile.config.sections.settings import WebhookEndpoint
from ductile.core.clock import to_text
from ductile.core.errors import NotFound, ServiceUnreachable, UsageInvalid
from ductile.ledger.reports.filters import page_fields, parse_cursor
from ductile.ledger.reports.pagination import Page
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.tables import receipts
from ductile.ledger.webhooks.deliveries import (
    UNREAD_BODY,
    DeliveryFilter,
    DeliveryRecord,
    DeliveryVerdict,
    list_deliveries,
)
from ductile.web.webhooks.signatures import Verifier
from ductile.web.webhooks.signing import sign_delivery
from ductile.web.webhooks.views import (
    delivery_page,
    delivery_view,
    endpoint_name,
    find_endpoint,
    parse_delivery_filter,
    reason_of,
    require_delivery,
)


def load_config(explicit: Path | None) -> Config:
    return load(find_config(explicit, os.environ).path)


def read_ledger(config: Config, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return `function(db, …)`; None if there is no ledger yet."""
    path = config.settings.state.path
    if not path.exists():
        return None
    with open_reader(path) as db:
        return function(db, *args, **kwargs)


def _target(entry: WebhookEndpoint) -> str:
    if entry.plugin is not None:
        return f"plugin {entry.plugin}"
    return f"pipeline {entry.pipeline}" if entry.pipeline is not None else f"event {entry.event}"


def endpoint_view(config: Config, entry: WebhookEndpoint) -> dict[str, Any]:
    known = {token.name for token in config.settings.tokens}
    accepted = _latest(config, entry, ("accepted", "unmatched"), limit=1)
    refused = _latest(config, entry, ("refused",), limit=1)
    return {
        "name": endpoint_name(entry),
        "path": entry.path,
        "target": _target(entry),
        "scheme": entry.scheme,
        "secrets": list(entry.secret_ref),
        "missing_secrets": [name for name in entry.secret_ref if name not in known],
        "last_accepted_at": to_text(accepted[0].at) if accepted else None,
        "last_refused_at": to_text(refused[0].at) if refused else None,
        "last_refused_why": reason_of(refused[0]) if refused else None,
    }


def _latest(
    config: Config, entry: WebhookEndpoint, verdicts: tuple[DeliveryVerdict, ...], *, limit: int
) -> list[DeliveryRecord]:
    """Return the latest deliveries with one of these verdicts, newest first."""

    def read(db: Db) -> list[DeliveryRecord]:
        filters = [DeliveryFilter(path=entry.path, verdict=verdict) for verdict in verdicts]
        found = [record for wanted in filters for record in list_deliveries(db, wanted, limit=limit).items]
        return sorted(found, key=lambda record: record.id or 0, reverse=True)[:limit]

    return read_ledger(config, read) or []


def read_page(config: Config, arguments: Mapping[str, str | None], limit: int, cursor: str | None) -> dict[str, Any]:
    """Return a page of deliveries, as `GET /webhooks/deliveries` does."""
    wanted, before = parse_delivery_filter(config, arguments), parse_cursor(cursor)
    page = read_ledger(config, delivery_page, config, wanted, before=before, limit=limit)
    return page or {"deliveries": [], **page_fields(Page([], 0, is_exact=True, next_before=None), limit)}


def read_delivery(config: Config, delivery_id: str) -> dict[str, Any]:
    """Return a delivery, as `GET /webhooks/deliveries/{id}` does. Raises NotFound."""
    record = read_ledger(config, require_delivery, delivery_id)
    if record is None:
        raise NotFound(f"delivery {delivery_id[:80]!r} does not exist", hint="The ledger has not been created yet.")
    return {**delivery_view(config, record)}


def accepted_views(config: Config, entry: WebhookEndpoint, limit: int) -> list[dict[str, Any]]:
    found = _latest(config, entry, ("accepted", "unmatched"), limit=limit)
    return [
        {
            "endpoint": endpoint_name(entry),
            "delivery": record.delivery_id,
            "at": to_text(record.at),
            "job_id": record.job_ids[0] if record.job_ids else None,
            "known_until": _known_until(config, entry, record),
        }
        for record in found
    ]


def _known_until(config: Config, entry: WebhookEndpoint, record: DeliveryRecord) -> str | None:
    if record.delivery_id is None:
        return None
    receipt = read_ledger(config, receipts.get, f"webhook:{entry.path}", record.delivery_id)
    return to_text(receipt.expires_at) if receipt is not None else None


def refused_views(config: Config, entry: WebhookEndpoint, limit: int) -> list[dict[str, Any]]:
    return [
        {
            "id": record.id,
            "endpoint": endpoint_name(entry),
            "at": to_text(record.at),
            "status": record.status,
            "code": record.code,
            "reason": reason_of(record),
            "peer": record.peer,
            "body_sha256": record.body_sha256,
            "body_bytes": record.body_bytes,
            "headers": record.headers,
        }
        for record in _latest(config, entry, ("refused",), limit=limit)
    ]


def local_address(listen: str) -> str:
    """Return the address under which this host reaches a service with that listen address."""
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0", "[::]", "*") else listen


def find_refused_delivery(config: Config, name_or_id: str) -> DeliveryRecord | None:
    """Return the refused delivery with this id; None if it is the name of an endpoint."""
    is_name = any(endpoint_name(entry) == name_or_id for entry in config.settings.webhooks.endpoints)
    if is_name or not (name_or_id.isascii() and name_or_id.isdecimal()):
        return None
    found: DeliveryRecord | None = read_ledger(config, require_delivery, name_or_id)
    if found is None or found.verdict != "refused":
        raise NotFound(f"refused delivery {name_or_id[:80]} does not exist", hint="Run `ductile webhook deliveries`.")
    return found


def read_body(text: str | None, path: Path | None) -> bytes:
    """Return the bytes of `--payload` or `--payload-file`. A file name given to `--payload` is read, with a note."""
    if (text is None) == (path is None):
        raise UsageInvalid(
            "exactly one body is required", hint="Use --payload JSON or --payload-file FILE; - is stdin."
        )
    if path is not None:
        return _read_file(path)
    assert text is not None
    if _is_json(text):
        return text.encode()
    if text == "-" or os.path.isfile(text):
        output.note(f"note: {text} is a file; use --payload-file {text}")
        return _read_file(Path(text))
    hint = """Write JSON such as '{"message": "hi"}', or use --payload-file FILE."""
    raise UsageInvalid(f"--payload: {text[:80]!r} is neither JSON nor a file", hint=hint)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _read_file(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise UsageInvalid(f"{path}: {error.strerror}") from error


def sign_request(config: Config, entry: WebhookEndpoint, body: bytes, headers: tuple[str, ...]) -> dict[str, str]:
    secrets = {token.name: token.key for token in config.settings.tokens}
    known = next((secrets[ref] for ref in entry.secret_ref if ref in secrets), None)
    if known is None:
        names = ", ".join(entry.secret_ref)
        raise NotFound(f"endpoint {endpoint_name(entry)} has no secret: tokens.yaml has no token {names}")
    media = "application/json" if entry.body == "json" else "application/x-www-form-urlencoded"
    now = datetime.now(UTC)
    signed = sign_delivery(entry.scheme, known.reveal(), body, now=now, header=entry.signature_header)
    return {"content-type": media, **signed, **dict(map(parse_header, headers))}


def post_delivery(address: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(address, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return {"status": answer.status, "answer": _answer(answer.read())}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "answer": _answer(error.read())}
    except (OSError, ValueError) as error:
        raise ServiceUnreachable(f"{address}: {error}", hint="Check that the service is running.") from error


def _answer(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")[:1000]


def verification_view(
    config: Config, stored: DeliveryRecord | None, name: str, body: bytes, headers: tuple[str, ...]
) -> dict[str, Any]:

    headers_by_name: dict[str, tuple[str, ...]] = {}
    for key, value in map(parse_header, headers):
        headers_by_name[key.lower()] = (*headers_by_name.get(key.lower(), ()), value)
    if stored is not None:
        entry = next((e for e in config.settings.webhooks.endpoints if e.path == stored.path), None)
        if entry is None:
            raise NotFound(f"endpoint {stored.path} no longer exists")
        stored_headers = {key: tuple(values) for key, values in stored.headers.items()}
        headers_by_name, now = stored_headers | headers_by_name, stored.at
    else:
        entry, now = find_endpoint(config, name), datetime.now(UTC)
    secrets = {token.name: token.key for token in config.settings.tokens}
    fits, reason = [], "the endpoint has no secret"
    for ref in entry.secret_ref:
        if ref in secrets:
            verdict = Verifier.of(entry.scheme, [secrets[ref]], entry.signature_header).verify(
                headers_by_name, body, now=now
            )
            fits += [ref] if verdict.is_valid else []
            reason = verdict.reason or reason
    if stored is not None and stored.body_sha256 == UNREAD_BODY:
        fits, reason = [], f"it was refused before its body was read: {stored.reason}"
        return {"endpoint": endpoint_name(entry), "valid": False, "fits": fits, "reason": reason, "same_body": None}
    is_same = stored is None or sha256(body).hexdigest() == stored.body_sha256
    return {
        "endpoint": endpoint_name(entry),
        "valid": bool(fits),
        "fits": fits,
        "reason": None if fits else reason if is_same else f"{reason}; the body differs from the received one",
        "same_body": is_same if stored is not None else None,
    }


def parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageInvalid(f"{text!r} is not a header", hint="Write it as 'X-GitHub-Event: push'.")
    return name.strip(), value.strip()
