"""What a peer sends: whether it may, and the event it becomes with what makes it unique. Pure.

The checks are made in the order of `verify`, then of `read_arrival`; the first that fails is the answer. Does not know
what an event leads to; `relay` does.
"""

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from attrs import field, frozen
from blake3 import blake3

from ductile.config.sections.relay import peer_named, secret_named
from ductile.config.sections.settings import Peer, RemoteIngress, Settings
from ductile.core.errors import DuctileError
from ductile.ledger.tables.receipts import Ticket
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.run.events import Event
from ductile.relay.protocol import (
    KEY_ID,
    PEER,
    SIGNATURE,
    TIMESTAMP,
    Envelope,
    decode,
    is_signed,
    read_moment,
)
from ductile.web.messages import Request

KEPT = timedelta(days=7)
"""How long an event is known."""


class RelayForbidden(DuctileError):
    """forbidden"""

    code, exit_code, status = "relay_forbidden", 77, 403
    hint = "compare name, secret, key id and clock of both instances; the log of the receiver says more"


class TypeNotAllowed(DuctileError):
    """event type not allowed for peer"""

    code, exit_code, status = "event_not_allowed", 1, 422
    hint = "the receiver lists what it takes in `accept` of the peer"


class EventIdReused(DuctileError):
    """another event of this peer had this id"""

    code, exit_code, status = "event_id_reused", 1, 422
    hint = "send every event under an id of its own"


# ── is it allowed? ──────────────────────────────────────────────────────────────────────────────────────────────────


def verify(settings: Settings, request: Request, *, now: datetime) -> Peer:
    """The peer who has signed the request; RelayForbidden with the first thing that is wrong."""
    ingress, peer = settings.remote_ingress, peer_named(settings, request.params["peer"])
    if ingress is None or peer is None:
        raise RelayForbidden("unknown relay peer")
    if _header(request, PEER) != peer.name:
        raise RelayForbidden("peer identity mismatch")
    timestamp = _header(request, TIMESTAMP)
    _require_now(timestamp, ingress, now)
    _require_key(_header(request, KEY_ID), ingress, peer)
    signature, secret = _header(request, SIGNATURE), secret_named(settings, peer.secret_ref)
    if not signature:
        raise RelayForbidden("missing relay signature")
    if secret is None or not is_signed(signature, secret, request.method, request.path, timestamp, request.body):
        raise RelayForbidden
    return peer


def _header(request: Request, name: str) -> str:
    return request.header(name.lower()) or ""


def _require_now(text: str, ingress: RemoteIngress, now: datetime) -> None:
    if not text:
        raise RelayForbidden("missing relay timestamp")
    moment = read_moment(text)
    if moment is None:
        raise RelayForbidden("invalid relay timestamp")
    if abs(now - moment) > ingress.allowed_clock_skew:
        raise RelayForbidden("relay timestamp outside allowed clock skew")


def _require_key(key_id: str, ingress: RemoteIngress, peer: Peer) -> None:
    if not ingress.require_key_id and peer.key_id is None:
        return
    if not key_id:
        raise RelayForbidden("missing relay key id")
    if key_id != peer.key_id:
        raise RelayForbidden("relay key id mismatch")


# ── what is it? ─────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Arrival:
    """A signed and well-formed event of a peer, as it enters this instance."""

    peer: str
    event: Event = field(repr=False)
    baggage: Mapping[str, Any] = field(repr=False)
    dropped: tuple[str, ...]
    """Names of its baggage that the peer may not bring."""
    ticket: Ticket
    """What it is known by if it comes again."""

    @property
    def source(self) -> str:
        return f"relay:{self.peer}"


def read_arrival(settings: Settings, peer: Peer, request: Request, *, now: datetime) -> Arrival:
    """The event in the body; refused if its envelope, its origin or its type is wrong."""
    envelope = decode(request.body, longest_key=settings.service.limits.dedupe_key)
    if envelope.origin.instance not in ("", peer.name):
        raise RelayForbidden("origin instance mismatch")
    if peer.accept and envelope.type not in peer.accept:
        raise TypeNotAllowed
    allowed = {*peer.baggage.allow} - {CONTROL}
    source = f"relay:{peer.name}"
    skew = settings.remote_ingress.allowed_clock_skew if settings.remote_ingress else timedelta()
    return Arrival(
        peer=peer.name,
        event=Event(str(uuid.uuid4()), envelope.type, envelope.payload, source, now, _dedupe_key(peer, envelope)),
        baggage={name: value for name, value in envelope.baggage.items() if name in allowed},
        dropped=tuple(name for name in envelope.baggage if name not in allowed),
        ticket=Ticket(
            scope=source,
            key=_key(envelope, request),
            body_hash=blake3(request.body).hexdigest(),
            keep=max(KEPT, 2 * skew),
        ),
    )


def _dedupe_key(peer: Peer, envelope: Envelope) -> str | None:
    if envelope.dedupe_key is not None or not envelope.origin.event_id:
        return envelope.dedupe_key
    return f"relay:{peer.name}:{envelope.origin.instance}:{envelope.origin.event_id}"


def _key(envelope: Envelope, request: Request) -> str:
    """The sender's id; without one, the signature: it covers the moment, so that only a replay has it again."""
    if envelope.origin.event_id:
        return f"event:{envelope.origin.event_id}"
    return f"signature:{_header(request, SIGNATURE).removeprefix('sha256=').lower()}"
