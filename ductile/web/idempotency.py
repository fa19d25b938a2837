"""`Idempotency-Key`: a request that a caller may send again without doing anything twice.

The key is the caller's own, per token. It is kept in the transaction that does what was asked, so there is no moment
between, and a restart forgets nothing.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from blake3 import blake3

from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import StoredAnswer, Ticket, first_answer, once
from ductile.web.auth.auth import OPERATOR
from ductile.web.context import AppContext, BadRequest, submit
from ductile.web.messages import Headers, Request
from ductile.web.openapi.schemas import Header, text

KEPT = timedelta(days=1)
_KEY = re.compile(r"[!-~]{1,255}")
REPEATED: Headers = (("idempotent-replayed", "true"),)
KEY_HEADER = Header(
    "Idempotency-Key",
    text("", pattern=r"^[!-~]{1,255}$"),
    "The caller's own name for this request: sent again within a day it is not done again, and gets the first answer",
)


def ticket_of(request: Request) -> Ticket | None:
    """The ticket of a request that has a key; two requests are the same if method, path, query and body are."""
    values = request.headers.get("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        raise BadRequest("Idempotency-Key: expected 1 to 255 visible ASCII characters", hint="a UUID is a good key")
    digest = blake3(repr((request.method, request.path, sorted(request.query.items()))).encode())
    digest.update(request.body)
    door = "local" if request.principal is OPERATOR else f"api:{request.principal.name}"
    return Ticket(scope=door, key=values[0], body_hash=digest.hexdigest(), keep=KEPT)


async def known_answer(desk: AppContext, ticket: Ticket | None) -> StoredAnswer | None:
    """The first answer, if the request was made before: whatever has become of what it asked for."""
    answer = await desk.ledger.read(first_answer, ticket, now=desk.clock.now()) if ticket is not None else None
    if answer is not None:  # whoever asked first may still wait for the disk
        await desk.ledger.until_durable()
    return answer


async def done_once(
    desk: AppContext, ticket: Ticket | None, act: Callable[[Db], StoredAnswer], *, is_large: bool = False
) -> StoredAnswer:
    """Return the answer of `act`, which creates jobs: run now, or when the ticket was first used."""
    if ticket is not None:
        act = partial(once, ticket=ticket, act=act, now=desk.clock.now())
    return await submit(desk, act, is_large=is_large)


def headers_of(answer: StoredAnswer) -> Headers:
    return REPEATED if answer.is_repeat else ()
