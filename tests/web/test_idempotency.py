"""A request that comes again: one act, and no answer before the first one is on the disk."""

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.core.model import NewJob
from ductile.ledger.queue.enqueue import enqueue
from ductile.ledger.reports import queue_status
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import open_ledger
from ductile.ledger.tables import receipts
from ductile.ledger.tables.receipts import StoredAnswer, Ticket
from ductile.web.context import submit
from ductile.web.idempotency import done_once, known_answer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = NewJob(plugin="echo", command="poll", submitted_by="test")


async def test_a_repeated_request_is_answered_when_the_first_one_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that gave up on a slow disk and comes again is not told of a job that a power cut could take back."""
    gate, begun = threading.Event(), threading.Event()
    answers: list[StoredAnswer | None] = []

    def sync(descriptor: int) -> None:
        begun.set()
        assert gate.wait(30)
        os.fsync(descriptor)

    monkeypatch.setattr("ductile.ledger.storage.writer.os.fdatasync", sync)
    ticket = Ticket(scope="api:ada", key="k1", body_hash="b", keep=timedelta(days=1))
    async with open_ledger(tmp_path / "state" / "ductile.db") as ledger, trio.open_nursery() as nursery:
        desk: Any = SimpleNamespace(ledger=ledger, clock=Clock(), hub=Hub())

        async def ask_first() -> None:
            act = StoredAnswer(job_id="job", text="{}")
            answers.append(await done_once(desk, ticket, lambda _: act))

        async def ask_again() -> None:
            answers.append(await known_answer(desk, ticket))

        nursery.start_soon(ask_first)
        await trio.to_thread.run_sync(begun.wait)
        nursery.start_soon(ask_again)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        gate.set()
    assert [answer and answer.job_id for answer in answers] == ["job", "job"]


async def test_a_request_is_written_although_its_client_hangs_up(tmp_path: Path) -> None:
    """It was asked for: the jobs are durable, and the dispatcher hears of them."""
    async with open_ledger(tmp_path / "state" / "ductile.db") as ledger:
        desk: Any = SimpleNamespace(ledger=ledger, hub=Hub())
        with trio.CancelScope() as scope:
            scope.cancel()
            await submit(desk, lambda db: enqueue(db, JOB, now=NOW))
        assert await ledger.read(queue_status.depth) == 1
        with trio.fail_after(30):
            await desk.hub.work_waiting()


async def test_the_receipt_is_there_before_the_request_is_acted_on(tmp_path: Path) -> None:
    """Of two transactions with one key only one gets as far as its act."""
    ticket = Ticket(scope="api:ada", key="k1", body_hash="b", keep=timedelta(days=1))

    def act(db: Db) -> StoredAnswer:
        again = receipts.once(db, ticket, lambda _: pytest.fail("it was acted on twice"), now=NOW)
        assert again.is_repeat
        return StoredAnswer(job_id="job", text='{"n": 1}')

    async with open_ledger(tmp_path / "state" / "ductile.db") as ledger:
        await ledger.write(receipts.once, ticket, act, now=NOW)
        known = await ledger.write(receipts.once, ticket, act, now=NOW)
    assert (known.job_id, known.text, known.is_repeat) == ("job", '{"n": 1}', True)
