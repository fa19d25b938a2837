"""Routes that pause and resume a plugin or the whole queue.

A paused plugin still accepts jobs. The engine enforces the pause; the context has its control.
"""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, TypedDict

from ductile.core.clock import to_text
from ductile.core.formats.json_schema import Timestamp
from ductile.ledger.admin.pauses import ALL_PLUGINS
from ductile.web.api.job_actions import ReasonBody, read_reason
from ductile.web.context import DRY_RUN, AppContext, read_flag
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route


class PausedView(TypedDict):
    plugin: Annotated[str, "The plugin; * is the whole queue"]
    paused: Annotated[bool, "True if it is paused"]
    changed: Annotated[bool, "False if the state was the same before"]
    dry_run: bool


class PauseView(TypedDict):
    plugin: str
    reason: str
    paused_at: Timestamp
    actor: Annotated[str, "Who paused it; null after the retention of the journal"] | None


class PausesView(TypedDict):
    pauses: list[PauseView]


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes that pause and resume."""
    change = partial(
        Route, method="POST", scope="system:rw", group="queue", query=(DRY_RUN,), responses={200: PausedView}
    )
    for action in ("pause", "resume"):
        request_body = ReasonBody if action == "pause" else None
        effect = "" if action == "resume" else "; jobs are still accepted, and running jobs continue"
        yield change(
            path=f"/plugins/{{plugin}}/{action}",
            handler=partial(change_pause, ctx, is_pause=action == "pause"),
            summary=f"{action.capitalize()} a plugin{effect}",
            request_body=request_body,
        )
        yield change(
            path=f"/queue/{action}",
            handler=partial(change_pause, ctx, is_pause=action == "pause"),
            summary=f"{action.capitalize()} the queue{effect}",
            request_body=request_body,
        )
    yield Route(
        method="GET",
        path="/queue/pauses",
        handler=partial(list_pauses, ctx),
        scope="jobs:status:ro",
        group="queue",
        summary="List pauses with their start and reason",
        responses={200: PausesView},
    )


async def change_pause(ctx: AppContext, request: Request, *, is_pause: bool) -> Response:
    """Return 200 when the plugin or the queue is paused or resumed, even if nothing changed."""
    name = request.params.get("plugin", ALL_PLUGINS)
    reason, is_paused = read_reason(request) if is_pause else None, name in ctx.pause_control.paused
    if name != ALL_PLUGINS and (is_pause or not is_paused):
        require_known_plugin(ctx, name)
    dry_run, actor = read_flag(request, "dry_run"), request.principal.actor
    changes = is_paused is not is_pause
    if not dry_run:
        if is_pause:
            changes = await ctx.pause_control.pause(name, reason or f"by {request.principal.name}", actor=actor)
        else:
            changes = await ctx.pause_control.resume(name, actor=actor)
    return json_response(PausedView(plugin=name, paused=is_pause, changed=changes, dry_run=dry_run))


async def list_pauses(ctx: AppContext, request: Request) -> Response:
    pauses = [
        PauseView(plugin=pause.plugin, reason=pause.reason, paused_at=to_text(pause.paused_at), actor=pause.actor)
        for pause in ctx.pause_control.paused.values()
    ]
    return json_response(PausesView(pauses=pauses))


def require_known_plugin(ctx: AppContext, plugin: str) -> None:
    """Raise NotFound for an unknown plugin. An unavailable plugin counts as known."""
    snapshot = ctx.snapshot()
    if plugin not in snapshot.unavailable and plugin not in snapshot.config.settings.plugins:
        snapshot.plugin(plugin)
