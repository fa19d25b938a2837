"""Everything the API answers, in one table: the routes of every room.

A new room is added here. The runtime furnishes the desk and brings what a room needs from the engine.
"""

from ductile.web import (
    acts,
    api,
    catalog,
    examination,
    history,
    metrics,
    numbers,
    openapi,
    outbox,
    pauses,
    purge,
    relay,
    schedules,
    stream,
    system,
    tokens,
    topology,
)
from ductile.web.desk import Desk
from ductile.web.routes import Table
from ductile.web.schedules import Reset
from ductile.web.site import Authorize
from ductile.web.tally import Tally
from ductile.web.tokens import Uses


def api_table(desk: Desk, authorize: Authorize, reset: Reset, uses: Uses, refusals: Tally) -> Table:
    """The one table of `api.listen` and the local socket."""
    table = Table(
        (
            *api.routes(desk),
            *acts.routes(desk),
            *pauses.routes(desk),
            *purge.routes(desk),
            *metrics.routes(desk),
            *tokens.routes(desk, uses),
            *system.routes(desk),
            *schedules.routes(desk, reset),
            *outbox.routes(desk),
            *relay.routes(desk, refusals),
            *stream.routes(desk, authorize),
            *catalog.routes(desk),
            *history.routes(desk),
            *numbers.routes(desk),
            *topology.routes(desk),
            *examination.routes(desk),
            *openapi.routes(desk, lambda: table.routes),
        )
    )
    return table
