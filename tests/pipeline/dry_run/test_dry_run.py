"""Dry runs: what would happen, told step by step, and the same as what does happen."""

import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings

from ductile.core.model import Completion, Evidence, Failed, Job, JobStatus, JoinInput, Outcome, Succeeded
from ductile.ledger.completion.follow_ups import start_run
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from ductile.pipeline.compile.plan import Plans
from ductile.pipeline.dry_run.answers import Emitted, PluginAnswer, read_answers
from ductile.pipeline.dry_run.dry_run import DryRunLine, Rehearsal, rehearse
from ductile.pipeline.run.events import Ended
from ductile.pipeline.run.route import Routes, Target, TooManyFollowUps, World, after, after_join, begin
from tests.ledger.recording import record_and_claim
from tests.pipeline.random_pipelines import PAYLOAD, Data, some_pipelines
from tests.pipeline.written import compiled

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def rehearsed(steps: str, payload: dict[str, Any] | None = None, answers: Any = None, **more: Any) -> Rehearsal:
    """A dry run of a pipeline `p` with these steps (YAML flow)."""
    world: World = more.pop("world", World())
    world = evolve(world, plans=compiled(f"- {{name: p, on: e, steps: [{steps}]}}" + more.pop("others", "")))
    plan = world.plans.named("p")
    return rehearse(plan, payload or {}, world, read_answers(answers or {}, plan.nodes), now=NOW, **more)


def told(found: Rehearsal) -> list[str]:
    return [f"{line.step}{list(line.indexes) or ''} {line.outcome}: {line.why}" for line in found.lines]


def line(found: Rehearsal, step: str, kind: str = "uses") -> DryRunLine:
    (one,) = [each for each in found.lines if (each.step, each.kind) == (step, kind)]
    return one


SILENT = "no answer given: succeeds silently"


def test_every_step_is_told_in_the_order_in_which_it_comes_about() -> None:
    """Steps without an answer succeed silently and hand on what they got."""
    found = rehearsed("{id: a, uses: x}, {id: b, uses: y.poll}", {"n": 1})

    assert (found.status, told(found)) == (JobStatus.SUCCEEDED, [f"a simulated: {SILENT}", f"b simulated: {SILENT}"])
    assert (line(found, "a").led_to, line(found, "b").led_to) == (("b",), ())
    assert (line(found, "b").plugin, line(found, "b").command, line(found, "b").pipeline) == ("y", "poll", "p")
    assert line(found, "b").payload["n"] == 1
    assert line(found, "b").payload["result"] == "simulated"


def test_given_answers_are_what_the_steps_say() -> None:
    """Two events lead on twice; their payloads are what comes next."""
    events = [{"type": "one", "payload": {"n": 1}}, {"type": "two", "payload": {"n": 2, "result": "own"}}]

    found = rehearsed("{id: a, uses: x}, {id: b, uses: y}", answers={"a": {"result": "said", "events": events}})

    assert line(found, "a").why == "answered as given"
    got = [(each.payload["n"], each.payload["result"]) for each in found.lines if each.step == "b"]
    assert got == [(1, "said"), (2, "own")]


def test_a_given_failure_goes_the_way_of_errors() -> None:
    """What follows is not reached, the on_error steps are, and the run fails."""
    found = rehearsed(
        "{id: a, uses: x, on_error: [{id: help, uses: y}]}, {id: b, uses: z}", answers={"a": {"fail": "offline"}}
    )

    assert found.status is JobStatus.FAILED
    assert told(found) == ["a failed: offline", f"help simulated: {SILENT}", "b not reached: nothing led to it"]
    assert line(found, "help").payload["message"] == "Job failed [x]: offline"


def test_a_tolerated_failure_does_not_fail_the_run() -> None:
    """With `continue` the run goes on, and the line says that this was allowed."""
    found = rehearsed("{id: a, uses: x, continue: true}, {id: b, uses: y}", answers={"a": {"fail": "no"}})

    assert (found.status, line(found, "a").tolerated) == (JobStatus.SUCCEEDED, True)
    assert line(found, "b").outcome == "simulated"


@pytest.mark.parametrize(
    ("payload", "outcome", "why"),
    [
        ({"n": 5}, "entered", "payload.n gt 3 is true: found 5"),
        ({"n": 2}, "bypassed", "payload.n gt 3 is false: found 2"),
        ({}, "bypassed", "payload.n gt 3 is false: it is absent"),
    ],
)
def test_a_decision_is_told_with_the_values_that_decided(payload: dict[str, Any], outcome: str, why: str) -> None:
    """Every predicate with what it found, whichever way it went."""
    found = rehearsed("{id: a, uses: x, if: {path: payload.n, op: gt, value: 3}}, {id: b, uses: y}", payload)

    decision = line(found, "a", "if")
    assert (decision.outcome, decision.why) == (outcome, why)
    assert decision.predicates[0]["path"] == "payload.n"
    assert ("a" in [each.step for each in found.lines if each.kind == "uses"]) == (outcome == "entered")
    assert line(found, "b").outcome == "simulated"


def test_a_configured_value_that_decides_is_not_shown() -> None:
    """What an operator configured may be a secret."""
    world = World(config_of=lambda _: {"mode": "hunter2"})

    found = rehearsed("{id: a, uses: x, if: {path: config.mode, op: eq, value: z}}", world=world)

    assert line(found, "a", "if").why == 'config.mode eq "z" is false: found "***"'


def test_the_plugin_gets_its_payload_after_with() -> None:
    """The line shows what the request would carry, and what is durable by then."""
    found = rehearsed(
        "{id: a, uses: x, baggage: {who: payload.name}}, {id: b, uses: y, with: {text: 'for {context.who}'}}",
        {"name": "Ada"},
    )

    assert line(found, "b").payload["text"] == "for Ada"
    assert line(found, "b").baggage == {"who": "Ada"}


@pytest.mark.parametrize(
    ("step", "outcome", "why"),
    [
        ("{id: a, uses: x, with: {t: '{payload.gone}'}}", "failed", "with 't': payload.gone is absent"),
        ("{id: a, uses: x, baggage: {t: payload.gone}}", "failed", "baggage t: payload.gone is absent"),
        ("{id: a, uses: x, foreach: payload.gone}", "failed", "foreach: payload.gone is absent"),
        ("{id: a, uses: off}", "dead", "plugin off is disabled"),
    ],
)
def test_a_step_that_cannot_run_says_why(step: str, outcome: str, why: str) -> None:
    """What would fail in the service fails here, with the same words."""
    world = World(target=lambda plugin: Target(refused="is disabled" if plugin == "off" else None))

    found = rehearsed(step, {"n": 1}, world=world)

    (one,) = [each for each in found.lines if each.step == "a" and each.outcome != "not reached"]
    assert one.outcome == outcome
    assert one.why.startswith(why)
    assert found.status is JobStatus.FAILED


def test_items_are_told_one_by_one() -> None:
    """Each element of a list is a line with its index, outermost first."""
    found = rehearsed(
        "{id: each, foreach: payload.rows, steps: [{id: a, uses: x, foreach: item.cells}]}",
        {"rows": [{"cells": [1]}, {"cells": [2, 3]}]},
    )

    assert [each.indexes for each in found.lines] == [(0, 0), (1, 0), (1, 1)]


def test_a_join_waits_for_what_is_inside() -> None:
    """It tells how many results it has, and leads on once."""
    found = rehearsed("{id: fan, split: [{id: a, uses: x}, {id: b, uses: y}], join: true}, {id: c, uses: z}")

    join = line(found, "fan__join", "join")
    assert (join.outcome, join.why, join.led_to) == ("joined", "2 results", ("c",))
    assert len(line(found, "c").payload["results"]) == 2


def test_a_join_fails_with_its_members() -> None:
    """Its line names the member that failed, and nothing follows."""
    found = rehearsed(
        "{id: fan, split: [{id: a, uses: x}, {id: b, uses: y}], join: true}, {id: c, uses: z}",
        answers={"b": {"fail": "no"}},
    )

    assert told(found)[-2:] == ["fan__join failed: not joined: b: no", "c not reached: nothing led to it"]


def test_what_an_event_sets_off_is_told_too() -> None:
    """Routes and other pipelines that wait for the event are part of what would happen."""
    world = World(routes=Routes.of([("x", "made", "other")]))
    others = "\n- {name: q, on: made, steps: [{id: first, uses: z}]}"

    found = rehearsed("{id: a, uses: x}", answers={"a": [{"type": "made"}]}, world=world, others=others)

    assert line(found, "a").led_to == ("other", "q: first")
    assert (line(found, "other", "route").plugin, line(found, "first").pipeline) == ("other", "q")


def test_the_condition_of_the_pipeline_is_told_but_not_asked() -> None:
    """Whoever asks by name gets a run; whether an event would have started it is worth knowing."""
    text = "- {name: p, on: e, if: {path: payload.go, op: exists}, steps: [{id: a, uses: x}]}"
    world = World(plans=compiled(text))

    found = rehearse(world.plans.named("p"), {}, world, now=NOW)

    assert (found.would_start, found.predicates[0]["holds"], len(found.lines)) == (False, False, 1)


def test_hooks_are_told_and_do_not_fail_the_run() -> None:
    """A hook run is a tree of its own."""
    world = World(target=lambda plugin: Target(notify=plugin == "x", refused="is off" if plugin == "z" else None))
    others = "\n- {name: q, on-hook: job.completed, steps: [{id: tell, uses: z}]}"

    found = rehearsed("{id: a, uses: x}", world=world, others=others)

    assert (found.status, line(found, "tell").outcome) == (JobStatus.SUCCEEDED, "dead")


def test_a_circle_of_events_ends_at_the_hop_limit() -> None:
    """A run that would start itself for ever is told until the chain is too long."""
    found = rehearsed("{id: a, uses: x}", answers={"a": [{"type": "e"}]}, most_hops=5)

    assert told(found)[-1] == "a dead: chain of more than 5 hops"
    assert len(found.lines) == 7


def test_a_rehearsal_of_a_very_large_run_is_cut_short() -> None:
    """It is told up to a limit, and says that it was."""
    found = rehearsed("{id: a, uses: x, foreach: payload.n}, {id: b, uses: y}", {"n": list(range(30))}, most_jobs=40)

    assert (found.is_complete, found.status) == (False, JobStatus.FAILED)
    assert "b not reached: the rehearsal was cut short before it" in told(found)


def test_decisions_are_never_too_many() -> None:
    """As in the service, where only a job that would run is dead in a tree that is full."""
    steps = "{id: a, uses: x, foreach: payload.n}, {id: b, uses: y, if: {path: payload.q, op: eq, value: 2}}"
    found = rehearsed(steps, {"n": list(range(30))}, most_jobs=40)

    assert (found.is_complete, found.status) == (True, JobStatus.SUCCEEDED)


def test_what_is_too_much_is_not_tolerated() -> None:
    """As in the service: the run does not go on behind the step, or not as it was meant to."""
    world, calm = World(most_jobs=2), "{id: a, uses: x, continue: true}, {id: b, uses: y}"
    emitted = rehearsed(calm, answers={"a": [{"type": "e"}] * 3}, world=world)
    each = "{id: a, uses: x, continue: true}, {id: b, uses: y, foreach: payload.input.n}"
    failed = rehearsed(each, {"n": [1, 2, 3]}, answers={"a": {"fail": "no"}}, world=world)

    assert [found.status for found in (emitted, failed)] == [JobStatus.FAILED] * 2
    assert line(failed, "a").why == "no; it leads to more than 2 jobs at once"


def test_what_is_too_far_is_not_tolerated_and_decisions_are_never_too_far() -> None:
    """As in the service, where only a job that would run is dead at the end of a long chain."""
    calm = "{id: a, uses: x, continue: true, if: {path: payload.on, op: neq, value: 0}}"
    far = rehearsed(calm, answers={"a": [{"type": "e"}]}, most_hops=3)
    near = rehearsed(calm, answers={"a": [{"type": "e", "payload": {"on": 0}}]}, most_hops=0)

    assert (far.status, told(far)[-1]) == (JobStatus.FAILED, "a dead: chain of more than 3 hops")
    assert (near.status, told(near)[-1].split(":")[0]) == (JobStatus.SUCCEEDED, "a bypassed")


def test_a_payload_that_leads_to_too_much_at_once_is_refused() -> None:
    """As in the service, nothing begins."""
    world = World(most_jobs=10)
    with pytest.raises(TooManyFollowUps):
        rehearsed("{id: a, uses: x, foreach: payload.n}", {"n": list(range(30))}, world=world)


def test_real_answers_come_first() -> None:
    """Whoever is asked may answer; the line says that it was executed."""
    asked: list[str] = []

    def ask(job: Job) -> PluginAnswer | None:
        asked.append(job.step_id or "")
        if job.step_id == "b":
            return PluginAnswer(result="real", events=(Emitted("seen", {"n": 7}),))
        return PluginAnswer(error="exit code 3") if job.step_id == "d" else None

    found = rehearsed(
        "{id: a, uses: x}, {id: b, uses: x}, {id: c, uses: x}, {id: d, uses: x}", answers={"b": {"fail": "x"}}, ask=ask
    )

    assert asked == ["a", "b", "c", "d"]
    assert told(found) == [
        f"a simulated: {SILENT}",
        "b executed: really run: real",
        f"c simulated: {SILENT}",
        "d failed: really run: exit code 3",
    ]
    assert line(found, "c").payload["n"] == 7


def test_a_relay_is_told_with_what_it_would_send() -> None:
    """Its own `with`, and nothing else; what it names and nobody has fails it, as in the service."""
    send = "{id: send, relay: {to: lab, event: t, with: {n: payload.n}, baggage: {who: payload.who}}}"

    sent = rehearsed(send, {"n": 1, "who": "ada", "secret": "s"})
    empty, nobody = rehearsed(send, {"who": "ada"}), rehearsed(send, {"n": 1})

    assert (sent.status, line(sent, "send", "relay").payload) == (JobStatus.SUCCEEDED, {"n": 1})
    assert [found.status for found in (empty, nobody)] == [JobStatus.FAILED] * 2
    assert "payload.n" in line(empty, "send", "relay").why
    assert "payload.who" in line(nobody, "send", "relay").why


# ── the same as what happens ────────────────────────────────────────────────────────────────────────────────────────

FREE = dict.fromkeys(("alpha", "beta", "gamma", "broken", "core.relay"), 1000)


def played(db: sqlite3.Connection, plans: Plans, name: str) -> Counter[tuple[str, str]]:
    """What really becomes of every step of a run, through the ledger, with a plugin `broken` that fails."""
    world = World(plans=plans)

    def end(job: Job) -> Completion:
        outcome: Outcome = Succeeded(Evidence(started_at=NOW, duration=timedelta()))
        ended = Ended(status=JobStatus.SUCCEEDED, result="simulated")
        if job.plugin == "broken":
            outcome, ended = Failed("no"), Ended(status=JobStatus.FAILED, error="no")
        following = after(job, ended, (), world, now=NOW)
        return Completion(
            job_id=job.id,
            attempt=job.attempt,
            outcome=outcome,
            contexts=following.contexts,
            children=following.children,
            arrivals=following.arrivals,
            notes=following.notes,
        )

    def decide(joined: JoinInput, now: datetime) -> Any:
        return after_join(joined, world, now=now)

    with transaction(db):
        start_run(db, begin(plans.named(name), PAYLOAD, world, submitted_by="test", now=NOW).following, now=NOW)
    endings: list[Completion] = []
    while True:
        with transaction(db):
            _, claimed = record_and_claim(db, endings, now=NOW, run_id="r", free=FREE, limit=1_000, join_rule=decide)
        endings = [end(job) for job in claimed.jobs]
        if not endings and not claimed.more:
            break
    rows = db.execute("SELECT step_id, plugin, status FROM job_queue WHERE plugin <> 'core.start'").fetchall()
    db.execute("DELETE FROM job_queue")
    return Counter(
        (step.removesuffix("__switch").removesuffix("/"), "decided") if plugin == "core.switch" else (step, status)
        for step, plugin, status in rows
    )


def foretold(plans: Plans, name: str) -> Counter[tuple[str, str]] | None:
    """What a rehearsal says about it; None if there is too much to say."""
    plan = plans.named(name)
    broken = {path: PluginAnswer(error="no") for path, node in plan.nodes.items() if node.plugin == "broken"}
    found = rehearse(plan, PAYLOAD, World(plans=plans), broken, now=NOW, most_jobs=300)
    words = {"simulated": "succeeded", "joined": "succeeded", "entered": "decided", "bypassed": "decided"}
    counted = Counter((each.step, words.get(each.outcome, each.outcome)) for each in found.lines)
    return Counter({key: n for key, n in counted.items() if key[1] != "not reached"}) if found.is_complete else None


@given(listed=some_pipelines(most_leaves=5))
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_what_is_foretold_is_what_happens(listed: list[Data], tmp_path: Path) -> None:
    """For any pipeline: the same steps, as often, with the same ends."""
    plans = compiled(listed)
    with closing(open_writer(tmp_path / "ledger.db", synchronous="off")) as db:
        for name in plans.by_name:
            if (expected := foretold(plans, name)) is not None:
                assert expected == played(db, plans, name)
