"""Who calls, and what they may do: bearer tokens and the local socket → principal → yes or no.

Every configured token is compared, in constant time and as a digest. Who has no valid token is not told why; who has
one is told which scope is missing.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from attrs import evolve, frozen

from ductile.config.load.load import Config
from ductile.config.scopes import FINER, INCLUDED
from ductile.config.views.token_label import caller
from ductile.core.clock import Clock
from ductile.web.messages import HTTPError, Request, Response, refusal_response
from ductile.web.routes import AnyRoute

ALL = "*"
ANY_TOKEN = "token"
"""The scope of routes that every known caller may use."""
EVENTS, EVENTS_WITH_PAYLOAD = "events:meta:ro", "events:payload:ro"
"""The scopes of the event stream: that something happened, and the words and data that came with it."""


@frozen
class Principal:
    """A caller: a name for logs, and its scopes with everything they imply."""

    name: str
    scopes: frozenset[str]

    @property
    def granted(self) -> frozenset[str]:
        """Those of its scopes that no other one implies."""
        return frozenset(
            one for one in self.scopes if not any(one in implied((other,)) - {other} for other in self.scopes)
        )

    def may(self, scope: str, *, plugin: str | None = None) -> bool:
        """True with that scope, or with the one that speaks of this plugin alone: `plugin:echo:ro`."""
        if ALL in self.scopes or scope in self.scopes or scope == ANY_TOKEN:
            return True
        if plugin is None or not scope.startswith("plugin:"):
            return False
        right = scope.rpartition(":")[2]
        narrow = {f"plugin:{plugin}:{right}", f"plugin:{plugin}:rw"} - FINER
        return not narrow.isdisjoint(self.scopes)

    def sees(self, plugin: str) -> bool:
        """True unless every right this caller has over plugins is over others."""
        rights = [scope for scope in self.scopes if scope.startswith("plugin:")]
        is_narrow = bool(rights) and all(scope.count(":") == 2 and scope not in FINER for scope in rights)
        return ALL in self.scopes or not is_narrow or self.may("plugin:ro", plugin=plugin)


OPERATOR = Principal("operator", frozenset({ALL}))
"""Whoever can open the local socket."""


@frozen
class Key:
    """One token that may call: its digest, whose it is, and until when."""

    digest: bytes
    principal: Principal
    expires_at: datetime | None = None


@frozen
class Keyring:
    """Every token that may call."""

    keys: tuple[Key, ...]

    @classmethod
    def of(cls, config: Config) -> "Keyring":
        keys = []
        for token in config.settings.api.auth.tokens:
            principal = Principal(caller(token), implied(token.scopes))
            keys.append(Key(_digest(token.token.reveal()), principal, token.expires_at))
        for named in config.settings.tokens:
            grant = config.grants.get(named.name)
            if grant is not None and not grant.refused:
                principal = Principal(named.name, implied(grant.scopes))
                keys.append(Key(_digest(named.key.reveal()), principal, named.expires_at))
        return cls(tuple(keys))

    def find(self, token: str, *, now: datetime) -> Principal | None:
        """The principal of this token. Takes as long for a wrong or expired token as for a right one."""
        presented, found = _digest(token), None
        for key in self.keys:
            is_good = key.expires_at is None or now < key.expires_at
            if hmac.compare_digest(key.digest, presented) and is_good:
                found = key.principal
        return found


def implied(scopes: Iterable[str]) -> frozenset[str]:
    """`rw` includes `ro`, and `ro` the finer scopes that it is made of.

    A finer one comes with no other `rw`: `plugin:invoke:rw` speaks of a plugin that is called invoke, and of no other.
    """
    granted = set(scopes)
    granted |= {f"{scope.removesuffix(':rw')}:ro" for scope in granted if scope.endswith(":rw")} - FINER
    return frozenset(granted.union(*(INCLUDED.get(scope, ()) for scope in granted)))


def authorizer(
    keyring: Callable[[], Keyring], clock: Clock, on_use: Callable[[str, datetime], None] = lambda _name, _now: None
) -> Callable[[AnyRoute, Request], Request | Response]:
    """The check of every request, against the keyring of the moment; `on_use` hears whose token was good, and when."""
    return partial(_authorize, keyring, clock, on_use)


def _authorize(
    keyring: Callable[[], Keyring],
    clock: Clock,
    on_use: Callable[[str, datetime], None],
    route: AnyRoute,
    request: Request,
) -> Request | Response:
    if request.peer == "unix":
        return evolve(request, principal=OPERATOR)
    if route.scope is None:
        return request
    authorization = request.headers.get("authorization", ())
    scheme, _, token = (authorization[0] if len(authorization) == 1 else "").partition(" ")
    if not authorization or not token:
        return _unauthorized("missing or invalid Authorization header")
    if scheme.lower() != "bearer":
        return _unauthorized("invalid Authorization header format")
    now = clock.now()
    principal = keyring().find(token, now=now)
    if principal is None:
        return _unauthorized("invalid token")
    on_use(principal.name, now)
    if not principal.may(route.scope, plugin=request.params.get("plugin")):
        return forbidden(principal, route.scope, plugin=request.params.get("plugin"))
    return evolve(request, principal=principal)


def forbidden(principal: Principal, scope: str, *, plugin: str | None = None) -> Response:
    """What the bearer of a token is told that may not do this: what it takes, and what its own token has."""
    narrow = f"plugin:{plugin}:{scope.rpartition(':')[2]}" if plugin is not None and scope.startswith("plugin:") else ""
    needed = f"{scope} or {narrow}" if narrow else scope
    held = sorted(principal.granted)
    hint = f"it takes the scope {needed}; this token has {', '.join(held) or 'none'}"
    return refusal_response(
        403, "insufficient_scope", "insufficient scope", hint=hint, context={"needed": scope, "held": held}
    )


def require_scope(request: Request, scope: str, *, plugin: str | None = None) -> None:
    """Refuses a caller who lacks a scope that its route alone does not ask for."""
    principal: Principal = request.principal
    if not principal.may(scope, plugin=plugin):
        raise HTTPError(forbidden(principal, scope, plugin=plugin))


def _unauthorized(message: str) -> Response:
    hint = "send `Authorization: Bearer TOKEN`"
    return refusal_response(401, "unauthorized", message, hint=hint, headers=(("www-authenticate", "Bearer"),))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
