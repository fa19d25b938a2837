"""Idempotency keys: one effect, and no response before the first one is durable."""

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
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.reports import queue_status
from ductile.ledger.storage.async_ledger import open_ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import receipts
from ductile.ledger.tables.receipts import IdempotencyKey, StoredResponse
from ductile.web.context import submit
from ductile.web.idempotency import find_stored_response, submit_once

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = NewJob(plugin="echo", command="poll", submitted_by="test")


async def test_a_repeated_request_waits_until_the_first_one_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response must not contain a job that a power failure could remove."""
    gate, started = threading.Event(), threading.Event()
    responses: list[StoredResponse | None] = []

    def sync(descriptor: int) -> None:
        started.set()
        assert gate.wait(30)
        os.fsync(descriptor)

    monkeypatch.setattr("ductile.ledger.storage.async_ledger.os.fdatasync", sync)
    key = IdempotencyKey(scope="api:ada", key="k1", body_hash="b", ttl=timedelta(days=1))
    async with open_ledger(tmp_path / "state" / "ductile.db") as ledger, trio.open_nursery() as nursery:
        ctx: Any = SimpleNamespace(ledger=ledger, clock=Clock(), hub=Hub())

        async def send_first() -> None:
            act = StoredResponse(job_id="job", text="{}")
            responses.append(await submit_once(ctx, key, lambda _: act, (), actor="token:ada"))

        async def send_again() -> None:
            responses.append(await find_stored_response(ctx, key))

        nursery.start_soon(send_first)
        await trio.to_thread.run_sync(started.wait)
        nursery.start_soon(send_again)
        await trio.testing.wait_all_tasks_blocked()
        assert responses == []
        gate.set()
    assert [response and response.job_id for response in responses] == ["job", "job"]


async def test_a_request_is_stored_when_its_client_disconnects(tmp_path: Path) -> None:
    """The jobs are durable, and the dispatcher is woken."""
    async with open_ledger(tmp_path / "state" / "ductile.db") as ledger:
        ctx: Any = SimpleNamespace(ledger=ledger, hub=Hub())
        with trio.CancelScope() as scope:
            scope.cancel()
            await submit(ctx, lambda db: enqueue(db, JOB, now=NOW), (), actor="token:e2e")
        assert await ledger.read(queue_status.depth) == 1
        with trio.fail_after(30):
            await ctx.hub.wait_for_work()


async def test_the_receipt_is_inserted_before_the_request_is_processed(tmp_path: Path) -> None:
    """Of two transactions with the same key, only one runs its action."""
    key = IdempotencyKey(scope="api:ada", key="k1", body_hash="b", ttl=timedelta(days=1))

    def act(db: Db) -> StoredResponse:
        again = receipts.run_once(db, key, lambda _: pytest.fail("the action ran twice"), now=NOW)
        assert again.is_repeat
        return StoredResponse(job_id="job", text='{"n": 1}')

    async with open_ledger(tmp_path / "state" / "ductile.db") as ledger:
        await ledger.write(receipts.run_once, key, act, now=NOW)
        known = await ledger.write(receipts.run_once, key, act, now=NOW)
    assert (known.job_id, known.text, known.is_repeat) == ("job", '{"n": 1}', True)
