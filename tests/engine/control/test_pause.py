"""Paused plugins, in memory and in the ledger."""

from functools import partial
from pathlib import Path

import trio

from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.engine.control.pause import PausedPlugins
from ductile.ledger.storage.async_ledger import open_ledger


async def test_concurrent_pauses_and_resumes_all_take_effect(tmp_path: Path) -> None:
    """The order of the commits decides, not the order in which their callers resume."""
    async with open_ledger(tmp_path / "ledger" / "state.db") as ledger:
        paused_plugins = await PausedPlugins.load(ledger, Hub(), Clock())
        for _ in range(20):
            async with trio.open_nursery() as nursery:
                for plugin in ("echo", "other"):
                    nursery.start_soon(partial(paused_plugins.pause, plugin, "maintenance", actor="uid:0"))
            assert set(paused_plugins.paused) == {"echo", "other"}
            async with trio.open_nursery() as nursery:
                for plugin in ("echo", "other"):
                    nursery.start_soon(partial(paused_plugins.resume, plugin, actor="uid:0"))
            assert paused_plugins.paused == {}
        assert (await PausedPlugins.load(ledger, Hub(), Clock())).paused == {}
