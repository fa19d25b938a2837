"""`GET /system/tokens`: names, scopes, expiry and last use of the API tokens, never the tokens themselves.

A use is recorded in memory at once and in the ledger within a minute. The runtime runs the writer task.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, TypedDict

import trio
from attrs import define, field

from ductile.config.load.load import Config
from ductile.config.load.token_label import token_label
from ductile.core.clock import to_text
from ductile.core.errors import LedgerError
from ductile.core.formats.json_schema import Timestamp
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.tables import receipts
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route

WRITE_INTERVAL = 60.0
FINAL_WRITE_TIMEOUT = 5.0


class TokenView(TypedDict):
    name: Annotated[str, "The name in logs"]
    source: Annotated[str, "Where it is configured: api.auth.tokens or tokens.yaml"]
    scopes: list[str]
    expires_at: Timestamp | None
    expired: bool
    last_used_at: Timestamp | None
    refused: Annotated[str, "Why the token is not accepted; null if it is"] | None


class TokensView(TypedDict):
    tokens: list[TokenView]


@define(eq=False)
class TokenUses:
    """The last uses of tokens that are not in the ledger yet."""

    ledger: Ledger
    warn: Callable[[str], None] = lambda _: None
    pending: dict[str, datetime] = field(factory=dict)
    _has_pending: trio.Event = field(factory=trio.Event)

    def record(self, name: str, now: datetime) -> None:
        """Record a use of the token."""
        self.pending[name] = now
        self._has_pending.set()

    async def last_uses(self) -> dict[str, datetime]:
        """Return the last use of each token, by name."""
        return {**await self.ledger.read(receipts.last_token_uses), **self.pending}

    async def run(self) -> None:
        """Write the recorded uses to the ledger, at most once a minute, until cancelled."""
        try:
            while True:
                await self._has_pending.wait()
                await self._write()
                await trio.sleep(WRITE_INTERVAL)
        finally:
            with trio.move_on_after(FINAL_WRITE_TIMEOUT, shield=True):
                await self._write()

    async def _write(self) -> None:
        uses, self.pending, self._has_pending = self.pending, {}, trio.Event()
        if not uses:
            return
        try:
            await self.ledger.write(receipts.put_token_uses, uses)
        except LedgerError as error:
            self.warn(f"cannot store the last uses of tokens: {error}")
            self.pending = {**uses, **self.pending}
            self._has_pending.set()


def routes(ctx: AppContext, uses: TokenUses) -> Iterable[AnyRoute]:
    """Return the routes of the API tokens."""

    async def list_tokens(request: Request) -> Response:
        last_uses, now = await uses.last_uses(), ctx.clock.now()
        return json_response(TokensView(tokens=[*_token_views(ctx.snapshot().config, last_uses, now)]))

    yield Route(
        method="GET",
        path="/system/tokens",
        handler=list_tokens,
        scope="system:ro",
        group="system",
        summary="List API tokens with their scopes, expiry and last use",
        responses={200: TokensView},
    )


def _token_views(config: Config, last_uses: Mapping[str, datetime], now: datetime) -> Iterator[TokenView]:
    def view(name: str, source: str, scopes: Iterable[str], expires_at: datetime | None, refused: object) -> TokenView:
        used_at = last_uses.get(name)
        return {
            "name": name,
            "source": source,
            "scopes": sorted(scopes),
            "expires_at": to_text(expires_at) if expires_at else None,
            "expired": expires_at is not None and expires_at <= now,
            "last_used_at": to_text(used_at) if used_at else None,
            "refused": str(refused) if refused else None,
        }

    for token in config.settings.api.auth.tokens:
        yield view(token_label(token), "api.auth.tokens", token.scopes, token.expires_at, None)
    for named in config.settings.tokens:
        grant = config.grants.get(named.name)
        if grant is not None:
            yield view(named.name, "tokens.yaml", grant.scopes, named.expires_at, grant.refused)
