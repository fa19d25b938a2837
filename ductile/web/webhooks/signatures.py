"""Verification of webhook signatures, for each supported scheme. Pure, in constant time.

A missing, repeated or malformed header is a negative verdict with a reason for the operator, not an exception. Does not
know endpoints.
"""

import base64
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from hashlib import sha256

from attrs import field, frozen

from ductile.core.secret import Secret

TOLERANCE_SECONDS = 300
"""The accepted difference between a signed timestamp and the clock."""
MAX_SIGNATURES = 16
TIMESTAMP_OUT_OF_RANGE = (
    "timestamp_out_of_range",
    f"the signed timestamp differs from the clock by more than {TOLERANCE_SECONDS} s",
)
SECRET_MISSING = ("secret_missing", "the endpoint has no usable secret")
SIGNATURE_MISMATCH = ("signature_mismatch", "the signature matches no secret of the endpoint")

Headers = Mapping[str, tuple[str, ...]]


class MalformedSignature(Exception):
    """The signature headers do not have the format of the scheme. The message has the reason."""

    reason_code = "signature_malformed"


class MissingSignature(MalformedSignature):
    """A signature header is missing."""

    reason_code = "signature_missing"


@frozen(kw_only=True)
class SignatureHeaders:
    """The parsed signature headers of a delivery."""

    signatures: tuple[bytes, ...] = ()
    """One valid signature is sufficient."""
    prefix: bytes = b""
    """The signed bytes before the body."""
    sent_at: int | None = None
    delivery_id: str | None = None


@frozen(kw_only=True)
class SignatureVerdict:
    """The result of a verification. `reason` is for the operator and must not be sent to the sender."""

    reason: str | None = None
    """Why the signature is invalid; None if it is valid."""
    code: str | None = None
    """The code of the reason."""
    delivery_id: str | None = None
    """The signed delivery id of the sender, if the scheme has one."""
    signed_digest: str | None = None
    """The digest of the signed bytes, if they include a timestamp. Identifies the delivery, whichever of several valid
    signatures it has."""

    @property
    def is_valid(self) -> bool:
        return self.reason is None


@frozen(kw_only=True)
class Scheme:
    """A signature scheme."""

    header: str
    read: Callable[[Headers, str], SignatureHeaders]
    key_of: Callable[[str], bytes]
    delivery_id_header: str | None = None
    """The header with the delivery id, which is not signed."""
    delivery_id_member: str | None = None
    """The member of the signed body with the delivery id."""
    event_headers: tuple[str, ...] = ()
    """Headers that a plugin needs to interpret the body; they are always forwarded."""


@frozen(kw_only=True)
class Verifier:
    """A signature scheme with the secrets of one endpoint."""

    scheme: Scheme
    header: str
    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, scheme: str, secrets: Iterable[Secret], header: str | None = None) -> "Verifier":
        """Build a verifier. Secrets that are empty or invalid for the scheme are ignored."""
        known = SCHEMES[scheme]
        keys = tuple(key for secret in secrets if (key := known.key_of(secret.reveal())))
        return cls(scheme=known, header=(header or known.header).lower(), keys=keys)

    def verify(self, headers: Headers, body: bytes, *, now: datetime) -> SignatureVerdict:
        """Verify the signature. Takes constant time for valid, invalid and missing signatures."""
        try:
            claim, fault = self.scheme.read(headers, self.header), None
        except MalformedSignature as malformed:
            claim, fault = SignatureHeaders(), (malformed.reason_code, str(malformed))
        if claim.sent_at is not None and abs(now.timestamp() - claim.sent_at) > TOLERANCE_SECONDS:
            fault = TIMESTAMP_OUT_OF_RANGE
        signed = claim.prefix + body
        is_match = self._matches(claim, signed)
        if not self.keys:
            fault = SECRET_MISSING
        if fault is None and not is_match:
            fault = SIGNATURE_MISMATCH
        if fault is not None:
            return SignatureVerdict(code=fault[0], reason=fault[1])
        once = sha256(signed).hexdigest() if claim.sent_at is not None else None
        return SignatureVerdict(delivery_id=claim.delivery_id, signed_digest=once)

    def _matches(self, claim: SignatureHeaders, signed: bytes) -> bool:
        found = False
        for key in self.keys:
            expected = hmac.digest(key, signed, sha256)
            for signature in claim.signatures:
                found |= hmac.compare_digest(expected, signature)
        return found


# ── parsing of signature headers ─────────────────────────────────────────────────────────────────────────────────────

_HEX = "[0-9A-Fa-f]{64}"
_PLAIN = re.compile(f"(?:sha256=)?({_HEX})")
_GITHUB = re.compile(f"sha256=({_HEX})")
_SLACK = re.compile(f"v0=({_HEX})")
_STRIPE = re.compile(f"({_HEX})")
_BASE64 = re.compile("[A-Za-z0-9+/]{43}=")
_TIMESTAMP = re.compile("[0-9]{1,12}")
_MESSAGE_ID = re.compile(r"[!-\-/-~]{1,256}")
"""Without a full stop, which terminates the id in the signed bytes."""


def _read_plain(headers: Headers, header: str) -> SignatureHeaders:
    return SignatureHeaders(signatures=(_parse_hex(_PLAIN, _single_header(headers, header), header),))


def _read_github(headers: Headers, header: str) -> SignatureHeaders:
    return SignatureHeaders(signatures=(_parse_hex(_GITHUB, _single_header(headers, header), header),))


def _read_stripe(headers: Headers, header: str) -> SignatureHeaders:
    """Parse `t=1492774577,v1=<hex>,v1=<hex>`. Other members are ignored."""
    timestamps, signatures = [], []
    for member in _single_header(headers, header).split(","):
        name, _, value = member.partition("=")
        if name == "t":
            timestamps.append(value)
        elif name == "v1":
            signatures.append(_parse_hex(_STRIPE, value, header))
    if len(timestamps) != 1:
        raise MalformedSignature(f"the header {header} does not have exactly one timestamp t=")
    sent_at = _parse_timestamp(timestamps[0], header)
    return SignatureHeaders(
        signatures=_require_count(signatures, header), prefix=f"{timestamps[0]}.".encode(), sent_at=sent_at
    )


def _read_slack(headers: Headers, header: str) -> SignatureHeaders:
    signature = _parse_hex(_SLACK, _single_header(headers, header), header)
    timestamp = _single_header(headers, "x-slack-request-timestamp")
    sent_at = _parse_timestamp(timestamp, "x-slack-request-timestamp")
    return SignatureHeaders(signatures=(signature,), prefix=f"v0:{timestamp}:".encode(), sent_at=sent_at)


def _read_standard(headers: Headers, header: str) -> SignatureHeaders:
    """Parse `v1,<base64> v1,<base64>`. The id and timestamp headers share the prefix of the signature header."""
    family = header.removesuffix("-signature")
    signatures = []
    for member in _single_header(headers, header).split(" "):
        version, comma, encoded = member.partition(",")
        if not comma or (version == "v1" and not _BASE64.fullmatch(encoded)):
            raise MalformedSignature(f"the header {header} is malformed")
        if version == "v1":
            signatures.append(base64.b64decode(encoded))
    message, timestamp = _single_header(headers, f"{family}-id"), _single_header(headers, f"{family}-timestamp")
    if not _MESSAGE_ID.fullmatch(message):
        raise MalformedSignature(f"the header {family}-id is malformed")
    return SignatureHeaders(
        signatures=_require_count(signatures, header),
        prefix=f"{message}.{timestamp}.".encode(),
        sent_at=_parse_timestamp(timestamp, f"{family}-timestamp"),
        delivery_id=message,
    )


def _single_header(headers: Headers, name: str) -> str:
    values = headers.get(name, ())
    if not values:
        raise MissingSignature(f"the header {name} is missing")
    if len(values) > 1:
        raise MalformedSignature(f"the header {name} is repeated {len(values)} times")
    return values[0]


def _parse_hex(pattern: re.Pattern[str], text: str, header: str) -> bytes:
    # Match the pattern first: `fromhex` also accepts whitespace.
    match = pattern.fullmatch(text)
    if match is None:
        raise MalformedSignature(f"the header {header} is malformed")
    return bytes.fromhex(match[1])


def _parse_timestamp(text: str, header: str) -> int:
    if not _TIMESTAMP.fullmatch(text):
        raise MalformedSignature(f"the timestamp in the header {header} is not in whole seconds")
    return int(text)


def _require_count(signatures: list[bytes], header: str) -> tuple[bytes, ...]:
    if not 1 <= len(signatures) <= MAX_SIGNATURES:
        raise MalformedSignature(f"the header {header} has {len(signatures)} signatures")
    return tuple(signatures)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _text_key(secret: str) -> bytes:
    return secret.encode("utf-8", "surrogateescape")


def _base64_key(secret: str) -> bytes:
    """Decode `whsec_<base64>`. Returns no bytes if it is not base64."""
    encoded = secret.removeprefix("whsec_")
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        return b""


SCHEMES: Mapping[str, Scheme] = {
    "hmac-sha256": Scheme(header="x-signature-256", read=_read_plain, key_of=_text_key),
    "github": Scheme(
        header="x-hub-signature-256",
        read=_read_github,
        key_of=_text_key,
        delivery_id_header="x-github-delivery",
        event_headers=("x-github-event", "x-github-delivery"),
    ),
    "stripe": Scheme(header="stripe-signature", read=_read_stripe, key_of=_text_key, delivery_id_member="id"),
    "slack": Scheme(header="x-slack-signature", read=_read_slack, key_of=_text_key, delivery_id_member="event_id"),
    "standard-webhooks": Scheme(header="webhook-signature", read=_read_standard, key_of=_base64_key),
}
