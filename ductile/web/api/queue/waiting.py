"""The route of the queued jobs and why each waits."""

from collections.abc import Iterable
from functools import partial

from ductile.core.formats.json_schema import Ordinal
from ductile.ledger.reports.filters import MAX_PAGE_SIZE
from ductile.web.api.lists import read_limit
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.jobs import RESULT_SCOPE
from ductile.web.views.public_fields import without_texts
from ductile.web.views.queue import WaitingJobsView, waiting_jobs_view


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the route of the queued jobs."""
    yield Route(
        method="GET",
        path="/queue",
        handler=partial(list_waiting, ctx),
        scope="jobs:status:ro",
        summary="List queued jobs, oldest first, each with the reasons why it waits",
        group="queue",
        query=(
            Argument("plugin", str, "Only this plugin"),
            Argument("limit", Ordinal, f"Number of jobs; default 50, at most {MAX_PAGE_SIZE}"),
        ),
        responses={200: WaitingJobsView},
    )


async def list_waiting(ctx: AppContext, request: Request) -> Response:
    read = partial(waiting_jobs_view, plugin=request.argument("plugin"), limit=read_limit(request))
    view = await ctx.ledger.read(read, ctx.ledger.path)
    return json_response(view if request.principal.has_scope(RESULT_SCOPE) else without_texts(view))
