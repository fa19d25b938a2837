"""How much of an ending may be written while everybody else waits."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ductile.core.model import (
    FEW_ROWS,
    LITTLE_TEXT,
    BranchResult,
    Completion,
    Evidence,
    FollowUps,
    NewContext,
    NewFact,
    NewJob,
    Outcome,
    Skipped,
    Succeeded,
    are_few,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MUCH = "x" * (LITTLE_TEXT + 1)


def succeeded(result: str = "{}") -> Succeeded:
    return Succeeded(Evidence(started_at=NOW, duration=timedelta(seconds=1), result=result))


def ending(outcome: Outcome | None = None, **brought: Any) -> Completion:
    return Completion(job_id="job", attempt=1, outcome=outcome or succeeded(), **brought)


def child(payload: str = "{}") -> NewJob:
    return NewJob(plugin="echo", command="handle", submitted_by="test", payload=payload)


def context(text: str = "{}") -> NewContext:
    return NewContext(id="context", parent_id=None, pipeline_name="p", step_id="s", accumulated_json=text)


def test_what_most_plugins_come_to_is_small() -> None:
    assert ending().is_small
    assert ending(Skipped("not needed")).is_small
    assert ending(children=(child(),) * FEW_ROWS).is_small


@pytest.mark.parametrize(
    "much",
    [
        ending(succeeded(MUCH)),
        ending(state_updates=MUCH),
        ending(facts=(NewFact(fact_type="f", fact_json=MUCH),)),
        ending(children=(child(MUCH),)),
        ending(contexts=(context(MUCH),)),
        ending(children=(child(),) * (FEW_ROWS + 1)),
        ending(children=(child(),) * FEW_ROWS, contexts=(context(),)),
        ending(arrivals=(BranchResult(join_id="join", item=0, branch=0, payload="{}"),)),
    ],
    ids=["result", "state", "facts", "payload", "context", "children", "children and contexts", "arrivals"],
)
def test_what_takes_long_to_write_is_not(much: Completion) -> None:
    assert not much.is_small


def test_the_runs_of_one_delivery_are_counted_together() -> None:
    half = FollowUps(children=(child(),) * (FEW_ROWS // 2))
    assert are_few(half, half)
    assert not are_few(half, half, FollowUps(children=(child(),)))
    long = FollowUps(children=(child("x" * (LITTLE_TEXT // 2 + 1)),))
    assert are_few(long)
    assert not are_few(long, long)
