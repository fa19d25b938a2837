"""The route of the audit trail: who did what."""

from collections.abc import Iterable
from functools import partial

from ductile.ledger.reports.filters import parse_moment
from ductile.web.api.lists import PAGE, read_cursor, read_limit, usage_as_bad_request
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.audit import AuditView, audit_view


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the route of the audit trail."""
    yield Route(
        method="GET",
        path="/audit",
        handler=partial(show_audit, ctx),
        scope="system:ro",
        summary="List the actions of callers, and starts, stops and reloads of the service, newest first",
        group="explanations",
        query=(
            Argument("since", str, "Only from this time on (RFC 3339)"),
            Argument("actor", str, "Only this actor, such as token:ci or uid:1000"),
            *PAGE,
        ),
        responses={200: AuditView},
    )


async def show_audit(ctx: AppContext, request: Request) -> Response:
    with usage_as_bad_request():
        since = parse_moment(request.argument("since"), "since")
    view = partial(
        audit_view,
        since=since,
        actor=request.argument("actor"),
        before=read_cursor(request),
        limit=read_limit(request),
    )
    return json_response(await ctx.ledger.read(view))
