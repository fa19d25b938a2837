"""Wishes to reload the configuration: made by signals and by the web, granted one after the other by the runtime.

Neither side knows the other. Whoever waits for an answer may leave; the wish is granted all the same.
"""

import math

import trio
from attrs import define, field

from ductile.config.views.changes import Reloaded
from ductile.core.errors import DuctileError


@define(eq=False)
class ReloadRequest:
    """One reload that somebody wants, and its outcome once it is `done`."""

    dry_run: bool = False
    done: trio.Event = field(factory=trio.Event)
    answer: Reloaded | DuctileError | None = None


class ReloadQueue:
    """The queue of wishes."""

    def __init__(self) -> None:
        self._made, self.taken = trio.open_memory_channel[ReloadRequest](math.inf)

    def make(self, wish: ReloadRequest) -> None:
        self._made.send_nowait(wish)

    async def ask(self, *, dry_run: bool = False) -> Reloaded:
        """The outcome of a reload; raises what speaks against the new configuration."""
        wish = ReloadRequest(dry_run)
        self.make(wish)
        await wish.done.wait()
        assert wish.answer is not None, "a wish that is done has an answer"
        if isinstance(wish.answer, DuctileError):
            raise wish.answer
        return wish.answer
