"""What two instances say to each other: the envelope of an event, its headers, its signature, the answer. Pure.

Knows neither sockets nor configuration. The engine sends with it, the web receives with it. The signed text does not
cover the query, the peer or the key id.
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
LONGEST_NAME = 256
LONGEST_KEY = 512
DEEPEST = strict_json.MAX_DEPTH - 2
"""The payload lies two levels deep in the envelope, and the core wraps it in up to four."""
_SIGNATURE = re.compile("(?:sha256=)?([0-9A-Fa-f]{64})")
_RFC_3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})")
_UNIX_SECONDS = re.compile("[0-9]{1,11}")


class EnvelopeInvalid(DuctileError):
    """The body is not the envelope of an event."""

    code, exit_code, status = "envelope_invalid", 2, 400
    hint = "`/openapi.json` describes the envelope of an event"


@frozen(kw_only=True)
class Origin:
    """Where an event comes from, as far as its sender says. `event_id` makes it unique."""

    instance: str = ""
    plugin: str = ""
    job_id: str = ""
    event_id: str = ""


@frozen(kw_only=True)
class Envelope:
    """An event on its way from one instance to another."""

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


# ── the signature ───────────────────────────────────────────────────────────────────────────────────────────────────


def canonical(method: str, path: str, timestamp: str, body: bytes) -> bytes:
    """The text that is signed."""
    return "\n".join((method.upper(), path, timestamp, "")).encode() + body


def signature(secret: Secret, method: str, path: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 in hex."""
    key = secret.reveal().encode("utf-8", "surrogateescape")
    return hmac.digest(key, canonical(method, path, timestamp, body), "sha256").hex()


def is_signed(text: str, secret: Secret, method: str, path: str, timestamp: str, body: bytes) -> bool:
    """Whether `text`, with or without `sha256=`, is the signature; takes as long for a wrong one."""
    found = _SIGNATURE.fullmatch(text)
    given = found[1].lower() if found else "0" * 64
    return hmac.compare_digest(given, signature(secret, method, path, timestamp, body))


def signed_headers(
    peer: str, key_id: str | None, secret: Secret, path: str, body: bytes, *, now: datetime
) -> dict[str, str]:
    """The headers that a request of `peer` to this path carries."""
    moment = to_text(now)
    own = {PEER: peer, TIMESTAMP: moment, SIGNATURE: signature(secret, "POST", path, moment, body)}
    return own | ({KEY_ID: key_id} if key_id is not None else {})


def read_moment(text: str) -> datetime | None:
    """RFC 3339, up to nanoseconds, or seconds since 1970; None if it is neither."""
    try:
        if _UNIX_SECONDS.fullmatch(text):
            return datetime.fromtimestamp(int(text), UTC)
        return datetime.fromisoformat(text).astimezone(UTC) if _RFC_3339.fullmatch(text) else None
    except (ValueError, OverflowError, OSError):
        return None


# ── the envelope ────────────────────────────────────────────────────────────────────────────────────────────────────


def encode(envelope: Envelope) -> bytes:
    """The body of the request: the same bytes for the same envelope."""
    return strict_json.dumps(envelope.as_json()).encode()


def decode(body: bytes, *, longest_key: int = LONGEST_KEY) -> Envelope:
    """The envelope in a body; EnvelopeInvalid says what is wrong with it. Unknown keys are ignored."""
    try:
        content = strict_json.loads(body, source="body", max_depth=DEEPEST)
    except Unreadable as error:
        raise EnvelopeInvalid(f"the body is not JSON: {error.reason}") from error
    if not isinstance(content, dict):
        raise EnvelopeInvalid("the body must be a JSON object")
    return envelope_of(content, longest_key=longest_key)


def envelope_of(content: Mapping[str, Any], *, longest_key: int = LONGEST_KEY) -> Envelope:
    """The envelope that plain data spells out."""
    event, origin = _object(content, "event"), _object(content, "origin")
    if not event:
        raise EnvelopeInvalid("event is missing")
    kind, key = _text(event, "event", "type"), _text(event, "event", "dedupe_key", longest_key)
    if len(key.encode()) > longest_key:
        raise EnvelopeInvalid(f"event.dedupe_key is longer than {longest_key} bytes")
    if not EVENT_TYPE.allows(kind):
        raise EnvelopeInvalid(f"event.type must be {EVENT_TYPE.allowed}")
    if kind.startswith(INTERNAL):
        raise EnvelopeInvalid(f"event.type: types that begin with `{INTERNAL}` belong to the core")
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


def _text(content: Mapping[str, Any], within: str, name: str, longest: int = LONGEST_NAME) -> str:
    value, path = content.get(name), f"{within}.{name}"
    if value is None:
        return ""
    if not isinstance(value, str):
        raise EnvelopeInvalid(f"{path} must be text")
    if len(value) > longest:
        raise EnvelopeInvalid(f"{path} is longer than {longest} characters")
    return value


# ── the answer ──────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Reply:
    """What the receiver says to an event it has taken. One that does not speak of `accepted` has accepted it."""

    receiver_event_id: str
    peer: str = ""
    job_id: str | None = None
    accepted: bool = True
    reason: str | None = None


def read_reply(body: bytes) -> Reply | None:
    """The reply in the body of a 2xx answer; None if no Ductile can have written it."""
    try:
        content = strict_json.loads(body, source="answer")
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


def read_refusal(body: bytes) -> str:
    """The words of an answer that is none of 2xx; empty if it has none."""
    try:
        content = strict_json.loads(body, source="answer")
    except Unreadable:
        return ""
    error = content.get("error") if isinstance(content, dict) else None
    return error if isinstance(error, str) else ""
