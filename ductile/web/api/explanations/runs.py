"""Routes that show runs: a page of them, and one as a timeline and a graph."""

from collections.abc import Iterable
from functools import partial

from ductile.explain.runs.listing import RunPageView, run_page
from ductile.explain.runs.timeline import RunTimelineView, run_timeline
from ductile.ledger.reports.trees import TreeStatus
from ductile.web.api.lists import PAGE, TIME_RANGE, read_cursor, read_filter, read_limit
from ductile.web.context import AppContext, read_job_id
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.jobs import RESULT_SCOPE
from ductile.web.views.public_fields import without_texts

RUN_FILTERS = (
    Argument("plugin", str, "Plugin of the first job"),
    Argument("command", str, "Command of the first job"),
    Argument("pipeline", str, "Only runs with a step of this pipeline"),
    Argument("status", str, "open, succeeded or failed"),
    Argument("submitted_by", str),
    Argument("schedule_id", str),
    *TIME_RANGE,
    *PAGE,
)


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes that show runs."""
    yield Route(
        method="GET",
        path="/runs",
        handler=partial(list_runs, ctx),
        scope="jobs:status:ro",
        summary="List the runs with the states of their steps, newest first",
        group="explanations",
        query=RUN_FILTERS,
        responses={200: RunPageView},
    )
    yield Route(
        method="GET",
        path="/run/{id}",
        handler=partial(show_run, ctx),
        scope="jobs:tree:ro",
        summary="Get the run that a job belongs to: when each job waited and ran, and which job it followed",
        group="explanations",
        responses={200: RunTimelineView},
    )


async def list_runs(ctx: AppContext, request: Request) -> Response:
    filters, before, limit = read_filter(request, TreeStatus), read_cursor(request), read_limit(request)
    return json_response(await ctx.ledger.read(run_page, ctx.ledger.path, filters, before=before, limit=limit))


async def show_run(ctx: AppContext, request: Request) -> Response:
    view = await ctx.ledger.read(run_timeline, ctx.ledger.path, read_job_id(request))
    return json_response(view if request.principal.has_scope(RESULT_SCOPE) else without_texts(view))
