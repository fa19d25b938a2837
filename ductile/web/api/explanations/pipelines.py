"""Routes that show the compiled pipelines: a list, and one as nodes and edges."""

from collections.abc import Iterable
from functools import partial

from ductile.config.views.pipelines import PipelineGraphView, PipelinesView, pipeline_graph_view, pipelines_view
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route

CATALOG_SCOPE, FILES_SCOPE = "plugin:catalog:ro", "system:ro"
"""The scope to see pipelines, and to see in which file they are."""


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes that show pipelines."""
    yield Route(
        method="GET",
        path="/pipelines",
        handler=partial(list_pipelines, ctx),
        scope=CATALOG_SCOPE,
        summary="List the pipelines with their triggers",
        group="pipelines",
        responses={200: PipelinesView},
    )
    yield Route(
        method="GET",
        path="/pipeline/{pipeline}",
        handler=partial(show_pipeline, ctx),
        scope=CATALOG_SCOPE,
        summary="Get the compiled plan of a pipeline as nodes and edges",
        group="pipelines",
        responses={200: PipelineGraphView},
    )


async def list_pipelines(ctx: AppContext, request: Request) -> Response:
    view = pipelines_view(ctx.snapshot().config)
    if not request.principal.has_scope(FILES_SCOPE):
        for pipeline in view["pipelines"]:
            pipeline.pop("where", None)
    return json_response(view)


async def show_pipeline(ctx: AppContext, request: Request) -> Response:
    view = pipeline_graph_view(ctx.snapshot().config, request.params["pipeline"])
    if not request.principal.has_scope(FILES_SCOPE):
        view.pop("where", None)
    return json_response(view)
