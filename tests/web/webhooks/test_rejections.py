"""Counts of refused requests: their size is bounded."""

from pathlib import Path

import trio
import trio.testing

from ductile.core.clock import Clock
from ductile.ledger.storage.async_ledger import open_ledger
from ductile.ledger.tables import journal
from ductile.web.webhooks.rejections import MAX_ACTORS, MAX_LABELS, RejectionCounter


async def test_refused_requests_of_many_callers_take_few_rows(tmp_path: Path) -> None:
    """Callers and reasons beyond the limits are counted together."""
    async with open_ledger(tmp_path / "ledger" / "state.db") as ledger:
        counter = RejectionCounter(ledger, Clock())
        for number in range(1000):
            counter.count_refusal(f"address:{number}", "invalid token")
            counter.count_refusal("token:one", f"reason {number}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counter.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        rows = await ledger.read(journal.read_since, 0)

    assert len(rows) == MAX_ACTORS + 1
    assert sum(row.data["count"] for row in rows) == 2000
    assert max(len(row.data["why"]) for row in rows) == MAX_LABELS + 1
