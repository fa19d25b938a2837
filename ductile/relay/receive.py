"""Receive events from other instances: verify, decode, store once with a receipt, acknowledge.

The HTTP server enforces size and time limits. Peers and secrets come from the current configuration. The checks run in
the order of `verify` and `read_event`; the first that fails is the response.
"""

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from attrs import field, frozen
from blake3 import blake3

from ductile.config.sections.relay import find_peer, find_secret
from ductile.config.sections.settings import Peer, RemoteIngress, Settings
from ductile.core.errors import DuctileError, LedgerError
from ductile.core.formats import strict_json
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, FollowUps, Note, RunRule
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import IdempotencyKey, KeyReused, StoredResponse, run_once
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.run.events import Event
from ductile.pipeline.run.ingress import route_external_event
from ductile.pipeline.run.run_signals import run_rule_of
from ductile.relay.protocol import (
    KEY_ID,
    PEER,
    SIGNATURE,
    TIMESTAMP,
    Envelope,
    EnvelopeInvalid,
    decode,
    is_signed,
    parse_timestamp,
)
from ductile.web.caller_limits.queue_quota import QueueLimitReached
from ductile.web.context import AppContext, submit
from ductile.web.idempotency import find_stored_response
from ductile.web.messages import Request, Response, encoded_json_response
from ductile.web.webhooks.rejections import RejectionCounter

RECEIPT_RETENTION = timedelta(days=7)
"""How long a repeated event is recognised."""
MAX_REPORTED_NAMES = 20
REFUSED, REPEATED = "relay.refused", "relay.repeated"


class RelayForbidden(DuctileError):
    """forbidden"""

    code, exit_code, status = "relay_forbidden", 77, 403
    hint = "Compare name, secret, key id and clock of both instances; the receiver's log has details."


class TypeNotAllowed(DuctileError):
    """event type not allowed for peer"""

    code, exit_code, status = "event_not_allowed", 1, 422
    hint = "The receiver lists the allowed types in `accept` of the peer."


class EventIdReused(DuctileError):
    """another event of this peer had this id"""

    code, exit_code, status = "event_id_reused", 1, 422
    hint = "Send every event with its own id."


class NotStored(DuctileError):
    """failed to enqueue relay event"""

    code, exit_code, status = "relay_unavailable", 75, 503
    hint = "Send it again later."


REFUSALS = (RelayForbidden, TypeNotAllowed, EventIdReused, EnvelopeInvalid, QueueLimitReached)


class RelayAcceptedView(TypedDict):
    status: Literal["accepted"]
    accepted: Annotated[bool, "Whether a run was started"]
    peer: str
    event_type: str
    receiver_event_id: Annotated[str, "The id of the event in this instance"]
    job_id: NotRequired[Annotated[str, "The first job of its run"]]
    job_ids: NotRequired[Annotated[list[str], "The first jobs, if it started several runs"]]
    reason: NotRequired[Annotated[Literal["no_route"], "Why no run was started"]]


async def receive_event(ctx: AppContext, rejections: RejectionCounter, request: Request) -> Response:
    """Respond 202 after the event and its runs are durable. A repeated event gets the first response again."""
    settings, now = ctx.snapshot().config.settings, ctx.clock.now()
    try:
        peer = verify(settings, request, now=now)
        inbound = read_event(settings, peer, request, now=now)
        stored = await _store_once(ctx, inbound)
    except REFUSALS as refusal:
        # An unknown peer name is chosen by the client: counting it as given would let a client create rows.
        is_known = find_peer(settings, request.params["peer"]) is not None
        rejections.count(REFUSED, request.path if is_known else request.path.rpartition("/")[0], str(refusal))
        raise
    except LedgerError as error:
        raise NotStored from error
    if stored.is_repeat:
        rejections.count(REPEATED, request.path, inbound.ticket.key)
    return encoded_json_response(stored.text.encode(), 202)


# ── verification ────────────────────────────────────────────────────────────────────────────────────────────────────


def verify(settings: Settings, request: Request, *, now: datetime) -> Peer:
    """Return the peer that signed the request. Raises RelayForbidden for the first failed check."""
    ingress, peer = settings.remote_ingress, find_peer(settings, request.params["peer"])
    if ingress is None or peer is None:
        raise RelayForbidden("unknown relay peer")
    if _header(request, PEER) != peer.name:
        raise RelayForbidden("peer identity mismatch")
    timestamp = _header(request, TIMESTAMP)
    _check_timestamp(timestamp, ingress, now)
    _check_key_id(_header(request, KEY_ID), ingress, peer)
    signature, secret = _header(request, SIGNATURE), find_secret(settings, peer.secret_ref)
    if not signature:
        raise RelayForbidden("missing relay signature")
    if secret is None or not is_signed(signature, secret, request.method, request.path, timestamp, request.body):
        raise RelayForbidden
    return peer


def _header(request: Request, name: str) -> str:
    return request.header(name.lower()) or ""


def _check_timestamp(text: str, ingress: RemoteIngress, now: datetime) -> None:
    if not text:
        raise RelayForbidden("missing relay timestamp")
    sent_at = parse_timestamp(text)
    if sent_at is None:
        raise RelayForbidden("invalid relay timestamp")
    if abs(now - sent_at) > ingress.allowed_clock_skew:
        raise RelayForbidden("relay timestamp outside allowed clock skew")


def _check_key_id(key_id: str, ingress: RemoteIngress, peer: Peer) -> None:
    if not ingress.require_key_id and peer.key_id is None:
        return
    if not key_id:
        raise RelayForbidden("missing relay key id")
    if key_id != peer.key_id:
        raise RelayForbidden("relay key id mismatch")


# ── decoding ────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class InboundEvent:
    """A verified event of a peer."""

    peer: str
    event: Event = field(repr=False)
    baggage: Mapping[str, Any] = field(repr=False)
    dropped: tuple[str, ...]
    """Names of baggage that the peer may not set."""
    ticket: IdempotencyKey
    """Identifies a repeated event."""

    @property
    def source(self) -> str:
        return f"relay:{self.peer}"


def read_event(settings: Settings, peer: Peer, request: Request, *, now: datetime) -> InboundEvent:
    """Decode the event in the body. Raises if its envelope, its origin or its type is not allowed."""
    envelope = decode(request.body, max_key_bytes=settings.service.limits.dedupe_key)
    if envelope.origin.instance not in ("", peer.name):
        raise RelayForbidden("origin instance mismatch")
    if peer.accept and envelope.type not in peer.accept:
        raise TypeNotAllowed
    allowed = {*peer.baggage.allow} - {CONTROL}
    source = f"relay:{peer.name}"
    skew = settings.remote_ingress.allowed_clock_skew if settings.remote_ingress else timedelta()
    return InboundEvent(
        peer=peer.name,
        event=Event(str(uuid.uuid4()), envelope.type, envelope.payload, source, now, _dedupe_key(peer, envelope)),
        baggage={name: value for name, value in envelope.baggage.items() if name in allowed},
        dropped=tuple(name for name in envelope.baggage if name not in allowed),
        ticket=IdempotencyKey(
            scope=source,
            key=_receipt_key(envelope, request),
            body_hash=blake3(request.body).hexdigest(),
            ttl=max(RECEIPT_RETENTION, 2 * skew),
        ),
    )


def _dedupe_key(peer: Peer, envelope: Envelope) -> str | None:
    if envelope.dedupe_key is not None or not envelope.origin.event_id:
        return envelope.dedupe_key
    return f"relay:{peer.name}:{envelope.origin.instance}:{envelope.origin.event_id}"


def _receipt_key(envelope: Envelope, request: Request) -> str:
    """Return the sender's event id; without one, the signature, which covers the timestamp and so repeats only in a
    replay."""
    if envelope.origin.event_id:
        return f"event:{envelope.origin.event_id}"
    return f"signature:{_header(request, SIGNATURE).removeprefix('sha256=').lower()}"


# ── storing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _store_once(ctx: AppContext, inbound: InboundEvent) -> StoredResponse:
    """Start the runs of the event, or return the stored response of a repeated event."""
    try:
        return await _store(ctx, inbound)
    except KeyReused as error:
        raise EventIdReused from error


async def _store(ctx: AppContext, inbound: InboundEvent) -> StoredResponse:
    snapshot = ctx.snapshot()
    service = snapshot.config.settings.service
    runs = route_external_event(inbound.event, snapshot.routing, submitted_by=inbound.source, baggage=inbound.baggage)
    act = partial(
        start_runs,
        inbound=inbound,
        runs=runs,
        default_ttl=service.dedupe_ttl,
        budget=snapshot.budget,
        run_rule=run_rule_of(snapshot.routing),
    )
    failpoint("enqueue.before_begin")
    work = partial(run_once, ticket=inbound.ticket, act=act, now=inbound.event.at)
    try:
        stored = await submit(ctx, work, runs, actor=inbound.source)
    except QueueLimitReached:
        if (repeat := await find_stored_response(ctx, inbound.ticket)) is None:
            raise
        return repeat
    failpoint("enqueue.after_commit")
    return stored


def start_runs(
    db: Db,
    *,
    inbound: InboundEvent,
    runs: tuple[FollowUps, ...],
    default_ttl: timedelta,
    budget: Budget,
    run_rule: RunRule,
) -> StoredResponse:
    """Write the event's runs, and a journal entry for dropped baggage."""
    roots = []
    for run in (*runs, FollowUps(notes=_dropped_notes(inbound))):
        jobs = start_run(db, run, now=inbound.event.at, default_ttl=default_ttl, budget=budget, run_rule=run_rule)
        roots += [jobs[0].job_id] if jobs else []
    view: RelayAcceptedView = {
        "status": "accepted",
        "accepted": bool(roots),
        "peer": inbound.peer,
        "event_type": inbound.event.type,
        "receiver_event_id": inbound.event.id,
    }
    view |= {"job_id": roots[0]} if roots else {"reason": "no_route"}
    if len(roots) > 1:
        view["job_ids"] = roots
    return StoredResponse(job_id=roots[0] if roots else None, text=strict_json.dumps(view))


def _dropped_notes(inbound: InboundEvent) -> tuple[Note, ...]:
    if not inbound.dropped:
        return ()
    names = list(inbound.dropped[:MAX_REPORTED_NAMES])
    data = {"peer": inbound.peer, "event_id": inbound.event.id, "names": names, "count": len(inbound.dropped)}
    return (Note(kind="event.baggage_dropped", data=data),)
