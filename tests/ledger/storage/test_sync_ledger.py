"""SyncLedger: a ledger without an event loop."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ductile.ledger.storage.db import Db
from ductile.ledger.storage.sync_ledger import SyncLedger, open_sync_ledger, run_sync


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SyncLedger]:
    with open_sync_ledger(tmp_path / "state" / "ledger.db") as opened:
        yield opened


def count(db: Db) -> int:
    (found,) = db.execute("SELECT COUNT(*) FROM pauses").fetchone()
    return int(found)


def pause(db: Db, plugin: str) -> int:
    db.execute("INSERT INTO pauses (plugin, reason, paused_at) VALUES (?, '', '2026-01-01T00:00:00Z')", (plugin,))
    return count(db)


def test_a_read_sees_the_write_before_it(ledger: SyncLedger) -> None:
    """In one coroutine, without an event loop."""

    async def write_and_read() -> tuple[int, int]:
        return await ledger.write(pause, "a"), await ledger.read(count)

    assert run_sync(write_and_read()) == (1, 1)


def test_a_failed_write_writes_nothing(ledger: SyncLedger) -> None:
    """Each write is one transaction."""

    def fail(db: Db) -> None:
        pause(db, "a")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_sync(ledger.write(fail))
    assert run_sync(ledger.read(count)) == 0


def test_a_coroutine_that_waits_is_an_error() -> None:
    """It would hang otherwise."""
    with pytest.raises(RuntimeError, match="no event loop"):
        run_sync(wait())


async def wait() -> None:
    await trio.lowlevel.cancel_shielded_checkpoint()
