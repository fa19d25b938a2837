"""Routes for configurations: what a reload would change, which ones the service has used, and what differs."""

from collections.abc import Iterable
from functools import partial

from ductile.explain.changes import ConfigDiffView
from ductile.web.api.lists import PAGE, read_limit, usage_as_bad_request
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.config_history import RUNNING, ConfigHistoryView, ConfigPlanView, diff_view, history_view


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes for configurations."""
    yield Route(
        method="GET",
        path="/config/plan",
        handler=partial(plan, ctx),
        scope="system:ro",
        summary="List the changes that a reload would make, without reloading",
        group="explanations",
        responses={200: ConfigPlanView},
        error_statuses=(409, 422),
    )
    yield Route(
        method="GET",
        path="/config/snapshots",
        handler=partial(list_snapshots, ctx),
        scope="system:ro",
        summary="List the configurations that the service has used, newest first",
        group="explanations",
        query=PAGE,
        responses={200: ConfigHistoryView},
    )
    yield Route(
        method="GET",
        path="/config/diff",
        handler=partial(compare, ctx),
        scope="system:ro",
        summary="Compare two configurations that the service has used",
        group="explanations",
        query=(
            Argument("from", str, "Snapshot id; default: the configuration before `to`"),
            Argument("to", str, "Snapshot id; default: the newest configuration"),
        ),
        responses={200: ConfigDiffView},
        error_statuses=(404,),
    )


async def plan(ctx: AppContext, request: Request) -> Response:
    """Load the configuration on disk, and return what would change; nothing changes."""
    planned = await ctx.reload(actor=request.principal.actor, dry_run=True)
    return json_response(ConfigPlanView(**planned.as_data(), compared_with=RUNNING))


async def list_snapshots(ctx: AppContext, request: Request) -> Response:
    with usage_as_bad_request():
        read = partial(history_view, cursor=request.argument("cursor"), limit=read_limit(request))
        return json_response(await ctx.ledger.read(read))


async def compare(ctx: AppContext, request: Request) -> Response:
    return json_response(await ctx.ledger.read(diff_view, request.argument("from"), request.argument("to")))
