"""What an event makes when it enters a place of a run: every construct, and everything that a new job is given."""

import json
from typing import Any

import pytest
from attrs import evolve

from ductile.core.formats import strict_json
from ductile.core.model import BranchResult, FollowUps, JobStatus, NewJob
from ductile.pipeline.run.cursor import Position
from ductile.pipeline.run.events import Event
from ductile.pipeline.run.execute import TooManyFollowUps, Walk
from tests.pipeline.runs import a_world, an_event, context_of, payload_of, steps_of
from tests.pipeline.written import plan_of

TRUE, FALSE = "{path: payload.n, op: eq, value: 1}", "{path: payload.n, op: eq, value: 2}"


def entered(steps: str, *others: str, event: Event | None = None, limits: Any = None, **values: Any) -> FollowUps:
    """What follows when an event enters a pipeline with these steps (YAML flow), seen from a job called `parent`."""
    walk, at = a_walk(limits), a_position(steps, *others, **values)
    walk.enter(at.plan.entry, event or an_event(), at)
    return walk.following()


def a_walk(limits: Any = None) -> Walk:
    return a_world(**(limits or {})).walk()


def a_position(steps: str, *others: str, **values: Any) -> Position:
    plan = plan_of(steps, *others)
    defaults: dict[str, Any] = {
        "plan": plan,
        "instance": "run",
        "depth_limit": plan.depth_limit,
        "parent_id": "parent",
        "inherits_from": "context-0",
    }
    return Position(**defaults | values)


def only(following: FollowUps, step: str) -> NewJob:
    (new,) = [new for new in following.children if new.step_id == step]
    return new


def result_of(new: NewJob) -> Any:
    assert new.settled is not None
    return json.loads(new.settled.result or "null")


def why(new: NewJob) -> tuple[JobStatus, str | None]:
    assert new.settled is not None
    return new.settled.status, new.settled.error


# ── a job ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_is_a_job_with_everything_its_plugin_needs() -> None:
    """Plugin and command, place, event, attempts of the plugin, one context row, the run's crossings."""
    following = entered("{id: a, uses: twice}", hops=3, limits={"snapshot_id": "s-1"})
    (job,) = following.children
    assert (job.plugin, job.command, job.pipeline, job.step_id) == ("twice", "handle", "p", "a")
    assert (job.parent_job_id, job.source_event_id, job.submitted_by) == ("parent", "event-1", "route")
    assert (job.max_attempts, job.hops, job.snapshot_id, job.tolerated) == (2, 3, "s-1", False)
    assert (job.own_tree, job.is_join, job.join_id, job.settled) == (False, False, None, None)
    (context,) = following.contexts
    assert (context.id, context.parent_id) == (job.event_context_id, "context-0")
    assert (context.pipeline_name, context.step_id) == ("p", "a")


def test_handle_gets_the_event_and_any_other_command_its_payload() -> None:
    """`plugin.command` is asked with the payload itself."""
    event = an_event(payload={"n": 2**64}, headers={"x": "1"})
    handle, poll = entered("{split: [{uses: q}, {uses: q.poll}]}", event=event).children
    assert handle.payload == event.envelope()
    assert (poll.command, poll.payload) == ("poll", '{"n":18446744073709551616}')


def test_a_tolerated_failure_is_known_before_it_happens() -> None:
    """The row says it, so that a tree can be judged without its configuration."""
    following = entered("{id: a, uses: q, continue: true}")
    assert only(following, "a").tolerated


@pytest.mark.parametrize(("plugin", "expected"), [("loud", True), ("quiet", False)])
def test_a_job_tells_hooks_of_its_end_if_its_plugin_is_to(plugin: str, expected: bool) -> None:
    """`notify_on_complete` of the plugin, as it was when the job was made."""
    (job,) = entered(f"{{uses: {plugin}}}").children
    assert job.notify is expected


def test_a_plugin_that_cannot_run_makes_a_dead_job_with_the_reason() -> None:
    """The run ends where everybody sees it; nothing waits for ever."""
    (job,) = entered("{id: a, uses: off}, {id: b, uses: q}").children
    assert why(job) == (JobStatus.DEAD, "plugin off is disabled (enabled: false)")


def test_each_level_of_call_is_a_crossing() -> None:
    """Jobs inside a called pipeline count the calls around them; those after it do not."""
    following = entered(
        "{split: [{id: a, uses: x}, {id: b, call: q}]}",
        "name: q, steps: [{id: c, uses: x}, {id: d, call: r}]",
        "name: r, steps: [{id: e, uses: x}]",
        hops=5,
    )
    assert {new.step_id: new.hops for new in following.children} == {"a": 5, "b/c": 6}


# ── if ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("condition", "made", "decided"),
    [
        (TRUE, ["a__switch=", "a"], {"matched": True, "event": "ductile.switch.true"}),
        (FALSE, ["a__switch=", "b"], {"matched": False, "event": "ductile.switch.false"}),
    ],
)
def test_an_if_is_decided_at_once_and_its_row_shows_how(condition: str, made: list[str], decided: Any) -> None:
    """A `core.switch` row that has succeeded; what comes next hangs below it."""
    following = entered(f"{{id: a, uses: q, if: {condition}}}, {{id: b, uses: q}}")
    assert steps_of(following) == made
    switch, after = following.children
    assert (switch.plugin, switch.command, result_of(switch)) == ("core.switch", "handle", decided)
    assert (switch.parent_job_id, after.parent_job_id) == ("parent", switch.id)


def test_the_event_keeps_its_type_past_a_switch() -> None:
    """A gated plugin sees what was emitted, not that somebody decided."""
    event = an_event("image.found", dedupe_key="k")
    job = only(entered(f"{{id: a, uses: q, if: {TRUE}}}", event=event), "a")
    assert job.payload == event.envelope()


def test_a_switch_carries_no_key_and_makes_no_context() -> None:
    """Three ifs in a row never deduplicate each other."""
    steps = ", ".join(f"{{id: {name}, uses: q, if: {FALSE}}}" for name in "abc")
    following = entered(f"{steps}, {{id: d, uses: q}}", event=an_event(dedupe_key="k"))
    assert steps_of(following) == ["a__switch=", "b__switch=", "c__switch=", "d"]
    assert [new.dedupe_key for new in following.children[:3]] == [None] * 3
    assert [context.step_id for context in following.contexts] == ["d"]


def test_a_step_that_is_bypassed_is_noted_with_what_decided() -> None:
    """The predicates with the values they saw."""
    (note,) = entered(f"{{id: a, uses: q, if: {FALSE}}}").notes
    assert (note.kind, note.data["pipeline"], note.data["step_id"]) == ("step.bypassed", "p", "a__switch")
    assert note.data["type"] == an_event().type, "whoever looks for events of a type finds it"
    assert note.data["predicates"] == [{"path": "payload.n", "op": "eq", "value": 2, "found": 1, "holds": False}]


def test_an_if_may_ask_for_the_configuration_of_its_plugin_and_the_note_hides_it() -> None:
    """`config.*` is that of the gated plugin; it may be secret."""
    ask = "{path: config.level, op: gt, value: %d}"
    assert steps_of(entered(f"{{id: a, uses: fetch, if: {ask % 2}}}")) == ["a__switch=", "a"]
    following = entered(f"{{id: a, uses: fetch, if: {ask % 3}}}")
    assert steps_of(following) == ["a__switch="]
    assert following.notes[0].data["predicates"][0]["found"] == "***"


def test_an_if_reads_the_baggage_that_came_before_its_step() -> None:
    """What the step itself claims is not there yet."""
    step = "{id: a, uses: q, if: {path: context.x, op: exists}, baggage: {x: payload.n}}"
    assert steps_of(entered(step)) == ["a__switch="]
    assert steps_of(entered(step, baggage={"x": 1})) == ["a__switch=", "a"]


def test_the_if_of_a_called_pipeline_gates_the_call_after_that_of_the_step() -> None:
    """Both must hold; the step is asked first."""
    callee = f"name: q, if: {FALSE}, steps: [{{id: c, uses: x}}]"
    both = entered(f"{{id: a, call: q, if: {TRUE}}}, {{id: b, uses: x}}", callee)
    assert steps_of(both) == ["a__switch=", "a/__switch=", "b"]
    first = entered(f"{{id: a, call: q, if: {FALSE}}}, {{id: b, uses: x}}", callee)
    assert steps_of(first) == ["a__switch=", "b"]


# ── split ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_branch_gets_the_same_event_in_textual_order() -> None:
    """Also one plugin twice: these are two jobs."""
    following = entered("{split: [{id: a, uses: x}, {id: b, uses: x}, {id: c, uses: y}]}")
    assert steps_of(following) == ["a", "b", "c"]
    assert len({new.payload for new in following.children}) == 1
    assert len({new.child_key for new in following.children}) == 3


def test_branches_that_are_bypassed_each_enter_what_follows() -> None:
    """Once per end of a branch, and no two of these jobs are taken for the same."""
    following = entered(
        f"{{split: [{{id: a, uses: x, if: {FALSE}}}, {{id: b, uses: x, if: {FALSE}}}]}}, {{id: c, uses: y}}"
    )
    assert steps_of(following) == ["a__switch=", "c", "b__switch=", "c"]
    assert len({(new.parent_job_id, new.child_key) for new in following.children}) == 4


# ── foreach ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_loop_makes_one_job_per_item_in_order() -> None:
    """Each knows its item and its place, in the core's part of the context."""
    following = entered("{id: a, uses: x, foreach: payload.all}", event=an_event(payload={"all": ["u", "v"]}))
    controls = [context_of(new, following)["ductile"] for new in following.children]
    assert [(control["items"], control["indexes"]) for control in controls] == [(["u"], [0]), (["v"], [1])]
    assert len({new.child_key for new in following.children}) == 2


def test_the_innermost_item_wins() -> None:
    """Inner loops read the outer item, and their own steps the inner one; both are on record."""
    steps = (
        "{foreach: payload.rows, steps: [{id: a, uses: x, foreach: item.cells, baggage: {cell: item},"
        " if: {path: item, op: neq, value: 2}}]}"
    )
    rows = [{"cells": [1, 2]}, {"cells": [3]}]
    following = entered(steps, event=an_event(payload={"rows": rows}))
    contexts = [context_of(new, following) for new in following.children if new.step_id == "a"]
    assert [(each["cell"], each["ductile"]["indexes"]) for each in contexts] == [(1, [0, 0]), (3, [1, 0])]
    assert [each["ductile"]["items"] for each in contexts] == [[rows[0], 1], [rows[1], 3]]


def test_what_follows_a_loop_has_no_item_any_more() -> None:
    """Entered once per end of an item, outside of it."""
    steps = f"{{id: a, uses: x, foreach: payload.all, if: {FALSE}}}, {{id: b, uses: x}}"
    following = entered(steps, event=an_event(payload={"n": 1, "all": [1, 2]}))
    after = [new for new in following.children if new.step_id == "b"]
    assert len(after) == 2
    assert all("items" not in context_of(new, following)["ductile"] for new in after)


def test_items_with_nothing_to_do_each_enter_what_follows() -> None:
    """Once per item, also if nothing tells these jobs apart but the item they come from."""
    steps = "{foreach: payload.rows, steps: [{id: a, uses: x, foreach: item}]}, {id: b, uses: x}"
    following = entered(steps, event=an_event(payload={"rows": [[], [], [1]]}))
    assert steps_of(following) == ["b", "b", "a"]
    assert len({new.child_key for new in following.children}) == 3


def test_an_empty_list_is_passed_with_the_same_event() -> None:
    """Nothing to do: the run goes on, once."""
    event = an_event("listed", {"all": []})
    following = entered("{id: a, uses: x, foreach: payload.all}, {id: b, uses: x}", event=event)
    assert steps_of(following) == ["b"]
    assert following.children[0].payload == event.envelope()


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
def test_a_list_that_is_none_or_too_long_is_a_visible_failure(payload: Any, reason: str) -> None:
    """A failed row with the reason at the place of the step; nothing of the loop is made."""
    steps = "{id: a, uses: x, foreach: payload.all, max_items: 2}, {id: b, uses: x}"
    (failed,) = entered(steps, event=an_event(payload=payload)).children
    assert (failed.plugin, failed.step_id, why(failed)) == ("core.foreach", "a", (JobStatus.FAILED, reason))


def test_a_loop_takes_a_thousand_items_unless_its_author_says_otherwise() -> None:
    """The default of `max_items`."""
    steps = "{id: a, uses: x, foreach: payload.all}"
    assert len(entered(steps, event=an_event(payload={"all": [0] * 1000})).children) == 1000
    (failed,) = entered(steps, event=an_event(payload={"all": [0] * 1001})).children
    assert why(failed)[1] == "foreach: payload.all has 1,001 items, max_items is 1,000"


# ── join ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_join_stands_behind_its_members_and_waits() -> None:
    """They name it; it has the event and the context it was opened with."""
    event = an_event(payload={"n": 7})
    following = entered(
        "{id: s, join: true, split: [{id: a, uses: x, baggage: {n: payload.n}}, {id: b, uses: x}]}", event=event
    )
    assert steps_of(following) == ["a", "b", "s__join"]
    first, second, join = following.children
    assert (join.plugin, join.is_join, join.settled, join.payload) == ("core.join", True, None, event.envelope())
    assert first.join_id == second.join_id == join.id
    assert (join.join_id, join.parent_job_id) == (None, "parent")
    assert "n" in context_of(first, following)
    assert "n" not in context_of(join, following)


def test_the_innermost_join_waits_and_is_waited_for() -> None:
    """Members name the join around them; so does a join inside another."""
    steps = "{id: s, join: true, split: [{id: a, uses: x}, {id: t, join: true, split: [{id: b, uses: x}]}]}"
    following = entered(steps, join_id="outermost")
    assert steps_of(following) == ["a", "b", "t__join", "s__join"]
    joins = {new.step_id: new.join_id for new in following.children}
    outer, inner = only(following, "s__join").id, only(following, "t__join").id
    assert joins == {"a": outer, "b": inner, "t__join": outer, "s__join": "outermost"}


def test_a_branch_without_jobs_arrives_at_once() -> None:
    """With its place among the branches and the payload it came with."""
    following = entered(f"{{id: s, join: true, split: [{{id: a, uses: x}}, {{id: b, uses: x, if: {FALSE}}}]}}")
    join = only(following, "s__join")
    assert following.arrivals == (BranchResult(join_id=join.id or "", item=0, branch=1, payload='{"n":1}'),)


def test_items_arrive_by_their_index() -> None:
    """A loop with `if` and join: what is bypassed brings the payload as it was."""
    steps = "{id: a, uses: x, foreach: payload.all, join: true, if: {path: item, op: eq, value: 2}}"
    following = entered(steps, event=an_event(payload={"all": [1, 2, 3]}))
    assert steps_of(following) == ["a__switch=", "a__switch=", "a", "a__switch=", "a__join"]
    assert [(arrival.item, arrival.branch) for arrival in following.arrivals] == [(0, 0), (2, 0)]


def test_a_join_over_nothing_is_made_all_the_same() -> None:
    """It waits for nobody; the ledger decides it at once, and its results are empty."""
    following = entered("{id: a, uses: x, foreach: payload.all, join: true}", event=an_event(payload={"all": []}))
    assert steps_of(following) == ["a__join"]
    assert following.arrivals == ()


def test_a_switch_is_no_member_and_a_refusal_is_one() -> None:
    """What has succeeded already is not waited for; what has failed already fails the join."""
    steps = (
        f"{{id: s, join: true, split: [{{id: a, uses: x, if: {FALSE}}}, {{id: b, uses: off}},"
        " {id: c, uses: x, foreach: payload.gone}, {id: d, uses: x, baggage: {y: payload.gone}}]}"
    )
    following = entered(steps)
    join = only(following, "s__join")
    members = {new.step_id: new.join_id == join.id for new in following.children if new is not join}
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
def test_a_step_that_cannot_begin_enters_its_on_error_steps(step: str, status: str, error: str, plugin: str) -> None:
    """As if it had run: with how it ended and what it was entered with, below the failed row."""
    following = entered(step % "on_error: [{id: h, uses: x}]" + ", {id: b, uses: x}")
    assert steps_of(following) == ["a!", "h"]
    failed, handler = following.children
    assert failed.settled is not None
    assert (failed.settled.status, failed.settled.error) == (status, error)
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
def test_a_tolerated_step_that_cannot_begin_is_passed(step: str, status: str, error: str, plugin: str) -> None:
    """`continue: true`: the steps after it are entered with the failure."""
    following = entered(step % "continue: true" + ", {id: b, uses: x}")
    assert steps_of(following) == ["a!", "b"]
    assert only(following, "a").tolerated
    assert json.loads(only(following, "b").payload or "")["type"] == "ductile.step.failed"
    assert payload_of(only(following, "b"))["error"] == error


def test_the_claims_of_a_step_that_cannot_run_are_kept() -> None:
    """Baggage is claimed on entry: what handles the failure finds it, whether the plugin failed or could not start."""
    step = "{id: a, uses: off, baggage: {n: payload.n}, on_error: [{id: h, uses: x}]}"
    following = entered(step)
    context = context_of(only(following, "h"), following)
    assert (context.get("n"), context["ductile"]["route_depth"]) == (1, 2)


# ── baggage and contexts ────────────────────────────────────────────────────────────────────────────────────────────


def test_claims_read_payload_context_and_item_and_join_what_was_inherited() -> None:
    """One new context row with everything; the inherited one is untouched."""
    step = "{foreach: payload.all, uses: x, id: a, baggage: {new.n: payload.n, new.old: context.old.x, new.item: item}}"
    inherited = {"old": {"x": 5}}
    following = entered(step, event=an_event(payload={"n": 1, "all": ["u"]}), baggage=inherited)
    context = context_of(only(following, "a"), following)
    assert (context["old"], context["new"]) == ({"x": 5}, {"n": 1, "old": 5, "item": "u"})
    assert inherited == {"old": {"x": 5}}


def test_a_claim_that_would_change_something_fails_its_step() -> None:
    """With the path in the reason; no context is written."""
    following = entered("{id: a, uses: x, baggage: {old.x: payload.n}}", baggage={"old": {"x": 5}})
    (failed,) = following.children
    status, reason = why(failed)
    assert status is JobStatus.FAILED
    assert "old.x" in (reason or "")
    assert "immutable" in (reason or "")
    assert following.contexts == ()


def test_a_context_of_more_than_a_mebibyte_fails_its_step_before_anything_is_written() -> None:
    """The limit is on the JSON of the whole context."""
    following = entered(
        "{id: a, uses: x, baggage: {big: payload.big}}", event=an_event(payload={"big": "x" * (1 << 20)})
    )
    (failed,) = following.children
    assert why(failed)[0] is JobStatus.FAILED
    assert "1,048,576" in (why(failed)[1] or "")
    assert following.contexts == ()


def test_a_hop_without_claims_makes_a_context_row_too() -> None:
    """With the baggage as it was and the core's own keys."""
    following = entered("{id: a, uses: x}", baggage={"old": 1}, depth=4, depth_limit=9)
    assert context_of(only(following, "a"), following) == {
        "old": 1,
        "ductile": {"pipeline_instance_id": "run", "route_depth": 5, "route_max_depth": 9},
    }


# ── depth ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("depth", "limit", "is_dead"), [(2, 3, False), (3, 3, True), (7, 3, True), (99, 0, False)])
def test_beyond_the_depth_limit_the_next_job_is_dead(depth: int, limit: int, is_dead: bool) -> None:
    """It is written down with the reason, never silently missing; 0 is unlimited."""
    (job,) = entered("{id: a, uses: x}", depth=depth, depth_limit=limit).children
    if is_dead:
        assert why(job) == (JobStatus.DEAD, f"max_depth {limit} of the pipeline is reached")
    else:
        assert job.settled is None


def test_a_join_counts_as_one_step_however_long_its_branches_are() -> None:
    """Its successor is one deeper than the join, and the join one deeper than what opened it."""
    following = entered("{id: s, join: true, split: [{id: a, uses: x}]}", depth=4, depth_limit=0)
    depths = {new.step_id: context_of(new, following)["ductile"]["route_depth"] for new in following.children}
    assert depths == {"a": 5, "s__join": 5}


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────

RICH = (
    f"{{id: s, split: [{{id: a, uses: x}}, {{id: b, uses: x, if: {FALSE}}}, {{id: c, call: q}}]}},"
    " {id: d, foreach: payload.all, join: true, split: [{id: e, uses: x}, {id: f, uses: off, continue: true}]}"
)
CALLED = "name: q, steps: [{id: g, uses: x, foreach: payload.all}]"


def test_no_two_children_are_taken_for_the_same() -> None:
    """However an event comes to a place twice: parent and key tell the rows apart, ids are unique."""
    following = entered(RICH, CALLED, event=an_event(payload={"n": 1, "all": [1, 1]}))
    keys = [(new.parent_job_id, new.child_key) for new in following.children]
    assert len(keys) == len(set(keys)) == 9
    ids = [new.id for new in following.children if new.id] + [context.id for context in following.contexts]
    assert len(ids) == len(set(ids))


def test_the_same_event_makes_the_same_rows() -> None:
    """A replayed commit finds them all: nothing here is made by chance."""
    at = a_position(RICH, CALLED)
    event = an_event(payload={"n": 1, "all": [1, 2]})
    twice = []
    for _ in range(2):
        walk = a_walk()
        walk.enter(at.plan.entry, event, at)
        twice.append(walk.following())
    assert twice[0] == twice[1]
    other = a_walk()
    other.enter(at.plan.entry, evolve(event, id="event-2"), at)
    assert not {new.child_key for new in other.children} & {new.child_key for new in twice[0].children}


def test_a_dedupe_key_counts_for_one_step_alone() -> None:
    """The same plugin further on, another item or another pipeline are not its twins."""
    steps = "{id: a, uses: x}, {id: b, uses: x, foreach: payload.all}"
    event = an_event(payload={"all": [1, 2]}, dedupe_key="k")
    at = a_position(steps)
    walk = a_walk()
    walk.enter(at.plan.entry, event, at)
    walk.enter(at.plan.nodes["a"].successors, event, at)
    keys = [new.dedupe_key for new in walk.children]
    assert len(set(keys)) == 3
    assert all(key and key.endswith(":k") for key in keys)


def test_without_a_key_nothing_is_deduplicated() -> None:
    """Steps never make keys up."""
    assert {new.dedupe_key for new in entered(RICH, CALLED, event=an_event(payload={"n": 1, "all": [1]})).children} == {
        None
    }


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_more_jobs_than_one_may_lead_to_are_refused_as_a_whole() -> None:
    """The message says the limit."""
    event = an_event(payload={"all": [0] * 4})
    assert len(entered("{uses: x, foreach: payload.all}", event=event, limits={"most_jobs": 4}).children) == 4
    with pytest.raises(TooManyFollowUps, match="more than 3 jobs at once"):
        entered("{uses: x, foreach: payload.all}", event=event, limits={"most_jobs": 3})


def test_more_bytes_than_one_may_hand_on_are_refused_as_a_whole() -> None:
    """Every copy of a payload counts."""
    event = an_event(payload={"all": [0] * 4, "text": "x" * 1000})
    assert len(entered("{uses: x, foreach: payload.all}", event=event, limits={"most_bytes": 6000}).children) == 4
    with pytest.raises(TooManyFollowUps, match="more than 4,000 bytes"):
        entered("{uses: x, foreach: payload.all}", event=event, limits={"most_bytes": 4000})


def test_what_arrives_at_a_join_counts_as_bytes_handed_on() -> None:
    """A loop that is bypassed a thousand times keeps a thousand copies."""
    event = an_event(payload={"n": 1, "all": [0] * 50, "text": "x" * 1000})
    steps = f"{{uses: x, foreach: payload.all, join: true, if: {FALSE}}}"
    with pytest.raises(TooManyFollowUps, match="more than 20,000 bytes"):
        entered(steps, event=event, limits={"most_bytes": 20_000})


def test_contexts_count_as_bytes_handed_on() -> None:
    """Every item gets its own copy of the baggage; a thousand large ones are refused before they are written."""
    event = an_event(payload={"all": [0] * 50})
    with pytest.raises(TooManyFollowUps, match="more than 20,000 bytes"):
        entered(
            "{uses: x, foreach: payload.all}", event=event, baggage={"k": "x" * 1000}, limits={"most_bytes": 20_000}
        )


def test_a_byte_is_a_byte_and_not_a_character() -> None:
    """Text beyond ASCII counts with its real size."""
    event = an_event(payload={"all": [0] * 4, "text": "é" * 5000})
    with pytest.raises(TooManyFollowUps, match="more than 30,000 bytes"):
        entered("{uses: x, foreach: payload.all}", event=event, limits={"most_bytes": 30_000})


def nested(levels: int) -> dict[str, Any]:
    payload: dict[str, Any] = {"n": 1}
    for _ in range(levels - 1):
        payload = {"in": payload}
    return payload


def test_a_join_that_could_not_read_its_event_again_fails() -> None:
    """And nothing of its branches is begun."""
    event = an_event(payload=nested(strict_json.MAX_DEPTH))
    following = entered("{id: s, join: true, split: [{id: a, uses: x}]}", event=event)
    assert steps_of(following) == ["s__join!"]


def test_notes_are_masked() -> None:
    """What an operator hides is not shown as the value that decided."""
    at = a_position(f"{{id: a, uses: x, if: {FALSE}}}")
    walk = a_walk({"mask": lambda data: f"masked {len(data)}"})
    walk.enter(at.plan.entry, an_event(), at)
    assert walk.notes[0].data["predicates"] == "masked 1"


def test_a_walk_that_never_comes_to_a_job_ends_too() -> None:
    """Splits of splits where nothing runs: the steps of the walk itself are counted."""
    skipped = f"{{uses: x, if: {FALSE}}}"
    steps = ", ".join([f"{{split: [{skipped}, {skipped}]}}"] * 14)
    with pytest.raises(TooManyFollowUps, match=r"jobs at once|steps to find"):
        entered(steps, limits={"most_jobs": 1000})


def test_a_long_way_without_jobs_is_no_trouble() -> None:
    """Two thousand bypassed steps in a row are walked without recursion."""
    steps = ", ".join([f"{{uses: x, if: {FALSE}}}"] * 2000)
    assert len(entered(steps).children) == 2000
