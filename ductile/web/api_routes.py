"""Everything the API answers, in one table: the routes of every room.

A new room is added here. The runtime furnishes the desk and brings what a room needs from the engine.
"""

from collections.abc import Iterable

from ductile.web import metrics
from ductile.web.api import (
    catalog,
    diagnostics,
    job_actions,
    jobs,
    lists,
    pauses,
    purge,
    schedules,
    stats,
    system,
    topology,
)
from ductile.web.api.schedules import Reset
from ductile.web.auth import tokens
from ductile.web.auth.tokens import TokenUses
from ductile.web.context import AppContext
from ductile.web.openapi import openapi
from ductile.web.routes import AnyRoute, Table
from ductile.web.site import Authorize
from ductile.web.stream import stream


def api_table(
    desk: AppContext, authorize: Authorize, reset: Reset, uses: TokenUses, relay: Iterable[AnyRoute]
) -> Table:
    """The one table of `api.listen` and the local socket."""
    table = Table(
        (
            *jobs.routes(desk),
            *job_actions.routes(desk),
            *pauses.routes(desk),
            *purge.routes(desk),
            *metrics.routes(desk),
            *tokens.routes(desk, uses),
            *system.routes(desk),
            *schedules.routes(desk, reset),
            *relay,
            *stream.routes(desk, authorize),
            *catalog.routes(desk),
            *lists.routes(desk),
            *stats.routes(desk),
            *topology.routes(desk),
            *diagnostics.routes(desk),
            *openapi.routes(desk, lambda: table.routes),
        )
    )
    return table
