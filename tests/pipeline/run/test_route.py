"""What follows from the end of a job and what a trigger starts: runs, routes, triggers, hooks, joins."""

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from ductile.core.model import BranchResult, Failed, FollowUps, Job, JobStatus, JoinInput, NewJob, Succeeded
from ductile.pipeline.run import route
from ductile.pipeline.run.events import Ended, Event, derived_id, event_id
from ductile.pipeline.run.route import TooManyFollowUps, World, after, after_join, begin
from tests.pipeline.runs import (
    NOW,
    SUCCEEDED,
    a_job,
    a_world,
    an_event,
    as_row,
    context_of,
    payload_of,
    steps_of,
)

FAILED = Ended(status=JobStatus.FAILED, error="no luck")
DEAD = Ended(status=JobStatus.DEAD, error="attempts used up (4 of 4): no luck")
TIMED_OUT = Ended(status=JobStatus.DEAD, error="timed out after 1s", timed_out=True)
SKIPPED = Ended(status=JobStatus.SKIPPED, error="deduplicated")


def follow(*events: Event, ended: Ended = SUCCEEDED, world: World | None = None, **job: Any) -> FollowUps:
    """What follows from the end of a job that is in no run."""
    return after(a_job(**job), ended, events, world or a_world(), now=NOW)


def begun(world: World, name: str = "p", payload: Any = None) -> FollowUps:
    return begin(world.plans.named(name), payload or {"n": 1}, world, submitted_by="api", now=NOW).following


def job_of(following: FollowUps, step: str, **values: Any) -> Job:
    """The running job of that step."""
    (new,) = [new for new in following.children if new.step_id == step]
    return as_row(new, following, **values)


def kinds(following: FollowUps) -> list[str]:
    return [note.kind for note in following.notes]


# ── inside a run ────────────────────────────────────────────────────────────────────────────────────────────────────

CHAIN = "[{name: p, on: e, steps: [{id: a, uses: x, baggage: {first: payload.n}}, {id: b, uses: y}]}]"


def test_every_event_advances_the_run_once() -> None:
    """Two events: the next step runs twice, each time with its own."""
    world = a_world(CHAIN)
    job = job_of(begun(world), "a")
    events = (an_event(payload={"n": 1}, id="e1"), an_event(payload={"n": 2}, id="e2"))
    following = after(job, SUCCEEDED, events, world, now=NOW)
    assert [(new.step_id, new.source_event_id, payload_of(new)["n"]) for new in following.children] == [
        ("b", "e1", 1),
        ("b", "e2", 2),
    ]
    assert {new.parent_job_id for new in following.children} == {job.id}


def test_a_silent_step_hands_on_what_it_was_entered_with_and_its_result() -> None:
    """The synthetic event keeps the payload; nothing is lost because a plugin says nothing."""
    world = a_world(CHAIN)
    following = after(job_of(begun(world), "a"), SUCCEEDED, (), world, now=NOW)
    (new,) = following.children
    assert json.loads(new.payload or "")["type"] == "ductile.step.succeeded"
    assert payload_of(new) == {
        "n": 1,
        "result": "done",
        "ductile_upstream_plugin": "x",
        "ductile_upstream_pipeline": "p",
        "ductile_upstream_step_id": "a",
    }


def test_a_silent_job_outside_of_every_run_leads_to_nothing() -> None:
    """Nobody waits for it."""
    assert follow() == FollowUps()


LAST = "{id: a, uses: x}"


@pytest.mark.parametrize(
    ("steps", "job", "routes", "is_seen_at_once"),
    [
        (LAST, {}, (), True),
        (LAST, {"notify": True}, (), True),
        (LAST, {"notify": True, "root_job_id": "row of a"}, (), False),
        (LAST, {}, (("x", "ductile.step.succeeded", "y"),), False),
        (LAST, {"join_id": "from before a reload"}, (), False),
        (LAST, {"context": '{"ductile":{"items":[1],"indexes":[0]}}'}, (), False),
        (LAST, {"step_id": "gone"}, (), False),
        (LAST, {"pipeline": "gone"}, (), False),
        ("{id: a, uses: x, foreach: payload.all}", {}, (), False),
        ("{id: a, uses: x, foreach: payload.all, join: true}", {}, (), False),
        (f"{LAST}, {{id: b, uses: y}}", {}, (), False),
    ],
)
def test_a_silent_end_that_nobody_hears_of_is_the_same_by_the_long_way(
    monkeypatch: pytest.MonkeyPatch, steps: str, job: Any, routes: Any, is_seen_at_once: bool
) -> None:
    """Where a look shows that nothing follows, nothing would have followed."""
    hook = "{name: h, on-hook: job.completed, steps: [{uses: z}]}"
    world = a_world(f"[{{name: p, on: e, steps: [{steps}]}}, {hook}]", routes)
    ending = job_of(begun(world, payload={"all": [1]}), "a", **job)
    assert route._ends_here(ending, world) is is_seen_at_once
    short = after(ending, SUCCEEDED, (), world, now=NOW)
    monkeypatch.setattr(route, "_ends_here", lambda *_: False)
    assert after(ending, SUCCEEDED, (), world, now=NOW) == short


def test_a_step_is_told_which_step_came_before_it_not_which_came_first() -> None:
    """A payload that is passed through names its last sender."""
    world = a_world("[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}, {id: c, uses: z}]}]")
    first = after(job_of(begun(world), "a"), SUCCEEDED, (), world, now=NOW)
    second = after(job_of(first, "b"), SUCCEEDED, (), world, now=NOW)
    assert payload_of(second.children[0])["ductile_upstream_step_id"] == "b"
    assert payload_of(second.children[0])["ductile_upstream_plugin"] == "y"


def test_the_context_grows_along_the_run() -> None:
    """Each row continues the one before; baggage stays, the depth counts up."""
    world = a_world(CHAIN)
    beginning = begun(world)
    job = job_of(beginning, "a")
    following = after(job, SUCCEEDED, (), world, now=NOW)
    (context,) = following.contexts
    assert (context.parent_id, context.step_id) == (job.event_context_id, "b")
    content = context_of(following.children[0], following)
    assert (content["first"], content["ductile"]["route_depth"], content["ductile"]["route_max_depth"]) == (1, 2, 2)
    root, entry = beginning.contexts
    assert (root.parent_id, root.step_id, json.loads(root.accumulated_json)["ductile"]["route_depth"]) == (
        None,
        None,
        0,
    )
    assert entry.parent_id == root.id


def test_a_step_after_a_call_runs_with_what_the_called_pipeline_claimed() -> None:
    """A real call: the callee's end leads to what follows the call, and baggage flows through."""
    world = a_world(
        "[{name: p, on: e, steps: [{id: a, uses: x, baggage: {mine: payload.n}}, {id: b, call: q}, {id: c, uses: z}]},"
        " {name: q, on: f, steps: [{id: d, uses: y, baggage: {theirs: payload.n}}]}]"
    )
    first = after(job_of(begun(world), "a"), SUCCEEDED, (), world, now=NOW)
    second = after(job_of(first, "b/d"), SUCCEEDED, (), world, now=NOW)
    assert (steps_of(first), steps_of(second)) == (["b/d"], ["c"])
    content = context_of(second.children[0], second)
    assert (content["mine"], content["theirs"]) == (1, 1)
    assert [first.children[0].hops, second.children[0].hops] == [1, 0]
    assert {new.pipeline for new in (*first.children, *second.children)} == {"p"}


def test_the_next_step_of_a_loop_has_the_item_of_the_one_before() -> None:
    """Items are part of the run, not of a job; the step after the loop has none."""
    world = a_world(
        "[{name: p, on: e, steps: [{foreach: payload.all, steps:"
        " [{id: a, uses: x}, {id: b, uses: y, baggage: {it: item}}]}, {id: c, uses: z}]}]"
    )
    beginning = begun(world, payload={"all": ["u", "v"]})
    second = as_row(beginning.children[2], beginning)
    first = after(second, SUCCEEDED, (), world, now=NOW)
    context = context_of(first.children[0], first)
    assert (context["it"], context["ductile"]["indexes"]) == ("v", [1])
    last = after(job_of(first, "b"), SUCCEEDED, (), world, now=NOW)
    assert "items" not in context_of(last.children[0], last)["ductile"]


def test_a_run_whose_step_is_gone_ends_with_a_note() -> None:
    """The configuration changed under it: nothing follows, and the journal says why."""
    old, new = a_world(CHAIN), a_world("[{name: p, on: e, steps: [{id: z, uses: x}]}]")
    following = after(job_of(begun(old), "a"), SUCCEEDED, (), new, now=NOW)
    assert following.children == ()
    (note,) = following.notes
    assert (note.kind, note.data) == (
        "run.ended",
        {"pipeline": "p", "step_id": "a", "reason": "the configuration has no such step any more"},
    )


def test_a_pipeline_that_became_longer_does_not_end_the_runs_in_it() -> None:
    """Nobody set a `max_depth`: the length of the pipeline is that of the pipeline as it is now."""
    short = "[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}]}]"
    long = "[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}, {id: c, uses: z}]}]"
    before, now = a_world(short), a_world(long)
    following = after(job_of(begun(before), "a"), SUCCEEDED, (), before, now=NOW)
    assert steps_of(after(job_of(following, "b"), SUCCEEDED, (), now, now=NOW)) == ["c"]


def test_more_than_one_job_may_lead_to_is_too_much() -> None:
    """Whoever asks decides what that means for the job."""
    world = a_world("[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y, foreach: payload.all}]}]")
    small = evolve(world, most_jobs=2)
    event = an_event(payload={"all": [1, 2, 3]})
    with pytest.raises(TooManyFollowUps):
        after(job_of(begun(world), "a"), SUCCEEDED, (event,), small, now=NOW)


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────────────

HANDLED = """
- name: p
  on: e
  steps:
    - {id: a, uses: x, baggage: {first: payload.n}, on_error: [{id: h, uses: y}, {id: i, uses: y}]}
    - {id: b, uses: z}
"""


@pytest.mark.parametrize(
    ("ended", "status", "message"),
    [
        (FAILED, "failed", "Job failed [x]: no luck"),
        (DEAD, "dead", "Job failed [x]: attempts used up (4 of 4): no luck"),
        (TIMED_OUT, "dead", "Job timed out [x]"),
    ],
)
def test_a_final_failure_enters_the_on_error_steps(ended: Ended, status: str, message: str) -> None:
    """With how it ended, words for people, and what the step was entered with; the baggage of the step is there."""
    world = a_world(HANDLED)
    job = job_of(begun(world), "a", attempt=4)
    following = after(job, ended, (), world, now=NOW)
    assert steps_of(following) == ["h"]
    (handler,) = following.children
    assert json.loads(handler.payload or "")["type"] == "ductile.step.failed"
    assert payload_of(handler) == {
        "job_id": job.id,
        "plugin": "x",
        "command": "handle",
        "status": status,
        "attempt": 4,
        "error": ended.error,
        "message": message,
        "text": message,
        "input": {"n": 1},
    }
    assert context_of(handler, following)["first"] == 1


def handled_by(world: World) -> list[list[str]]:
    """What is entered after the failure of `a`, and after each of its handlers."""
    first = after(job_of(begun(world), "a"), FAILED, (), world, now=NOW)
    second = after(job_of(first, "h"), SUCCEEDED, (), world, now=NOW)
    third = after(job_of(second, "i"), SUCCEEDED, (), world, now=NOW)
    return [steps_of(following) for following in (first, second, third)]


def test_on_error_steps_lead_nowhere() -> None:
    """The run is over when they are."""
    assert handled_by(a_world(HANDLED)) == [["h"], ["i"], []]


def test_on_error_steps_of_a_tolerated_failure_lead_to_what_follows() -> None:
    """With `continue: true` their end is the end of the step."""
    assert handled_by(a_world(HANDLED.replace("on_error", "continue: true, on_error"))) == [["h"], ["i"], ["b"]]


def test_a_tolerated_failure_without_steps_goes_on_with_the_failure() -> None:
    """The next step is entered with `ductile.step.failed`."""
    world = a_world("[{name: p, on: e, steps: [{id: a, uses: x, continue: true}, {id: b, uses: y}]}]")
    following = after(job_of(begun(world), "a"), FAILED, (), world, now=NOW)
    assert steps_of(following) == ["b"]
    assert payload_of(following.children[0])["error"] == "no luck"


@pytest.mark.parametrize("ended", [FAILED, DEAD, SKIPPED])
def test_nothing_else_follows_from_a_job_that_did_not_succeed(ended: Ended) -> None:
    """Neither the next step nor, for a skipped job, its on_error steps."""
    world = a_world(CHAIN)
    assert after(job_of(begun(world), "a"), ended, (), world, now=NOW).children == ()
    handled = a_world(HANDLED)
    skipped = after(job_of(begun(handled), "a"), SKIPPED, (), handled, now=NOW)
    assert skipped.children == ()


def test_the_events_of_a_failure_are_routed_and_trigger_but_do_not_advance_the_run() -> None:
    """What a plugin says in its last words is heard; its step still has failed."""
    world = a_world(
        "[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}]},"
        " {name: q, on: alarm, steps: [{id: c, uses: y}]}]",
        [("x", "alarm", "siren")],
    )
    following = after(job_of(begun(world), "a"), FAILED, (an_event("alarm"),), world, now=NOW)
    assert [(new.plugin, new.pipeline) for new in following.children] == [("siren", None), ("y", "q")]


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_matching_route_is_a_job_in_the_order_of_the_configuration() -> None:
    """Fan-out: the same target twice is two jobs, told apart by their place."""
    routes = [("emits", "made", "b"), ("emits", "made", "a"), ("emits", "made", "b"), ("other", "made", "a")]
    children = follow(an_event(), world=a_world(routes=routes)).children
    assert [child.plugin for child in children] == ["b", "a", "b"]
    assert [child.child_key for child in children] == [f"event-1/route/{index}" for index in (0, 1, 2)]


def test_events_are_followed_in_the_order_they_were_emitted() -> None:
    """Event by event, and the routes of each in their order."""
    world = a_world(routes=[("emits", "made", "a"), ("emits", "seen", "b"), ("emits", "made", "b")])
    children = follow(an_event("seen", id="e1"), an_event("made", id="e2"), world=world).children
    assert [(child.source_event_id, child.plugin) for child in children] == [("e1", "b"), ("e2", "a"), ("e2", "b")]


@pytest.mark.parametrize("kind", ["Made", "made.", "made.more", " made", "*"])
def test_a_type_matches_exactly_or_not_at_all(kind: str) -> None:
    """No prefix, no case folding, no wildcard, for routes and triggers; and nothing is lost without a note."""
    world = a_world("[{name: p, on: made, steps: [{uses: x}]}]", [("emits", "made", "a")])
    following = follow(an_event(kind), world=world)
    assert following.children == ()
    assert [(note.kind, note.data) for note in following.notes] == [
        ("event.unmatched", {"event_id": "event-1", "type": kind})
    ]


def test_a_route_listens_to_one_plugin() -> None:
    """The source is who ran, not what the event says."""
    assert follow(an_event(source="other"), world=a_world(routes=[("other", "made", "a")])).children == ()


def test_a_child_knows_where_it_comes_from_and_how_to_be_tried() -> None:
    """Parent, event, one more hop, the receiver's attempts, the event's dedupe key, the snapshot."""
    event = an_event(dedupe_key="once")
    world = a_world(routes=[("emits", "made", "twice")], snapshot_id="s-1")
    (child,) = follow(event, world=world, hops=6).children
    assert (child.plugin, child.command, child.submitted_by) == ("twice", "handle", "route")
    assert (child.parent_job_id, child.source_event_id, child.hops) == ("job-1", "event-1", 7)
    assert (child.max_attempts, child.dedupe_key, child.snapshot_id) == (2, "once", "s-1")
    assert (child.payload, child.event_context_id, child.pipeline) == (event.envelope(), None, None)


def test_a_route_to_a_plugin_that_cannot_run_is_a_dead_job_that_says_why() -> None:
    """An event on its way to a disabled plugin is neither lost nor waiting for ever."""
    (child,) = follow(an_event(), world=a_world(routes=[("emits", "made", "off")])).children
    assert child.settled is not None
    assert (child.settled.status, child.settled.error) == (JobStatus.DEAD, "plugin off is disabled (enabled: false)")


def test_more_payload_than_allowed_is_refused_as_a_whole() -> None:
    """One answer cannot be multiplied without limit: every route counts."""
    routes = [("emits", "made", "a")] * 3
    size = 3 * len(an_event().envelope())
    assert len(follow(an_event(), world=a_world(routes=routes, most_bytes=size)).children) == 3
    with pytest.raises(TooManyFollowUps, match=f"more than {size - 1} bytes"):
        follow(an_event(), world=a_world(routes=routes, most_bytes=size - 1))


# ── triggers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_starts_every_pipeline_that_waits_for_it() -> None:
    """In the order of the configuration; two that begin alike are two runs."""
    world = a_world("[{name: p, on: made, steps: [{id: a, uses: x}]}, {name: q, on: made, steps: [{id: a, uses: x}]}]")
    following = follow(an_event(), world=world, hops=2)
    assert [(new.pipeline, new.hops, new.parent_job_id) for new in following.children] == [
        ("p", 3, "job-1"),
        ("q", 3, "job-1"),
    ]
    instances = {context_of(new, following)["ductile"]["pipeline_instance_id"] for new in following.children}
    assert len(instances) == 2
    assert not any(new.own_tree for new in following.children)


def test_a_triggered_run_inherits_the_baggage_and_nothing_of_the_cores_own() -> None:
    """Its depth begins at one, its limit is its own; items and joins stay behind."""
    world = a_world(
        "[{name: p, on: e, steps:"
        " [{foreach: payload.all, join: true, steps: [{id: a, uses: x, baggage: {n: payload.n}}]}]},"
        " {name: q, on: made, steps: [{id: b, uses: y}, {id: c, uses: y}, {id: d, uses: y}]}]"
    )
    job = job_of(begun(world, payload={"n": 1, "all": [5]}), "a")
    following = after(job, SUCCEEDED, (an_event(),), world, now=NOW)
    (new,) = [new for new in following.children if new.pipeline == "q"]
    assert (new.join_id, new.step_id) == (None, "b")
    content = context_of(new, following)
    own = content.pop("ductile")
    assert content == {"n": 1}
    assert (own["route_depth"], own["route_max_depth"]) == (1, 3)
    assert "items" not in own
    root, _ = (context for context in following.contexts if context.pipeline_name == "q")
    assert root.parent_id == job.event_context_id


def test_a_triggered_step_is_told_who_emitted_the_event() -> None:
    """Also from outside of every run, without a step then."""
    world = a_world("[{name: p, on: made, steps: [{uses: x}]}]")
    (new,) = follow(an_event(), world=world).children
    assert payload_of(new) == {"n": 1, "ductile_upstream_plugin": "emits"}


@pytest.mark.parametrize(("source", "starts"), [("emits", True), ("other", False)])
def test_from_plugin_is_who_emitted_the_event(source: str, starts: bool) -> None:
    """Exactly that plugin; otherwise the journal says why not."""
    world = a_world(f"[{{name: p, on: made, from_plugin: {source}, steps: [{{id: a, uses: x}}]}}]")
    following = follow(an_event(), world=world)
    assert steps_of(following) == (["a"] if starts else [])
    if not starts:
        assert kinds(following) == ["pipeline.skipped", "event.unmatched"]
        assert following.notes[0].data["reason"] == "from_plugin is other"


def test_a_false_pipeline_level_if_starts_nothing_at_all() -> None:
    """No switch, no context; the journal has the predicates and what they saw. Others start."""
    world = a_world(
        "[{name: p, on: made, if: {path: payload.n, op: gt, value: 5}, steps: [{uses: x}]},"
        " {name: q, on: made, if: {path: payload.n, op: lt, value: 5}, steps: [{id: a, uses: x}]}]"
    )
    following = follow(an_event(), world=world)
    assert [(new.pipeline, new.step_id) for new in following.children] == [("q", "a")]
    (note,) = following.notes
    assert (note.kind, note.data["pipeline"], note.data["reason"]) == ("pipeline.skipped", "p", "if is false")
    assert note.data["predicates"] == [{"path": "payload.n", "op": "gt", "value": 5, "found": 1, "holds": False}]


def test_a_pipeline_level_if_reads_the_context_of_the_emitting_job() -> None:
    """Outside of a run there is none, and its paths are absent."""
    world = a_world(
        "[{name: p, on: e, steps: [{id: a, uses: x, baggage: {n: payload.n}}]},"
        " {name: q, on: made, if: {path: context.n, op: eq, value: 1}, steps: [{id: b, uses: y}]}]"
    )
    inside = after(job_of(begun(world), "a"), SUCCEEDED, (an_event(),), world, now=NOW)
    assert steps_of(inside) == ["b"]
    assert steps_of(follow(an_event(), world=world)) == []


@pytest.mark.parametrize(
    "odd", [{}, {"n": None}, {"n": "x"}, {"n": [1]}, {"n": {"gt": 1}}, {"n": True}, {"n": 10**400}, {"m": 1}]
)
def test_one_predicate_on_odd_values_never_stops_the_others(odd: Any) -> None:
    """There is an answer for every payload, so every other pipeline gets the event."""
    world = a_world(
        "[{name: p, on: made, steps: [{uses: x}], if: {all:"
        " [{path: payload.n, op: gt, value: 5}, {path: payload.n, op: contains, value: x}]}},"
        " {name: q, on: made, steps: [{id: a, uses: x}]}]"
    )
    following = follow(an_event(payload=odd), world=world)
    assert [new.pipeline for new in following.children] == ["q"]


GREEDY = """
- {name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}]}
- {name: many, on: rows, steps: [{id: m, uses: x, foreach: payload.all}]}
- {name: long, on: steps, steps: [{foreach: payload.all, steps: [{id: l, uses: x, foreach: item}]}]}
- {name: fine, on: rows, steps: [{id: f, uses: x}]}
- {name: good, on: steps, steps: [{id: g, uses: x}]}
"""


@pytest.mark.parametrize(
    ("kind", "items", "skipped", "other", "reason"),
    [
        ("rows", [1] * 30, "many", "f", "it leads to more than 20 jobs at once"),
        ("steps", [[]] * 100, "long", "g", "it takes more than 200 steps to find what follows"),
    ],
)
def test_a_triggered_run_that_would_be_too_much_is_noted_and_takes_nothing_with_it(
    kind: str, items: Any, skipped: str, other: str, reason: str
) -> None:
    """Neither the step that emitted the event, nor its next step, nor the other pipelines are to blame."""
    world = evolve(a_world(GREEDY), most_jobs=20)
    event = an_event(kind, {"all": items})
    following = after(job_of(begun(world), "a"), SUCCEEDED, (event, evolve(event, id="event-2")), world, now=NOW)
    assert steps_of(following) == ["b", other] * 2
    found = [(note.kind, note.data["pipeline"], note.data["reason"]) for note in following.notes]
    assert found == [("pipeline.skipped", skipped, reason)] * 2
    used = {new.event_context_id for new in following.children}
    assert len([context for context in following.contexts if context.id in used]) == 4
    assert skipped not in {context.pipeline_name for context in following.contexts}


@pytest.mark.parametrize("kind", ["ductile.step.succeeded", "ductile.anything"])
def test_the_cores_own_event_types_never_trigger(kind: str) -> None:
    """Even when a plugin emits one, and even if a plan should wait for it; routes may name it."""
    world = a_world("[{name: p, on: made, steps: [{uses: x}]}]", [("emits", kind, "a")])
    world = evolve(world, plans=evolve(world.plans, by_event={kind: world.plans.by_event["made"]}))
    following = follow(an_event(kind), world=world)
    assert [(new.plugin, new.pipeline) for new in following.children] == [("a", None)]
    assert following.notes == ()


def test_an_event_that_only_advances_its_run_is_not_unmatched() -> None:
    """It went somewhere: to the next step, or to a join."""
    world = a_world("[{name: p, on: e, steps: [{id: s, join: true, split: [{id: a, uses: x}, {id: b, uses: x}]}]}]")
    following = after(job_of(begun(world), "a"), SUCCEEDED, (an_event(),), world, now=NOW)
    assert (following.children, len(following.arrivals), following.notes) == ((), 1, ())


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────

HOOKS = "\n".join(
    f"- {{name: {signal}, on-hook: job.{signal}, steps: [{{id: a, uses: x}}]}}"
    for signal in ("completed", "failed", "timed_out", "dead")
)


def told_to_hooks(ended: Ended, world: World | None = None, **job: Any) -> FollowUps:
    """What follows from the end of a root job whose plugin has `notify_on_complete`."""
    return follow(ended=ended, world=world or a_world(HOOKS), **{"root_job_id": "job-1", "notify": True} | job)


@pytest.mark.parametrize(
    ("ended", "fired"),
    [
        (SUCCEEDED, ["completed"]),
        (FAILED, ["completed", "failed"]),
        (DEAD, ["completed", "failed", "dead"]),
        (TIMED_OUT, ["completed", "failed", "timed_out", "dead"]),
        (evolve(TIMED_OUT, status=JobStatus.FAILED), ["completed", "failed", "timed_out"]),
        (SKIPPED, []),
    ],
)
def test_each_end_fires_the_signals_that_are_true_of_it(ended: Ended, fired: list[str]) -> None:
    """`job.completed` for every end; the others say more. A skipped job never ran."""
    assert [new.pipeline for new in told_to_hooks(ended).children] == fired


@pytest.mark.parametrize("job", [{"notify": False}, {"root_job_id": "other"}])
def test_only_root_jobs_of_plugins_that_opted_in_fire_hooks(job: Any) -> None:
    """Everything else would be noise, or a loop."""
    assert told_to_hooks(FAILED, **job) == FollowUps()


def test_a_hook_run_is_a_tree_of_its_own_with_nothing_inherited() -> None:
    """A fresh root with a fresh context, one crossing further, made by the hook."""
    world = a_world("[{name: p, on-hook: job.completed, steps: [{id: a, uses: x}]}]")
    following = told_to_hooks(SUCCEEDED, world, hops=3, context='{"secret": 1}')
    (new,) = following.children
    assert (new.own_tree, new.parent_job_id, new.submitted_by, new.hops) == (True, "job-1", "hook", 4)
    content = context_of(new, following)
    assert set(content) == {"ductile"}
    assert following.contexts[0].parent_id is None


def test_a_hook_run_with_several_beginnings_has_one_root() -> None:
    """The tree is one tree: its root stands for the trigger."""
    world = a_world("[{name: p, on-hook: job.completed, steps: [{split: [{id: a, uses: x}, {id: b, uses: x}]}]}]")
    start, *rest = told_to_hooks(SUCCEEDED, world).children
    assert (start.plugin, start.own_tree, start.parent_job_id) == ("core.start", True, "job-1")
    assert [(new.step_id, new.parent_job_id, new.own_tree) for new in rest] == [
        ("a", start.id, False),
        ("b", start.id, False),
    ]


def test_hooks_are_told_how_the_job_ended() -> None:
    """Ids, names, duration, the plugin's words, and a sentence for people under two names."""
    ended = evolve(FAILED, duration=timedelta(seconds=1.2345), result="half done")
    payload = payload_of(told_to_hooks(ended, command="poll", plugin="backup", attempt=3).children[0])
    assert payload == {
        "job_id": "job-1",
        "plugin": "backup",
        "command": "poll",
        "status": "failed",
        "attempt": 3,
        "duration_ms": 1234,
        "error": "no luck",
        "message": "Job failed [backup]: no luck",
        "text": "Job failed [backup]: no luck",
        "result": "half done",
    }


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (SUCCEEDED, "Job succeeded [emits]"),
        (FAILED, "Job failed [emits]: no luck"),
        (TIMED_OUT, "Job timed out [emits]"),
    ],
)
def test_the_message_of_an_end_can_be_shown_as_it_is(ended: Ended, message: str) -> None:
    """And `text` is the same, for plugins that look there."""
    payload = payload_of(told_to_hooks(ended).children[0])
    assert payload["message"] == payload["text"] == message


@pytest.mark.parametrize(
    ("selector", "starts"),
    [
        ("from_plugin: emits", True),
        ("from_plugin: other", False),
        ("if: {path: payload.plugin, op: eq, value: emits}", True),
        ("if: {not: {path: payload.plugin, op: in, value: [emits, noisy]}}", False),
        ("from_plugin: emits, if: {path: payload.status, op: neq, value: succeeded}", True),
        ("from_plugin: other, if: {path: payload.status, op: neq, value: succeeded}", False),
    ],
)
def test_from_plugin_and_if_choose_whose_end_a_hook_hears(selector: str, starts: bool) -> None:
    """The selector first, then the predicate, on what hooks are told."""
    world = a_world(f"[{{name: p, on-hook: job.failed, {selector}, steps: [{{id: a, uses: x}}]}}]")
    following = told_to_hooks(FAILED, world)
    assert steps_of(following) == (["a"] if starts else [])
    assert kinds(following) == ([] if starts else ["pipeline.skipped"])


def test_a_hook_run_goes_on_like_any_other() -> None:
    """All its steps, with `if`, `with` and baggage."""
    world = a_world(
        "[{name: p, on-hook: job.failed, steps: [{id: a, uses: x, baggage: {who: payload.plugin}},"
        " {id: b, uses: y, if: {path: context.who, op: eq, value: emits}}]}]"
    )
    first = told_to_hooks(FAILED, world)
    second = after(job_of(first, "a"), SUCCEEDED, (), world, now=NOW)
    assert steps_of(second) == ["b__switch=", "b"]


# ── joins ───────────────────────────────────────────────────────────────────────────────────────────────────────────

JOINED = """
- name: p
  on: e
  steps:
    - {id: s, join: true, split: [{id: a, uses: x, baggage: {lost: payload.n}}, {id: b, uses: x}]}
    - {id: c, uses: y}
"""


def join_of(
    world: World, *payloads: Any, name: str = "s__join", failures: tuple[str, ...] = (), failed: int = 0
) -> JoinInput:
    job = job_of(begun(world), name)
    arrivals = tuple(BranchResult(join_id=job.id, payload=json.dumps(payload)) for payload in payloads)
    return JoinInput(job=job, arrivals=arrivals, failures=failures, failed=failed or len(failures))


def test_a_join_goes_on_once_with_all_results_in_order() -> None:
    """The payload it was opened with, plus `results`; the context it was opened with, without the branches' baggage."""
    world = a_world(JOINED)
    joined = join_of(world, {"n": 2}, {"n": 3})
    outcome, following = after_join(joined, world, now=NOW)
    assert isinstance(outcome, Succeeded)
    answer = {"status": "ok", "result": "2 joined", "results": [{"n": 2}, {"n": 3}]}
    assert json.loads(outcome.evidence.result or "") == answer
    (new,) = following.children
    envelope = json.loads(new.payload or "")
    assert (new.step_id, new.parent_job_id, envelope["type"]) == ("c", joined.job.id, "ductile.join.completed")
    assert envelope["payload"] == {"n": 1, "results": [{"n": 2}, {"n": 3}]}
    assert "lost" not in context_of(new, following)


def test_an_empty_join_goes_on_with_no_results() -> None:
    """A list without items is nothing to do, not a failure."""
    world = a_world("[{name: p, on: e, steps: [{id: s, uses: x, foreach: payload.all, join: true}, {id: c, uses: y}]}]")
    job = job_of(begun(world, payload={"all": []}), "s__join")
    _, following = after_join(JoinInput(job=job), world, now=NOW)
    assert payload_of(following.children[0]) == {"all": [], "results": []}


@pytest.mark.parametrize(
    ("failures", "failed", "error"),
    [
        (("a: no luck",), 1, "not joined: a: no luck"),
        (("a: no luck", "b: none either"), 2, "not joined: a: no luck; b: none either"),
        (("a: no luck", "b: none either"), 7, "not joined: a: no luck; b: none either and 5 more"),
    ],
)
def test_a_join_with_a_failed_member_fails_and_nothing_follows(
    failures: tuple[str, ...], failed: int, error: str
) -> None:
    """Its error names the first few."""
    world = a_world(JOINED)
    outcome, following = after_join(join_of(world, {}, failures=failures, failed=failed), world, now=NOW)
    assert isinstance(outcome, Failed)
    assert outcome.error == error
    assert following == FollowUps()


def test_an_inner_join_arrives_at_the_outer_one() -> None:
    """At its branch, with its results."""
    world = a_world(
        "[{name: p, on: e, steps: [{id: s, join: true, split: [{id: a, uses: x},"
        " {id: t, join: true, split: [{id: b, uses: x}]}]}]}]"
    )
    joined = join_of(world, {"n": 9}, name="t__join")
    _, following = after_join(joined, world, now=NOW)
    (arrival,) = following.arrivals
    assert (arrival.join_id, arrival.branch) == (joined.job.join_id, 1)
    assert json.loads(arrival.payload) == {"n": 1, "results": [{"n": 9}]}


def test_a_join_whose_step_is_gone_fails_and_says_so() -> None:
    """The members have run; where to go on is not known any more."""
    world = a_world("[{name: p, on: e, steps: [{id: z, uses: x}]}]")
    outcome, following = after_join(join_of(a_world(JOINED), {}), world, now=NOW)
    assert isinstance(outcome, Failed)
    assert outcome.error == "pipeline p has no step s__join any more"
    assert following.children == ()


def test_a_join_that_leads_to_too_much_fails_with_the_limit() -> None:
    """Its results may be many; what they would start is bounded like anything else."""
    world = a_world(
        "[{name: p, on: e, steps: [{id: s, join: true, split: [{uses: x}]}, {uses: y, foreach: payload.results}]}]"
    )
    outcome, following = after_join(join_of(world, {}, {}, {}), evolve(world, most_jobs=2), now=NOW)
    assert isinstance(outcome, Failed)
    assert "more than 2 jobs" in outcome.error
    assert following == FollowUps()


# ── a run that somebody asks for ────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_is_asked_for_by_name_asks_no_conditions() -> None:
    """Neither `if` nor `from_plugin`: who names it wants it."""
    world = a_world(
        "[{name: p, on: e, from_plugin: nobody, if: {path: payload.gone, op: exists}, steps: [{id: a, uses: x}]}]"
    )
    (root,) = begun(world).children
    assert (root.step_id, root.parent_job_id, root.submitted_by, root.hops) == ("a", None, "api", 0)
    assert json.loads(root.payload or "")["type"] == "e"


BEGINNINGS: list[tuple[str, list[str]]] = [
    ("{id: a, uses: x}", ["a"]),
    ("{id: a, uses: x, if: {path: payload.n, op: exists}}", ["a__switch=", "a"]),
    ("{id: a, call: q}", ["a/b"]),
    ("{split: [{id: a, uses: x}, {id: b, uses: x}]}", ["core.start=", "a", "b"]),
    ("{id: s, join: true, split: [{id: a, uses: x}]}", ["core.start=", "a", "s__join"]),
    ("{id: a, uses: x, foreach: payload.all}", ["core.start=", "a", "a"]),
    ("{id: a, uses: x, foreach: payload.none}", ["core.start="]),
    ("{id: a, uses: x, foreach: payload.none, join: true}", ["core.start=", "a__join"]),
    ("{id: a, uses: x, foreach: payload.gone}", ["a!"]),
    ("{id: a, uses: off}", ["a!"]),
    ("{id: a, uses: off, on_error: [{id: h, uses: x}]}", ["a!", "h"]),
]


@pytest.mark.parametrize(("steps", "made"), BEGINNINGS)
def test_a_run_has_one_root_whatever_it_begins_with(steps: str, made: list[str]) -> None:
    """The first row is the root; all others hang below it, or below one that does."""
    world = a_world(f"[{{name: p, on: e, steps: [{steps}]}}, {{name: q, on: f, steps: [{{id: b, uses: x}}]}}]")
    following = begun(world, payload={"n": 1, "all": [1, 2], "none": []})
    assert steps_of(following) == made
    root, *others = following.children
    assert root.parent_job_id is None
    known = {root.id}
    for new in others:
        assert new.parent_job_id in known
        known.add(new.id)


def test_two_runs_of_one_pipeline_share_no_id() -> None:
    """The same payload asked for twice is two runs."""
    world = a_world(CHAIN)
    first, second = begun(world), begun(world)
    assert not {context.id for context in first.contexts} & {context.id for context in second.contexts}


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("{uses: off}", "plugin off is disabled (enabled: false)"),
        ("{uses: x, baggage: {y: payload.gone}}", "baggage y: payload.gone is absent: payload has no 'gone'"),
        ("{uses: x, foreach: payload.gone}", "foreach: payload.gone is absent"),
    ],
)
def test_whoever_asks_for_a_run_that_cannot_begin_is_told_why(step: str, reason: str) -> None:
    """Before anything is written, so that the caller can be refused."""
    world = a_world(f"[{{name: p, on: e, steps: [{step}]}}]")
    assert begin(world.plans.named("p"), {}, world, submitted_by="api", now=NOW).refusals == (reason,)


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("parts", [(), ("job-1", 1, 0), ("job-1", 12, "silent"), (None, "ä/😀", "context")])
def test_a_derived_id_is_the_uuid_of_its_parts(parts: tuple[Any, ...]) -> None:
    """Version 5 in our namespace: the same from every release, so that what was delivered before is known again."""
    namespace = uuid.UUID("6c0f7a7e-5f0b-5d0a-9c2a-0d1b6a5e4f3c")
    assert derived_id(*parts) == str(uuid.uuid5(namespace, "/".join(map(str, parts))))


def test_the_envelope_is_the_event_and_leaves_out_what_it_has_not() -> None:
    """Dedupe key and headers are there only where there are some; integers stay exact."""
    plain = json.loads(an_event(payload={"n": 2**64, "text": "é\0"}).envelope())
    assert plain == {
        "type": "made",
        "payload": {"n": 2**64, "text": "é\0"},
        "source": "emits",
        "timestamp": "2026-02-08T09:30:00.000000Z",
        "event_id": "event-1",
    }
    rich = json.loads(an_event(dedupe_key="k", headers={"X-A": "1"}).envelope())
    assert (rich["dedupe_key"], rich["headers"]) == ("k", {"X-A": "1"})


def test_an_events_id_depends_on_job_attempt_and_place_and_on_nothing_else() -> None:
    """A commit that is replayed makes the same ids; another attempt, place or job makes others."""
    ids = [event_id(job, attempt, index) for job in ("a", "b") for attempt in (1, 2) for index in (0, 1)]
    assert len(set(ids)) == 8
    assert ids[0] == event_id("a", 1, 0)


@pytest.mark.parametrize(
    ("command", "payload", "kept"),
    [
        ("handle", '{"type": "e", "payload": {"n": 1}}', {"n": 1}),
        ("handle", '{"type": "e"}', {}),
        ("handle", None, {}),
        ("poll", '{"n": 1}', {"n": 1}),
        ("poll", None, {}),
    ],
)
def test_a_silent_step_keeps_its_payload_whatever_its_command(command: str, payload: str | None, kept: Any) -> None:
    """Also where the payload is the whole event, or missing."""
    world = a_world("[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y.poll}]}]")
    job = job_of(begun(world), "a", command=command, payload=payload)
    (new,) = after(job, SUCCEEDED, (), world, now=NOW).children
    handed: NewJob = new
    content = json.loads(handed.payload or "")
    assert {key: value for key, value in content.items() if not key.startswith("ductile_")} == kept | {"result": "done"}
