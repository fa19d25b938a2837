"""A ledger of one's own: the same answers as a service's, at once and without an event loop."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ductile.ledger.alone import LoneLedger, open_alone, run_alone
from ductile.ledger.connections import Connection


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LoneLedger]:
    with open_alone(tmp_path / "state" / "ledger.db") as opened:
        yield opened


def count(db: Connection) -> int:
    (found,) = db.execute("SELECT COUNT(*) FROM pauses").fetchone()
    return int(found)


def pause(db: Connection, plugin: str) -> int:
    db.execute("INSERT INTO pauses (plugin, reason, paused_at) VALUES (?, '', '2026-01-01T00:00:00Z')", (plugin,))
    return count(db)


def test_what_was_written_can_be_read(ledger: LoneLedger) -> None:
    """By the next one that asks, within the same story."""

    async def story() -> tuple[int, int]:
        return await ledger.write(pause, "a"), ledger.read(count)

    assert run_alone(story()) == (1, 1)


def test_what_fails_has_written_nothing(ledger: LoneLedger) -> None:
    """Each request is a transaction."""

    def fail(db: Connection) -> None:
        pause(db, "a")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_alone(ledger.write(fail))
    assert ledger.look_up(count) == 0


def test_who_waits_for_a_loop_is_told_that_there_is_none() -> None:
    """Rather than to hang."""
    with pytest.raises(RuntimeError, match="nobody is there"):
        run_alone(_waits())


async def _waits() -> None:
    await trio.lowlevel.cancel_shielded_checkpoint()
