"""Which writes count as small enough to share a transaction."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ductile.core.model import (
    MAX_SMALL_ROWS,
    MAX_SMALL_TEXT,
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
    is_small_write,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_TEXT = "x" * (MAX_SMALL_TEXT + 1)


def succeeded(result: str = "{}") -> Succeeded:
    return Succeeded(Evidence(started_at=NOW, duration=timedelta(seconds=1), result=result))


def completion(outcome: Outcome | None = None, **fields: Any) -> Completion:
    return Completion(job_id="job", attempt=1, outcome=outcome or succeeded(), **fields)


def child(payload: str = "{}") -> NewJob:
    return NewJob(plugin="echo", command="handle", submitted_by="test", payload=payload)


def context(text: str = "{}") -> NewContext:
    return NewContext(id="context", parent_id=None, pipeline_name="p", step_id="s", accumulated_json=text)


def test_a_typical_completion_is_small() -> None:
    assert completion().is_small
    assert completion(Skipped("not needed")).is_small
    assert completion(children=(child(),) * MAX_SMALL_ROWS).is_small


@pytest.mark.parametrize(
    "large",
    [
        completion(succeeded(LONG_TEXT)),
        completion(state_updates=LONG_TEXT),
        completion(facts=(NewFact(fact_type="f", fact_json=LONG_TEXT),)),
        completion(children=(child(LONG_TEXT),)),
        completion(contexts=(context(LONG_TEXT),)),
        completion(children=(child(),) * (MAX_SMALL_ROWS + 1)),
        completion(children=(child(),) * MAX_SMALL_ROWS, contexts=(context(),)),
        completion(arrivals=(BranchResult(join_id="join", item=0, branch=0, payload="{}"),)),
    ],
    ids=["result", "state", "facts", "payload", "context", "children", "children and contexts", "arrivals"],
)
def test_a_completion_beyond_a_limit_is_not_small(large: Completion) -> None:
    assert not large.is_small


def test_the_runs_of_one_delivery_are_counted_together() -> None:
    half = FollowUps(children=(child(),) * (MAX_SMALL_ROWS // 2))
    assert is_small_write(half, half)
    assert not is_small_write(half, half, FollowUps(children=(child(),)))
    long = FollowUps(children=(child("x" * (MAX_SMALL_TEXT // 2 + 1)),))
    assert is_small_write(long)
    assert not is_small_write(long, long)
