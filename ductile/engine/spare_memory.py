"""Memory is kept for the next large answer for as long as there are large answers, and given back after that.

What was given back comes again page by page, each of them cleared by the kernel: an answer of megabytes waits longer
for its memory than it takes to be read, checked and written. `run_job` says what is large; `dispatcher` runs the rest.
"""

import trio

from ductile.engine import allocator
from ductile.values import define, field

QUIET_SECONDS = 2.0
"""How long after the last large thing its memory is kept for another."""


@define(eq=False)
class SpareMemory:
    """What the large things of one service leave to each other."""

    _needed: trio.Event = field(factory=trio.Event)
    _quiet: trio.CancelScope = field(factory=trio.CancelScope)
    """Ends when nothing large has come for a while."""

    def need(self) -> None:
        """There is something large, and perhaps soon another."""
        self._quiet.deadline = trio.current_time() + QUIET_SECONDS
        self._needed.set()

    async def run(self) -> None:
        """Memory is kept from the first large thing until a while after the last."""
        while True:
            await self._needed.wait()
            allocator.keep_much()
            with self._quiet:
                await trio.sleep_forever()
            self._needed, self._quiet = trio.Event(), trio.CancelScope()
            await trio.to_thread.run_sync(allocator.give_back)
