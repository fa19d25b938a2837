"""Signing of webhook deliveries, for each scheme: the counterpart of `signatures`. Pure.

Used for test deliveries of the operator.
"""

import base64
import hmac
import uuid
from collections.abc import Callable
from datetime import datetime

from ductile.web.webhooks.signatures import SCHEMES

Signed = dict[str, str]


def sign_delivery(scheme: str, secret: str, body: bytes, *, now: datetime, header: str | None = None) -> Signed:
    """Return the signature headers for `body`, with a new delivery id if the scheme has one."""
    known = SCHEMES[scheme]
    key, timestamp = known.key_of(secret), str(int(now.timestamp()))
    return _SIGNERS[scheme](key, body, timestamp, header or known.header)


def _plain(key: bytes, body: bytes, timestamp: str, header: str) -> Signed:
    return {header: f"sha256={_hex(key, body)}"}


def _github(key: bytes, body: bytes, timestamp: str, header: str) -> Signed:
    return {header: f"sha256={_hex(key, body)}", "x-github-delivery": str(uuid.uuid4())}


def _stripe(key: bytes, body: bytes, timestamp: str, header: str) -> Signed:
    return {header: f"t={timestamp},v1={_hex(key, timestamp.encode() + b'.' + body)}"}


def _slack(key: bytes, body: bytes, timestamp: str, header: str) -> Signed:
    signature = _hex(key, f"v0:{timestamp}:".encode() + body)
    return {header: f"v0={signature}", "x-slack-request-timestamp": timestamp}


def _standard(key: bytes, body: bytes, timestamp: str, header: str) -> Signed:
    family, message = header.lower().removesuffix("-signature"), f"msg_{uuid.uuid4().hex}"
    digest = hmac.digest(key, f"{message}.{timestamp}.".encode() + body, "sha256")
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {header: signature, f"{family}-id": message, f"{family}-timestamp": timestamp}


def _hex(key: bytes, signed: bytes) -> str:
    return hmac.digest(key, signed, "sha256").hex()


_SIGNERS: dict[str, Callable[[bytes, bytes, str, str], Signed]] = {
    "hmac-sha256": _plain,
    "github": _github,
    "stripe": _stripe,
    "slack": _slack,
    "standard-webhooks": _standard,
}
