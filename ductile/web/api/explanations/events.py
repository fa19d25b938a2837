"""Routes that explain what an event led to, and why to nothing more."""

from collections.abc import Iterable
from functools import partial

from ductile.explain.event import DEFAULT_EVENTS, MAX_EVENTS, EventTypeWhyView, EventWhyView, event_type_why, event_why
from ductile.web.auth.auth import EVENTS, EVENTS_WITH_PAYLOAD
from ductile.web.context import AppContext, BadRequest, read_number
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.public_fields import without_texts


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes that explain events."""
    yield Route(
        method="GET",
        path="/event/{id}/why",
        handler=partial(explain, ctx),
        scope=EVENTS,
        summary="Explain which routes and pipelines an event matched, and which condition was false",
        group="explanations",
        responses={200: EventWhyView},
    )
    yield Route(
        method="GET",
        path="/events/why",
        handler=partial(explain_type, ctx),
        scope=EVENTS_WITH_PAYLOAD,
        summary="Explain the newest events of a type, and what handles it",
        group="explanations",
        query=(
            Argument("type", str, "The event type; required"),
            Argument("limit", int, f"Number of events; default {DEFAULT_EVENTS}, at most {MAX_EVENTS}"),
        ),
        responses={200: EventTypeWhyView},
        error_statuses=(404,),
    )


async def explain(ctx: AppContext, request: Request) -> Response:
    view = await ctx.ledger.read(event_why, ctx.ledger.path, request.params["id"])
    return json_response(view if request.principal.has_scope(EVENTS_WITH_PAYLOAD) else without_texts(view))


async def explain_type(ctx: AppContext, request: Request) -> Response:
    event_type = request.argument("type")
    if not event_type:
        raise BadRequest("type: missing", hint="Send the event type, such as ?type=backup.done.")
    limit = read_number(request, "limit", DEFAULT_EVENTS, least=1, most=MAX_EVENTS)
    return json_response(await ctx.ledger.read(event_type_why, ctx.ledger.path, event_type, limit=limit))
