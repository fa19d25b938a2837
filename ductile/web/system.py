"""The service itself over HTTP: reload its configuration.

Knows nothing of how a reload is done; the desk has somebody who does it.
"""

from collections.abc import Callable, Iterable
from typing import Any

from ductile.web.desk import Desk, flag_of
from ductile.web.message import Request, Response, json_response
from ductile.web.routes import AnyRoute, Route
from ductile.web.shapes import DRY_RUN, RELOADED


def routes(desk: Desk) -> Iterable[AnyRoute]:
    """What the API answers about the service."""

    def on(handler: Callable[[Desk, Request], Any]) -> Callable[[Request], Any]:
        return lambda request: handler(desk, request)

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


async def reload(desk: Desk, request: Request) -> Response:
    """200 with what changed once it is in use; 409 or 422 with what speaks against it, and nothing has changed."""
    reloaded = await desk.reload(dry_run=flag_of(request, "dry_run"))
    return json_response(reloaded.as_data())
