"""Routes for the running service: reload the configuration, show the task tree.

The runtime performs the reload; the context has its function.
"""

from collections.abc import Iterable
from functools import partial

from ductile.config.views.changes import ReloadView
from ductile.core.errors import NotFound
from ductile.core.instance.task_tree import TaskView, task_tree
from ductile.web.context import DRY_RUN, AppContext, read_flag
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route

ROOT_TASK = "runtime"


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes for the running service."""
    yield Route(
        method="POST",
        path="/system/reload",
        handler=partial(reload, ctx),
        scope="system:rw",
        summary="Reload the configuration and report the changes",
        group="system",
        query=(DRY_RUN,),
        responses={200: ReloadView},
        error_statuses=(409, 422),
    )
    yield Route(
        method="GET",
        path="/system/tasks",
        handler=partial(show_tasks, ctx),
        scope="system:ro",
        summary="Get the task tree: servers, scheduler, dispatcher, and one task per running job",
        group="system",
        responses={200: TaskView},
    )


async def reload(ctx: AppContext, request: Request) -> Response:
    """Return 200 with the changes when the configuration is in use. On an error, the configuration is unchanged."""
    reloaded = await ctx.reload(actor=request.principal.actor, dry_run=read_flag(request, "dry_run"))
    return json_response(reloaded.as_data())


async def show_tasks(ctx: AppContext, _: Request) -> Response:
    """Return the task tree of the service."""
    tree = task_tree(ROOT_TASK)
    if tree is None:
        raise NotFound(f"task {ROOT_TASK} does not exist")
    return json_response(tree.as_data())
