"""Routing: follow-ups of completed jobs, routes, triggers, hooks, joins and triggered runs."""

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from ductile.core.model import BranchResult, Failed, FollowUps, Job, JobStatus, JoinInput, NewJob, Succeeded
from ductile.pipeline.run import route
from ductile.pipeline.run.events import Event, JobResult, derived_id, event_id
from ductile.pipeline.run.route import RoutingConfig, TooManyFollowUps, compute_follow_ups, resolve_join, trigger_run
from tests.pipeline.factories import (
    NOW,
    SUCCEEDED,
    context_of,
    make_event,
    make_job,
    make_routing,
    payload_of,
    steps_of,
    to_job,
)

FAILED = JobResult(status=JobStatus.FAILED, error="no luck")
DEAD = JobResult(status=JobStatus.DEAD, error="attempts used up (4 of 4): no luck")
TIMED_OUT = JobResult(status=JobStatus.DEAD, error="timed out after 1s", timed_out=True)
SKIPPED = JobResult(status=JobStatus.SKIPPED, error="deduplicated")


def follow(
    *events: Event, job_result: JobResult = SUCCEEDED, routing: RoutingConfig | None = None, **job: Any
) -> FollowUps:
    """Return the follow-ups of a job outside of a run."""
    return compute_follow_ups(make_job(**job), job_result, events, routing or make_routing(), now=NOW)


def start_pipeline(routing: RoutingConfig, name: str = "p", payload: Any = None) -> FollowUps:
    return trigger_run(
        routing.plans.require(name), payload or {"n": 1}, routing, submitted_by="api", now=NOW
    ).follow_ups


def job_of(follow_ups: FollowUps, step: str, **values: Any) -> Job:
    """Return the running job of a step."""
    (new,) = [new for new in follow_ups.children if new.step_id == step]
    return to_job(new, follow_ups, **values)


def note_kinds(follow_ups: FollowUps) -> list[str]:
    return [note.kind for note in follow_ups.notes]


# ── inside a run ────────────────────────────────────────────────────────────────────────────────────────────────────

CHAIN = "[{name: p, on: e, steps: [{id: a, uses: x, baggage: {first: payload.n}}, {id: b, uses: y}]}]"


def test_every_event_advances_the_run_once() -> None:
    """Two events run the next step twice, each with its own payload."""
    routing = make_routing(CHAIN)
    job = job_of(start_pipeline(routing), "a")
    events = (make_event(payload={"n": 1}, id="e1"), make_event(payload={"n": 2}, id="e2"))
    follow_ups = compute_follow_ups(job, SUCCEEDED, events, routing, now=NOW)
    assert [(new.step_id, new.source_event_id, payload_of(new)["n"]) for new in follow_ups.children] == [
        ("b", "e1", 1),
        ("b", "e2", 2),
    ]
    assert {new.parent_job_id for new in follow_ups.children} == {job.id}


def test_a_step_without_events_passes_on_its_input_and_result() -> None:
    """In an internal event."""
    routing = make_routing(CHAIN)
    follow_ups = compute_follow_ups(job_of(start_pipeline(routing), "a"), SUCCEEDED, (), routing, now=NOW)
    (new,) = follow_ups.children
    assert json.loads(new.payload or "")["type"] == "ductile.step.succeeded"
    assert payload_of(new) == {
        "n": 1,
        "result": "done",
        "ductile_upstream_plugin": "x",
        "ductile_upstream_pipeline": "p",
        "ductile_upstream_step_id": "a",
    }


def test_a_job_without_events_outside_of_a_run_has_no_follow_ups() -> None:
    """And no notes."""
    assert follow() == FollowUps()


LAST = "{id: a, uses: x}"


@pytest.mark.parametrize(
    ("steps", "job", "routes", "uses_shortcut"),
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
def test_the_shortcut_for_no_follow_ups_agrees_with_the_full_computation(
    monkeypatch: pytest.MonkeyPatch, steps: str, job: Any, routes: Any, uses_shortcut: bool
) -> None:
    """Both give the same result, whether or not the shortcut applies."""
    hook = "{name: h, on-hook: job.completed, steps: [{uses: z}]}"
    routing = make_routing(f"[{{name: p, on: e, steps: [{steps}]}}, {hook}]", routes)
    job_row = job_of(start_pipeline(routing, payload={"all": [1]}), "a", **job)
    assert route._has_no_follow_ups(job_row, routing) is uses_shortcut
    short = compute_follow_ups(job_row, SUCCEEDED, (), routing, now=NOW)
    monkeypatch.setattr(route, "_has_no_follow_ups", lambda *_: False)
    assert compute_follow_ups(job_row, SUCCEEDED, (), routing, now=NOW) == short


def test_a_payload_names_the_previous_step() -> None:
    """Not an earlier one."""
    routing = make_routing("[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}, {id: c, uses: z}]}]")
    first = compute_follow_ups(job_of(start_pipeline(routing), "a"), SUCCEEDED, (), routing, now=NOW)
    second = compute_follow_ups(job_of(first, "b"), SUCCEEDED, (), routing, now=NOW)
    assert payload_of(second.children[0])["ductile_upstream_step_id"] == "b"
    assert payload_of(second.children[0])["ductile_upstream_plugin"] == "y"


def test_contexts_form_a_chain_along_the_run() -> None:
    """Baggage stays, and the depth increases."""
    routing = make_routing(CHAIN)
    started = start_pipeline(routing)
    job = job_of(started, "a")
    follow_ups = compute_follow_ups(job, SUCCEEDED, (), routing, now=NOW)
    (context,) = follow_ups.contexts
    assert (context.parent_id, context.step_id) == (job.event_context_id, "b")
    content = context_of(follow_ups.children[0], follow_ups)
    assert (content["first"], content["ductile"]["route_depth"], content["ductile"]["route_max_depth"]) == (1, 2, 2)
    root, entry = started.contexts
    assert (root.parent_id, root.step_id, json.loads(root.accumulated_json)["ductile"]["route_depth"]) == (
        None,
        None,
        0,
    )
    assert entry.parent_id == root.id


def test_a_step_after_a_call_has_the_baggage_of_the_called_pipeline() -> None:
    """The last step of the callee leads to the step after the call."""
    routing = make_routing(
        "[{name: p, on: e, steps: [{id: a, uses: x, baggage: {mine: payload.n}}, {id: b, call: q}, {id: c, uses: z}]},"
        " {name: q, on: f, steps: [{id: d, uses: y, baggage: {theirs: payload.n}}]}]"
    )
    first = compute_follow_ups(job_of(start_pipeline(routing), "a"), SUCCEEDED, (), routing, now=NOW)
    second = compute_follow_ups(job_of(first, "b/d"), SUCCEEDED, (), routing, now=NOW)
    assert (steps_of(first), steps_of(second)) == (["b/d"], ["c"])
    content = context_of(second.children[0], second)
    assert (content["mine"], content["theirs"]) == (1, 1)
    assert [first.children[0].hops, second.children[0].hops] == [1, 0]
    assert {new.pipeline for new in (*first.children, *second.children)} == {"p"}


def test_the_next_step_of_a_loop_has_the_same_item() -> None:
    """The step after the loop has none."""
    routing = make_routing(
        "[{name: p, on: e, steps: [{foreach: payload.all, steps:"
        " [{id: a, uses: x}, {id: b, uses: y, baggage: {it: item}}]}, {id: c, uses: z}]}]"
    )
    started = start_pipeline(routing, payload={"all": ["u", "v"]})
    second = to_job(started.children[2], started)
    first = compute_follow_ups(second, SUCCEEDED, (), routing, now=NOW)
    context = context_of(first.children[0], first)
    assert (context["it"], context["ductile"]["indexes"]) == ("v", [1])
    last = compute_follow_ups(job_of(first, "b"), SUCCEEDED, (), routing, now=NOW)
    assert "items" not in context_of(last.children[0], last)["ductile"]


def test_a_run_whose_step_was_removed_ends_with_a_note() -> None:
    """Without follow-up jobs."""
    old, new = make_routing(CHAIN), make_routing("[{name: p, on: e, steps: [{id: z, uses: x}]}]")
    follow_ups = compute_follow_ups(job_of(start_pipeline(old), "a"), SUCCEEDED, (), new, now=NOW)
    assert follow_ups.children == ()
    (note,) = follow_ups.notes
    assert (note.kind, note.data) == (
        "run.ended",
        {"pipeline": "p", "step_id": "a", "reason": "the step no longer exists in the configuration"},
    )


def test_a_pipeline_that_became_longer_does_not_end_its_runs() -> None:
    """Without `max_depth`, the limit is the current length of the pipeline."""
    short = "[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}]}]"
    long = "[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}, {id: c, uses: z}]}]"
    before, now = make_routing(short), make_routing(long)
    follow_ups = compute_follow_ups(job_of(start_pipeline(before), "a"), SUCCEEDED, (), before, now=NOW)
    assert steps_of(compute_follow_ups(job_of(follow_ups, "b"), SUCCEEDED, (), now, now=NOW)) == ["c"]


def test_too_many_follow_ups_raise_an_error() -> None:
    """The caller decides what happens to the job."""
    routing = make_routing("[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y, foreach: payload.all}]}]")
    small = evolve(routing, max_jobs=2)
    event = make_event(payload={"all": [1, 2, 3]})
    with pytest.raises(TooManyFollowUps):
        compute_follow_ups(job_of(start_pipeline(routing), "a"), SUCCEEDED, (event,), small, now=NOW)


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────────────

HANDLED = """
- name: p
  on: e
  steps:
    - {id: a, uses: x, baggage: {first: payload.n}, on_error: [{id: h, uses: y}, {id: i, uses: y}]}
    - {id: b, uses: z}
"""


@pytest.mark.parametrize(
    ("job_result", "status", "message"),
    [
        (FAILED, "failed", "Job failed [x]: no luck"),
        (DEAD, "dead", "Job failed [x]: attempts used up (4 of 4): no luck"),
        (TIMED_OUT, "dead", "Job timed out [x]"),
    ],
)
def test_a_final_failure_runs_the_on_error_steps(job_result: JobResult, status: str, message: str) -> None:
    """With the outcome, the input of the step, and its baggage."""
    routing = make_routing(HANDLED)
    job = job_of(start_pipeline(routing), "a", attempt=4)
    follow_ups = compute_follow_ups(job, job_result, (), routing, now=NOW)
    assert steps_of(follow_ups) == ["h"]
    (handler,) = follow_ups.children
    assert json.loads(handler.payload or "")["type"] == "ductile.step.failed"
    assert payload_of(handler) == {
        "job_id": job.id,
        "plugin": "x",
        "command": "handle",
        "status": status,
        "attempt": 4,
        "error": job_result.error,
        "message": message,
        "text": message,
        "input": {"n": 1},
    }
    assert context_of(handler, follow_ups)["first"] == 1


def handled_by(routing: RoutingConfig) -> list[list[str]]:
    """Return the jobs after the failure of `a`, and after each of its `on_error` steps."""
    first = compute_follow_ups(job_of(start_pipeline(routing), "a"), FAILED, (), routing, now=NOW)
    second = compute_follow_ups(job_of(first, "h"), SUCCEEDED, (), routing, now=NOW)
    third = compute_follow_ups(job_of(second, "i"), SUCCEEDED, (), routing, now=NOW)
    return [steps_of(follow_ups) for follow_ups in (first, second, third)]


def test_the_run_ends_after_the_on_error_steps() -> None:
    """The next step does not run."""
    assert handled_by(make_routing(HANDLED)) == [["h"], ["i"], []]


def test_a_tolerated_failure_continues_after_its_on_error_steps() -> None:
    """With `continue: true`, the next step runs."""
    assert handled_by(make_routing(HANDLED.replace("on_error", "continue: true, on_error"))) == [
        ["h"],
        ["i"],
        ["b"],
    ]


def test_a_tolerated_failure_without_on_error_continues_with_the_failure_event() -> None:
    """The next step gets `ductile.step.failed`."""
    routing = make_routing("[{name: p, on: e, steps: [{id: a, uses: x, continue: true}, {id: b, uses: y}]}]")
    follow_ups = compute_follow_ups(job_of(start_pipeline(routing), "a"), FAILED, (), routing, now=NOW)
    assert steps_of(follow_ups) == ["b"]
    assert payload_of(follow_ups.children[0])["error"] == "no luck"


@pytest.mark.parametrize("job_result", [FAILED, DEAD, SKIPPED])
def test_a_job_that_did_not_succeed_has_no_other_follow_ups(job_result: JobResult) -> None:
    """Neither the next step nor, for a skipped job, its on_error steps."""
    routing = make_routing(CHAIN)
    assert compute_follow_ups(job_of(start_pipeline(routing), "a"), job_result, (), routing, now=NOW).children == ()
    handled = make_routing(HANDLED)
    skipped = compute_follow_ups(job_of(start_pipeline(handled), "a"), SKIPPED, (), handled, now=NOW)
    assert skipped.children == ()


def test_events_of_a_failed_job_are_routed_but_do_not_advance_the_run() -> None:
    """They follow routes and trigger pipelines."""
    routing = make_routing(
        "[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y}]},"
        " {name: q, on: alarm, steps: [{id: c, uses: y}]}]",
        [("x", "alarm", "siren")],
    )
    follow_ups = compute_follow_ups(
        job_of(start_pipeline(routing), "a"), FAILED, (make_event("alarm"),), routing, now=NOW
    )
    assert [(new.plugin, new.pipeline) for new in follow_ups.children] == [("siren", None), ("y", "q")]


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_matching_route_creates_a_job_in_configuration_order() -> None:
    """The same target twice is two jobs with different keys."""
    routes = [("emits", "made", "b"), ("emits", "made", "a"), ("emits", "made", "b"), ("other", "made", "a")]
    children = follow(make_event(), routing=make_routing(routes=routes)).children
    assert [child.plugin for child in children] == ["b", "a", "b"]
    assert [child.child_key for child in children] == [f"event-1/route/{index}" for index in (0, 1, 2)]


def test_events_are_routed_in_the_order_they_were_emitted() -> None:
    """And the routes of each event in their order."""
    routing = make_routing(routes=[("emits", "made", "a"), ("emits", "seen", "b"), ("emits", "made", "b")])
    children = follow(make_event("seen", id="e1"), make_event("made", id="e2"), routing=routing).children
    assert [(child.source_event_id, child.plugin) for child in children] == [("e1", "b"), ("e2", "a"), ("e2", "b")]


@pytest.mark.parametrize("kind", ["Made", "made.", "made.more", " made", "*"])
def test_event_types_match_exactly(kind: str) -> None:
    """No prefixes, case folding or wildcards. An unmatched event is noted."""
    routing = make_routing("[{name: p, on: made, steps: [{uses: x}]}]", [("emits", "made", "a")])
    follow_ups = follow(make_event(kind), routing=routing)
    assert follow_ups.children == ()
    assert [(note.kind, note.data) for note in follow_ups.notes] == [
        ("event.unmatched", {"event_id": "event-1", "type": kind})
    ]


def test_a_route_matches_the_plugin_of_the_job() -> None:
    """Not the source in the event."""
    assert follow(make_event(source="other"), routing=make_routing(routes=[("other", "made", "a")])).children == ()


def test_a_routed_job_has_all_its_fields() -> None:
    """Parent, event, hops, attempts, dedupe key and snapshot."""
    event = make_event(dedupe_key="once")
    routing = make_routing(routes=[("emits", "made", "twice")], snapshot_id="s-1")
    (child,) = follow(event, routing=routing, hops=6).children
    assert (child.plugin, child.command, child.submitted_by) == ("twice", "handle", "route")
    assert (child.parent_job_id, child.source_event_id, child.hops) == ("job-1", "event-1", 7)
    assert (child.max_attempts, child.dedupe_key, child.snapshot_id) == (2, "once", "s-1")
    assert (child.payload, child.event_context_id, child.pipeline) == (event.envelope(), None, None)


def test_a_route_to_a_plugin_that_cannot_run_creates_a_dead_job() -> None:
    """With the reason."""
    (child,) = follow(make_event(), routing=make_routing(routes=[("emits", "made", "off")])).children
    assert child.prefinished is not None
    assert (child.prefinished.status, child.prefinished.error) == (
        JobStatus.DEAD,
        "plugin off is disabled (enabled: false)",
    )


def test_every_route_counts_against_the_byte_limit() -> None:
    """One response cannot be multiplied without limit."""
    routes = [("emits", "made", "a")] * 3
    size = 3 * len(make_event().envelope())
    assert len(follow(make_event(), routing=make_routing(routes=routes, max_bytes=size)).children) == 3
    with pytest.raises(TooManyFollowUps, match=f"more than {size - 1} bytes"):
        follow(make_event(), routing=make_routing(routes=routes, max_bytes=size - 1))


# ── triggers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_starts_every_pipeline_it_triggers() -> None:
    """In configuration order, each with its own run id."""
    routing = make_routing(
        "[{name: p, on: made, steps: [{id: a, uses: x}]}, {name: q, on: made, steps: [{id: a, uses: x}]}]"
    )
    follow_ups = follow(make_event(), routing=routing, hops=2)
    assert [(new.pipeline, new.hops, new.parent_job_id) for new in follow_ups.children] == [
        ("p", 3, "job-1"),
        ("q", 3, "job-1"),
    ]
    instances = {context_of(new, follow_ups)["ductile"]["pipeline_instance_id"] for new in follow_ups.children}
    assert len(instances) == 2
    assert not any(new.own_tree for new in follow_ups.children)


def test_a_triggered_run_inherits_only_the_baggage() -> None:
    """Depth, limit, items and joins are its own."""
    routing = make_routing(
        "[{name: p, on: e, steps:"
        " [{foreach: payload.all, join: true, steps: [{id: a, uses: x, baggage: {n: payload.n}}]}]},"
        " {name: q, on: made, steps: [{id: b, uses: y}, {id: c, uses: y}, {id: d, uses: y}]}]"
    )
    job = job_of(start_pipeline(routing, payload={"n": 1, "all": [5]}), "a")
    follow_ups = compute_follow_ups(job, SUCCEEDED, (make_event(),), routing, now=NOW)
    (new,) = [new for new in follow_ups.children if new.pipeline == "q"]
    assert (new.join_id, new.step_id) == (None, "b")
    content = context_of(new, follow_ups)
    own = content.pop("ductile")
    assert content == {"n": 1}
    assert (own["route_depth"], own["route_max_depth"]) == (1, 3)
    assert "items" not in own
    root, _ = (context for context in follow_ups.contexts if context.pipeline_name == "q")
    assert root.parent_id == job.event_context_id


def test_a_triggered_step_has_the_emitting_plugin() -> None:
    """Also outside of a run, then without a step."""
    routing = make_routing("[{name: p, on: made, steps: [{uses: x}]}]")
    (new,) = follow(make_event(), routing=routing).children
    assert payload_of(new) == {"n": 1, "ductile_upstream_plugin": "emits"}


@pytest.mark.parametrize(("source", "starts"), [("emits", True), ("other", False)])
def test_from_plugin_matches_the_emitting_plugin(source: str, starts: bool) -> None:
    """Otherwise the journal has the reason."""
    routing = make_routing(f"[{{name: p, on: made, from_plugin: {source}, steps: [{{id: a, uses: x}}]}}]")
    follow_ups = follow(make_event(), routing=routing)
    assert steps_of(follow_ups) == (["a"] if starts else [])
    if not starts:
        assert note_kinds(follow_ups) == ["pipeline.skipped", "event.unmatched"]
        assert follow_ups.notes[0].data["reason"] == "from_plugin is other"


def test_a_false_pipeline_condition_starts_nothing() -> None:
    """No switch and no context. The note has the predicates, and other pipelines start."""
    routing = make_routing(
        "[{name: p, on: made, if: {path: payload.n, op: gt, value: 5}, steps: [{uses: x}]},"
        " {name: q, on: made, if: {path: payload.n, op: lt, value: 5}, steps: [{id: a, uses: x}]}]"
    )
    follow_ups = follow(make_event(), routing=routing)
    assert [(new.pipeline, new.step_id) for new in follow_ups.children] == [("q", "a")]
    (note,) = follow_ups.notes
    assert (note.kind, note.data["pipeline"], note.data["reason"]) == ("pipeline.skipped", "p", "if is false")
    assert note.data["predicates"] == [{"path": "payload.n", "op": "gt", "value": 5, "found": 1, "holds": False}]


def test_a_pipeline_condition_reads_the_context_of_the_emitting_job() -> None:
    """Outside of a run, context paths are absent."""
    routing = make_routing(
        "[{name: p, on: e, steps: [{id: a, uses: x, baggage: {n: payload.n}}]},"
        " {name: q, on: made, if: {path: context.n, op: eq, value: 1}, steps: [{id: b, uses: y}]}]"
    )
    inside = compute_follow_ups(job_of(start_pipeline(routing), "a"), SUCCEEDED, (make_event(),), routing, now=NOW)
    assert steps_of(inside) == ["b"]
    assert steps_of(follow(make_event(), routing=routing)) == []


@pytest.mark.parametrize(
    "odd", [{}, {"n": None}, {"n": "x"}, {"n": [1]}, {"n": {"gt": 1}}, {"n": True}, {"n": 10**400}, {"m": 1}]
)
def test_a_predicate_on_unexpected_values_does_not_affect_other_pipelines(odd: Any) -> None:
    """Every payload has a result, so every other pipeline gets the event."""
    routing = make_routing(
        "[{name: p, on: made, steps: [{uses: x}], if: {all:"
        " [{path: payload.n, op: gt, value: 5}, {path: payload.n, op: contains, value: x}]}},"
        " {name: q, on: made, steps: [{id: a, uses: x}]}]"
    )
    follow_ups = follow(make_event(payload=odd), routing=routing)
    assert [new.pipeline for new in follow_ups.children] == ["q"]


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
        ("rows", [1] * 30, "many", "f", "it creates more than 20 jobs at once"),
        ("steps", [[]] * 100, "long", "g", "it takes more than 200 steps to find the next jobs"),
    ],
)
def test_a_triggered_run_over_a_limit_is_noted_without_side_effects(
    kind: str, items: Any, skipped: str, other: str, reason: str
) -> None:
    """The emitting step, its next step and other pipelines are not affected."""
    routing = evolve(make_routing(GREEDY), max_jobs=20)
    event = make_event(kind, {"all": items})
    follow_ups = compute_follow_ups(
        job_of(start_pipeline(routing), "a"), SUCCEEDED, (event, evolve(event, id="event-2")), routing, now=NOW
    )
    assert steps_of(follow_ups) == ["b", other] * 2
    found = [(note.kind, note.data["pipeline"], note.data["reason"]) for note in follow_ups.notes]
    assert found == [("pipeline.skipped", skipped, reason)] * 2
    used = {new.event_context_id for new in follow_ups.children}
    assert len([context for context in follow_ups.contexts if context.id in used]) == 4
    assert skipped not in {context.pipeline_name for context in follow_ups.contexts}


@pytest.mark.parametrize("kind", ["ductile.step.succeeded", "ductile.anything"])
def test_internal_event_types_never_trigger_pipelines(kind: str) -> None:
    """Even if a plugin emits one. Routes may match them."""
    routing = make_routing("[{name: p, on: made, steps: [{uses: x}]}]", [("emits", kind, "a")])
    routing = evolve(routing, plans=evolve(routing.plans, by_event={kind: routing.plans.by_event["made"]}))
    follow_ups = follow(make_event(kind), routing=routing)
    assert [(new.plugin, new.pipeline) for new in follow_ups.children] == [("a", None)]
    assert follow_ups.notes == ()


def test_an_event_that_only_advances_its_run_is_not_unmatched() -> None:
    """The next step or a join received it."""
    routing = make_routing(
        "[{name: p, on: e, steps: [{id: s, join: true, split: [{id: a, uses: x}, {id: b, uses: x}]}]}]"
    )
    follow_ups = compute_follow_ups(job_of(start_pipeline(routing), "a"), SUCCEEDED, (make_event(),), routing, now=NOW)
    assert (follow_ups.children, len(follow_ups.arrivals), follow_ups.notes) == ((), 1, ())


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────

HOOKS = "\n".join(
    f"- {{name: {signal}, on-hook: job.{signal}, steps: [{{id: a, uses: x}}]}}"
    for signal in ("completed", "failed", "timed_out", "dead")
)


def hook_follow_ups(job_result: JobResult, routing: RoutingConfig | None = None, **job: Any) -> FollowUps:
    """Return the follow-ups of a root job whose plugin has `notify_on_complete`."""
    return follow(
        job_result=job_result, routing=routing or make_routing(HOOKS), **{"root_job_id": "job-1", "notify": True} | job
    )


@pytest.mark.parametrize(
    ("job_result", "fired"),
    [
        (SUCCEEDED, ["completed"]),
        (FAILED, ["completed", "failed"]),
        (DEAD, ["completed", "failed", "dead"]),
        (TIMED_OUT, ["completed", "failed", "timed_out", "dead"]),
        (evolve(TIMED_OUT, status=JobStatus.FAILED), ["completed", "failed", "timed_out"]),
        (SKIPPED, []),
    ],
)
def test_each_result_fires_its_signals(job_result: JobResult, fired: list[str]) -> None:
    """`job.completed` for every result except skipped; the others are more specific."""
    assert [new.pipeline for new in hook_follow_ups(job_result).children] == fired


@pytest.mark.parametrize("job", [{"notify": False}, {"root_job_id": "other"}])
def test_only_root_jobs_of_plugins_that_opted_in_fire_hooks(job: Any) -> None:
    """Other jobs would cause noise or loops."""
    assert hook_follow_ups(FAILED, **job) == FollowUps()


def test_a_hook_run_is_a_separate_tree_without_inherited_context() -> None:
    """With a new root and one more hop."""
    routing = make_routing("[{name: p, on-hook: job.completed, steps: [{id: a, uses: x}]}]")
    follow_ups = hook_follow_ups(SUCCEEDED, routing, hops=3, context='{"secret": 1}')
    (new,) = follow_ups.children
    assert (new.own_tree, new.parent_job_id, new.submitted_by, new.hops) == (True, "job-1", "hook", 4)
    content = context_of(new, follow_ups)
    assert set(content) == {"ductile"}
    assert follow_ups.contexts[0].parent_id is None


def test_a_hook_run_with_several_first_jobs_has_one_root() -> None:
    """A `core.start` job."""
    routing = make_routing(
        "[{name: p, on-hook: job.completed, steps: [{split: [{id: a, uses: x}, {id: b, uses: x}]}]}]"
    )
    start, *rest = hook_follow_ups(SUCCEEDED, routing).children
    assert (start.plugin, start.own_tree, start.parent_job_id) == ("core.start", True, "job-1")
    assert [(new.step_id, new.parent_job_id, new.own_tree) for new in rest] == [
        ("a", start.id, False),
        ("b", start.id, False),
    ]


def test_hooks_get_the_outcome_of_the_job() -> None:
    """Ids, names, duration, result and a message."""
    job_result = evolve(FAILED, duration=timedelta(seconds=1.2345), result="half done")
    payload = payload_of(hook_follow_ups(job_result, command="poll", plugin="backup", attempt=3).children[0])
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
    ("job_result", "message"),
    [
        (SUCCEEDED, "Job succeeded [emits]"),
        (FAILED, "Job failed [emits]: no luck"),
        (TIMED_OUT, "Job timed out [emits]"),
    ],
)
def test_the_outcome_has_a_message_for_display(job_result: JobResult, message: str) -> None:
    """`text` has the same value."""
    payload = payload_of(hook_follow_ups(job_result).children[0])
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
def test_from_plugin_and_if_select_the_jobs_of_a_hook(selector: str, starts: bool) -> None:
    """`from_plugin` first, then `if` on the outcome."""
    routing = make_routing(f"[{{name: p, on-hook: job.failed, {selector}, steps: [{{id: a, uses: x}}]}}]")
    follow_ups = hook_follow_ups(FAILED, routing)
    assert steps_of(follow_ups) == (["a"] if starts else [])
    assert note_kinds(follow_ups) == ([] if starts else ["pipeline.skipped"])


def test_a_hook_run_continues_like_any_other_run() -> None:
    """With `if` and baggage."""
    routing = make_routing(
        "[{name: p, on-hook: job.failed, steps: [{id: a, uses: x, baggage: {who: payload.plugin}},"
        " {id: b, uses: y, if: {path: context.who, op: eq, value: emits}}]}]"
    )
    first = hook_follow_ups(FAILED, routing)
    second = compute_follow_ups(job_of(first, "a"), SUCCEEDED, (), routing, now=NOW)
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
    routing: RoutingConfig, *payloads: Any, name: str = "s__join", failures: tuple[str, ...] = (), failed: int = 0
) -> JoinInput:
    job = job_of(start_pipeline(routing), name)
    arrivals = tuple(BranchResult(join_id=job.id, payload=json.dumps(payload)) for payload in payloads)
    return JoinInput(job=job, arrivals=arrivals, failures=failures, failed=failed or len(failures))


def test_a_join_continues_once_with_all_results_in_order() -> None:
    """With the payload and context from before its branches."""
    routing = make_routing(JOINED)
    joined = join_of(routing, {"n": 2}, {"n": 3})
    outcome, follow_ups = resolve_join(joined, routing, now=NOW)
    assert isinstance(outcome, Succeeded)
    answer = {"status": "ok", "result": "2 joined", "results": [{"n": 2}, {"n": 3}]}
    assert json.loads(outcome.evidence.result or "") == answer
    (new,) = follow_ups.children
    envelope = json.loads(new.payload or "")
    assert (new.step_id, new.parent_job_id, envelope["type"]) == ("c", joined.job.id, "ductile.join.completed")
    assert envelope["payload"] == {"n": 1, "results": [{"n": 2}, {"n": 3}]}
    assert "lost" not in context_of(new, follow_ups)


def test_an_empty_join_continues_without_results() -> None:
    """An empty list is not a failure."""
    routing = make_routing(
        "[{name: p, on: e, steps: [{id: s, uses: x, foreach: payload.all, join: true}, {id: c, uses: y}]}]"
    )
    job = job_of(start_pipeline(routing, payload={"all": []}), "s__join")
    _, follow_ups = resolve_join(JoinInput(job=job), routing, now=NOW)
    assert payload_of(follow_ups.children[0]) == {"all": [], "results": []}


@pytest.mark.parametrize(
    ("failures", "failed", "error"),
    [
        (("a: no luck",), 1, "not joined: a: no luck"),
        (("a: no luck", "b: none either"), 2, "not joined: a: no luck; b: none either"),
        (("a: no luck", "b: none either"), 7, "not joined: a: no luck; b: none either and 5 more"),
    ],
)
def test_a_join_with_a_failed_member_fails_without_follow_ups(
    failures: tuple[str, ...], failed: int, error: str
) -> None:
    """The error names the first failures."""
    routing = make_routing(JOINED)
    outcome, follow_ups = resolve_join(join_of(routing, {}, failures=failures, failed=failed), routing, now=NOW)
    assert isinstance(outcome, Failed)
    assert outcome.error == error
    assert follow_ups == FollowUps()


def test_an_inner_join_arrives_at_the_outer_join() -> None:
    """At its branch, with its results."""
    routing = make_routing(
        "[{name: p, on: e, steps: [{id: s, join: true, split: [{id: a, uses: x},"
        " {id: t, join: true, split: [{id: b, uses: x}]}]}]}]"
    )
    joined = join_of(routing, {"n": 9}, name="t__join")
    _, follow_ups = resolve_join(joined, routing, now=NOW)
    (arrival,) = follow_ups.arrivals
    assert (arrival.join_id, arrival.branch) == (joined.job.join_id, 1)
    assert json.loads(arrival.payload) == {"n": 1, "results": [{"n": 9}]}


def test_a_join_whose_step_was_removed_fails() -> None:
    """With the reason, and without follow-ups."""
    routing = make_routing("[{name: p, on: e, steps: [{id: z, uses: x}]}]")
    outcome, follow_ups = resolve_join(join_of(make_routing(JOINED), {}), routing, now=NOW)
    assert isinstance(outcome, Failed)
    assert outcome.error == "pipeline p no longer has step s__join"
    assert follow_ups.children == ()


def test_a_join_over_the_follow_up_limit_fails() -> None:
    """The error names the limit."""
    routing = make_routing(
        "[{name: p, on: e, steps: [{id: s, join: true, split: [{uses: x}]}, {uses: y, foreach: payload.results}]}]"
    )
    outcome, follow_ups = resolve_join(join_of(routing, {}, {}, {}), evolve(routing, max_jobs=2), now=NOW)
    assert isinstance(outcome, Failed)
    assert "more than 2 jobs" in outcome.error
    assert follow_ups == FollowUps()


# ── runs by name ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_by_name_ignores_the_trigger_conditions() -> None:
    """Neither `if` nor `from_plugin` applies."""
    routing = make_routing(
        "[{name: p, on: e, from_plugin: other, if: {path: payload.gone, op: exists}, steps: [{id: a, uses: x}]}]"
    )
    (root,) = start_pipeline(routing).children
    assert (root.step_id, root.parent_job_id, root.submitted_by, root.hops) == ("a", None, "api", 0)
    assert json.loads(root.payload or "")["type"] == "e"


FIRST_JOBS: list[tuple[str, list[str]]] = [
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


@pytest.mark.parametrize(("steps", "made"), FIRST_JOBS)
def test_a_run_has_exactly_one_root(steps: str, made: list[str]) -> None:
    """All other jobs are its descendants."""
    routing = make_routing(f"[{{name: p, on: e, steps: [{steps}]}}, {{name: q, on: f, steps: [{{id: b, uses: x}}]}}]")
    follow_ups = start_pipeline(routing, payload={"n": 1, "all": [1, 2], "none": []})
    assert steps_of(follow_ups) == made
    root, *others = follow_ups.children
    assert root.parent_job_id is None
    known = {root.id}
    for new in others:
        assert new.parent_job_id in known
        known.add(new.id)


def test_two_runs_of_one_pipeline_have_different_ids() -> None:
    """Also with the same payload."""
    routing = make_routing(CHAIN)
    first, second = start_pipeline(routing), start_pipeline(routing)
    assert not {context.id for context in first.contexts} & {context.id for context in second.contexts}


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("{uses: off}", "plugin off is disabled (enabled: false)"),
        ("{uses: x, baggage: {y: payload.gone}}", "baggage y: payload.gone is absent: payload has no 'gone'"),
        ("{uses: x, foreach: payload.gone}", "foreach: payload.gone is absent"),
    ],
)
def test_a_run_that_cannot_start_returns_the_reason(step: str, reason: str) -> None:
    """Before anything is written."""
    routing = make_routing(f"[{{name: p, on: e, steps: [{step}]}}]")
    assert trigger_run(routing.plans.require("p"), {}, routing, submitted_by="api", now=NOW).refusals == (reason,)


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("parts", [(), ("job-1", 1, 0), ("job-1", 12, "silent"), (None, "ä/😀", "context")])
def test_a_derived_id_is_the_version_5_uuid_of_its_parts(parts: tuple[Any, ...]) -> None:
    """The same in every release, so that duplicates are recognised."""
    namespace = uuid.UUID("6c0f7a7e-5f0b-5d0a-9c2a-0d1b6a5e4f3c")
    assert derived_id(*parts) == str(uuid.uuid5(namespace, "/".join(map(str, parts))))


def test_the_envelope_omits_missing_fields() -> None:
    """Dedupe key and headers are optional. Integers stay exact."""
    plain = json.loads(make_event(payload={"n": 2**64, "text": "é\0"}).envelope())
    assert plain == {
        "type": "made",
        "payload": {"n": 2**64, "text": "é\0"},
        "source": "emits",
        "timestamp": "2026-02-08T09:30:00.000000Z",
        "event_id": "event-1",
    }
    rich = json.loads(make_event(dedupe_key="k", headers={"X-A": "1"}).envelope())
    assert (rich["dedupe_key"], rich["headers"]) == ("k", {"X-A": "1"})


def test_an_event_id_depends_only_on_job_attempt_and_index() -> None:
    """A repeated commit creates the same ids."""
    ids = [event_id(job, attempt, index) for job in ("a", "b") for attempt in (1, 2) for index in (0, 1)]
    assert len(set(ids)) == 8
    assert ids[0] == event_id("a", 1, 0)


@pytest.mark.parametrize(
    ("command", "payload", "expected"),
    [
        ("handle", '{"type": "e", "payload": {"n": 1}}', {"n": 1}),
        ("handle", '{"type": "e"}', {}),
        ("handle", None, {}),
        ("poll", '{"n": 1}', {"n": 1}),
        ("poll", None, {}),
    ],
)
def test_a_step_without_events_passes_on_its_payload_for_every_command(
    command: str, payload: str | None, expected: Any
) -> None:
    """Also if the payload is missing."""
    routing = make_routing("[{name: p, on: e, steps: [{id: a, uses: x}, {id: b, uses: y.poll}]}]")
    job = job_of(start_pipeline(routing), "a", command=command, payload=payload)
    (new,) = compute_follow_ups(job, SUCCEEDED, (), routing, now=NOW).children
    handed: NewJob = new
    content = json.loads(handed.payload or "")
    assert {key: value for key, value in content.items() if not key.startswith("ductile_")} == expected | {
        "result": "done"
    }
