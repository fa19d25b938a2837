"""The `Idempotency-Key` header: a repeated request returns the first response and has no second effect.

Keys are scoped to the token. The key is stored in the same transaction as the effect of the request.
"""

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated

from blake3 import blake3

from ductile.core.formats.json_schema import Keywords
from ductile.core.model import FollowUps
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import IdempotencyKey, StoredResponse, first_response, run_once
from ductile.web.context import AppContext, BadRequest, submit
from ductile.web.messages import Headers, Request
from ductile.web.routing import Header

KEY_LIFETIME = timedelta(days=1)
_KEY = re.compile(r"[!-~]{1,255}")
REPLAYED_HEADERS: Headers = (("idempotent-replayed", "true"),)
KEY_HEADER = Header(
    "Idempotency-Key",
    Annotated[str, Keywords(pattern=r"^[!-~]{1,255}$")],
    "A unique key for this request. Repeating it within 24 hours returns the first response and has no second effect",
)


def read_idempotency_key(request: Request) -> IdempotencyKey | None:
    """Return the key of a request, with a digest of method, path, query and body; None without the header."""
    values = request.headers.get("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        raise BadRequest("Idempotency-Key: expected 1 to 255 visible ASCII characters", hint="Use a UUID, for example.")
    digest = blake3(repr((request.method, request.path, sorted(request.query.items()))).encode())
    digest.update(request.body)
    scope = "local" if request.principal.is_local else f"api:{request.principal.name}"
    return IdempotencyKey(scope=scope, key=values[0], body_hash=digest.hexdigest(), ttl=KEY_LIFETIME)


async def find_stored_response(ctx: AppContext, key: IdempotencyKey | None) -> StoredResponse | None:
    """Return the stored response of an earlier request with this key; None for a new request."""
    stored = await ctx.ledger.read(first_response, key) if key is not None else None
    if stored is not None:  # the first request may still be waiting for the disk
        await ctx.ledger.until_durable()
    return stored


async def submit_once(
    ctx: AppContext,
    key: IdempotencyKey | None,
    act: Callable[[Db], StoredResponse],
    runs: Sequence[FollowUps],
    *,
    actor: str,
) -> StoredResponse:
    """Run `act`, which starts the runs, unless the key was used before; return its response or the stored one."""
    if key is not None:
        act = partial(run_once, ticket=key, act=act, now=ctx.clock.now())
    return await submit(ctx, act, runs, actor=actor)


def replay_headers(stored: StoredResponse) -> Headers:
    return REPLAYED_HEADERS if stored.is_repeat else ()
