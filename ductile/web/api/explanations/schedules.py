"""Routes that explain slots of schedules: why one fired or not, and the agenda of all schedules."""

from collections.abc import Iterable
from functools import partial

from ductile.calendar.bounds import clamp
from ductile.ledger.reports.filters import parse_moment
from ductile.web.api.lists import TIME_RANGE, usage_as_bad_request
from ductile.web.context import AppContext, read_number
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.agenda import (
    DEFAULT_SLOTS,
    MAX_SLOTS,
    AgendaRange,
    AgendaView,
    SlotWhyView,
    agenda_view,
    schedule_why,
)


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes that explain slots."""
    yield Route(
        method="GET",
        path="/schedule/{plugin}/{id}/why",
        handler=partial(explain, ctx),
        scope="jobs:ro",
        summary="Explain why a slot of a schedule fired or did not",
        group="explanations",
        query=(Argument("at", str, "Explain the last slot before this time (RFC 3339); default: now"),),
        responses={200: SlotWhyView},
    )
    yield Route(
        method="GET",
        path="/schedules/agenda",
        handler=partial(show_agenda, ctx),
        scope="jobs:ro",
        summary="List the slots of all schedules: fired, skipped, missed, held and planned",
        group="explanations",
        query=(
            *TIME_RANGE,
            Argument("plugin", str, "Only schedules of this plugin"),
            Argument("limit", int, f"Slots of one schedule before and after now; default {DEFAULT_SLOTS}"),
        ),
        responses={200: AgendaView},
    )


async def explain(ctx: AppContext, request: Request) -> Response:
    plugin, schedule_id, now = request.params["plugin"], request.params["id"], ctx.clock.now()
    with usage_as_bad_request():
        at = clamp(parse_moment(request.argument("at"), "at") or now)
    return json_response(await ctx.ledger.read(schedule_why, ctx.snapshot(), plugin, schedule_id, at=at, now=now))


async def show_agenda(ctx: AppContext, request: Request) -> Response:
    limit = read_number(request, "limit", DEFAULT_SLOTS, least=1, most=MAX_SLOTS)
    with usage_as_bad_request():
        moments = (parse_moment(request.argument(name), name) for name in ("from", "to"))
        start, end = (moment and clamp(moment) for moment in moments)
        span = AgendaRange.of(start, end, now=ctx.clock.now(), limit=limit)
    return json_response(await ctx.ledger.read(agenda_view, ctx.snapshot(), span, plugin=request.argument("plugin")))
