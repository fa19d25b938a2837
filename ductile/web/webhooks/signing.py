"""How a sender signs a delivery, scheme by scheme: the other side of `signatures`. Pure.

For deliveries that an operator sends to try an endpoint out.
"""

import base64
import hmac
import uuid
from collections.abc import Callable
from datetime import datetime

from ductile.web.webhooks.signatures import SCHEMES

Signed = dict[str, str]


def signed_headers(scheme: str, secret: str, body: bytes, *, now: datetime, header: str | None = None) -> Signed:
    """The headers that make `body` a delivery of this scheme, a new delivery id included where the scheme has one."""
    known = SCHEMES[scheme]
    key, moment = known.key_of(secret), str(int(now.timestamp()))
    return _SIGNERS[scheme](key, body, moment, header or known.header)


def _plain(key: bytes, body: bytes, moment: str, header: str) -> Signed:
    return {header: f"sha256={_hex(key, body)}"}


def _github(key: bytes, body: bytes, moment: str, header: str) -> Signed:
    return {header: f"sha256={_hex(key, body)}", "x-github-delivery": str(uuid.uuid4())}


def _stripe(key: bytes, body: bytes, moment: str, header: str) -> Signed:
    return {header: f"t={moment},v1={_hex(key, moment.encode() + b'.' + body)}"}


def _slack(key: bytes, body: bytes, moment: str, header: str) -> Signed:
    signature = _hex(key, f"v0:{moment}:".encode() + body)
    return {header: f"v0={signature}", "x-slack-request-timestamp": moment}


def _standard(key: bytes, body: bytes, moment: str, header: str) -> Signed:
    family, message = header.lower().removesuffix("-signature"), f"msg_{uuid.uuid4().hex}"
    digest = hmac.digest(key, f"{message}.{moment}.".encode() + body, "sha256")
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {header: signature, f"{family}-id": message, f"{family}-timestamp": moment}


def _hex(key: bytes, signed: bytes) -> str:
    return hmac.digest(key, signed, "sha256").hex()


_SIGNERS: dict[str, Callable[[bytes, bytes, str, str], Signed]] = {
    "hmac-sha256": _plain,
    "github": _github,
    "stripe": _stripe,
    "slack": _slack,
    "standard-webhooks": _standard,
}
