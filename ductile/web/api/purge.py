"""Emptying the queue over HTTP: waiting jobs are ended in portions, for about a second per request.

A caller repeats its request, with the `up_to` of the first answer, until nothing is left. How jobs are ended is the
engine's matter; the desk has somebody for it.
"""

from collections.abc import Iterable
from typing import Any

import trio

from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json
from ductile.core.formats.yaml_fields import ONE_LINE
from ductile.ledger.admin.pauses import EVERYTHING
from ductile.ledger.admin.purge import Doomed, doomed
from ductile.ledger.reports.pagination import NEWEST
from ductile.web.api.job_actions import LONGEST_REASON
from ductile.web.api.pauses import require_known
from ductile.web.context import AppContext, BadRequest, flag_of, seated
from ductile.web.messages import Request, Response, json_response
from ductile.web.openapi.responses import DRY_RUN
from ductile.web.openapi.schemas import boolean, integer, record, text
from ductile.web.routes import AnyRoute, Route

MEMBERS = {"plugin", "reason", "up_to"}
PURGE_SECONDS = 1.0
"""How long one request ends jobs before it answers."""
PURGED = record(
    {
        "plugin": text("The plugin; * is every plugin"),
        "cancelled": integer("How many jobs this request has ended"),
        "remaining": integer("How many are left up to `up_to`"),
        "up_to": integer("Send it with the next request, so that jobs asked for meanwhile are left alone"),
        "dry_run": boolean(),
    },
    title="Purged",
)


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API does to everything that waits."""

    on = seated(desk)

    yield Route(
        method="POST",
        path="/queue/purge",
        handler=on(purge_queue),
        scope="system:rw",
        group="queue",
        summary="End waiting jobs of a plugin, or of all with plugin *, for about a second; what runs goes on",
        asks=(DRY_RUN,),
        takes=record(
            {"plugin": text("The plugin; * is every plugin", minLength=1)},
            {
                "reason": text("Why, for whoever looks later", maxLength=LONGEST_REASON),
                "up_to": integer("`up_to` of the answer before", minimum=0),
            },
            title="Purge",
        ),
        gives={200: PURGED},
        refuses=(404, 409),
    )


async def purge_queue(desk: AppContext, request: Request) -> Response:
    """200 once this portion is dead; `remaining` says whether to ask again."""
    body = _body(request)
    name, reason = body["plugin"], body.get("reason") or f"by {request.principal.name}"
    plugin = None if name == EVERYTHING else name
    found = await desk.ledger.read(doomed, plugin, body.get("up_to", NEWEST))
    if plugin is not None and not found.count and "up_to" not in body:
        require_known(desk, plugin)
    dry_run = flag_of(request, "dry_run")
    ended, is_done = (0, False) if dry_run else await _purge(desk, plugin, found, reason)
    return json_response(
        {
            "plugin": name,
            "cancelled": ended,
            "remaining": 0 if is_done else found.count - ended,
            "up_to": found.up_to,
            "dry_run": dry_run,
        }
    )


async def _purge(desk: AppContext, plugin: str | None, found: Doomed, reason: str) -> tuple[int, bool]:
    """How many jobs are dead after about a second, and whether none is left; some may have started meanwhile."""
    ended, deadline = 0, trio.current_time() + PURGE_SECONDS
    while ended < found.count:
        portion = await desk.purge(plugin, found.up_to, reason)
        ended += portion
        if not portion:
            return ended, True
        if trio.current_time() >= deadline:
            break
    return ended, ended >= found.count


def _body(request: Request) -> dict[str, Any]:
    try:
        body = strict_json.loads(request.body, source="body")
    except Unreadable as error:
        raise BadRequest(f"the body is not JSON: {error.reason}", hint='send {"plugin": "NAME"}') from error
    if not isinstance(body, dict) or body.keys() - MEMBERS:
        raise BadRequest(f"the body must be a JSON object with nothing but {', '.join(sorted(MEMBERS))}")
    if not isinstance(body.get("plugin"), str) or not body["plugin"]:
        raise BadRequest("plugin is missing", hint='send {"plugin": "NAME"}, or {"plugin": "*"} for everything')
    reason, up_to = body.get("reason", ""), body.get("up_to", 0)
    if not isinstance(reason, str) or len(reason) > LONGEST_REASON or (reason and not ONE_LINE.allows(reason)):
        raise BadRequest(f"reason: expected {ONE_LINE.allowed}, at most {LONGEST_REASON} characters")
    if not isinstance(up_to, int) or isinstance(up_to, bool) or not 0 <= up_to <= NEWEST:
        raise BadRequest("up_to: expected the number of an earlier answer")
    return body
