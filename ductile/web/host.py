"""The Quart-Trio side of the server, made when it is first needed.

Importing Quart and Hypercorn takes longer than starting everything else, and the hot routes never need them. The import
runs in a thread; requests that need it wait, everybody else goes on.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import trio

from ductile.values import define, field
from ductile.web.http1 import Head, Limits
from ductile.web.message import Request
from ductile.web.routes import ChannelRoute, Route
from ductile.web.site import Site
from ductile.web.wire import Reply, Wire

if TYPE_CHECKING:
    from ductile.web.app import QuartHost

USUAL_TURN_SECONDS, SHORT_TURN_SECONDS = sys.getswitchinterval(), 0.0002
"""How long a thread keeps the interpreter to itself while another one wants it."""


@define(eq=False)
class LateHost:
    """Stands in for the `QuartHost` until somebody asks for what only it can do."""

    site: Site
    limits: Limits
    _made: "QuartHost | None" = None
    _turn: trio.Lock = field(factory=trio.Lock)

    async def ready(self) -> "QuartHost":
        """The host; the first call makes it."""
        async with self._turn:
            if self._made is None:
                module = await trio.to_thread.run_sync(_import_app, abandon_on_cancel=True)
                self._made = module.QuartHost(self.site, self.limits)
            return self._made

    async def http(self, route: Route, request: Request, head: Head, wire: Wire, reply: Reply) -> None:
        await (self._made or await self.ready()).http(route, request, head, wire, reply)

    async def websocket(self, route: ChannelRoute, request: Request, own_head: bytes, wire: Wire) -> None:
        await (self._made or await self.ready()).websocket(route, request, own_head, wire)

    async def stop(self) -> None:
        if self._made is not None:
            await self._made.stop()


def _import_app() -> Any:
    """The import computes for a third of a second, and every schedule and job that is due meanwhile asks several times
    for its turn: with turns of the usual length each would be late by tens of milliseconds."""
    sys.setswitchinterval(SHORT_TURN_SECONDS)
    try:
        return import_module("ductile.web.app")
    finally:
        sys.setswitchinterval(USUAL_TURN_SECONDS)
