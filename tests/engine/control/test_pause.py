"""Which plugins are paused, as this process knows it and as the ledger has it."""

from pathlib import Path

import trio

from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.engine.control.pause import PausedPlugins
from ductile.ledger.storage.writer import open_ledger


async def test_requests_that_become_durable_together_all_count(tmp_path: Path) -> None:
    """Their callers resume in any order; the order of the commits decides."""
    async with open_ledger(tmp_path / "ledger" / "state.db") as ledger:
        pausing = await PausedPlugins.load(ledger, Hub(), Clock())
        for _ in range(20):
            async with trio.open_nursery() as nursery:
                for plugin in ("echo", "other"):
                    nursery.start_soon(pausing.pause, plugin, "maintenance")
            assert set(pausing.paused) == {"echo", "other"}
            async with trio.open_nursery() as nursery:
                for plugin in ("echo", "other"):
                    nursery.start_soon(pausing.resume, plugin)
            assert pausing.paused == {}
        assert (await PausedPlugins.load(ledger, Hub(), Clock())).paused == {}
