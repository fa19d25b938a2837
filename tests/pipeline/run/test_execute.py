"""Execution of instructions: the jobs, contexts and notes of every construct."""

import json
from typing import Any

import pytest
from attrs import evolve

from ductile.core.formats import strict_json
from ductile.core.model import BranchResult, FollowUps, JobStatus, NewJob
from ductile.pipeline.run.cursor import RunCursor, indexes_in
from ductile.pipeline.run.events import Event
from ductile.pipeline.run.execute import Execution, TooManyFollowUps
from tests.pipeline.compiling import plan_of
from tests.pipeline.factories import context_of, make_event, make_routing, payload_of, steps_of

TRUE, FALSE = "{path: payload.n, op: eq, value: 1}", "{path: payload.n, op: eq, value: 2}"


def execute(steps: str, *others: str, event: Event | None = None, limits: Any = None, **values: Any) -> FollowUps:
    """Execute a pipeline with these steps (YAML flow) for an event of a job with the id `parent`."""
    execution, at = make_execution(limits), make_cursor(steps, *others, **values)
    execution.enter(at.plan.entry, event or make_event(), at)
    return execution.follow_ups()


def make_execution(limits: Any = None) -> Execution:
    return make_routing(**(limits or {})).new_execution()


def make_cursor(steps: str, *others: str, **values: Any) -> RunCursor:
    plan = plan_of(steps, *others)
    defaults: dict[str, Any] = {
        "plan": plan,
        "instance": "run",
        "depth_limit": plan.depth_limit,
        "parent_id": "parent",
        "inherits_from": "context-0",
    }
    return RunCursor(**defaults | values)


def job_of_step(follow_ups: FollowUps, step: str) -> NewJob:
    (new,) = [new for new in follow_ups.children if new.step_id == step]
    return new


def result_of(new: NewJob) -> Any:
    assert new.prefinished is not None
    return json.loads(new.prefinished.result or "null")


def failure(new: NewJob) -> tuple[JobStatus, str | None]:
    assert new.prefinished is not None
    return new.prefinished.status, new.prefinished.error


# ── a job ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_creates_a_job_with_all_its_fields() -> None:
    """Plugin, command, step, event, attempts, context and hops."""
    follow_ups = execute("{id: a, uses: twice}", hops=3, limits={"snapshot_id": "s-1"})
    (job,) = follow_ups.children
    assert (job.plugin, job.command, job.pipeline, job.step_id) == ("twice", "handle", "p", "a")
    assert (job.parent_job_id, job.source_event_id, job.submitted_by) == ("parent", "event-1", "route")
    assert (job.max_attempts, job.hops, job.snapshot_id, job.tolerated) == (2, 3, "s-1", False)
    assert (job.own_tree, job.is_join, job.join_id, job.prefinished) == (False, False, None, None)
    (context,) = follow_ups.contexts
    assert (context.id, context.parent_id) == (job.event_context_id, "context-0")
    assert (context.pipeline_name, context.step_id) == ("p", "a")


def test_handle_gets_the_event_and_any_other_command_its_payload() -> None:
    """`plugin.command` gets the payload without the envelope."""
    event = make_event(payload={"n": 2**64}, headers={"x": "1"})
    handle, poll = execute("{split: [{uses: q}, {uses: q.poll}]}", event=event).children
    assert handle.payload == event.envelope()
    assert (poll.command, poll.payload) == ("poll", '{"n":18446744073709551616}')


def test_a_tolerated_step_is_marked_on_its_job() -> None:
    """A tree can be judged without its configuration."""
    follow_ups = execute("{id: a, uses: q, continue: true}")
    assert job_of_step(follow_ups, "a").tolerated


@pytest.mark.parametrize(("plugin", "expected"), [("loud", True), ("quiet", False)])
def test_a_job_notifies_hooks_if_its_plugin_is_configured_to(plugin: str, expected: bool) -> None:
    """`notify_on_complete` is read when the job is created."""
    (job,) = execute(f"{{uses: {plugin}}}").children
    assert job.notify is expected


def test_a_plugin_that_cannot_run_creates_a_dead_job_with_the_reason() -> None:
    """The run ends visibly."""
    (job,) = execute("{id: a, uses: off}, {id: b, uses: q}").children
    assert failure(job) == (JobStatus.DEAD, "plugin off is disabled (enabled: false)")


def test_each_level_of_call_is_a_hop() -> None:
    """Only for jobs inside the called pipeline."""
    follow_ups = execute(
        "{split: [{id: a, uses: x}, {id: b, call: q}]}",
        "name: q, steps: [{id: c, uses: x}, {id: d, call: r}]",
        "name: r, steps: [{id: e, uses: x}]",
        hops=5,
    )
    assert {new.step_id: new.hops for new in follow_ups.children} == {"a": 5, "b/c": 6}


# ── if ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("condition", "made", "decided"),
    [
        (TRUE, ["a__switch=", "a"], {"matched": True, "event": "ductile.switch.true"}),
        (FALSE, ["a__switch=", "b"], {"matched": False, "event": "ductile.switch.false"}),
    ],
)
def test_an_if_is_decided_immediately_and_recorded_as_a_job(condition: str, made: list[str], decided: Any) -> None:
    """A succeeded `core.switch` job; the next job is its child."""
    follow_ups = execute(f"{{id: a, uses: q, if: {condition}}}, {{id: b, uses: q}}")
    assert steps_of(follow_ups) == made
    switch, after = follow_ups.children
    assert (switch.plugin, switch.command, result_of(switch)) == ("core.switch", "handle", decided)
    assert (switch.parent_job_id, after.parent_job_id) == ("parent", switch.id)


def test_the_event_keeps_its_type_after_a_switch() -> None:
    """The plugin gets the original event."""
    event = make_event("image.found", dedupe_key="k")
    job = job_of_step(execute(f"{{id: a, uses: q, if: {TRUE}}}", event=event), "a")
    assert job.payload == event.envelope()


def test_a_switch_has_no_dedupe_key() -> None:
    """Consecutive switches do not deduplicate each other."""
    steps = ", ".join(f"{{id: {name}, uses: q, if: {FALSE}}}" for name in "abc")
    follow_ups = execute(f"{steps}, {{id: d, uses: q}}", event=make_event(dedupe_key="k"))
    assert steps_of(follow_ups) == ["a__switch=", "b__switch=", "c__switch=", "d"]
    assert [new.dedupe_key for new in follow_ups.children] == [None, None, None, "k"]


def test_each_switch_is_a_hop_with_its_own_context() -> None:
    """One deeper than the hop before it, with the baggage so far."""
    follow_ups = execute(f"{{id: a, uses: q, if: {FALSE}}}, {{id: b, uses: q, if: {TRUE}}}", baggage={"old": 1})
    parents = {context.step_id: context.parent_id for context in follow_ups.contexts}
    ids = [new.event_context_id for new in follow_ups.children]
    assert parents == {"a__switch": "context-0", "b__switch": ids[0], "b": ids[1]}
    found = [context_of(new, follow_ups) for new in follow_ups.children]
    assert [(one["old"], one["ductile"]["route_depth"]) for one in found] == [(1, 1), (1, 2), (1, 3)]


def test_a_switch_beyond_the_depth_limit_is_dead() -> None:
    """The run ends there, with the reason."""
    (switch,) = execute(f"{{id: a, uses: q, if: {TRUE}}}", depth=3, depth_limit=3).children
    assert (switch.plugin, failure(switch)) == (
        "core.switch",
        (JobStatus.DEAD, "max_depth 3 of the pipeline is reached"),
    )


def test_a_bypassed_step_is_noted_with_its_predicates() -> None:
    """With the values they found."""
    (note,) = execute(f"{{id: a, uses: q, if: {FALSE}}}").notes
    assert (note.kind, note.data["pipeline"], note.data["step_id"]) == ("step.bypassed", "p", "a__switch")
    assert note.data["type"] == make_event().type, "the journal can be searched by event type"
    assert note.data["predicates"] == [{"path": "payload.n", "op": "eq", "value": 2, "found": 1, "holds": False}]


def test_an_if_reads_plugin_configuration_and_the_note_masks_it() -> None:
    """The value may be a secret."""
    ask = "{path: config.level, op: gt, value: %d}"
    assert steps_of(execute(f"{{id: a, uses: fetch, if: {ask % 2}}}")) == ["a__switch=", "a"]
    follow_ups = execute(f"{{id: a, uses: fetch, if: {ask % 3}}}")
    assert steps_of(follow_ups) == ["a__switch="]
    assert follow_ups.notes[0].data["predicates"][0]["found"] == "***"


def test_an_if_reads_the_inherited_baggage() -> None:
    """Without the claims of its own step."""
    step = "{id: a, uses: q, if: {path: context.x, op: exists}, baggage: {x: payload.n}}"
    assert steps_of(execute(step)) == ["a__switch="]
    assert steps_of(execute(step, baggage={"x": 1})) == ["a__switch=", "a"]


def test_the_if_of_a_called_pipeline_is_evaluated_after_that_of_the_step() -> None:
    """Both must be true."""
    callee = f"name: q, if: {FALSE}, steps: [{{id: c, uses: x}}]"
    both = execute(f"{{id: a, call: q, if: {TRUE}}}, {{id: b, uses: x}}", callee)
    assert steps_of(both) == ["a__switch=", "a/__switch=", "b"]
    first = execute(f"{{id: a, call: q, if: {FALSE}}}, {{id: b, uses: x}}", callee)
    assert steps_of(first) == ["a__switch=", "b"]


# ── split ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_branch_gets_the_same_event_in_textual_order() -> None:
    """Two branches with the same plugin are two jobs."""
    follow_ups = execute("{split: [{id: a, uses: x}, {id: b, uses: x}, {id: c, uses: y}]}")
    assert steps_of(follow_ups) == ["a", "b", "c"]
    assert len({new.payload for new in follow_ups.children}) == 1
    assert len({new.child_key for new in follow_ups.children}) == 3


def test_every_bypassed_branch_runs_the_next_step() -> None:
    """Once per branch, with different keys."""
    follow_ups = execute(
        f"{{split: [{{id: a, uses: x, if: {FALSE}}}, {{id: b, uses: x, if: {FALSE}}}]}}, {{id: c, uses: y}}"
    )
    assert steps_of(follow_ups) == ["a__switch=", "c", "b__switch=", "c"]
    assert len({(new.parent_job_id, new.child_key) for new in follow_ups.children}) == 4


# ── foreach ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_key_of_a_job_has_the_indexes_of_its_items() -> None:
    """Also of nested ones; the path of a step can contain slashes."""
    inner = "{id: in, foreach: item, steps: [{uses: x}]}"
    steps = f"{{foreach: payload.rows, steps: [{inner}]}}"
    follow_ups = execute(steps, event=make_event(payload={"rows": [["u"], ["v", "w"]]}))
    assert [indexes_in(new.child_key or "") for new in follow_ups.children] == [(0, 0), (1, 0), (1, 1)]
    assert [indexes_in(key) for key in ("", "event/route/1", "e/run/call/step//", "e/run/call/step/2/0")] == [
        (), (), (), (2,)
    ]  # fmt: skip


def test_foreach_creates_one_job_per_item_in_order() -> None:
    """Each context has the item and its index."""
    follow_ups = execute("{id: a, uses: x, foreach: payload.all}", event=make_event(payload={"all": ["u", "v"]}))
    controls = [context_of(new, follow_ups)["ductile"] for new in follow_ups.children]
    assert [(control["items"], control["indexes"]) for control in controls] == [(["u"], [0]), (["v"], [1])]
    assert len({new.child_key for new in follow_ups.children}) == 2


def test_item_is_the_innermost_item() -> None:
    """Inner loops read the outer item. The context has both."""
    steps = (
        "{foreach: payload.rows, steps: [{id: a, uses: x, foreach: item.cells, baggage: {cell: item},"
        " if: {path: item, op: neq, value: 2}}]}"
    )
    rows = [{"cells": [1, 2]}, {"cells": [3]}]
    follow_ups = execute(steps, event=make_event(payload={"rows": rows}))
    contexts = [context_of(new, follow_ups) for new in follow_ups.children if new.step_id == "a"]
    assert [(each["cell"], each["ductile"]["indexes"]) for each in contexts] == [(1, [0, 0]), (3, [1, 0])]
    assert [each["ductile"]["items"] for each in contexts] == [[rows[0], 1], [rows[1], 3]]


def test_the_step_after_a_loop_has_no_item() -> None:
    """It runs once per item."""
    steps = f"{{id: a, uses: x, foreach: payload.all, if: {FALSE}}}, {{id: b, uses: x}}"
    follow_ups = execute(steps, event=make_event(payload={"n": 1, "all": [1, 2]}))
    after = [new for new in follow_ups.children if new.step_id == "b"]
    assert len(after) == 2
    assert all("items" not in context_of(new, follow_ups)["ductile"] for new in after)


def test_every_item_without_jobs_runs_the_next_step() -> None:
    """The keys differ by item."""
    steps = "{foreach: payload.rows, steps: [{id: a, uses: x, foreach: item}]}, {id: b, uses: x}"
    follow_ups = execute(steps, event=make_event(payload={"rows": [[], [], [1]]}))
    assert steps_of(follow_ups) == ["b", "b", "a"]
    assert len({new.child_key for new in follow_ups.children}) == 3


def test_an_empty_list_continues_once_with_the_same_event() -> None:
    """The next step runs once."""
    event = make_event("listed", {"all": []})
    follow_ups = execute("{id: a, uses: x, foreach: payload.all}, {id: b, uses: x}", event=event)
    assert steps_of(follow_ups) == ["b"]
    assert follow_ups.children[0].payload == event.envelope()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({}, "foreach: payload.all is absent"),
        ({"all": None}, "foreach: payload.all is not a list"),
        ({"all": {"0": 1}}, "foreach: payload.all is not a list"),
        ({"all": "abc"}, "foreach: payload.all is not a list"),
        ({"all": [1, 2, 3]}, "foreach: payload.all has 3 items, max_items is 2"),
    ],
)
def test_an_invalid_or_too_long_list_creates_a_failed_job(payload: Any, reason: str) -> None:
    """With the reason, and without any job of the loop."""
    steps = "{id: a, uses: x, foreach: payload.all, max_items: 2}, {id: b, uses: x}"
    (failed,) = execute(steps, event=make_event(payload=payload)).children
    assert (failed.plugin, failed.step_id, failure(failed)) == ("core.foreach", "a", (JobStatus.FAILED, reason))


def test_foreach_accepts_a_thousand_items_by_default() -> None:
    """The default of `max_items`."""
    steps = "{id: a, uses: x, foreach: payload.all}"
    assert len(execute(steps, event=make_event(payload={"all": [0] * 1000})).children) == 1000
    (failed,) = execute(steps, event=make_event(payload={"all": [0] * 1001})).children
    assert failure(failed)[1] == "foreach: payload.all has 1,001 items, max_items is 1,000"


# ── join ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_join_is_created_after_its_members() -> None:
    """It has the event and the context from before its branches."""
    event = make_event(payload={"n": 7})
    follow_ups = execute(
        "{id: s, join: true, split: [{id: a, uses: x, baggage: {n: payload.n}}, {id: b, uses: x}]}", event=event
    )
    assert steps_of(follow_ups) == ["a", "b", "s__join"]
    first, second, join = follow_ups.children
    assert (join.plugin, join.is_join, join.prefinished, join.payload) == ("core.join", True, None, event.envelope())
    assert first.join_id == second.join_id == join.id
    assert (join.join_id, join.parent_job_id) == (None, "parent")
    assert "n" in context_of(first, follow_ups)
    assert "n" not in context_of(join, follow_ups)


def test_members_refer_to_the_innermost_join() -> None:
    """So does a join inside another join."""
    steps = "{id: s, join: true, split: [{id: a, uses: x}, {id: t, join: true, split: [{id: b, uses: x}]}]}"
    follow_ups = execute(steps, join_id="outermost")
    assert steps_of(follow_ups) == ["a", "b", "t__join", "s__join"]
    joins = {new.step_id: new.join_id for new in follow_ups.children}
    outer, inner = job_of_step(follow_ups, "s__join").id, job_of_step(follow_ups, "t__join").id
    assert joins == {"a": outer, "b": inner, "t__join": outer, "s__join": "outermost"}


def test_a_branch_without_jobs_arrives_immediately() -> None:
    """With its branch number and the current payload."""
    follow_ups = execute(f"{{id: s, join: true, split: [{{id: a, uses: x}}, {{id: b, uses: x, if: {FALSE}}}]}}")
    join = job_of_step(follow_ups, "s__join")
    assert follow_ups.arrivals == (BranchResult(join_id=join.id or "", item=0, branch=1, payload='{"n":1}'),)


def test_items_arrive_by_their_index() -> None:
    """A bypassed item arrives with the current payload."""
    steps = "{id: a, uses: x, foreach: payload.all, join: true, if: {path: item, op: eq, value: 2}}"
    follow_ups = execute(steps, event=make_event(payload={"all": [1, 2, 3]}))
    assert steps_of(follow_ups) == ["a__switch=", "a__switch=", "a", "a__switch=", "a__join"]
    assert [(arrival.item, arrival.branch) for arrival in follow_ups.arrivals] == [(0, 0), (2, 0)]


def test_a_join_over_an_empty_list_is_created() -> None:
    """The ledger resolves it immediately, with empty results."""
    follow_ups = execute("{id: a, uses: x, foreach: payload.all, join: true}", event=make_event(payload={"all": []}))
    assert steps_of(follow_ups) == ["a__join"]
    assert follow_ups.arrivals == ()


def test_a_switch_is_not_a_member_of_a_join_but_a_failed_step_is() -> None:
    """The failed step fails the join."""
    steps = (
        f"{{id: s, join: true, split: [{{id: a, uses: x, if: {FALSE}}}, {{id: b, uses: off}},"
        " {id: c, uses: x, foreach: payload.gone}, {id: d, uses: x, baggage: {y: payload.gone}}]}"
    )
    follow_ups = execute(steps)
    join = job_of_step(follow_ups, "s__join")
    members = {new.step_id: new.join_id == join.id for new in follow_ups.children if new is not join}
    assert members == {"a__switch": False, "b": True, "c": True, "d": True}


# ── on_error ────────────────────────────────────────────────────────────────────────────────────────────────────────

REFUSALS = [
    ("{id: a, uses: off, %s}", "dead", "plugin off is disabled (enabled: false)", "off"),
    (
        "{id: a, uses: x, baggage: {y: payload.gone}, %s}",
        "failed",
        "baggage y: payload.gone is absent: payload has no 'gone'",
        "x",
    ),
]


@pytest.mark.parametrize(("step", "status", "error", "plugin"), REFUSALS)
def test_a_step_that_cannot_start_runs_its_on_error_steps(step: str, status: str, error: str, plugin: str) -> None:
    """As if it had run: with the outcome and the input, as children of the failed job."""
    follow_ups = execute(step % "on_error: [{id: h, uses: x}]" + ", {id: b, uses: x}")
    assert steps_of(follow_ups) == ["a!", "h"]
    failed, handler = follow_ups.children
    assert failed.prefinished is not None
    assert (failed.prefinished.status, failed.prefinished.error) == (status, error)
    assert handler.parent_job_id == failed.id
    assert payload_of(handler) == {
        "job_id": failed.id,
        "plugin": plugin,
        "command": "handle",
        "status": status,
        "attempt": 1,
        "error": error,
        "message": f"Job failed [{plugin}]: {error}",
        "text": f"Job failed [{plugin}]: {error}",
        "input": {"n": 1},
    }


@pytest.mark.parametrize(("step", "status", "error", "plugin"), REFUSALS)
def test_a_tolerated_step_that_cannot_start_continues(step: str, status: str, error: str, plugin: str) -> None:
    """The next step gets the failure event."""
    follow_ups = execute(step % "continue: true" + ", {id: b, uses: x}")
    assert steps_of(follow_ups) == ["a!", "b"]
    assert job_of_step(follow_ups, "a").tolerated
    assert json.loads(job_of_step(follow_ups, "b").payload or "")["type"] == "ductile.step.failed"
    assert payload_of(job_of_step(follow_ups, "b"))["error"] == error


def test_a_step_that_cannot_run_still_claims_its_baggage() -> None:
    """The `on_error` steps can read it."""
    step = "{id: a, uses: off, baggage: {n: payload.n}, on_error: [{id: h, uses: x}]}"
    follow_ups = execute(step)
    context = context_of(job_of_step(follow_ups, "h"), follow_ups)
    assert (context.get("n"), context["ductile"]["route_depth"]) == (1, 2)


# ── baggage and contexts ────────────────────────────────────────────────────────────────────────────────────────────


def test_claims_read_payload_context_and_item_and_extend_the_inherited_context() -> None:
    """In one new context row; the inherited context is not modified."""
    step = "{foreach: payload.all, uses: x, id: a, baggage: {new.n: payload.n, new.old: context.old.x, new.item: item}}"
    inherited = {"old": {"x": 5}}
    follow_ups = execute(step, event=make_event(payload={"n": 1, "all": ["u"]}), baggage=inherited)
    context = context_of(job_of_step(follow_ups, "a"), follow_ups)
    assert (context["old"], context["new"]) == ({"x": 5}, {"n": 1, "old": 5, "item": "u"})
    assert inherited == {"old": {"x": 5}}


def test_a_claim_that_would_change_a_value_fails_its_step() -> None:
    """The reason names the path, and no context is created."""
    follow_ups = execute("{id: a, uses: x, baggage: {old.x: payload.n}}", baggage={"old": {"x": 5}})
    (failed,) = follow_ups.children
    status, reason = failure(failed)
    assert status is JobStatus.FAILED
    assert "old.x" in (reason or "")
    assert "immutable" in (reason or "")
    assert follow_ups.contexts == ()


def test_a_context_over_one_mebibyte_fails_its_step() -> None:
    """The limit applies to the JSON of the whole context."""
    follow_ups = execute(
        "{id: a, uses: x, baggage: {big: payload.big}}", event=make_event(payload={"big": "x" * (1 << 20)})
    )
    (failed,) = follow_ups.children
    assert failure(failed)[0] is JobStatus.FAILED
    assert "1,048,576" in (failure(failed)[1] or "")
    assert follow_ups.contexts == ()


def test_a_step_without_claims_creates_a_context_row() -> None:
    """With the inherited baggage and the reserved keys."""
    follow_ups = execute("{id: a, uses: x}", baggage={"old": 1}, depth=4, depth_limit=9)
    assert context_of(job_of_step(follow_ups, "a"), follow_ups) == {
        "old": 1,
        "ductile": {"pipeline_instance_id": "run", "route_depth": 5, "route_max_depth": 9},
    }


# ── depth ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("depth", "limit", "is_dead"), [(2, 3, False), (3, 3, True), (7, 3, True), (99, 0, False)])
def test_beyond_the_depth_limit_the_next_job_is_dead(depth: int, limit: int, is_dead: bool) -> None:
    """With the reason. 0 is unlimited."""
    (job,) = execute("{id: a, uses: x}", depth=depth, depth_limit=limit).children
    if is_dead:
        assert failure(job) == (JobStatus.DEAD, f"max_depth {limit} of the pipeline is reached")
    else:
        assert job.prefinished is None


def test_a_join_counts_as_one_step() -> None:
    """Its depth does not include its branches."""
    follow_ups = execute("{id: s, join: true, split: [{id: a, uses: x}]}", depth=4, depth_limit=0)
    depths = {new.step_id: context_of(new, follow_ups)["ductile"]["route_depth"] for new in follow_ups.children}
    assert depths == {"a": 5, "s__join": 5}


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────

RICH = (
    f"{{id: s, split: [{{id: a, uses: x}}, {{id: b, uses: x, if: {FALSE}}}, {{id: c, call: q}}]}},"
    " {id: d, foreach: payload.all, join: true, split: [{id: e, uses: x}, {id: f, uses: off, continue: true}]}"
)
CALLED = "name: q, steps: [{id: g, uses: x, foreach: payload.all}]"


def test_all_children_have_unique_keys_and_ids() -> None:
    """However often an event reaches a step."""
    follow_ups = execute(RICH, CALLED, event=make_event(payload={"n": 1, "all": [1, 1]}))
    keys = [(new.parent_job_id, new.child_key) for new in follow_ups.children]
    assert len(keys) == len(set(keys)) == 9
    ids = [new.id for new in follow_ups.children if new.id] + [context.id for context in follow_ups.contexts]
    assert len(ids) == len(set(ids))


def test_the_same_event_creates_the_same_rows() -> None:
    """A repeated commit finds them all. Another event creates others."""
    at = make_cursor(RICH, CALLED)
    event = make_event(payload={"n": 1, "all": [1, 2]})
    twice = []
    for _ in range(2):
        execution = make_execution()
        execution.enter(at.plan.entry, event, at)
        twice.append(execution.follow_ups())
    assert twice[0] == twice[1]
    other = make_execution()
    other.enter(at.plan.entry, evolve(event, id="event-2"), at)
    assert not {new.child_key for new in other.children} & {new.child_key for new in twice[0].children}


def test_every_step_has_the_dedupe_key_of_its_event() -> None:
    """The child key separates steps and items."""
    steps = "{id: a, uses: x}, {id: b, uses: x, foreach: payload.all}"
    event = make_event(payload={"all": [1, 2]}, dedupe_key="k")
    at = make_cursor(steps)
    execution = make_execution()
    execution.enter(at.plan.entry, event, at)
    execution.enter(at.plan.nodes["a"].successors, event, at)
    assert [new.dedupe_key for new in execution.children] == ["k"] * 3
    assert len({new.child_key for new in execution.children}) == 3


def test_without_a_dedupe_key_jobs_have_none() -> None:
    """Steps do not invent keys."""
    assert {
        new.dedupe_key for new in execute(RICH, CALLED, event=make_event(payload={"n": 1, "all": [1]})).children
    } == {None}


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_exceeding_the_job_limit_is_rejected() -> None:
    """The message names the limit."""
    event = make_event(payload={"all": [0] * 4})
    assert len(execute("{uses: x, foreach: payload.all}", event=event, limits={"max_jobs": 4}).children) == 4
    with pytest.raises(TooManyFollowUps, match="more than 3 jobs at once"):
        execute("{uses: x, foreach: payload.all}", event=event, limits={"max_jobs": 3})


def test_exceeding_the_byte_limit_is_rejected() -> None:
    """Every copy of a payload counts."""
    event = make_event(payload={"all": [0] * 4, "text": "x" * 1000})
    assert len(execute("{uses: x, foreach: payload.all}", event=event, limits={"max_bytes": 6000}).children) == 4
    with pytest.raises(TooManyFollowUps, match="more than 4,000 bytes"):
        execute("{uses: x, foreach: payload.all}", event=event, limits={"max_bytes": 4000})


def test_branch_results_count_against_the_byte_limit() -> None:
    """Every bypassed item stores a copy of the payload."""
    event = make_event(payload={"n": 1, "all": [0] * 50, "text": "x" * 1000})
    steps = f"{{uses: x, foreach: payload.all, join: true, if: {FALSE}}}"
    with pytest.raises(TooManyFollowUps, match="more than 20,000 bytes"):
        execute(steps, event=event, limits={"max_bytes": 20_000})


def test_contexts_count_against_the_byte_limit() -> None:
    """Every item gets a copy of the baggage."""
    event = make_event(payload={"all": [0] * 50})
    with pytest.raises(TooManyFollowUps, match="more than 20,000 bytes"):
        execute("{uses: x, foreach: payload.all}", event=event, baggage={"k": "x" * 1000}, limits={"max_bytes": 20_000})


def test_the_byte_limit_counts_utf8_bytes() -> None:
    """Not characters."""
    event = make_event(payload={"all": [0] * 4, "text": "é" * 5000})
    with pytest.raises(TooManyFollowUps, match="more than 30,000 bytes"):
        execute("{uses: x, foreach: payload.all}", event=event, limits={"max_bytes": 30_000})


def nested(levels: int) -> dict[str, Any]:
    payload: dict[str, Any] = {"n": 1}
    for _ in range(levels - 1):
        payload = {"in": payload}
    return payload


def test_a_join_with_an_unreadable_event_fails() -> None:
    """None of its branches start."""
    event = make_event(payload=nested(strict_json.MAX_DEPTH))
    follow_ups = execute("{id: s, join: true, split: [{id: a, uses: x}]}", event=event)
    assert steps_of(follow_ups) == ["s__join!"]


def test_notes_are_masked() -> None:
    """Predicate values are passed through the mask."""
    at = make_cursor(f"{{id: a, uses: x, if: {FALSE}}}")
    execution = make_execution({"mask": lambda data: f"masked {len(data)}"})
    execution.enter(at.plan.entry, make_event(), at)
    assert execution.notes[0].data["predicates"] == "masked 1"


def test_an_execution_without_jobs_is_limited() -> None:
    """The number of executed instructions is limited."""
    skipped = f"{{uses: x, if: {FALSE}}}"
    steps = ", ".join([f"{{split: [{skipped}, {skipped}]}}"] * 14)
    with pytest.raises(TooManyFollowUps, match=r"jobs at once|steps to find"):
        execute(steps, limits={"max_jobs": 1000})


def test_a_long_path_without_jobs_does_not_recurse() -> None:
    """2000 bypassed steps in sequence."""
    steps = ", ".join([f"{{uses: x, if: {FALSE}}}"] * 2000)
    assert len(execute(steps).children) == 2000
