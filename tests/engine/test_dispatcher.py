"""The dispatcher on its own: what happens between a claim and its task."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
import trio.testing
from attrs import define, field

from ductile.engine.dispatcher import Dispatcher
from ductile.engine.run_job import Attempt
from ductile.errors import LedgerError
from ductile.hub import Hub
from ductile.ledger.claim import Claimed
from tests.engine.builders import a_job


@define
class Claims:
    """A ledger that gives one job, and lets somebody act between its commit and the dispatcher's next step."""

    meanwhile: Callable[[], None] = lambda: None

    async def write_last(self, *_: Any, **__: Any) -> tuple[list[Any], Claimed]:
        await trio.lowlevel.checkpoint()
        self.meanwhile()
        return [], Claimed(jobs=(a_job(id="job"),), states={"echo": "{}"})

    def look_up(self, *_: Any, **__: Any) -> Any:
        return False

    def read(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def disk(self) -> Any:
        return self

    def has(self, _: int) -> bool:
        return True

    def when_durable(self, function: Callable[[], None], *, is_awaited: bool) -> None:
        function()


@define
class Tasks:
    """A nursery that only remembers what it was to start."""

    attempts: list[Attempt] = field(factory=list)

    def start_soon(self, _: Any, attempt: Attempt, **__: Any) -> None:
        self.attempts.append(attempt)


@define
class Configured:
    """As much of a snapshot as a turn asks for."""

    max_workers: int = 1
    slots: dict[str, int] = field(factory=lambda: {"echo": 1})
    lanes: dict[str, Any] = field(factory=dict)
    id: str = "cfg"
    config: Any = field(factory=lambda: _anything())


class _Anything:
    def __getattr__(self, _: str) -> Any:
        return self

    def __call__(self) -> Any:
        return self

    def __bool__(self) -> bool:
        return True


def _anything() -> Any:
    return _Anything()


def dispatcher_of(ledger: Any) -> Dispatcher:
    snapshot = Configured()
    return Dispatcher(_anything(), ledger, Hub(), lambda: cast(Any, snapshot), "run", held=lambda: frozenset())


async def test_a_job_that_is_cancelled_in_the_moment_of_its_claim_is_stopped() -> None:
    """Whoever cancels may hear of the claim before the dispatcher does."""
    claims, tasks = Claims(), Tasks()
    dispatcher = dispatcher_of(claims)
    claims.meanwhile = lambda: dispatcher.stop_job("job", "not needed")
    await dispatcher._turn(cast(Any, tasks))
    (attempt,) = tasks.attempts
    assert attempt.stop.reason == "not needed"
    assert dispatcher.to_stop == {}


@define
class Disk:
    """Has the jobs up to `newest`, and everything once it is let."""

    newest: int
    gate: trio.Event = field(factory=trio.Event)
    error: LedgerError | None = None

    @property
    def disk(self) -> "Disk":
        return self

    def has(self, seq: int) -> bool:
        return seq <= self.newest

    async def until_durable(self) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error


NEW, AGAIN, KEYED = a_job(seq=5), a_job(seq=5, attempt=2), a_job(seq=5, dedupe_key="key")


async def test_a_new_job_that_the_disk_has_runs_at_once() -> None:
    assert await dispatcher_of(Disk(newest=5))._is_there_for_good(NEW)


@pytest.mark.parametrize(("job", "newest"), [(NEW, 4), (AGAIN, 9), (KEYED, 9)], ids=["new", "again", "keyed"])
async def test_a_job_that_a_power_cut_could_take_back_waits_for_the_disk(job: Any, newest: int) -> None:
    """One that was queued again, or waited for its key, stands in an old row: its number proves nothing."""
    disk, ran = Disk(newest=newest), []
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            ran.append(await dispatcher_of(disk)._is_there_for_good(job))

        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        assert ran == []
        disk.gate.set()
    assert ran == [True]


async def test_a_job_that_never_comes_to_the_disk_does_not_run() -> None:
    """The next start recovers it."""
    disk = Disk(newest=0, error=LedgerError("the disk is gone"))
    disk.gate.set()
    dispatcher = dispatcher_of(disk)
    attempt = Attempt(NEW, cast(Any, Configured()), "{}")
    dispatcher.attempts[NEW.id] = attempt
    await dispatcher._run_in_slot(attempt)
    assert (dispatcher.attempts, dispatcher.endings, attempt.has_run) == ({}, [], False)
