"""The routes of the relay: sending to other instances, receiving from peers."""

from collections.abc import Iterable

from ductile.relay import outbox_routes, receive
from ductile.web.context import AppContext
from ductile.web.routes import AnyRoute
from ductile.web.webhooks.rejections import RejectionCounter


def relay_routes(desk: AppContext, refusals: RejectionCounter) -> Iterable[AnyRoute]:
    """Return the routes that the runtime adds to the API."""
    yield from outbox_routes.routes(desk)
    yield from receive.routes(desk, refusals)
