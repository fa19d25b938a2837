"""The signature schemes: is a delivery signed with one of these secrets? Pure, over bytes, in constant time.

A header that is missing, given twice or not exactly in its format is a "no" with a reason for the operator, never an
exception. Knows nothing of endpoints or of what a delivery leads to.
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
"""How far a signed moment may lie before or after ours."""
MOST_SIGNATURES = 16

Headers = Mapping[str, tuple[str, ...]]


class MalformedSignature(Exception):
    """The headers do not claim a signature in the way of the scheme; the message says why."""


@frozen(kw_only=True)
class SignatureHeaders:
    """What the headers of a delivery say about its signature."""

    signatures: tuple[bytes, ...] = ()
    """Any one of them suffices."""
    before: bytes = b""
    """What was signed in front of the body."""
    sent_at: int | None = None
    delivery_id: str | None = None


@frozen(kw_only=True)
class SignatureVerdict:
    """Whether a delivery is signed. `reason` is for the operator and never for the sender."""

    reason: str | None = None
    """None: it is."""
    delivery_id: str | None = None
    """The sender's own, if the scheme signs one."""
    once: str | None = None
    """What was signed, as a digest, where that has a moment in it: no other delivery has the same, whichever of several
    good signatures it shows."""

    @property
    def is_valid(self) -> bool:
        return self.reason is None


@frozen(kw_only=True)
class Scheme:
    """How one family of senders signs."""

    header: str
    read: Callable[[Headers, str], SignatureHeaders]
    key_of: Callable[[str], bytes]
    delivery_id_header: str | None = None
    """Names a delivery, but is not signed."""
    delivery_id_member: str | None = None
    """The member of the signed body that names a delivery."""


@frozen(kw_only=True)
class Verifier:
    """One scheme with the secrets of one sender."""

    scheme: Scheme
    header: str
    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, scheme: str, secrets: Iterable[Secret], header: str | None = None) -> "Verifier":
        """Secrets that are empty, or not what the scheme takes for one, never verify anything."""
        known = SCHEMES[scheme]
        keys = tuple(key for secret in secrets if (key := known.key_of(secret.reveal())))
        return cls(scheme=known, header=(header or known.header).lower(), keys=keys)

    def verdict(self, headers: Headers, body: bytes, *, now: datetime) -> SignatureVerdict:
        """Takes as long for a wrong signature as for a right one, and as long for none."""
        try:
            claim, reason = self.scheme.read(headers, self.header), None
        except MalformedSignature as malformed:
            claim, reason = SignatureHeaders(), str(malformed)
        if claim.sent_at is not None and abs(now.timestamp() - claim.sent_at) > TOLERANCE_SECONDS:
            reason = f"it was signed more than {TOLERANCE_SECONDS} s before or after now"
        signed = claim.before + body
        is_fitting = self._fits(claim, signed)
        if not self.keys:
            reason = "the endpoint has no usable secret"
        if reason is None and not is_fitting:
            reason = "the signature fits no secret of the endpoint"
        if reason is not None:
            return SignatureVerdict(reason=reason)
        once = sha256(signed).hexdigest() if claim.sent_at is not None else None
        return SignatureVerdict(delivery_id=claim.delivery_id, once=once)

    def _fits(self, claim: SignatureHeaders, signed: bytes) -> bool:
        found = False
        for key in self.keys:
            expected = hmac.digest(key, signed, sha256)
            for signature in claim.signatures:
                found |= hmac.compare_digest(expected, signature)
        return found


# ── how each scheme is read ─────────────────────────────────────────────────────────────────────────────────────────

_HEX = "[0-9A-Fa-f]{64}"
_PLAIN = re.compile(f"(?:sha256=)?({_HEX})")
_GITHUB = re.compile(f"sha256=({_HEX})")
_SLACK = re.compile(f"v0=({_HEX})")
_STRIPE = re.compile(f"({_HEX})")
_BASE64 = re.compile("[A-Za-z0-9+/]{43}=")
_MOMENT = re.compile("[0-9]{1,12}")
_MESSAGE_ID = re.compile(r"[!-\-/-~]{1,256}")
"""Without a full stop: it ends the id in what is signed."""


def _read_plain(headers: Headers, header: str) -> SignatureHeaders:
    return SignatureHeaders(signatures=(_hex(_PLAIN, _only(headers, header), header),))


def _read_github(headers: Headers, header: str) -> SignatureHeaders:
    return SignatureHeaders(signatures=(_hex(_GITHUB, _only(headers, header), header),))


def _read_stripe(headers: Headers, header: str) -> SignatureHeaders:
    """`t=1492774577,v1=<hex>,v1=<hex>`; other members are for others."""
    moments, signatures = [], []
    for member in _only(headers, header).split(","):
        name, _, value = member.partition("=")
        if name == "t":
            moments.append(value)
        elif name == "v1":
            signatures.append(_hex(_STRIPE, value, header))
    if len(moments) != 1:
        raise MalformedSignature(f"the header {header} does not have exactly one moment t=")
    sent_at = _moment(moments[0], header)
    return SignatureHeaders(signatures=_some(signatures, header), before=f"{moments[0]}.".encode(), sent_at=sent_at)


def _read_slack(headers: Headers, header: str) -> SignatureHeaders:
    signature = _hex(_SLACK, _only(headers, header), header)
    moment = _only(headers, "x-slack-request-timestamp")
    sent_at = _moment(moment, "x-slack-request-timestamp")
    return SignatureHeaders(signatures=(signature,), before=f"v0:{moment}:".encode(), sent_at=sent_at)


def _read_standard(headers: Headers, header: str) -> SignatureHeaders:
    """`v1,<base64> v1,<base64>`; id and moment are in headers that begin like the signature's own."""
    family = header.removesuffix("-signature")
    signatures = []
    for member in _only(headers, header).split(" "):
        version, comma, encoded = member.partition(",")
        if not comma or (version == "v1" and not _BASE64.fullmatch(encoded)):
            raise MalformedSignature(f"the header {header} is not in its format")
        if version == "v1":
            signatures.append(base64.b64decode(encoded))
    message, moment = _only(headers, f"{family}-id"), _only(headers, f"{family}-timestamp")
    if not _MESSAGE_ID.fullmatch(message):
        raise MalformedSignature(f"the header {family}-id is not in its format")
    return SignatureHeaders(
        signatures=_some(signatures, header),
        before=f"{message}.{moment}.".encode(),
        sent_at=_moment(moment, f"{family}-timestamp"),
        delivery_id=message,
    )


def _only(headers: Headers, name: str) -> str:
    values = headers.get(name, ())
    if len(values) != 1:
        raise MalformedSignature(
            f"the header {name} is given {len(values)} times" if values else f"it has no header {name}"
        )
    return values[0]


def _hex(pattern: re.Pattern[str], text: str, header: str) -> bytes:
    # The pattern comes first: `fromhex` also takes blanks, and comparing text fails for letters beyond ASCII.
    match = pattern.fullmatch(text)
    if match is None:
        raise MalformedSignature(f"the header {header} is not in its format")
    return bytes.fromhex(match[1])


def _moment(text: str, header: str) -> int:
    if not _MOMENT.fullmatch(text):
        raise MalformedSignature(f"the moment in the header {header} is not in whole seconds")
    return int(text)


def _some(signatures: list[bytes], header: str) -> tuple[bytes, ...]:
    if not 1 <= len(signatures) <= MOST_SIGNATURES:
        raise MalformedSignature(f"the header {header} has {len(signatures)} signatures")
    return tuple(signatures)


# ── what each scheme takes for a key ────────────────────────────────────────────────────────────────────────────────


def _text_key(secret: str) -> bytes:
    return secret.encode("utf-8", "surrogateescape")


def _base64_key(secret: str) -> bytes:
    """The bytes behind `whsec_<base64>`; none if it is not base64."""
    encoded = secret.removeprefix("whsec_")
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        return b""


SCHEMES: Mapping[str, Scheme] = {
    "hmac-sha256": Scheme(header="x-signature-256", read=_read_plain, key_of=_text_key),
    "github": Scheme(
        header="x-hub-signature-256", read=_read_github, key_of=_text_key, delivery_id_header="x-github-delivery"
    ),
    "stripe": Scheme(header="stripe-signature", read=_read_stripe, key_of=_text_key, delivery_id_member="id"),
    "slack": Scheme(header="x-slack-signature", read=_read_slack, key_of=_text_key, delivery_id_member="event_id"),
    "standard-webhooks": Scheme(header="webhook-signature", read=_read_standard, key_of=_base64_key),
}
