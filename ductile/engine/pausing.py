"""Plugins that the operator has paused, as the dispatcher asks for them: without a look into the ledger every time.

The ledger has the truth; it is read at start and changed together with what is known here.
"""

from attrs import define, field

from ductile.clock import Clock
from ductile.hub import Hub
from ductile.ledger import pauses
from ductile.ledger.pauses import Pause
from ductile.ledger.writer import Ledger


@define(eq=False)
class Pausing:
    """Who is paused."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    paused: dict[str, Pause] = field(init=False)

    @paused.default
    def _read(self) -> dict[str, Pause]:
        return {one.plugin: one for one in self.ledger.read(pauses.all_pauses)}

    async def pause(self, plugin: str, reason: str) -> bool:
        """Nothing of the plugin starts from now on; what runs goes on. False if it was paused already."""
        now = self.clock.now()
        # Known here first: what is claimed from now on leaves the plugin out already.
        self.paused = {plugin: Pause(plugin=plugin, reason=reason, paused_at=now)} | self.paused
        try:
            changed: bool = await self.ledger.write(pauses.pause, plugin, reason, now=now)
        finally:
            self.paused = self._read()
        return changed

    async def resume(self, plugin: str) -> bool:
        """What waited starts. False if it was not paused."""
        changed: bool = await self.ledger.write(pauses.resume, plugin, now=self.clock.now())
        self.paused = self._read()
        self.hub.announce_work()
        return changed
