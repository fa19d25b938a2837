"""Plugins that start nothing, over HTTP: pause and resume one of them, or the whole queue.

Jobs are still taken. Who keeps them from starting is the engine; the desk has somebody for it.
"""

from collections.abc import Iterable
from functools import partial

from ductile.core.clock import to_text
from ductile.ledger.admin.pauses import EVERYTHING
from ductile.web.api.job_actions import REASON, reason_of
from ductile.web.context import AppContext, flag_of, seated
from ductile.web.messages import Request, Response, json_response
from ductile.web.openapi.responses import DRY_RUN
from ductile.web.openapi.schemas import boolean, listing, moment, record, text
from ductile.web.routes import AnyRoute, Route

PAUSED = record(
    {
        "plugin": text("The plugin; * is the whole queue"),
        "paused": boolean("Whether it is paused now"),
        "changed": boolean("False if it was so before"),
        "dry_run": boolean(),
    },
    title="Paused",
)


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API does to plugins and the queue."""

    on = seated(desk)

    change = partial(Route, method="POST", scope="system:rw", group="queue", asks=(DRY_RUN,), gives={200: PAUSED})
    for act in ("pause", "resume"):
        words = "Start nothing" if act == "pause" else "Start jobs again"
        takes = REASON if act == "pause" else None
        yield change(
            path=f"/plugins/{{plugin}}/{act}",
            handler=on(change_pause, pausing=act == "pause"),
            summary=f"{words} of a plugin; its jobs are still taken, and what runs goes on",
            takes=takes,
        )
        yield change(
            path=f"/queue/{act}",
            handler=on(change_pause, pausing=act == "pause"),
            summary=f"{words} of any plugin; jobs are still taken, and what runs goes on",
            takes=takes,
        )
    yield Route(
        method="GET",
        path="/queue/pauses",
        handler=on(list_pauses),
        scope="jobs:status:ro",
        group="queue",
        summary="What is paused, since when and why",
        gives={
            200: record(
                {
                    "pauses": listing(
                        record({"plugin": text(), "reason": text(), "paused_at": moment()}),
                    )
                }
            )
        },
    )


async def change_pause(desk: AppContext, request: Request, *, pausing: bool) -> Response:
    """200 once it is so, whether or not it was before."""
    name = request.params.get("plugin", EVERYTHING)
    reason, is_paused = reason_of(request) if pausing else None, name in desk.pausing.paused
    if name != EVERYTHING and (pausing or not is_paused):
        require_known(desk, name)
    dry_run = flag_of(request, "dry_run")
    changes = is_paused is not pausing
    if not dry_run:
        if pausing:
            changes = await desk.pausing.pause(name, reason or f"by {request.principal.name}")
        else:
            changes = await desk.pausing.resume(name)
    return json_response({"plugin": name, "paused": pausing, "changed": changes, "dry_run": dry_run})


async def list_pauses(desk: AppContext, request: Request) -> Response:
    shown = [
        {"plugin": one.plugin, "reason": one.reason, "paused_at": to_text(one.paused_at)}
        for one in desk.pausing.paused.values()
    ]
    return json_response({"pauses": shown})


def require_known(desk: AppContext, plugin: str) -> None:
    """Raises NotFound for a name that no plugin has; one that cannot run now can be paused too."""
    snapshot = desk.snapshot()
    if plugin not in snapshot.unavailable and plugin not in snapshot.config.settings.plugins:
        snapshot.lane(plugin)
