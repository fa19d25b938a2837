"""The tokens of the API, seen from outside: whose they are, what they may do, until when, and when they were used.

Never the token itself. A use is noted in memory at once and in the ledger within a minute; the runtime keeps that going
beside the listener.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import trio
from attrs import define, field

from ductile.config.load.load import Config
from ductile.config.views.token_label import caller
from ductile.core.clock import to_text
from ductile.core.errors import LedgerError
from ductile.ledger.storage.writer import Ledger
from ductile.ledger.tables import token_uses
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.openapi.schemas import boolean, listing, moment, nullable, record, text
from ductile.web.routes import AnyRoute, Route

EVERY_SECONDS = 60.0
LAST_WORDS_SECONDS = 5.0


@define(eq=False)
class TokenUses:
    """Who has called since the last time that was written down."""

    ledger: Ledger
    warn: Callable[[str], None] = lambda _: None
    fresh: dict[str, datetime] = field(factory=dict)
    _noted: trio.Event = field(factory=trio.Event)

    def note(self, name: str, now: datetime) -> None:
        """The token was used; the ledger will know within a minute."""
        self.fresh[name] = now
        self._noted.set()

    async def known(self) -> dict[str, datetime]:
        return {**await self.ledger.read(token_uses.all_uses), **self.fresh}

    async def keep(self) -> None:
        """Writes until it is cancelled, at most once a minute."""
        try:
            while True:
                await self._noted.wait()
                await self._write()
                await trio.sleep(EVERY_SECONDS)
        finally:
            with trio.move_on_after(LAST_WORDS_SECONDS, shield=True):
                await self._write()

    async def _write(self) -> None:
        uses, self.fresh, self._noted = self.fresh, {}, trio.Event()
        if not uses:
            return
        try:
            await self.ledger.write(token_uses.put_all, uses)
        except LedgerError as error:
            self.warn(f"cannot write down which tokens were used: {error}")
            self.fresh = {**uses, **self.fresh}
            self._noted.set()


def routes(desk: AppContext, uses: TokenUses) -> Iterable[AnyRoute]:
    """What the API answers about its tokens."""

    async def show(request: Request) -> Response:
        known, now = await uses.known(), desk.clock.now()
        return json_response({"tokens": [_shown(one, known, now) for one in _tokens(desk.snapshot().config)]})

    shown = record(
        {
            "name": text("What logs call it"),
            "source": text("Where it is written: api.auth.tokens or tokens.yaml"),
            "scopes": listing(text()),
            "expires_at": nullable(moment()),
            "expired": boolean(),
            "last_used_at": nullable(moment()),
            "refused": nullable(text("Why it opens nothing, if it does not")),
        }
    )
    yield Route(
        method="GET",
        path="/system/tokens",
        handler=show,
        scope="system:ro",
        group="system",
        summary="The tokens that may call: their scopes, when they expire and when they were last used",
        gives={200: record({"tokens": listing(shown)})},
    )


def _tokens(config: Config) -> Iterator[dict[str, Any]]:
    for token in config.settings.api.auth.tokens:
        about = {"name": caller(token), "source": "api.auth.tokens", "scopes": token.scopes}
        yield {**about, "expires_at": token.expires_at}
    for named in config.settings.tokens:
        grant = config.grants.get(named.name)
        if grant is not None:
            about = {"name": named.name, "source": "tokens.yaml", "scopes": grant.scopes}
            yield {**about, "expires_at": named.expires_at, "refused": grant.refused}


def _shown(token: dict[str, Any], known: dict[str, datetime], now: datetime) -> dict[str, Any]:
    expires_at, used_at = token["expires_at"], known.get(token["name"])
    return {
        **token,
        "scopes": sorted(token["scopes"]),
        "expires_at": to_text(expires_at) if expires_at else None,
        "expired": expires_at is not None and expires_at <= now,
        "last_used_at": to_text(used_at) if used_at else None,
        "refused": str(token["refused"]) if token.get("refused") else None,
    }
