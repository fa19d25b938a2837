"""Who calls, and what they may do: bearer tokens and the local socket → principal → yes or no.

Every configured token is compared, in constant time and as a digest. A refusal says nothing about why.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from functools import partial

from attrs import evolve, frozen

from ductile.config.load import Config
from ductile.web.message import Request, Response, refusal_response
from ductile.web.routes import AnyRoute

ALL = "*"


@frozen
class Principal:
    """A caller: a name for logs, and its scopes with everything they imply."""

    name: str
    scopes: frozenset[str]

    def may(self, scope: str, *, plugin: str | None = None) -> bool:
        """True with that scope, or with the one that speaks of this plugin alone: `plugin:echo:ro`."""
        if ALL in self.scopes or scope in self.scopes:
            return True
        noun, _, right = scope.partition(":")
        return plugin is not None and noun == "plugin" and f"plugin:{plugin}:{right}" in self.scopes


OPERATOR = Principal("operator", frozenset({ALL}))
"""Whoever can open the local socket."""


@frozen
class Keyring:
    """The digests of every token that may call."""

    entries: tuple[tuple[bytes, Principal], ...]

    @classmethod
    def of(cls, config: Config) -> "Keyring":
        entries = []
        for index, token in enumerate(config.settings.api.auth.tokens):
            entries.append((token.token.reveal(), token.name or f"token {index}", token.scopes))
        for named in config.settings.tokens:
            grant = config.grants.get(named.name)
            if grant is not None and not grant.refused:
                entries.append((named.key.reveal(), named.name, grant.scopes))
        return cls(tuple((_digest(text), Principal(name, implied(scopes))) for text, name, scopes in entries))

    def find(self, token: str) -> Principal | None:
        """The principal of this token. Takes as long for a wrong token as for a right one."""
        presented, found = _digest(token), None
        for digest, principal in self.entries:
            if hmac.compare_digest(digest, presented):
                found = principal
        return found


def implied(scopes: Iterable[str]) -> frozenset[str]:
    """`rw` includes `ro`."""
    granted = set(scopes)
    granted |= {f"{scope.removesuffix(':rw')}:ro" for scope in granted if scope.endswith(":rw")}
    return frozenset(granted)


def authorizer(keyring: Callable[[], Keyring]) -> Callable[[AnyRoute, Request], Request | Response]:
    """The check of every request, against the keyring of the moment."""
    return partial(_authorize, keyring)


def _authorize(keyring: Callable[[], Keyring], route: AnyRoute, request: Request) -> Request | Response:
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
    principal = keyring().find(token)
    if principal is None:
        return _unauthorized("invalid token")
    if not principal.may(route.scope, plugin=request.params.get("plugin")):
        return forbidden()
    return evolve(request, principal=principal)


def forbidden() -> Response:
    return refusal_response(403, "insufficient_scope", "insufficient scope")


def _unauthorized(message: str) -> Response:
    hint = "send `Authorization: Bearer TOKEN`"
    return refusal_response(401, "unauthorized", message, hint=hint, headers=(("www-authenticate", "Bearer"),))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
