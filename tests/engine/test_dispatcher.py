"""The dispatcher on its own: what happens between a claim and its task."""

from collections.abc import Callable
from typing import Any, cast

import trio
from attrs import define, field

from ductile.engine.dispatcher import Dispatcher
from ductile.engine.run_job import Attempt
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


async def test_a_job_that_is_cancelled_in_the_moment_of_its_claim_is_stopped() -> None:
    """Whoever cancels may hear of the claim before the dispatcher does."""
    claims, tasks = Claims(), Tasks()
    snapshot = Configured()
    dispatcher = Dispatcher(
        _anything(), cast(Any, claims), Hub(), lambda: cast(Any, snapshot), "run", held=lambda: frozenset()
    )
    claims.meanwhile = lambda: dispatcher.stop_job("job", "not needed")
    await dispatcher._turn(cast(Any, tasks))
    (attempt,) = tasks.attempts
    assert attempt.stop.reason == "not needed"
    assert dispatcher.to_stop == {}
