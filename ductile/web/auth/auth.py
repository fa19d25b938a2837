"""Authentication and authorization: bearer tokens and the local socket to principals with scopes.

A token is compared with every configured token, as a digest and in constant time. A response to an invalid token does
not say why it is invalid; a response to a valid token names the missing scope.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache, partial

from attrs import evolve, frozen

from ductile.config.load.load import Config
from ductile.config.load.token_label import token_label
from ductile.config.scopes import (
    ALL,
    FINE_SCOPES,
    IMPLIED_SCOPES,
    TopicRight,
    may_use_topic,
    topic_patterns,
    topic_rights,
)
from ductile.core.clock import Clock
from ductile.core.instance.actors import address_actor, process_actor, token_actor, user_actor
from ductile.web.messages import HTTPError, Request, Response, refusal_response
from ductile.web.routing import AnyRoute

ANY_TOKEN = "token"
"""The scope of routes that are open to every valid token."""
TOPIC_SCOPES: Mapping[TopicRight, str] = {
    "ro": "exchange:ro",
    "publish": "exchange:*:publish",
    "claim": "exchange:*:claim",
}
"""Right → the scope of the routes that need it. A caller with the right on some topics may call these routes."""
EVENTS, EVENTS_WITH_PAYLOAD = "events:meta:ro", "events:payload:ro"
"""The scopes of the event stream: events without, and with, messages and payload data."""


@frozen
class Principal:
    """An authenticated caller: its name in logs, its scopes including all implied ones, and its name on records."""

    name: str
    scopes: frozenset[str]
    actor: str
    is_local: bool = False

    @property
    def granted(self) -> frozenset[str]:
        """The scopes that no other scope implies."""
        return frozenset(
            scope
            for scope in self.scopes
            if not any(scope in expand_scopes((other,)) - {other} for other in self.scopes)
        )

    def has_scope(self, scope: str, *, plugin: str | None = None, topic: str = ALL) -> bool:
        """True if the caller has the scope, or its equivalent for this plugin or topic, such as `plugin:echo:ro`."""
        if ALL in self.scopes or scope in self.scopes or scope == ANY_TOKEN:
            return True
        if rights := topic_rights(scope):
            return all(self.may_use_topic(topic, right) for right in rights)
        if plugin is None or not scope.startswith("plugin:"):
            return False
        access = scope.rpartition(":")[2]
        narrow = {f"plugin:{plugin}:{access}", f"plugin:{plugin}:rw"} - FINE_SCOPES
        return not narrow.isdisjoint(self.scopes)

    def may_use_topic(self, topic: str, right: TopicRight) -> bool:
        """True if the caller may read the messages of the topic (`ro`), publish to it, or claim from it.

        A pattern stands for all its topics.
        """
        return may_use_topic(self.scopes, topic, right)

    def topic_patterns(self, right: TopicRight) -> frozenset[str]:
        """Return the topics and patterns on which the caller has the right. `*` is every topic."""
        return topic_patterns(self.scopes, right)

    def can_see(self, plugin: str) -> bool:
        """True unless all plugin scopes of the caller are for other plugins."""
        plugin_scopes = [scope for scope in self.scopes if scope.startswith("plugin:")]
        is_narrow = bool(plugin_scopes) and all(
            scope.count(":") == 2 and scope not in FINE_SCOPES for scope in plugin_scopes
        )
        return ALL in self.scopes or not is_narrow or self.has_scope("plugin:ro", plugin=plugin)


@lru_cache(maxsize=64)
def local_principal(uid: int | None) -> Principal:
    """Return the caller on the local socket, who may do everything. `uid` is None if the system does not know it."""
    actor = process_actor() if uid is None else user_actor(uid)
    return Principal("operator", frozenset({ALL}), actor, is_local=True)


def _token_principal(name: str, scopes: Iterable[str]) -> Principal:
    return Principal(name, expand_scopes(scopes), token_actor(name))


@frozen
class Key:
    """The digest of a valid token, with its principal and expiry."""

    digest: bytes
    principal: Principal
    expires_at: datetime | None = None


@frozen
class Keyring:
    """All valid tokens."""

    keys: tuple[Key, ...]

    @classmethod
    def from_config(cls, config: Config) -> "Keyring":
        keys = []
        for token in config.settings.api.auth.tokens:
            principal = _token_principal(token_label(token), token.scopes)
            keys.append(Key(_digest(token.token.reveal()), principal, token.expires_at))
        for named in config.settings.tokens:
            grant = config.grants.get(named.name)
            if grant is not None and not grant.refused:
                principal = _token_principal(named.name, grant.scopes)
                keys.append(Key(_digest(named.key.reveal()), principal, named.expires_at))
        return cls(tuple(keys))

    def find(self, token: str, *, now: datetime) -> Principal | None:
        """Return the principal of a token; None if it is unknown or expired. Constant time for every token."""
        presented, found = _digest(token), None
        for key in self.keys:
            is_current = key.expires_at is None or now < key.expires_at
            if hmac.compare_digest(key.digest, presented) and is_current:
                found = key.principal
        return found


def expand_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """Return the scopes with all that they imply: `rw` implies `ro`, and `ro` implies its finer scopes.

    Finer scopes have no `rw` form: `plugin:invoke:rw` is a scope for the plugin named invoke.
    """
    granted = set(scopes)
    granted |= {f"{scope.removesuffix(':rw')}:ro" for scope in granted if scope.endswith(":rw")} - FINE_SCOPES
    return frozenset(granted.union(*(IMPLIED_SCOPES.get(scope, ()) for scope in granted)))


def make_authorizer(
    keyring: Callable[[], Keyring],
    clock: Clock,
    on_use: Callable[[str, datetime], None] = lambda _name, _now: None,
    on_refusal: Callable[[str, str], None] = lambda _actor, _reason: None,
) -> Callable[[AnyRoute, Request], Request | Response]:
    """Return the check of every request against the current keyring.

    `on_use` receives the name of each valid token, `on_refusal` the actor and the reason of each refused request.
    """
    return partial(_authorize, keyring, clock, on_use, on_refusal)


def _authorize(
    keyring: Callable[[], Keyring],
    clock: Clock,
    on_use: Callable[[str, datetime], None],
    on_refusal: Callable[[str, str], None],
    route: AnyRoute,
    request: Request,
) -> Request | Response:
    if request.peer == "unix":
        return evolve(request, principal=local_principal(request.uid))
    if route.scope is None:
        return request
    try:
        principal = _authenticate(keyring(), request, clock.now(), on_use)
    except _NotAuthenticated as refused:
        on_refusal(address_actor(request.peer), refused.reason)
        return _unauthorized(refused.reason)
    plugin, topic = request.params.get("plugin"), request.params.get("topic")
    if not _is_admitted(principal, route.scope, plugin=plugin, topic=topic):
        on_refusal(principal.actor, f"scope {route.scope} missing")
        return forbidden_response(principal, route.scope, plugin=plugin, topic=topic)
    return evolve(request, principal=principal)


def _is_admitted(principal: Principal, scope: str, *, plugin: str | None, topic: str | None) -> bool:
    """True if the caller has the scope.

    The right on one topic admits to a route whose path names no topic: its handler checks the topics of the request.
    """
    if principal.has_scope(scope, plugin=plugin, topic=topic or ALL):
        return True
    rights = topic_rights(scope)
    return topic is None and len(rights) == 1 and bool(principal.topic_patterns(rights[0]))


class _NotAuthenticated(Exception):
    """The request has no valid token."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _authenticate(
    keyring: Keyring, request: Request, now: datetime, on_use: Callable[[str, datetime], None]
) -> Principal:
    """Return the principal of the request's token."""
    authorization = request.headers.get("authorization", ())
    scheme, _, token = (authorization[0] if len(authorization) == 1 else "").partition(" ")
    if not authorization or not token:
        raise _NotAuthenticated("missing or invalid Authorization header")
    if scheme.lower() != "bearer":
        raise _NotAuthenticated("invalid Authorization header format")
    principal = keyring.find(token, now=now)
    if principal is None:
        raise _NotAuthenticated("invalid token")
    on_use(principal.name, now)
    return principal


def forbidden_response(
    principal: Principal, scope: str, *, plugin: str | None = None, topic: str | None = None
) -> Response:
    """Return a 403 that names the required scope and the scopes of the token."""
    narrow = ""
    if plugin is not None and scope.startswith("plugin:"):
        narrow = f" or plugin:{plugin}:{scope.rpartition(':')[2]}"
    elif topic is not None and topic_rights(scope):
        narrow = f" or exchange:{topic}:{scope.rpartition(':')[2]}"
    held = sorted(principal.granted)
    hint = f"Required scope: {scope}{narrow}. Scopes of this token: {', '.join(held) or 'none'}."
    return refusal_response(
        403, "insufficient_scope", "insufficient scope", hint=hint, context={"needed": scope, "held": held}
    )


def require_scope(request: Request, scope: str, *, plugin: str | None = None) -> None:
    """Raise HTTPError 403 if the caller lacks a scope that the route itself does not require."""
    principal: Principal = request.principal
    if not principal.has_scope(scope, plugin=plugin):
        raise HTTPError(forbidden_response(principal, scope, plugin=plugin))


def require_topic(request: Request, topic: str, right: TopicRight) -> None:
    """Raise HTTPError 403 if the caller does not have the right on the topic."""
    principal: Principal = request.principal
    if not principal.may_use_topic(topic, right):
        raise HTTPError(forbidden_response(principal, TOPIC_SCOPES[right], topic=topic))


def _unauthorized(message: str) -> Response:
    hint = "Send `Authorization: Bearer TOKEN`."
    return refusal_response(401, "unauthorized", message, hint=hint, headers=(("www-authenticate", "Bearer"),))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
