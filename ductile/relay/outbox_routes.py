"""Events for other instances, asked for over HTTP: into the outbox, and what is known of instances and peers.

Nothing is sent here: an event becomes a job of `core.relay`, and the engine sends it.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any

from ductile.config.sections.relay import ATTEMPTS, SEND, instance_for
from ductile.core.errors import did_you_mean
from ductile.core.formats import strict_json
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import NewJob
from ductile.ledger.queue.enqueue import enqueue
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import StoredAnswer
from ductile.pipeline.compile.plan import RELAY
from ductile.relay.protocol import DEEPEST, Envelope, envelope_of
from ductile.relay.schemas import ENQUEUED, ENVELOPE, OVERVIEW, PLANNED
from ductile.relay.views import relay_view
from ductile.web.context import AppContext, BadRequest, flag_of, object_of, seated, submitter_of
from ductile.web.idempotency import KEY_HEADER, done_once, headers_of, known_answer, ticket_of
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.openapi.schemas import Argument, boolean
from ductile.web.routes import AnyRoute, Route

HINT = 'send {"event": {"type": "…", "payload": {…}}}'
KEYS = {
    "": ("event", "origin", "baggage"),
    "event": ("type", "payload", "dedupe_key"),
    "origin": ("instance", "plugin", "job_id", "event_id"),
}


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API answers about other instances."""
    most = desk.snapshot().config.settings.api.max_body_size

    on = seated(desk)

    yield Route(
        method="GET",
        path="/relay",
        handler=on(show_relay),
        scope="jobs:ro",
        summary="Instances and peers, whether they answer, and how much waits for them",
        group="relay",
        gives={200: OVERVIEW},
    )
    yield Route(
        method="POST",
        path="/relay/{instance}",
        handler=on(send_event),
        scope="plugin:rw",
        summary="Put an event for another instance into the outbox; ?dry_run=true only checks it",
        group="relay",
        asks=(Argument("dry_run", boolean(), "Only say whether it could be sent"),),
        heeds=(KEY_HEADER,),
        takes=ENVELOPE,
        gives={200: PLANNED, 202: ENQUEUED},
        refuses=(409, 422),
        max_body=most,
    )


async def show_relay(desk: AppContext, request: Request) -> Response:
    return json_response(await desk.ledger.read(partial(relay_view, snapshot=desk.snapshot())))


async def send_event(desk: AppContext, request: Request) -> Response:
    """202 with the id of the job that sends it, after that is durable."""
    snapshot, name, ticket = desk.snapshot(), request.params["instance"], ticket_of(request)
    if (known := await known_answer(desk, ticket)) is not None:
        return _enqueued(known)
    envelope = _envelope_in(request, snapshot.config.settings.service.limits.dedupe_key)
    instance = instance_for(snapshot.config.settings, name, envelope.type)
    content = {"instance": instance.name, "event_type": envelope.type}
    if flag_of(request, "dry_run"):
        return json_response({"status": "planned", "dry_run": True, **content})
    new = NewJob(
        plugin=RELAY,
        command=SEND,
        payload=strict_json.dumps({"to": instance.name, **envelope.as_json()}),
        submitted_by=submitter_of(request),
        max_attempts=ATTEMPTS,
        snapshot_id=snapshot.id,
    )
    failpoint("enqueue.before_begin")
    answer = await done_once(desk, ticket, partial(_enqueue, new=new, told=content, now=desk.clock.now()))
    failpoint("enqueue.after_commit")
    return _enqueued(answer)


def _enqueue(db: Db, *, new: NewJob, told: dict[str, Any], now: datetime) -> StoredAnswer:
    made = enqueue(db, new, now=now)
    return StoredAnswer(
        job_id=made.job_id, text=strict_json.dumps({"job_id": made.job_id, "status": made.status, **told})
    )


def _enqueued(answer: StoredAnswer) -> Response:
    return encoded_json_response(answer.text.encode(), 202, headers_of(answer))


def _envelope_in(request: Request, longest_key: int) -> Envelope:
    """The body as an envelope; a key that nobody knows is a mistake, here as nowhere on the wire."""
    body = object_of(request, hint=HINT, max_depth=DEEPEST)
    for path, known in KEYS.items():
        found = body.get(path) if path else body
        for key in found if isinstance(found, dict) else ():
            if key not in known:
                raise BadRequest(f"{path or 'body'}: unknown key {key[:80]!r}{did_you_mean(key, known)}", hint=HINT)
    return envelope_of(body, longest_key=longest_key)
