"""Pause and resume plugins. Keeps the paused plugins in memory, so that a claim need not read them.

The ledger stores them. They are read at start, and both copies change together.
"""

from collections.abc import Callable
from functools import partial

from attrs import define

from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.ledger.admin import pauses
from ductile.ledger.admin.pauses import ALL_PLUGINS, Pause
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db


@define(eq=False)
class PausedPlugins:
    """The paused plugins; `*` stands for all of them."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    paused: dict[str, Pause]

    @classmethod
    async def load(cls, ledger: Ledger, hub: Hub, clock: Clock) -> "PausedPlugins":
        """Read the paused plugins from the ledger."""
        return cls(ledger, hub, clock, await ledger.read(_by_plugin))

    def codes(self) -> dict[str, str]:
        """Return the paused plugins, each with the code of the reason."""
        return {plugin: "queue_paused" if plugin == ALL_PLUGINS else "paused" for plugin in self.paused}

    async def pause(self, plugin: str, reason: str, *, actor: str) -> bool:
        """Stop starting jobs of the plugin. Running jobs continue. False if it was already paused."""
        now = self.clock.now()
        return await self._change(partial(pauses.pause, plugin=plugin, reason=reason, now=now, actor=actor))

    async def resume(self, plugin: str, *, actor: str) -> bool:
        """Start jobs of the plugin again. False if it was not paused."""
        changed = await self._change(partial(pauses.resume, plugin=plugin, now=self.clock.now(), actor=actor))
        self.hub.announce_work()
        return changed

    async def _change(self, change: Callable[[Db], bool]) -> bool:
        # No checkpoint between the commit and the assignment, so assignments happen in the order of the commits.
        changed, self.paused = await self.ledger.transact(lambda db: (change(db), _by_plugin(db)), wait=False)
        await self.ledger.until_durable()
        return changed


def _by_plugin(db: Db) -> dict[str, Pause]:
    return {pause.plugin: pause for pause in pauses.all_pauses(db)}
