"""The service itself over HTTP: reload its configuration, show its tasks.

Knows nothing of how a reload is done; the desk has a function for it.
"""

from collections.abc import Iterable

from ductile.core.errors import NotFound
from ductile.core.instance.task_tree import task_tree
from ductile.web.context import AppContext, flag_of, seated
from ductile.web.messages import Request, Response, json_response
from ductile.web.openapi.responses import DRY_RUN, RELOADED, TASKS
from ductile.web.routes import AnyRoute, Route

ROOT_TASK = "runtime"


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API answers about the service."""

    on = seated(desk)

    yield Route(
        method="POST",
        path="/system/reload",
        handler=on(reload),
        scope="system:rw",
        summary="Use the configuration as it is on disk now and say what changed; ?dry_run=true only says it",
        group="system",
        asks=(DRY_RUN,),
        gives={200: RELOADED},
        refuses=(409, 422),
    )
    yield Route(
        method="GET",
        path="/system/tasks",
        handler=on(show_tasks),
        scope="system:ro",
        summary="Show the tree of running tasks: servers, scheduler, dispatcher, and one task per running job",
        group="system",
        gives={200: TASKS},
    )


async def reload(desk: AppContext, request: Request) -> Response:
    """200 with what changed once it is in use; 409 or 422 with what speaks against it, and nothing has changed."""
    reloaded = await desk.reload(dry_run=flag_of(request, "dry_run"))
    return json_response(reloaded.as_data())


async def show_tasks(desk: AppContext, _: Request) -> Response:
    """Return the task tree of the service."""
    tree = task_tree(ROOT_TASK)
    if tree is None:
        raise NotFound(f"there is no task named {ROOT_TASK}")
    return json_response(tree.as_data())
