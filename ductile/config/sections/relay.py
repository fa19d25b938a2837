"""What the operator decided about other instances, ready for use: whom to send to, whom to believe, how patiently.

Pure lookups in one configuration. The engine sends by them, the web receives and enqueues by them.
"""

from datetime import timedelta
from urllib.parse import unquote, urlsplit

from ductile.config.sections.settings import CircuitBreaker, Instance, Peer, Settings
from ductile.core.errors import DuctileError, NotFound, did_you_mean
from ductile.core.secret import Secret

SEND = "send"
"""The command of a relay job that no step made."""
ATTEMPTS, BACKOFF = 30, timedelta(seconds=30)
"""An event waits about a day for an instance that is down: the delays double up to an hour."""
BREAKER = CircuitBreaker(threshold=3, reset_after=timedelta(minutes=1), applies_to="all")
"""Counts attempts, not jobs: an outbox shall pause while nobody answers."""


class InstanceDisabled(DuctileError):
    """The operator has disabled the instance."""

    code, exit_code, status = "instance_disabled", 1, 409
    hint = "set its `enabled: true` under `instances`, then `ductile system reload`"


class EventNotAllowed(DuctileError):
    """The instance must not get events of this type."""

    code, exit_code, status = "event_not_allowed", 1, 422
    hint = "add the type to `allow` of the instance, then `ductile system reload`"


def instance_for(settings: Settings, name: str, event_type: str) -> Instance:
    """The instance of that name, which may get such events; otherwise an error that says why not."""
    known = {instance.name: instance for instance in settings.instances}
    if name not in known:
        hint = f"known: {', '.join(sorted(known)) or 'none; name some under `instances`'}"
        raise NotFound(f"there is no instance {name[:80]!r}{did_you_mean(name, known)}", hint=hint)
    instance = known[name]
    if not instance.enabled:
        raise InstanceDisabled(f"instance {name} is disabled (enabled: false)")
    if instance.allow and event_type not in instance.allow:
        allowed = ", ".join(instance.allow)
        raise EventNotAllowed(f"instance {name} does not allow {event_type[:80]!r}", hint=f"it allows {allowed}")
    return instance


def peer_named(settings: Settings, name: str) -> Peer | None:
    """The peer of that name, if it may send."""
    peers = settings.remote_ingress.peers if settings.remote_ingress else ()
    return next((peer for peer in peers if peer.name == name and peer.enabled), None)


def secret_named(settings: Settings, name: str) -> Secret | None:
    return next((token.key for token in settings.tokens if token.name == name), None)


def address_of(instance: Instance) -> str:
    """The URL that its events are sent to."""
    return instance.base_url.rstrip("/") + instance.ingress_path


def path_of(address: str) -> str:
    """The path of a URL as its receiver reads it."""
    return unquote(urlsplit(address).path)


def is_address(text: str) -> bool:
    """Whether a request can be sent there."""
    try:
        parts = urlsplit(text)
        return text.isascii() and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
