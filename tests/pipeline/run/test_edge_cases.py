"""Edge cases of runs: limits, depth, duplicates and changed pipelines."""

import json
from typing import Any

import pytest
from attrs import evolve

from ductile.core.errors import NotFound
from ductile.core.model import (
    BranchResult,
    Failed,
    FollowUps,
    Job,
    JobStatus,
    JoinInput,
    OutcomeCode,
    Skipped,
    Succeeded,
)
from ductile.pipeline.run.events import JobResult
from ductile.pipeline.run.route import RoutingConfig, compute_follow_ups, resolve_join, trigger_run
from ductile.pipeline.run.step_input import find_step
from tests.pipeline.factories import NOW, SUCCEEDED, context_of, make_event, make_job, make_routing, steps_of, to_job

FAILED = JobResult(status=JobStatus.FAILED, error="no luck")
JOINED = (
    "[{name: p, on: e, steps: [{id: s, split: [{id: a, uses: x}, {id: b, uses: y}], join: true}, {id: c, uses: z}]}]"
)
OPEN = JOINED.replace(", join: true", "")


def start_pipeline(routing: RoutingConfig, payload: Any = None) -> FollowUps:
    return trigger_run(routing.plans.require("p"), payload or {}, routing, submitted_by="api", now=NOW).follow_ups


def job_of(follow_ups: FollowUps, step: str) -> Job:
    (new,) = [new for new in follow_ups.children if new.step_id == step]
    return to_job(new, follow_ups)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize("levels", [40, 59, 60, 61, 63])
def test_a_payload_that_is_too_deep_fails_the_next_step(levels: int) -> None:
    """The failed job has the reason."""
    routing = make_routing("[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}]}]")
    job = job_of(start_pipeline(routing), "a")
    (child,) = compute_follow_ups(job, SUCCEEDED, (make_event(payload=nested(levels)),), routing, now=NOW).children
    if child.prefinished is None:
        assert json.loads(child.payload or "")["payload"]["x"]
    else:
        assert (child.prefinished.status, child.payload) == (JobStatus.FAILED, None)
        assert child.prefinished.error == "the payload would be nested deeper than 60"
    assert (child.prefinished is None) == (levels <= 60)


def test_a_join_of_duplicates_is_skipped() -> None:
    """A duplicate event does not run the steps after the join with an empty list."""
    routing = make_routing(JOINED)
    follow_ups = compute_follow_ups(make_job(), SUCCEEDED, (make_event("e", dedupe_key="k"),), routing, now=NOW)
    outcome, after_join = resolve_join(JoinInput(job=job_of(follow_ups, "s__join")), routing, now=NOW)
    assert outcome == Skipped("every job it would have joined was a duplicate", OutcomeCode.NOTHING_TO_JOIN)
    assert not after_join.children


def test_a_join_over_an_empty_list_succeeds() -> None:
    """An empty `foreach` is not a duplicate."""
    routing = make_routing(
        "[{name: p, on: e, steps: [{id: s, foreach: payload.l, uses: x, join: true}, {id: c, uses: z}]}]"
    )
    follow_ups = compute_follow_ups(
        make_job(), SUCCEEDED, (make_event("e", {"l": []}, dedupe_key="k"),), routing, now=NOW
    )
    outcome, after_join = resolve_join(JoinInput(job=job_of(follow_ups, "s__join")), routing, now=NOW)
    assert isinstance(outcome, Succeeded)
    assert steps_of(after_join) == ["c"]


def test_two_paths_to_one_step_create_two_jobs_with_different_keys() -> None:
    """Two bypassed branches lead to the same step with the same event."""
    off = "if: {path: payload.no, op: exists}"
    split = f"{{split: [{{id: a, uses: x, {off}}}, {{id: b, uses: y, {off}}}]}}"
    routing = make_routing(f"[{{name: p, on: e, steps: [{split}, {{id: c, uses: z}}]}}]")
    follow_ups = compute_follow_ups(make_job(), SUCCEEDED, (make_event("e", dedupe_key="k"),), routing, now=NOW)
    keys = [new.child_key for new in follow_ups.children if new.step_id == "c"]
    assert len(keys) == len(set(keys)) == 2


def test_a_pipeline_over_the_limit_does_not_fail_the_emitting_job() -> None:
    """It does not start, the journal has a note, and other pipelines start."""
    routing = evolve(
        make_routing(
            "[{name: big, on: e, steps: [{foreach: payload.l, uses: x}]}, {name: p, on: e, steps: [{id: a, uses: y}]}]"
        ),
        max_jobs=5,
    )
    follow_ups = compute_follow_ups(make_job(), SUCCEEDED, (make_event("e", {"l": list(range(9))}),), routing, now=NOW)
    assert steps_of(follow_ups) == ["a"]
    (note,) = follow_ups.notes
    assert (note.kind, note.data["pipeline"]) == ("pipeline.skipped", "big")
    assert "more than 5 jobs" in note.data["reason"]


def test_consecutive_hooks_are_limited() -> None:
    """A hook run that fires hooks does not loop forever."""
    routing = evolve(make_routing("[{name: p, on-hook: job.completed, steps: [{id: h, uses: x}]}]"), max_hook_depth=2)
    job = make_job(id="root", root_job_id="root", notify=True)
    for _ in range(2):
        follow_ups = compute_follow_ups(job, SUCCEEDED, (), routing, now=NOW)
        hook = job_of(follow_ups, "h")
        job = evolve(hook, notify=True, root_job_id=hook.id)
    last = compute_follow_ups(job, SUCCEEDED, (), routing, now=NOW)
    assert not last.children
    assert "hook_max_depth" in last.notes[-1].data["reason"]


def test_a_run_started_by_a_failed_job_inherits_the_baggage() -> None:
    """Events of a failed step trigger pipelines with its baggage."""
    first = "{name: p, on: e, steps: [{id: a, uses: x, baggage: {n: payload.n}}]}"
    routing = make_routing(f"[{first}, {{name: q, on: f, steps: [{{id: b, uses: y}}]}}]")
    job = job_of(start_pipeline(routing, {"n": 7}), "a")
    follow_ups = compute_follow_ups(job, FAILED, (make_event("f"),), routing, now=NOW)
    (child,) = [new for new in follow_ups.children if new.step_id == "b"]
    assert context_of(child, follow_ups)["n"] == 7


@pytest.mark.parametrize(("before", "now"), [(OPEN, JOINED), (JOINED, OPEN)])
def test_a_job_whose_surrounding_steps_changed_does_not_run(before: str, now: str) -> None:
    """After a reload added or removed a `join`, the step fails before its plugin runs, without follow-ups."""
    job = job_of(start_pipeline(make_routing(before)), "a")
    with pytest.raises(NotFound, match="pipeline p changed around step a"):
        find_step(make_routing(now).plans, job)
    follow_ups = compute_follow_ups(job, SUCCEEDED, (), make_routing(now), now=NOW)
    assert [note.kind for note in follow_ups.notes] == ["run.ended"]
    assert not follow_ups.children


def test_a_join_whose_surrounding_steps_changed_fails() -> None:
    """Its step still exists, but inside a loop."""
    around = JOINED.replace("steps: [", "steps: [{foreach: payload.n, steps: [").replace("z}]}]", "z}]}]}]")
    join = job_of(start_pipeline(make_routing(JOINED)), "s__join")
    outcome, follow_ups = resolve_join(JoinInput(job=join), make_routing(around), now=NOW)
    assert isinstance(outcome, Failed)
    assert outcome.error == "pipeline p changed around step s__join, so the run cannot continue"
    assert not follow_ups.children


def test_a_join_with_too_large_results_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be parsed and serialised inside a transaction."""
    monkeypatch.setattr("ductile.pipeline.run.route.MAX_JOIN_INPUT_CHARS", 100)
    routing = make_routing(JOINED)
    join = job_of(start_pipeline(routing), "s__join")
    arrivals = tuple(BranchResult(join_id=join.id, payload=json.dumps({"x": "y" * 60})) for _ in range(2))
    outcome, _ = resolve_join(JoinInput(job=join, arrivals=arrivals), routing, now=NOW)
    assert "characters, the limit is 100" in str(outcome)
