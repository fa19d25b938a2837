"""The JSON view of instances and peers, for the API and `relay list`.

Imports no event loop, so that the command works without a running service.
"""

from typing import Any

from ductile.config.sections.relay import BREAKER, ingress_url
from ductile.config.sections.settings import Instance, Peer
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.model import Breaker, BreakerState
from ductile.ledger.queue import outbox
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers
from ductile.pipeline.compile.plan import RELAY


def relay_view(db: Db | None, snapshot: Snapshot) -> dict[str, Any]:
    """Return the configured instances and peers with their state; `db` is None if there is no ledger yet."""
    settings = snapshot.config.settings
    ingress = settings.remote_ingress
    waits = outbox.unsent(db, RELAY) if db is not None else outbox.UnsentEvents(0, None)
    view: dict[str, Any] = {
        "name": settings.service.name,
        "waiting": waits.count,
        "instances": [_instance(db, instance) for instance in settings.instances],
        "listen_path": ingress.listen_path if ingress else None,
        "peers": [_peer(db, peer) for peer in (ingress.peers if ingress else ())],
    }
    return view | ({"waiting_since": to_text(waits.since)} if waits.since else {})


def _instance(db: Db | None, instance: Instance) -> dict[str, Any]:
    empty = Breaker(plugin=RELAY, command=instance.name)
    known = breakers.get(db, RELAY, instance.name) if db is not None else empty
    view: dict[str, Any] = {
        "name": instance.name,
        "enabled": instance.enabled,
        "address": ingress_url(instance),
        "allow": list(instance.allow),
        "state": str(known.state),
        "failure_count": known.failure_count,
    }
    if known.state is BreakerState.OPEN and known.opened_at is not None:
        view["probe_from"] = to_text(known.opened_at + BREAKER.reset_after)
    if known.last_failure_at is not None:
        view["last_failure_at"] = to_text(known.last_failure_at)
    return view


def _peer(db: Db | None, peer: Peer) -> dict[str, Any]:
    known = outbox.received(db, f"relay:{peer.name}") if db is not None else outbox.ReceivedEvents(0, None)
    view: dict[str, Any] = {
        "name": peer.name,
        "enabled": peer.enabled,
        "accept": list(peer.accept),
        "baggage": list(peer.baggage.allow),
        "received": known.count,
    }
    return view | ({"last_received_at": to_text(known.last_at)} if known.last_at else {})
