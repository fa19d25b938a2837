"""The route that purges the queue: cancels queued jobs in batches, for about a second per request.

The caller repeats its request with the `up_to` of the first response until no job is left. The engine cancels the jobs;
the context has its function.
"""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, NotRequired, TypedDict, cast

import trio

from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Count, Keywords
from ductile.core.formats.yaml_fields import ONE_LINE
from ductile.ledger.admin.job_actions import Purgeable, count_purgeable
from ductile.ledger.admin.pauses import ALL_PLUGINS
from ductile.ledger.reports.pagination import NEWEST
from ductile.web.api.job_actions import MAX_REASON_CHARS
from ductile.web.api.queue.pauses import require_known_plugin
from ductile.web.context import DRY_RUN, AppContext, BadRequest, read_flag
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route

PURGE_TIME_SLICE = 1.0
"""The seconds that one request spends on cancelling jobs."""


class PurgeBody(TypedDict):
    plugin: Annotated[str, "The plugin; * is every plugin", Keywords(minLength=1)]
    reason: NotRequired[Annotated[str, "Reason, stored with the jobs", Keywords(maxLength=MAX_REASON_CHARS)]]
    up_to: NotRequired[Annotated[Count, "`up_to` of the previous response"]]


class PurgedView(TypedDict):
    plugin: Annotated[str, "The plugin; * is every plugin"]
    cancelled: Annotated[int, "Jobs that this request has cancelled"]
    remaining: Annotated[int, "Jobs left up to `up_to`"]
    up_to: Annotated[int, "Send it with the next request to spare jobs that were enqueued in between"]
    dry_run: bool


BODY_MEMBERS = PurgeBody.__annotations__.keys()


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the purge route."""
    yield Route(
        method="POST",
        path="/queue/purge",
        handler=partial(purge_queue, ctx),
        scope="system:rw",
        group="queue",
        summary="Cancel queued jobs of a plugin, or of all with *, for about a second; running jobs continue",
        query=(DRY_RUN,),
        request_body=PurgeBody,
        responses={200: PurgedView},
        error_statuses=(404, 409),
    )


async def purge_queue(ctx: AppContext, request: Request) -> Response:
    """Return 200 with the number of cancelled and remaining jobs."""
    body = _read_body(request)
    name, reason = body["plugin"], body.get("reason") or f"by {request.principal.name}"
    plugin = None if name == ALL_PLUGINS else name
    found = await ctx.ledger.read(count_purgeable, plugin, body.get("up_to", NEWEST))
    if plugin is not None and not found.count and "up_to" not in body:
        require_known_plugin(ctx, plugin)
    dry_run = read_flag(request, "dry_run")
    ended, is_done = (0, False) if dry_run else await _purge(ctx, plugin, found, reason, request.principal.actor)
    view: PurgedView = {
        "plugin": name,
        "cancelled": ended,
        "remaining": 0 if is_done else found.count - ended,
        "up_to": found.up_to,
        "dry_run": dry_run,
    }
    return json_response(view)


async def _purge(ctx: AppContext, plugin: str | None, found: Purgeable, reason: str, actor: str) -> tuple[int, bool]:
    """Cancel jobs for about a second. Returns their number, and whether none is left.

    An empty batch means that the remaining jobs have started in the meantime.
    """
    ended, deadline = 0, trio.current_time() + PURGE_TIME_SLICE
    while ended < found.count:
        batch = await ctx.purge(plugin, found.up_to, reason, actor)
        ended += batch
        if not batch:
            return ended, True
        if trio.current_time() >= deadline:
            break
    return ended, ended >= found.count


def _read_body(request: Request) -> PurgeBody:
    try:
        body: Any = strict_json.loads(request.body, source="body")
    except Unreadable as error:
        raise BadRequest(f"the body is not JSON: {error.reason}", hint='Send {"plugin": "NAME"}.') from error
    if not isinstance(body, dict) or body.keys() - BODY_MEMBERS:
        raise BadRequest(f"the body must be a JSON object with no members but {', '.join(sorted(BODY_MEMBERS))}")
    if not isinstance(body.get("plugin"), str) or not body["plugin"]:
        raise BadRequest("plugin is missing", hint='Send {"plugin": "NAME"}, or {"plugin": "*"} for all plugins.')
    reason, up_to = body.get("reason", ""), body.get("up_to", 0)
    if not isinstance(reason, str) or len(reason) > MAX_REASON_CHARS or (reason and not ONE_LINE.allows(reason)):
        raise BadRequest(f"reason: expected {ONE_LINE.allowed}, at most {MAX_REASON_CHARS} characters")
    if not isinstance(up_to, int) or isinstance(up_to, bool) or not 0 <= up_to <= NEWEST:
        raise BadRequest("up_to: expected the value of an earlier response")
    return cast(PurgeBody, body)
