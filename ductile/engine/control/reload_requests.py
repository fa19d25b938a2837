"""The queue of reload requests: submitted by SIGHUP and by the API, handled one at a time by the runtime."""

import math

import trio
from attrs import define, field

from ductile.config.views.changes import ReloadResult
from ductile.core.errors import DuctileError


@define(eq=False)
class ReloadRequest:
    """A request to reload the configuration. `result` is set before `done`."""

    actor: str
    dry_run: bool = False
    done: trio.Event = field(factory=trio.Event)
    result: ReloadResult | DuctileError | None = None


class ReloadQueue:
    """The reload requests that are not handled yet, oldest first."""

    def __init__(self) -> None:
        self._submitted, self.requests = trio.open_memory_channel[ReloadRequest](math.inf)

    def submit(self, request: ReloadRequest) -> None:
        """Queue a request without waiting for its result."""
        self._submitted.send_nowait(request)

    async def reload(self, *, actor: str, dry_run: bool = False) -> ReloadResult:
        """Reload and return the result. Raises DuctileError if the new configuration cannot be used.

        A cancelled caller does not cancel the reload.
        """
        request = ReloadRequest(actor, dry_run)
        self.submit(request)
        await request.done.wait()
        assert request.result is not None, "a request that is done has a result"
        if isinstance(request.result, DuctileError):
            raise request.result
        return request.result
