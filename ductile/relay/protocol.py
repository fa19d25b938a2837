"""The relay protocol between two instances: envelope, headers, signature and reply. Pure.

Knows neither sockets nor configuration. The signature does not cover the query string, the peer name or the key id.
"""

import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import asdict, field, frozen

from ductile.core.clock import to_text
from ductile.core.errors import DuctileError, Unreadable
from ductile.core.formats import strict_json
from ductile.core.formats.yaml_fields import EVENT_TYPE
from ductile.core.secret import Secret

PEER, KEY_ID = "X-Ductile-Peer", "X-Ductile-Key-Id"
TIMESTAMP, SIGNATURE = "X-Ductile-Timestamp", "X-Ductile-Signature"
INTERNAL = "ductile."
MAX_NAME_LENGTH = 256
MAX_KEY_BYTES = 512
MAX_DEPTH = strict_json.MAX_DEPTH - 2
"""The payload is nested two levels deep in the envelope, and the core wraps it in up to four."""
_SIGNATURE = re.compile("(?:sha256=)?([0-9A-Fa-f]{64})")
_RFC_3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})")
_UNIX_SECONDS = re.compile("[0-9]{1,11}")


class EnvelopeInvalid(DuctileError):
    """The body is not a valid event envelope."""

    code, exit_code, status = "envelope_invalid", 2, 400
    hint = "See `/openapi.json` for the format of the envelope."


@frozen(kw_only=True)
class Origin:
    """The origin of an event as stated by its sender. `event_id` identifies the event."""

    instance: str = ""
    plugin: str = ""
    job_id: str = ""
    event_id: str = ""


@frozen(kw_only=True)
class Envelope:
    """An event that is sent from one instance to another."""

    type: str
    payload: Mapping[str, Any] = field(factory=dict, repr=False)
    dedupe_key: str | None = None
    origin: Origin = field(factory=Origin)
    baggage: Mapping[str, Any] = field(factory=dict, repr=False)

    def as_json(self) -> dict[str, Any]:
        event: dict[str, Any] = {"type": self.type, "payload": self.payload}
        if self.dedupe_key is not None:
            event["dedupe_key"] = self.dedupe_key
        content: dict[str, Any] = {"event": event, "origin": asdict(self.origin)}
        return content | ({"baggage": self.baggage} if self.baggage else {})


# ── signature ───────────────────────────────────────────────────────────────────────────────────────────────────────


def canonical(method: str, path: str, timestamp: str, body: bytes) -> bytes:
    """Return the signed text: method, path and timestamp, each followed by a newline, then the body."""
    return "\n".join((method.upper(), path, timestamp, "")).encode() + body


def signature(secret: Secret, method: str, path: str, timestamp: str, body: bytes) -> str:
    """Sign a request with HMAC-SHA256; returns hex digits."""
    key = secret.reveal().encode("utf-8", "surrogateescape")
    return hmac.digest(key, canonical(method, path, timestamp, body), "sha256").hex()


def is_signed(text: str, secret: Secret, method: str, path: str, timestamp: str, body: bytes) -> bool:
    """Check a signature, with or without `sha256=`, in constant time."""
    found = _SIGNATURE.fullmatch(text)
    digest = found[1].lower() if found else "0" * 64
    return hmac.compare_digest(digest, signature(secret, method, path, timestamp, body))


def signed_headers(
    peer: str, key_id: str | None, secret: Secret, path: str, body: bytes, *, now: datetime
) -> dict[str, str]:
    """Return the headers of a signed request of `peer` to `path`."""
    timestamp = to_text(now)
    headers = {PEER: peer, TIMESTAMP: timestamp, SIGNATURE: signature(secret, "POST", path, timestamp, body)}
    return headers | ({KEY_ID: key_id} if key_id is not None else {})


def parse_timestamp(text: str) -> datetime | None:
    """Parse RFC 3339, up to nanoseconds, or Unix seconds; None if it is neither."""
    try:
        if _UNIX_SECONDS.fullmatch(text):
            return datetime.fromtimestamp(int(text), UTC)
        return datetime.fromisoformat(text).astimezone(UTC) if _RFC_3339.fullmatch(text) else None
    except (ValueError, OverflowError, OSError):
        return None


# ── envelope ────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode(envelope: Envelope) -> bytes:
    """Encode the body of the request. Equal envelopes give equal bytes."""
    return strict_json.dumps(envelope.as_json()).encode()


def decode(body: bytes, *, max_key_bytes: int = MAX_KEY_BYTES) -> Envelope:
    """Decode the body of a request. Raises EnvelopeInvalid with the reason. Ignores unknown keys."""
    try:
        content = strict_json.loads(body, source="body", max_depth=MAX_DEPTH)
    except Unreadable as error:
        raise EnvelopeInvalid(f"the body is not JSON: {error.reason}") from error
    if not isinstance(content, dict):
        raise EnvelopeInvalid("the body must be a JSON object")
    return parse_envelope(content, max_key_bytes=max_key_bytes)


def parse_envelope(content: Mapping[str, Any], *, max_key_bytes: int = MAX_KEY_BYTES) -> Envelope:
    """Parse an envelope from plain data. Raises EnvelopeInvalid with the reason."""
    event, origin = _object(content, "event"), _object(content, "origin")
    if not event:
        raise EnvelopeInvalid("event is missing")
    kind, key = _text(event, "event", "type"), _text(event, "event", "dedupe_key", max_key_bytes)
    if len(key.encode()) > max_key_bytes:
        raise EnvelopeInvalid(f"event.dedupe_key is longer than {max_key_bytes} bytes")
    if not EVENT_TYPE.allows(kind):
        raise EnvelopeInvalid(f"event.type must be {EVENT_TYPE.allowed}")
    if kind.startswith(INTERNAL):
        raise EnvelopeInvalid(f"event.type: types that begin with `{INTERNAL}` are reserved")
    return Envelope(
        type=kind,
        payload=_object(event, "payload", "event."),
        dedupe_key=key or None,
        origin=Origin(**{name: _text(origin, "origin", name) for name in asdict(Origin())}),
        baggage=_object(content, "baggage"),
    )


def _object(content: Mapping[str, Any], name: str, within: str = "") -> Mapping[str, Any]:
    value = content.get(name)
    if value is not None and not isinstance(value, dict):
        raise EnvelopeInvalid(f"{within}{name} must be a JSON object")
    return value or {}


def _text(content: Mapping[str, Any], within: str, name: str, max_length: int = MAX_NAME_LENGTH) -> str:
    value, path = content.get(name), f"{within}.{name}"
    if value is None:
        return ""
    if not isinstance(value, str):
        raise EnvelopeInvalid(f"{path} must be text")
    if len(value) > max_length:
        raise EnvelopeInvalid(f"{path} is longer than {max_length} characters")
    return value


# ── reply ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Reply:
    """The receiver's reply to an event that it stored. `accepted` defaults to true."""

    receiver_event_id: str
    peer: str = ""
    job_id: str | None = None
    accepted: bool = True
    reason: str | None = None


def read_reply(body: bytes) -> Reply | None:
    """Parse the body of a 2xx response; None if it is not a reply of a Ductile instance."""
    try:
        content = strict_json.loads(body, source="response")
    except Unreadable:
        return None
    if not isinstance(content, dict) or content.get("status") != "accepted":
        return None
    job_id, reason = content.get("job_id"), content.get("reason")
    return Reply(
        receiver_event_id=str(content.get("receiver_event_id") or ""),
        peer=str(content.get("peer") or ""),
        job_id=str(job_id) if job_id else None,
        accepted=content.get("accepted") is not False,
        reason=str(reason) if reason else None,
    )


def read_error(body: bytes) -> str:
    """Return the error message of a response other than 2xx; empty if it has none."""
    try:
        content = strict_json.loads(body, source="response")
    except Unreadable:
        return ""
    error = content.get("error") if isinstance(content, dict) else None
    return error if isinstance(error, str) else ""
