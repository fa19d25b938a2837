"""Events from other instances: verified, then durable together with a receipt, then acknowledged. Once each.

Size and time limits are the server's, the other checks are `arrivals`'. Peers and secrets are those of the
configuration of the moment, the path is that of the start. The runtime adds the route.
"""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any

from ductile.config.sections.relay import peer_named
from ductile.core.errors import DuctileError, LedgerError
from ductile.core.formats import strict_json
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, FollowUps, Note, are_few
from ductile.ledger.completion.follow_ups import start_run
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import KeyReused, StoredAnswer, once
from ductile.pipeline.run.ingress import arrive
from ductile.relay.inbound import (
    Arrival,
    EventIdReused,
    RelayForbidden,
    TypeNotAllowed,
    read_arrival,
    verify,
)
from ductile.relay.protocol import KEY_ID, PEER, SIGNATURE, TIMESTAMP, EnvelopeInvalid
from ductile.relay.schemas import ACCEPTED, ON_THE_WIRE
from ductile.web.context import AppContext, submit
from ductile.web.messages import Request, Response, encoded_json_response
from ductile.web.openapi.schemas import Header, text
from ductile.web.routes import AnyRoute, Route
from ductile.web.webhooks.rejections import RejectionCounter

REFUSED, REPEATED = "relay.refused", "relay.repeated"


class NotStored(DuctileError):
    """failed to enqueue relay event"""

    code, exit_code, status = "relay_unavailable", 75, 503
    hint = "send it again later"


REFUSALS = (RelayForbidden, TypeNotAllowed, EventIdReused, EnvelopeInvalid)


def routes(desk: AppContext, tally: RejectionCounter) -> Iterable[AnyRoute]:
    """The door for peers, if the configuration has one."""
    ingress = desk.snapshot().config.settings.remote_ingress
    if ingress is None:
        return

    async def receive(request: Request) -> Response:
        return await take_event(desk, tally, request)

    yield Route(
        method="POST",
        path=f"{ingress.listen_path}/{{peer}}",
        handler=receive,
        summary="Take an event from another instance; signed, no token",
        group="relay",
        heeds=tuple(Header(name, text()) for name in (PEER, TIMESTAMP, SIGNATURE, KEY_ID)),
        takes=ON_THE_WIRE,
        gives={202: ACCEPTED},
        refuses=(400, 403, 413, 422, 503),
        max_body=ingress.max_body_size,
    )


async def take_event(desk: AppContext, tally: RejectionCounter, request: Request) -> Response:
    """202 once the event and its runs are durable; the same again for the same event."""
    settings, now = desk.snapshot().config.settings, desk.clock.now()
    try:
        peer = verify(settings, request, now=now)
        arrival = read_arrival(settings, peer, request, now=now)
        answer = await _taken_once(desk, arrival)
    except REFUSALS as refused:
        # An unknown name in the path is whatever a stranger likes; it must not make new rows.
        known = peer_named(settings, request.params["peer"]) is not None
        tally.count(REFUSED, request.path if known else request.path.rpartition("/")[0], str(refused))
        raise
    except LedgerError as error:
        raise NotStored(hint="send it again later") from error
    if answer.is_repeat:
        tally.count(REPEATED, request.path, arrival.ticket.key)
    return encoded_json_response(answer.text.encode(), 202)


# ── once ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _taken_once(desk: AppContext, arrival: Arrival) -> StoredAnswer:
    """Start the runs of the event, or return the answer that it got when it came first."""
    try:
        return await _store(desk, arrival)
    except KeyReused as error:
        raise EventIdReused from error


async def _store(desk: AppContext, arrival: Arrival) -> StoredAnswer:
    snapshot = desk.snapshot()
    service = snapshot.config.settings.service
    runs = arrive(arrival.event, snapshot.world, submitted_by=arrival.source, baggage=arrival.baggage)
    budget = snapshot.budget
    act = partial(start_all, arrival=arrival, runs=runs, default_ttl=service.dedupe_ttl, budget=budget)
    failpoint("enqueue.before_begin")
    work = partial(once, ticket=arrival.ticket, act=act, now=arrival.event.at)
    answer = await submit(desk, work, is_large=not are_few(*runs))
    failpoint("enqueue.after_commit")
    return answer


def start_all(
    db: Db, *, arrival: Arrival, runs: tuple[FollowUps, ...], default_ttl: timedelta, budget: Budget
) -> StoredAnswer:
    """The event's runs are in the ledger, and what was not taken over is in the journal."""
    roots = []
    for run in (*runs, FollowUps(notes=_dropped(arrival))):
        made = start_run(db, run, now=arrival.event.at, default_ttl=default_ttl, budget=budget)
        roots += [made[0].job_id] if made else []
    told: dict[str, Any] = {
        "status": "accepted",
        "accepted": bool(roots),
        "peer": arrival.peer,
        "event_type": arrival.event.type,
        "receiver_event_id": arrival.event.id,
    }
    told |= {"job_id": roots[0]} if roots else {"reason": "no_route"}
    told |= {"job_ids": roots} if len(roots) > 1 else {}
    return StoredAnswer(job_id=roots[0] if roots else None, text=strict_json.dumps(told))


def _dropped(arrival: Arrival) -> tuple[Note, ...]:
    if not arrival.dropped:
        return ()
    about = {"peer": arrival.peer, "event_id": arrival.event.id, "names": list(arrival.dropped[:20])}
    return (Note(kind="event.baggage_dropped", data={**about, "count": len(arrival.dropped)}),)
