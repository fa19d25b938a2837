"""Where a run could be lost, doubled or silently cut short: too much, too deep, duplicates, pipelines that change."""

import json
from typing import Any

import pytest
from attrs import evolve

from ductile.core.errors import NotFound
from ductile.core.model import BranchResult, Failed, FollowUps, Job, JobStatus, JoinInput, Skipped, Succeeded
from ductile.pipeline.run.events import Ended
from ductile.pipeline.run.route import World, after, after_join, begin
from ductile.pipeline.run.step_input import step_of
from tests.pipeline.runs import NOW, SUCCEEDED, a_job, a_world, an_event, as_row, context_of, steps_of

FAILED = Ended(status=JobStatus.FAILED, error="no luck")
JOINED = (
    "[{name: p, on: e, steps: [{id: s, split: [{id: a, uses: x}, {id: b, uses: y}], join: true}, {id: c, uses: z}]}]"
)
OPEN = JOINED.replace(", join: true", "")


def begun(world: World, payload: Any = None) -> FollowUps:
    return begin(world.plans.named("p"), payload or {}, world, submitted_by="api", now=NOW).following


def row(following: FollowUps, step: str) -> Job:
    (new,) = [new for new in following.children if new.step_id == step]
    return as_row(new, following)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize("levels", [40, 59, 60, 61, 63])
def test_what_follows_can_be_read_again_or_is_a_failed_step(levels: int) -> None:
    """A payload that gets too deep on its way ends at the step it cannot be handed to, with the reason."""
    world = a_world("[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}]}]")
    job = row(begun(world), "a")
    (child,) = after(job, SUCCEEDED, (an_event(payload=nested(levels)),), world, now=NOW).children
    if child.settled is None:
        assert json.loads(child.payload or "")["payload"]["x"]
    else:
        assert (child.settled.status, child.payload) == (JobStatus.FAILED, None)
        assert child.settled.error == "the payload would be nested deeper than 60"
    assert (child.settled is None) == (levels <= 60)


def test_a_join_of_duplicates_joins_nothing() -> None:
    """An event that came before does not run the steps behind its join on an empty list."""
    world = a_world(JOINED)
    following = after(a_job(), SUCCEEDED, (an_event("e", dedupe_key="k"),), world, now=NOW)
    outcome, behind = after_join(JoinInput(job=row(following, "s__join")), world, now=NOW)
    assert outcome == Skipped("everything it would have joined was a duplicate")
    assert not behind.children


def test_a_join_without_a_key_joins_nothing_as_nothing() -> None:
    """An empty `foreach` is no duplicate."""
    world = a_world("[{name: p, on: e, steps: [{id: s, foreach: payload.l, uses: x, join: true}, {id: c, uses: z}]}]")
    following = after(a_job(), SUCCEEDED, (an_event("e", {"l": []}, dedupe_key="k"),), world, now=NOW)
    outcome, behind = after_join(JoinInput(job=row(following, "s__join")), world, now=NOW)
    assert isinstance(outcome, Succeeded)
    assert steps_of(behind) == ["c"]


def test_two_ways_to_one_step_are_two_jobs_with_two_keys() -> None:
    """Bypassed branches lead to the same step with the same event; neither takes the other for itself."""
    off = "if: {path: payload.no, op: exists}"
    split = f"{{split: [{{id: a, uses: x, {off}}}, {{id: b, uses: y, {off}}}]}}"
    world = a_world(f"[{{name: p, on: e, steps: [{split}, {{id: c, uses: z}}]}}]")
    following = after(a_job(), SUCCEEDED, (an_event("e", dedupe_key="k"),), world, now=NOW)
    keys = [new.dedupe_key for new in following.children if new.step_id == "c"]
    assert len(keys) == len(set(keys)) == 2


def test_a_pipeline_that_is_too_much_does_not_break_the_job_that_emitted() -> None:
    """It is not started, that is noted, and everything else goes on."""
    world = evolve(
        a_world(
            "[{name: big, on: e, steps: [{foreach: payload.l, uses: x}]}, {name: p, on: e, steps: [{id: a, uses: y}]}]"
        ),
        most_jobs=5,
    )
    following = after(a_job(), SUCCEEDED, (an_event("e", {"l": list(range(9))}),), world, now=NOW)
    assert steps_of(following) == ["a"]
    (note,) = following.notes
    assert (note.kind, note.data["pipeline"]) == ("pipeline.skipped", "big")
    assert "more than 5 jobs" in note.data["reason"]


def test_hooks_on_hooks_end() -> None:
    """A hook whose own end is announced is not announced for ever."""
    world = evolve(a_world("[{name: p, on-hook: job.completed, steps: [{id: h, uses: x}]}]"), most_hooks=2)
    job = a_job(id="root", root_job_id="root", notify=True)
    for _ in range(2):
        following = after(job, SUCCEEDED, (), world, now=NOW)
        hook = row(following, "h")
        job = evolve(hook, notify=True, root_job_id=hook.id)
    last = after(job, SUCCEEDED, (), world, now=NOW)
    assert not last.children
    assert "hook_max_depth" in last.notes[-1].data["reason"]


def test_a_run_that_a_failure_starts_inherits_the_baggage() -> None:
    """Events of a step that failed start other pipelines with what was durable in theirs."""
    first = "{name: p, on: e, steps: [{id: a, uses: x, baggage: {n: payload.n}}]}"
    world = a_world(f"[{first}, {{name: q, on: f, steps: [{{id: b, uses: y}}]}}]")
    job = row(begun(world, {"n": 7}), "a")
    following = after(job, FAILED, (an_event("f"),), world, now=NOW)
    (child,) = [new for new in following.children if new.step_id == "b"]
    assert context_of(child, following)["n"] == 7


@pytest.mark.parametrize(("before", "now"), [(OPEN, JOINED), (JOINED, OPEN)])
def test_a_job_whose_pipeline_was_changed_around_it_does_not_run(before: str, now: str) -> None:
    """A `join` that came or went by a reload: the step says so before its plugin runs, and nothing follows from it."""
    job = row(begun(a_world(before)), "a")
    with pytest.raises(NotFound, match="was changed around step a"):
        step_of(a_world(now).plans, job)
    following = after(job, SUCCEEDED, (), a_world(now), now=NOW)
    assert [note.kind for note in following.notes] == ["run.ended"]
    assert not following.children


def test_a_join_whose_pipeline_was_changed_around_it_says_so() -> None:
    """Its step is still there, inside of something else."""
    around = JOINED.replace("steps: [", "steps: [{foreach: payload.n, steps: [").replace("z}]}]", "z}]}]}]")
    join = row(begun(a_world(JOINED)), "s__join")
    outcome, following = after_join(JoinInput(job=join), a_world(around), now=NOW)
    assert isinstance(outcome, Failed)
    assert outcome.error == "pipeline p was changed around step s__join: the run cannot go on in it"
    assert not following.children


def test_more_results_than_a_join_takes_fail_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be read and written again while everybody else waits for the ledger."""
    monkeypatch.setattr("ductile.pipeline.run.route.MOST_ARRIVED", 100)
    world = a_world(JOINED)
    join = row(begun(world), "s__join")
    arrivals = tuple(BranchResult(join_id=join.id, payload=json.dumps({"x": "y" * 60})) for _ in range(2))
    outcome, _ = after_join(JoinInput(job=join, arrivals=arrivals), world, now=NOW)
    assert "can be joined" in str(outcome)
