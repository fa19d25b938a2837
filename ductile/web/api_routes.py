"""The route table of the HTTP API: the routes of every module in `web/api`, and those of higher packages.

Register a new module of routes here. The runtime supplies what comes from the engine, the relay and operations.
"""

from collections.abc import Iterable

from ductile.web import metrics, openapi
from ductile.web.api import (
    catalog,
    events,
    job_actions,
    jobs,
    lists,
    schedules,
    stats,
    system,
    tokens,
    topology,
)
from ductile.web.api.exchange import claims, conversations, follow, operate, publish, reading
from ductile.web.api.explanations import audit, config_in_use, journal, pipelines, runs
from ductile.web.api.explanations import config as config_explanations
from ductile.web.api.explanations import events as event_explanations
from ductile.web.api.explanations import jobs as job_explanations
from ductile.web.api.explanations import schedules as schedule_explanations
from ductile.web.api.queue import pauses, purge, waiting
from ductile.web.api.schedules import Reset
from ductile.web.api.tokens import TokenUses
from ductile.web.context import AppContext
from ductile.web.routing import AnyRoute, RouteTable
from ductile.web.server.site import Authorize
from ductile.web.stream import stream
from ductile.web.webhooks import routes as webhook_routes


def build_api_table(
    ctx: AppContext, authorize: Authorize, reset: Reset, uses: TokenUses, others: Iterable[AnyRoute]
) -> RouteTable:
    """Build the route table of `api.listen` and the local socket."""
    table = RouteTable(
        (
            *jobs.routes(ctx),
            *job_actions.routes(ctx),
            *events.routes(ctx),
            *pauses.routes(ctx),
            *purge.routes(ctx),
            *waiting.routes(ctx),
            *publish.routes(ctx),
            *claims.routes(ctx),
            *reading.routes(ctx),
            *conversations.routes(ctx),
            *operate.routes(ctx),
            *follow.routes(ctx, authorize),
            *metrics.routes(ctx),
            *tokens.routes(ctx, uses),
            *system.routes(ctx),
            *schedules.routes(ctx, reset),
            *others,
            *webhook_routes.routes(ctx),
            *stream.routes(ctx, authorize),
            *catalog.routes(ctx),
            *lists.routes(ctx),
            *stats.routes(ctx),
            *job_explanations.routes(ctx),
            *event_explanations.routes(ctx),
            *runs.routes(ctx),
            *pipelines.routes(ctx),
            *schedule_explanations.routes(ctx),
            *audit.routes(ctx),
            *journal.routes(ctx),
            *config_explanations.routes(ctx),
            *topology.routes(ctx),
            *config_in_use.routes(ctx),
            *openapi.routes(ctx, lambda: table.routes),
        )
    )
    return table
