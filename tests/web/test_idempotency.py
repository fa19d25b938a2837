"""A request that comes again: one act, and no answer before the first one is on the disk."""

import os
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ductile.clock import Clock
from ductile.ledger.receipts import Answer, Ticket
from ductile.ledger.writer import open_ledger
from ductile.web.idempotency import done_once, known_answer


async def test_a_repeated_request_is_answered_when_the_first_one_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that gave up on a slow disk and comes again is not told of a job that a power cut could take back."""
    gate, begun = threading.Event(), threading.Event()
    answers: list[Answer | None] = []

    def sync(descriptor: int) -> None:
        begun.set()
        assert gate.wait(30)
        os.fsync(descriptor)

    monkeypatch.setattr("ductile.ledger.disk.os.fdatasync", sync)
    ticket = Ticket(scope="api:ada", key="k1", body_hash="b", keep=timedelta(days=1))
    async with open_ledger(tmp_path / "state" / "ductile.db") as ledger, trio.open_nursery() as nursery:
        desk: Any = SimpleNamespace(ledger=ledger, clock=Clock())

        async def ask_first() -> None:
            act = Answer(job_id="job", text="{}")
            answers.append(await done_once(desk, ticket, lambda _: act, is_quick=True))

        async def ask_again() -> None:
            answers.append(await known_answer(desk, ticket))

        nursery.start_soon(ask_first)
        await trio.to_thread.run_sync(begun.wait)
        nursery.start_soon(ask_again)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        gate.set()
    assert [answer and answer.job_id for answer in answers] == ["job", "job"]
