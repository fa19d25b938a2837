"""Counts of refused requests: their size is bounded."""

from pathlib import Path
from typing import Any, cast

import trio
import trio.testing
from attrs import define

from ductile.core.clock import Clock
from ductile.core.errors import LedgerFull
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.tables import journal
from ductile.web.webhooks.rejections import MAX_ACTORS, MAX_LABELS, RejectionCounter


@define(eq=False)
class FullLedger:
    """A ledger on a full disk, with more refused requests during each write."""

    counter: RejectionCounter
    written: int = 0

    async def write(self, *_: Any, **__: Any) -> None:
        self.written += 1
        count_many(self.counter, f"write {self.written}")
        raise LedgerFull("no space left on device")


def count_many(counter: RejectionCounter, name: str) -> None:
    """Count 100 callers with one reason each, and one caller with 100 reasons."""
    for number in range(100):
        counter.count_refusal(f"address:{name}:{number}", "invalid token")
        counter.count_refusal("token:one", f"{name}: reason {number}")


async def write_counts(counter: RejectionCounter) -> None:
    """Write the counts, as at the stop of the service."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await counter.run()


async def test_counts_stay_small_while_the_disk_is_full(tmp_path: Path) -> None:
    """The limits also hold for counts that could not be written."""
    async with open_ledger(tmp_path / "ledger" / "state.db") as ledger:
        counter = RejectionCounter(ledger, Clock())
        count_many(counter, "first")
        counter.ledger = cast(Ledger, FullLedger(counter))
        for _ in range(3):
            await write_counts(counter)
        counter.ledger = ledger
        await write_counts(counter)
        rows = await ledger.read(journal.read_since, 0)

    assert len(rows) <= MAX_ACTORS + 1
    assert sum(row.data["count"] for row in rows) == 800
    assert max(len(row.data["why"]) for row in rows) == MAX_LABELS + 1


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
