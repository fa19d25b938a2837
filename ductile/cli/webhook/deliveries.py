"""Deliveries and endpoints of webhooks as commands see them: from the configuration and the ledger, without a service.

Also the sender's side: the signed request that `webhook send` posts.
"""

import json
import os
import sys
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from ductile.cli.base import output
from ductile.config.load.load import Config, load
from ductile.config.load.sources import find
from ductile.config.sections.settings import WebhookEndpoint
from ductile.core.clock import to_text
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.tables import receipts, rejected_deliveries
from ductile.ledger.tables.rejected_deliveries import UNREAD_BODY, RejectedDelivery
from ductile.web.webhooks.signatures import Verifier
from ductile.web.webhooks.signing import signed_headers

LONGEST_ID = 18


def configuration(explicit: Path | None) -> Config:
    return load(find(explicit, os.environ).path)


def read_ledger(config: Config, function: Any, *args: Any, **kwargs: Any) -> Any:
    """What `function(db, …)` finds; None if there is no ledger yet."""
    path = config.settings.state.path
    if not path.exists():
        return None
    with open_reader(path) as db:
        return function(db, *args, **kwargs)


def endpoint_named(config: Config, name: str) -> WebhookEndpoint:
    """The endpoint of that name or path."""
    entries = config.settings.webhooks.endpoints
    for entry in entries:
        if name in (name_of(entry), entry.path):
            return entry
    known = [name_of(entry) for entry in entries]
    hint = f"known: {', '.join(known)}" if known else "write some under webhooks.endpoints"
    raise NotFound(f"there is no endpoint {name[:80]!r}{did_you_mean(name, known)}", hint=hint)


def name_of(entry: WebhookEndpoint) -> str:
    return entry.name or entry.path.rstrip("/").rpartition("/")[2] or entry.path


def _target(entry: WebhookEndpoint) -> str:
    if entry.plugin is not None:
        return f"plugin {entry.plugin}"
    return f"pipeline {entry.pipeline}" if entry.pipeline is not None else f"event {entry.event}"


def endpoint_view(config: Config, entry: WebhookEndpoint) -> dict[str, Any]:
    known = {token.name for token in config.settings.tokens}
    accepted = read_ledger(config, receipts.newest, f"webhook:{entry.path}", limit=1) or []
    refused = read_ledger(config, rejected_deliveries.newest, entry.path, limit=1) or []
    return {
        "name": name_of(entry),
        "path": entry.path,
        "target": _target(entry),
        "scheme": entry.scheme,
        "secrets": list(entry.secret_ref),
        "missing_secrets": [name for name in entry.secret_ref if name not in known],
        "last_accepted_at": to_text(accepted[0].created_at) if accepted else None,
        "last_refused_at": to_text(refused[0].at) if refused else None,
        "last_refused_why": refused[0].reason if refused else None,
    }


def accepted_views(config: Config, entry: WebhookEndpoint, limit: int) -> list[dict[str, Any]]:
    found = read_ledger(config, receipts.newest, f"webhook:{entry.path}", limit=limit) or []
    return [
        {
            "endpoint": name_of(entry),
            "delivery": one.key,
            "at": to_text(one.created_at),
            "job_id": one.job_id,
            "known_until": to_text(one.expires_at),
        }
        for one in found
    ]


def refused_views(config: Config, entry: WebhookEndpoint, limit: int) -> list[dict[str, Any]]:
    found = read_ledger(config, rejected_deliveries.newest, entry.path, limit=limit) or []
    return [_refused_view(name_of(entry), one) for one in found]


def _refused_view(endpoint: str, one: RejectedDelivery) -> dict[str, Any]:
    return {
        "id": one.id,
        "endpoint": endpoint,
        "at": to_text(one.at),
        "status": one.status,
        "reason": one.reason,
        "peer": one.peer,
        "body_sha256": one.body_sha256,
        "body_bytes": one.body_bytes,
        "headers": one.headers,
    }


def reachable(listen: str) -> str:
    """Where a service that listens there is found from this host."""
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0", "[::]", "*") else listen


def stored_refusal(config: Config, name_or_id: str) -> RejectedDelivery | None:
    """The refused delivery of that number; None if it is the name of an endpoint."""
    is_name = any(name_of(entry) == name_or_id for entry in config.settings.webhooks.endpoints)
    if is_name or not (name_or_id.isascii() and name_or_id.isdecimal()) or len(name_or_id) > LONGEST_ID:
        return None
    found: RejectedDelivery | None = read_ledger(config, rejected_deliveries.get, int(name_or_id))
    if found is None:
        raise NotFound(f"there is no refused delivery {name_or_id}", hint="`ductile webhook receipts` lists them")
    return found


def read_body(text: str | None, path: Path | None) -> bytes:
    """The bytes of `--payload` or `--payload-file`. A file behind `--payload`, where it once belonged, is read too."""
    if (text is None) == (path is None):
        raise UsageInvalid("a delivery has one body", hint="give --payload JSON or --payload-file FILE; - is stdin")
    if path is not None:
        return _read_file(path)
    assert text is not None
    if _is_json(text):
        return text.encode()
    if text == "-" or os.path.isfile(text):
        output.note(f"note: {text} is a file: write --payload-file {text}")
        return _read_file(Path(text))
    hint = """write it like '{"message": "hi"}'; --payload-file names a file, whatever is in it"""
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


def signed_request(config: Config, entry: WebhookEndpoint, body: bytes, headers: tuple[str, ...]) -> dict[str, str]:
    secrets = {token.name: token.key for token in config.settings.tokens}
    known = next((secrets[ref] for ref in entry.secret_ref if ref in secrets), None)
    if known is None:
        names = ", ".join(entry.secret_ref)
        raise NotFound(f"endpoint {name_of(entry)} has no secret: tokens.yaml has no {names}")
    media = "application/json" if entry.body == "json" else "application/x-www-form-urlencoded"
    now = datetime.now(UTC)
    signed = signed_headers(entry.scheme, known.reveal(), body, now=now, header=entry.signature_header)
    return {"content-type": media, **signed, **dict(map(header_of, headers))}


def verdict_view(
    config: Config, stored: RejectedDelivery | None, name: str, body: bytes, headers: tuple[str, ...]
) -> dict[str, Any]:

    given: dict[str, tuple[str, ...]] = {}
    for key, value in map(header_of, headers):
        given[key.lower()] = (*given.get(key.lower(), ()), value)
    if stored is not None:
        entry = next((e for e in config.settings.webhooks.endpoints if e.path == stored.path), None)
        if entry is None:
            raise NotFound(f"there is no endpoint {stored.path} any more")
        given, now = {key: tuple(values) for key, values in stored.headers.items()} | given, stored.at
    else:
        entry, now = endpoint_named(config, name), datetime.now(UTC)
    secrets = {token.name: token.key for token in config.settings.tokens}
    fits, reason = [], "the endpoint has no secret"
    for ref in entry.secret_ref:
        if ref in secrets:
            verdict = Verifier.of(entry.scheme, [secrets[ref]], entry.signature_header).verdict(given, body, now=now)
            fits += [ref] if verdict.is_valid else []
            reason = verdict.reason or reason
    if stored is not None and stored.body_sha256 == UNREAD_BODY:
        fits, reason = [], f"it was sent away before its body was read: {stored.reason}"
        return {"endpoint": name_of(entry), "valid": False, "fits": fits, "reason": reason, "same_body": None}
    is_same = stored is None or sha256(body).hexdigest() == stored.body_sha256
    return {
        "endpoint": name_of(entry),
        "valid": bool(fits),
        "fits": fits,
        "reason": None if fits else reason if is_same else f"{reason}; this is not the body that came",
        "same_body": is_same if stored is not None else None,
    }


def header_of(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageInvalid(f"{text!r} is not a header", hint="write it like 'X-GitHub-Event: push'")
    return name.strip(), value.strip()
