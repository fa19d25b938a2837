"""Routes for the running service: its health and task tree, reload of the configuration, test of notifications.

The runtime performs the reload; the context has its function.
"""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, TypedDict

from ductile.config.views.changes import ReloadView
from ductile.core.errors import DuctileError, NotFound
from ductile.core.instance.task_tree import TaskView, task_tree
from ductile.core.model import HANDLE
from ductile.explain.health import HealthReasonView, HealthVerdict
from ductile.ledger.completion.start_run import start_run
from ductile.pipeline.run.notifications import create_test_notification, notification_run
from ductile.web.api.jobs import health_judge
from ductile.web.context import DRY_RUN, AppContext, read_flag, require_healthy, submit
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route
from ductile.web.views.jobs import AcceptedView, PlannedView

ROOT_TASK = "runtime"


class HealthReasonsView(TypedDict):
    """The verdict about the service, as in `ductile system status`."""

    verdict: HealthVerdict
    reasons: Annotated[list[HealthReasonView], "The worst first"]


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
        method="POST",
        path="/system/notify/test",
        handler=partial(test_notify, ctx),
        scope="system:rw",
        summary="Send a test message to the plugin in notify.to",
        group="system",
        query=(DRY_RUN,),
        responses={200: PlannedView, 202: AcceptedView},
        error_statuses=(409, 429),
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
    yield Route(
        method="GET",
        path="/system/health",
        handler=partial(show_health, ctx),
        scope="system:ro",
        summary="Get the verdict about the service, each reason with a sentence and the command that fixes it",
        group="system",
        responses={200: HealthReasonsView},
    )


async def show_health(ctx: AppContext, request: Request) -> Response:
    health = await ctx.ledger.read(health_judge(ctx))
    return json_response(HealthReasonsView(verdict=health.verdict, reasons=[one.as_data() for one in health.reasons]))


async def reload(ctx: AppContext, request: Request) -> Response:
    """Return 200 with the changes when the configuration is in use. On an error, the configuration is unchanged."""
    reloaded = await ctx.reload(actor=request.principal.actor, dry_run=read_flag(request, "dry_run"))
    return json_response(reloaded.as_data())


class NotifyMissing(DuctileError):
    """The configuration has no `notify` section."""

    code, exit_code, status = "notify_missing", 1, 409
    hint = "Add `notify: {to: PLUGIN}` to config.yaml, then run `ductile system reload`."


async def test_notify(ctx: AppContext, request: Request) -> Response:
    """Return 202 with the job of the test message when the job is durable."""
    snapshot, now = ctx.snapshot(), ctx.clock.now()
    config = snapshot.config.settings.notify
    if config is None:
        raise NotifyMissing("no notifications are configured")
    plugin = snapshot.plugin(config.to)
    plugin.command(HANDLE)
    require_healthy(ctx, plugin.name)
    if read_flag(request, "dry_run"):
        return json_response(PlannedView(status="planned", plugin=plugin.name, command=HANDLE, dry_run=True))
    message = create_test_notification(snapshot.config.settings.service.name, now=now)
    run = notification_run(message, config.to, snapshot.routing, key=now)
    send = partial(
        start_run,
        follow_ups=run,
        now=now,
        actor=request.principal.actor,
        default_ttl=snapshot.config.settings.service.dedupe_ttl,
        budget=snapshot.budget,
    )
    (job,) = await submit(ctx, send, [run], actor=request.principal.actor)
    view = AcceptedView(job_id=job.job_id, status=job.status, plugin=plugin.name, command=HANDLE)
    return json_response(view, 202)


async def show_tasks(ctx: AppContext, _: Request) -> Response:
    """Return the task tree of the service."""
    tree = task_tree(ROOT_TASK)
    if tree is None:
        raise NotFound(f"task {ROOT_TASK} does not exist")
    return json_response(tree.as_data())
