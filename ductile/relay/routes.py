"""The HTTP routes of the relay: list instances and peers, enqueue an event, receive events from peers.

Nothing is sent here: an event becomes a job of `core.relay`, and the engine sends it.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from ductile.config.sections.relay import MAX_ATTEMPTS, SEND, find_instance
from ductile.core.errors import did_you_mean
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import OPEN, Keywords
from ductile.core.formats.yaml_fields import EVENT_TYPE
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import FollowUps, JobStatus, NewJob
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import StoredResponse
from ductile.pipeline.compile.plan import RELAY
from ductile.relay.protocol import (
    KEY_ID,
    MAX_DEPTH,
    MAX_KEY_BYTES,
    MAX_NAME_LENGTH,
    PEER,
    SIGNATURE,
    TIMESTAMP,
    Envelope,
    parse_envelope,
)
from ductile.relay.receive import RelayAcceptedView, receive_event
from ductile.relay.views import RelayOverview, relay_view
from ductile.web.context import AppContext, BadRequest, get_submitter, read_flag, read_object
from ductile.web.idempotency import KEY_HEADER, find_stored_response, read_idempotency_key, replay_headers, submit_once
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Argument, Header, Route
from ductile.web.webhooks.rejections import RejectionCounter

HINT = 'Send {"event": {"type": "…", "payload": {…}}}.'
_NAME = Keywords(maxLength=MAX_NAME_LENGTH)


class RelayedEventBody(TypedDict):
    type: Annotated[str, "The event type", Keywords(EVENT_TYPE.schema), _NAME]
    payload: NotRequired[Annotated[dict[str, Any], "The payload of the event"] | None]
    dedupe_key: NotRequired[
        Annotated[str, "The receiver runs events with the same key once", Keywords(maxLength=MAX_KEY_BYTES)] | None
    ]


class RelayOriginBody(TypedDict, total=False):
    instance: Annotated[str, "The sender's service name", _NAME] | None
    plugin: Annotated[str, "The plugin that emitted the event", _NAME] | None
    job_id: Annotated[str, "The job that sends the event", _NAME] | None
    event_id: Annotated[str, "Identifies a repeated event", _NAME] | None


class RelayEventBody(TypedDict):
    event: RelayedEventBody
    origin: NotRequired[RelayOriginBody | None]
    baggage: NotRequired[Annotated[dict[str, Any], "Values for the context of the runs"] | None]


class _RelayedEvent(TypedDict):
    instance: str
    event_type: str


class RelayEnqueuedView(_RelayedEvent):
    """The job that sends the event."""

    job_id: str
    status: JobStatus


class RelayPlannedView(_RelayedEvent):
    """The event that a dry run would enqueue."""

    status: Literal["planned"]
    dry_run: bool


KEYS = {
    "": list(RelayEventBody.__annotations__),
    "event": list(RelayedEventBody.__annotations__),
    "origin": list(RelayOriginBody.__annotations__),
}


def relay_routes(ctx: AppContext, rejections: RejectionCounter) -> Iterable[AnyRoute]:
    """Yield the routes of the relay; the one for peers only if `remote_ingress` is configured."""
    settings = ctx.snapshot().config.settings
    yield Route(
        method="GET",
        path="/relay",
        handler=partial(show_relay, ctx),
        scope="jobs:ro",
        summary="List instances and peers, their state, and the number of undelivered events",
        group="relay",
        responses={200: RelayOverview},
    )
    yield Route(
        method="POST",
        path="/relay/{instance}",
        handler=partial(send_event, ctx),
        scope="plugin:rw",
        summary="Enqueue an event for another instance; ?dry_run=true only validates it",
        group="relay",
        query=(Argument("dry_run", bool, "Only validate the event"),),
        headers=(KEY_HEADER,),
        request_body=RelayEventBody,
        responses={200: RelayPlannedView, 202: RelayEnqueuedView},
        error_statuses=(409, 422, 429),
        max_body=settings.api.max_body_size,
    )
    if (ingress := settings.remote_ingress) is not None:
        yield Route(
            method="POST",
            path=f"{ingress.listen_path}/{{peer}}",
            handler=partial(receive_event, ctx, rejections),
            summary="Receive an event from another instance; signed, no token",
            group="relay",
            headers=tuple(Header(name, str) for name in (PEER, TIMESTAMP, SIGNATURE, KEY_ID)),
            request_body=Annotated[RelayEventBody, OPEN],  # a peer may have a later version
            responses={202: RelayAcceptedView},
            error_statuses=(400, 403, 413, 422, 429, 503),
            max_body=ingress.max_body_size,
        )


async def show_relay(ctx: AppContext, request: Request) -> Response:
    return json_response(await ctx.ledger.read(partial(relay_view, snapshot=ctx.snapshot())))


async def send_event(ctx: AppContext, request: Request) -> Response:
    """Respond 202 with the id of the sending job after it is durable."""
    snapshot, name, ticket = ctx.snapshot(), request.params["instance"], read_idempotency_key(request)
    if (stored := await find_stored_response(ctx, ticket)) is not None:
        return _enqueued_response(stored)
    envelope = _read_envelope(request, snapshot.config.settings.service.limits.dedupe_key)
    instance = find_instance(snapshot.config.settings, name, envelope.type)
    relayed = _RelayedEvent(instance=instance.name, event_type=envelope.type)
    if read_flag(request, "dry_run"):
        return json_response(RelayPlannedView(status="planned", dry_run=True, **relayed))
    new = NewJob(
        plugin=RELAY,
        command=SEND,
        payload=strict_json.dumps({"to": instance.name, **envelope.as_json()}),
        submitted_by=get_submitter(request),
        actor=request.principal.actor,
        max_attempts=MAX_ATTEMPTS,
        snapshot_id=snapshot.id,
    )
    failpoint("enqueue.before_begin")
    act = partial(_enqueue, new=new, relayed=relayed, now=ctx.clock.now())
    stored = await submit_once(ctx, ticket, act, [FollowUps(children=(new,))], actor=request.principal.actor)
    failpoint("enqueue.after_commit")
    return _enqueued_response(stored)


def _enqueue(db: Db, *, new: NewJob, relayed: _RelayedEvent, now: datetime) -> StoredResponse:
    enqueued = enqueue(db, new, now=now)
    view = RelayEnqueuedView(job_id=enqueued.job_id, status=enqueued.status, **relayed)
    return StoredResponse(job_id=enqueued.job_id, text=strict_json.dumps(view))


def _enqueued_response(stored: StoredResponse) -> Response:
    return encoded_json_response(stored.text.encode(), 202, replay_headers(stored))


def _read_envelope(request: Request, max_key_bytes: int) -> Envelope:
    """Parse the body. Unlike in requests of peers, an unknown key is an error."""
    body = read_object(request, hint=HINT, max_depth=MAX_DEPTH)
    for path, known in KEYS.items():
        found = body.get(path) if path else body
        for key in found if isinstance(found, dict) else ():
            if key not in known:
                raise BadRequest(f"{path or 'body'}: unknown key {key[:80]!r}{did_you_mean(key, known)}", hint=HINT)
    return parse_envelope(body, max_key_bytes=max_key_bytes)
