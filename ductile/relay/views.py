"""The JSON view of instances and peers, for the API and `relay list`.

Imports no event loop, so that the command works without a running service.
"""

from typing import Annotated, NotRequired, TypedDict

from ductile.config.sections.relay import BREAKER, ingress_url
from ductile.config.sections.settings import Instance, Peer
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.formats.json_schema import Timestamp
from ductile.core.model import Breaker, BreakerState
from ductile.ledger.queue import outbox
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers
from ductile.pipeline.compile.plan import RELAY


class RelayInstanceView(TypedDict):
    name: str
    enabled: bool
    address: Annotated[str, "The URL to which events are sent"]
    allow: Annotated[list[str], "Event types that may be sent; empty: all"]
    state: Annotated[BreakerState, "The state of its breaker: closed while it responds"]
    failure_count: Annotated[int, "Consecutive failed attempts"]
    probe_from: NotRequired[Annotated[Timestamp, "The time of the next attempt, if the breaker is open"]]
    last_failure_at: NotRequired[Timestamp]


class RelayPeerView(TypedDict):
    name: str
    enabled: bool
    accept: Annotated[list[str], "Event types that are accepted; empty: all"]
    baggage: Annotated[list[str], "Names of baggage that are accepted"]
    received: Annotated[int, "Events received within the retention of receipts"]
    last_received_at: NotRequired[Timestamp]


class RelayOverview(TypedDict):
    name: Annotated[str, "The name of this instance"]
    waiting: Annotated[int, "Undelivered events"]
    instances: list[RelayInstanceView]
    listen_path: Annotated[str, "The path for peers; null if not configured"] | None
    peers: list[RelayPeerView]
    waiting_since: NotRequired[Annotated[Timestamp, "The creation time of the oldest undelivered event"]]


def relay_view(db: Db | None, snapshot: Snapshot) -> RelayOverview:
    """Return the configured instances and peers with their state; `db` is None if there is no ledger yet."""
    settings = snapshot.config.settings
    ingress = settings.remote_ingress
    waits = outbox.unsent(db, RELAY) if db is not None else outbox.UnsentEvents(0, None)
    view: RelayOverview = {
        "name": settings.service.name,
        "waiting": waits.count,
        "instances": [_instance(db, instance) for instance in settings.instances],
        "listen_path": ingress.listen_path if ingress else None,
        "peers": [_peer(db, peer) for peer in (ingress.peers if ingress else ())],
    }
    if waits.since:
        view["waiting_since"] = to_text(waits.since)
    return view


def _instance(db: Db | None, instance: Instance) -> RelayInstanceView:
    empty = Breaker(plugin=RELAY, command=instance.name)
    known = breakers.get(db, RELAY, instance.name) if db is not None else empty
    view: RelayInstanceView = {
        "name": instance.name,
        "enabled": instance.enabled,
        "address": ingress_url(instance),
        "allow": list(instance.allow),
        "state": known.state,
        "failure_count": known.failure_count,
    }
    if known.state is BreakerState.OPEN and known.opened_at is not None:
        view["probe_from"] = to_text(known.opened_at + BREAKER.reset_after)
    if known.last_failure_at is not None:
        view["last_failure_at"] = to_text(known.last_failure_at)
    return view


def _peer(db: Db | None, peer: Peer) -> RelayPeerView:
    known = outbox.received(db, f"relay:{peer.name}") if db is not None else outbox.ReceivedEvents(0, None)
    view: RelayPeerView = {
        "name": peer.name,
        "enabled": peer.enabled,
        "accept": list(peer.accept),
        "baggage": list(peer.baggage.allow),
        "received": known.count,
    }
    if known.last_at:
        view["last_received_at"] = to_text(known.last_at)
    return view
