"""Plugins that the operator has paused, as the dispatcher asks for them: without a look into the ledger every time.

The ledger has the truth; it is read at start and changed together with what is known here.
"""

from collections.abc import Callable
from functools import partial

from attrs import define

from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.ledger.admin import pauses
from ductile.ledger.admin.pauses import Pause
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import Ledger


@define(eq=False)
class PausedPlugins:
    """Who is paused."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    paused: dict[str, Pause]

    @classmethod
    async def load(cls, ledger: Ledger, hub: Hub, clock: Clock) -> "PausedPlugins":
        """Read who is paused."""
        return cls(ledger, hub, clock, await ledger.read(_by_plugin))

    async def pause(self, plugin: str, reason: str) -> bool:
        """Stop starting jobs of the plugin; running ones continue. False if it was paused already."""
        return await self._change(partial(pauses.pause, plugin=plugin, reason=reason, now=self.clock.now()))

    async def resume(self, plugin: str) -> bool:
        """Start jobs of the plugin again. False if it was not paused."""
        changed = await self._change(partial(pauses.resume, plugin=plugin, now=self.clock.now()))
        self.hub.announce_work()
        return changed

    async def _change(self, change: Callable[[Db], bool]) -> bool:
        # No checkpoint between the commit and the assignment: what is known here follows the order of the commits.
        changed, self.paused = await self.ledger.transact(lambda db: (change(db), _by_plugin(db)), wait=False)
        await self.ledger.until_durable()
        return changed


def _by_plugin(db: Db) -> dict[str, Pause]:
    return {one.plugin: one for one in pauses.all_pauses(db)}
