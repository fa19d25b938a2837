"""Lookups of relay settings: the instances to send to, the peers to accept, and the retry policy.

Pure functions of one configuration. Sending and receiving are implemented in `ductile.relay`.
"""

from datetime import timedelta
from urllib.parse import unquote, urlsplit

from ductile.config.sections.settings import CircuitBreaker, Instance, Peer, Settings
from ductile.core.errors import DuctileError, NotFound, did_you_mean
from ductile.core.secret import Secret

SEND = "send"
"""Command of a relay job that was not created by a pipeline step."""
MAX_ATTEMPTS, BACKOFF_BASE = 30, timedelta(seconds=30)
"""Delays double up to one hour, so an event is retried for about a day."""
BREAKER = CircuitBreaker(threshold=3, reset_after=timedelta(minutes=1), applies_to="all")
"""Applies to attempts, so that the outbox pauses while the instance does not respond."""


class InstanceDisabled(DuctileError):
    """The instance is disabled."""

    code, exit_code, status = "instance_disabled", 1, 409
    hint = "Set `enabled: true` for the instance under `instances`, then run `ductile system reload`."


class EventNotAllowed(DuctileError):
    """The instance does not allow this event type."""

    code, exit_code, status = "event_not_allowed", 1, 422
    hint = "Add the event type to `allow` of the instance, then run `ductile system reload`."


def find_instance(settings: Settings, name: str, event_type: str) -> Instance:
    """Return the instance `name`. Raises an error if it does not exist, is disabled or does not allow `event_type`."""
    known = {instance.name: instance for instance in settings.instances}
    if name not in known:
        hint = f"Known instances: {', '.join(sorted(known))}." if known else "Add an instance under `instances`."
        raise NotFound(f"instance {name[:80]!r} does not exist{did_you_mean(name, known)}", hint=hint)
    instance = known[name]
    if not instance.enabled:
        raise InstanceDisabled(f"instance {name} is disabled (enabled: false)")
    if instance.allow and event_type not in instance.allow:
        allowed = ", ".join(instance.allow)
        raise EventNotAllowed(f"instance {name} does not allow {event_type[:80]!r}", hint=f"It allows {allowed}.")
    return instance


def find_peer(settings: Settings, name: str) -> Peer | None:
    """Return the peer `name`; None if it does not exist or is disabled."""
    peers = settings.remote_ingress.peers if settings.remote_ingress else ()
    return next((peer for peer in peers if peer.name == name and peer.enabled), None)


def find_secret(settings: Settings, name: str) -> Secret | None:
    """Return the key of the token `name`; None if it does not exist."""
    return next((token.key for token in settings.tokens if token.name == name), None)


def ingress_url(instance: Instance) -> str:
    """Return the URL that receives the events of the instance."""
    return instance.base_url.rstrip("/") + instance.ingress_path


def url_path(address: str) -> str:
    """Return the decoded path of a URL."""
    return unquote(urlsplit(address).path)


def is_valid_url(text: str) -> bool:
    """True if a request can be sent to this URL."""
    try:
        parts = urlsplit(text)
        return text.isascii() and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
