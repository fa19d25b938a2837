"""What must never happen to a run: branches that vanish, steps that never come, loops that never end."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.actors import act, cast, emit
from tests.e2e.service import Home, Service

CONFIG = """
plugins:
  source: {}
  alpha: {}
  beta: {}
  gated: {config: {level: 3}}
  pings: {config: {say: {events: [{type: ping, payload: {}}]}}}
  asks-q: {config: {say: {events: [{type: q.wanted, payload: {n: 1}}]}}}
  twice: {config: {say: {events: [{type: one, payload: {n: 1}}, {type: two, payload: {n: 2}}]}}}
  loud: {notify_on_complete: true}
  fails: {config: {say: {status: error, error: no luck, retry: false, events: [{type: alarm, payload: {n: 7}}]}}}
routes:
  - {from: source, event_type: keyed.plain, to: alpha}
pipelines:
  - name: one-plugin-twice
    on: twins.wanted
    steps: [{split: [{id: left, uses: alpha}, {id: right, uses: alpha}]}]
  - {name: same-start-1, on: same.wanted, steps: [{id: same, uses: alpha}]}
  - {name: same-start-2, on: same.wanted, steps: [{id: same, uses: alpha}]}
  - {name: if-start-1, on: if.wanted, steps: [{id: a, uses: alpha, if: {path: payload.n, op: exists}}]}
  - {name: if-start-2, on: if.wanted, steps: [{id: a, uses: beta, if: {path: payload.n, op: exists}}]}
  - name: if-branches
    on: branches.wanted
    steps:
      - split:
          - {id: left, uses: alpha, if: {path: payload.n, op: exists}}
          - {id: right, uses: beta, if: {path: payload.n, op: exists}}

  - name: caller
    on: caller.wanted
    steps: [{id: inner, call: called}, {id: then, uses: beta}]
  - name: called
    on: called.wanted
    steps: [{id: keep, uses: alpha, baggage: {mine: payload.n}}, {id: more, uses: alpha}]

  - {name: outer, on: outer.wanted, steps: [{id: a, uses: alpha}, {id: b, uses: asks-q}]}
  - name: q
    on: q.wanted
    steps: [{id: c, uses: alpha}, {id: d, uses: alpha}, {id: e, uses: alpha}, {id: f, uses: beta}]

  - {name: ping-pong, on: ping, steps: [{id: again, uses: pings}]}

  - name: hooked
    on-hook: job.completed
    from_plugin: loud
    steps:
      - {id: a, uses: alpha, baggage: {who: payload.plugin}}
      - {id: b, uses: beta, if: {path: context.who, op: eq, value: loud}, with: {text: "{context.who} ended"}}
      - {id: c, uses: beta}

  - {name: eq-three, on: number, steps: [{id: a, uses: alpha, if: {path: payload.n, op: eq, value: 3}}]}
  - {name: neq-three, on: number, steps: [{id: a, uses: alpha, if: {path: payload.n, op: neq, value: 3}}]}
  - {name: in-three, on: number, steps: [{id: a, uses: alpha, if: {path: payload.n, op: in, value: [1, 3]}}]}

  - {name: absent-gt, on: absent, steps: [{id: a, uses: alpha, if: {path: payload.x, op: gt, value: 3}}]}
  - {name: absent-contains, on: absent, steps: [{id: a, uses: alpha, if: {path: payload.x, op: contains, value: y}}]}
  - {name: absent-neq, on: absent, steps: [{id: a, uses: alpha, if: {path: payload.x, op: neq, value: 3}}]}

  - name: config-gate
    on: config.wanted
    steps:
      - {id: high, uses: gated, if: {path: config.level, op: gte, value: 3}}
      - {id: higher, uses: gated, if: {path: config.level, op: gte, value: 4}}
  - name: many-gates
    on: gates.wanted
    steps:
      - {id: each, uses: alpha, foreach: payload.all, if: {path: item, op: gt, value: 98}}

  - name: three-ifs
    on: keyed.ifs
    steps:
      - {id: a, uses: beta, if: {path: payload.x, op: exists}}
      - {id: b, uses: beta, if: {path: payload.x, op: exists}}
      - {id: c, uses: beta, if: {path: payload.n, op: exists}}
      - {id: d, uses: alpha}
  - {name: keyed, on: keyed.run, steps: [{id: a, uses: alpha}, {id: b, uses: alpha}]}

  - {name: silent, on: silent.wanted, steps: [{id: a, uses: alpha}, {id: b, uses: beta}]}
  - {name: two-events, on: two.wanted, steps: [{id: a, uses: twice}, {id: b, uses: beta}]}
  - name: unjoined
    on: unjoined.wanted
    steps: [{split: [{id: a, uses: alpha}, {id: b, uses: alpha}]}, {id: after, uses: beta}]
  - name: joined
    on: joined.wanted
    steps: [{join: true, split: [{id: a, uses: alpha}, {id: b, uses: alpha}]}, {id: after, uses: beta}]

  - {name: alarmed, on: alarm, steps: [{id: a, uses: alpha}]}
  - {name: breaks, on: breaks.wanted, steps: [{id: a, uses: fails}, {id: b, uses: alpha}]}
  - {name: bad-claim, on: claim.wanted, steps: [{id: a, uses: alpha, baggage: {x: payload.gone}}]}
  - {name: good-claim, on: claim.wanted, steps: [{id: b, uses: alpha}]}

  - {name: odd-predicate, on: odd, if: {path: payload.n, op: gt, value: 3}, steps: [{id: a, uses: alpha}]}
  - {name: plain, on: odd, steps: [{id: b, uses: alpha}]}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all; every test leaves it idle."""
    home = Home.make(tmp_path_factory.mktemp("defects") / "ductile")
    cast(home, yaml.safe_load(CONFIG)["plugins"])
    home.add(CONFIG)
    running = home.start()
    yield running
    running.kill()


# ── who is whose child ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("event", "plugins"),
    [
        ("twins.wanted", ["alpha", "alpha"]),
        ("same.wanted", ["alpha", "alpha"]),
        ("if.wanted", ["alpha", "beta"]),
        ("branches.wanted", ["alpha", "beta"]),
    ],
)
def test_branches_and_pipelines_that_begin_alike_all_run(service: Service, event: str, plugins: list[str]) -> None:
    """One plugin twice, two pipelines with the same first step, two that begin with `if`: no branch is lost."""
    run = emit(service, event, {"n": 1})

    ran = sorted(row["plugin"] for row in run.rows[1:] if row["plugin"] != "core.switch")
    assert ran == plugins
    assert {row["status"] for row in run.rows} == {"succeeded"}
    assert len(run.heard) == 3


# ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_steps_after_a_call_run_with_its_baggage(service: Service) -> None:
    """The caller waits for the callee's last step, and inherits what it claimed."""
    run = emit(service, "caller.wanted", {"n": 5})

    assert run.steps[1:] == ["inner/keep succeeded", "inner/more succeeded", "then succeeded"]
    assert run.baggage("then") == {"mine": 5}


def test_a_pipeline_that_begins_with_a_call_runs_to_its_end_when_it_is_asked_for(service: Service) -> None:
    """Over the API too: all jobs of one tree."""
    run = act(service, lambda: service.ask("POST", "/pipeline/caller", {"payload": {"n": 5}}))

    assert run.steps == ["inner/keep succeeded", "inner/more succeeded", "then succeeded"]
    assert {row["root_job_id"] for row in run.rows} == {run.rows[0]["id"]}


# ── depth and loops ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pipeline_triggered_from_inside_another_runs_all_its_steps(service: Service) -> None:
    """Its depth is its own: four steps, although the run that triggered it had two."""
    run = emit(service, "outer.wanted", {})

    assert run.steps[1:] == [f"{step} succeeded" for step in "abcdef"]


def test_an_event_loop_ends_visibly_after_twenty_crossings(service: Service) -> None:
    """A step whose event triggers its own pipeline: the chain is cut, with the reason in the tree."""
    run = emit(service, "ping", {})

    again = run.of("again")
    assert [row["hops"] for row in again] == list(range(1, 22))
    assert {row["status"] for row in again[:-1]} == {"succeeded"}
    assert (again[-1]["status"], again[-1]["last_error"]) == ("dead", "chain of more than 20 hops")


def test_a_hook_loop_ends_and_the_journal_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A hook whose plugin announces its own end: four hooks in a row (`service.hook_max_depth`), then no more."""
    home = Home.make(tmp_path_factory.mktemp("loop") / "ductile")
    cast(home, ("loud",))
    home.add(
        "plugins: {loud: {notify_on_complete: true}}\n"
        "pipelines: [{name: echo, on-hook: job.completed, steps: [{id: again, uses: loud}]}]\n"
    )
    service = home.start()
    run = act(service, lambda: service.post("loud"))
    service.kill()

    assert [(row["hops"], row["status"]) for row in run.rows] == [(hop, "succeeded") for hop in range(5)]
    (skipped,) = run.notes("pipeline.skipped")
    assert (skipped["pipeline"], skipped["reason"]) == (
        "echo",
        "more than 4 consecutive hooks (service.hook_max_depth)",
    )


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hook_pipeline_is_a_whole_run(service: Service) -> None:
    """All its steps, with `if`, `with` and baggage, in a tree of its own."""
    run = act(service, lambda: service.post("loud"))

    assert run.steps == ["loud succeeded", "a succeeded", "b__switch succeeded", "b succeeded", "c succeeded"]
    assert run.payload("b")["text"] == "loud ended"
    assert {row["root_job_id"] for row in run.rows[1:]} == {run.rows[1]["id"]}


# ── conditions ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("number", "true"),
    [
        (3, {"eq-three", "in-three"}),
        (3.0, {"eq-three", "in-three"}),
        (1, {"neq-three", "in-three"}),
        (True, {"neq-three"}),
        ("3", {"neq-three"}),
    ],
)
def test_a_number_in_yaml_equals_the_same_number_in_json(service: Service, number: Any, true: set[str]) -> None:
    """By value, whole or not; true is no number and text is none either."""
    run = emit(service, "number", {"n": number})

    assert {row["pipeline"] for row in run.of("a")} == true
    assert {row["status"] for row in run.rows} == {"succeeded"}


def test_a_condition_on_something_absent_is_an_answer_and_not_a_failure(service: Service) -> None:
    """Absent compares as null: less, more and contains are false, unequal is true."""
    run = emit(service, "absent", {})

    assert {row["pipeline"] for row in run.of("a")} == {"absent-neq"}
    assert {row["status"] for row in run.rows} == {"succeeded"}


def test_a_gated_plugin_gets_the_event_as_it_was_emitted(service: Service) -> None:
    """Its type is not that of the decision, and `config.*` of the plugin can be asked."""
    run = emit(service, "config.wanted", {"n": 1})

    assert run.steps[1:] == ["high__switch succeeded", "high succeeded", "higher__switch succeeded"]
    assert run.told("high")["type"] == "config.wanted"


def test_a_decision_costs_no_turn_in_the_queue(service: Service) -> None:
    """A hundred decisions are taken in the moment their event is written down, one after the other or not."""
    run = emit(service, "gates.wanted", {"all": list(range(100))})

    switches = run.of("each__switch")
    assert len(switches) == 100
    moments = {row["created_at"] for row in switches} | {row["completed_at"] for row in switches}
    assert moments == {run.rows[0]["completed_at"]}
    assert {row["started_at"] for row in switches} == {None}
    assert len(run.of("each")) == 1


# ── dedupe ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_with_a_key_passes_any_number_of_ifs(service: Service) -> None:
    """Decisions carry no key, so the third one in a row is no duplicate of the first."""
    run = emit(service, "keyed.ifs", {"n": 1}, dedupe_key="ifs-1")

    assert run.steps[1:] == [
        "a__switch succeeded",
        "b__switch succeeded",
        "c__switch succeeded",
        "c succeeded",
        "d succeeded",
    ]


@pytest.mark.parametrize(("kind", "expected"), [("keyed.plain", 1), ("keyed.run", 2)])
def test_two_events_with_one_key_that_come_together_are_handled_once(
    service: Service, kind: str, expected: int
) -> None:
    """Along a route and in a run: the first does the work, the second is skipped and says whose it was."""
    event = {"type": kind, "payload": {"n": 1}, "dedupe_key": f"{kind}-1"}
    run = act(service, lambda: service.post("source", "poll", {"say": {"events": [event, event]}}))

    alpha = run.of("alpha")
    assert len([row for row in alpha if row["id"] in run.heard]) == expected
    assert [row["status"] for row in alpha if row["id"] not in run.heard] == ["skipped"]


# ── what flows on ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_silent_step_loses_nothing(service: Service) -> None:
    """The payload goes on with the result beside it."""
    run = emit(service, "silent.wanted", {"n": 1, "deep": {"x": [1]}})

    assert run.payload("b") == {"n": 1, "deep": {"x": [1]}, "result": "done"}


def test_two_events_run_the_next_step_twice(service: Service) -> None:
    """Each with its own payload."""
    run = emit(service, "two.wanted", {})

    assert sorted(run.heard[row["id"]]["payload"]["n"] for row in run.of("b")) == [1, 2]


@pytest.mark.parametrize(("kind", "times"), [("unjoined.wanted", 2), ("joined.wanted", 1)])
def test_what_follows_a_split_runs_once_per_branch_unless_it_is_joined(service: Service, kind: str, times: int) -> None:
    """With `join: true` once, when all branches are over, with what each came to."""
    run = emit(service, kind, {"n": 1})

    after = run.of("after")
    assert len(after) == times
    if times == 1:
        assert [result["n"] for result in run.payload("after")["results"]] == [1, 1]
        assert after[0]["created_at"] >= max(row["completed_at"] for row in (*run.of("a"), *run.of("b")))


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_events_of_a_final_error_are_heard(service: Service) -> None:
    """They trigger pipelines; the run of the failed step does not go on."""
    run = emit(service, "breaks.wanted", {})

    assert [(row["pipeline"], row["step_id"], row["status"]) for row in run.rows[1:]] == [
        ("breaks", "a", "failed"),
        ("alarmed", "a", "succeeded"),
    ]
    (alarmed,) = [row for row in run.rows if row["pipeline"] == "alarmed"]
    assert run.heard[alarmed["id"]]["payload"]["n"] == 7


def test_a_child_that_cannot_begin_does_not_fail_the_job_that_led_to_it(service: Service) -> None:
    """What a plugin did is done; the broken claim is a failed job of its own, and the other pipeline runs."""
    run = emit(service, "claim.wanted", {})

    assert [f"{row['step_id'] or row['plugin']} {row['status']}" for row in run.rows] == [
        "source succeeded",
        "a failed",
        "b succeeded",
    ]


@pytest.mark.parametrize("odd", [{}, {"n": None}, {"n": "text"}, {"n": [1]}, {"n": {"x": 1}}])
def test_one_predicate_never_keeps_an_event_from_the_other_pipelines(service: Service, odd: dict[str, Any]) -> None:
    """Whatever it finds, there is an answer; the skip is journalled and the others start."""
    run = emit(service, "odd", odd)

    assert run.steps == ["source succeeded", "b succeeded"]
    assert [note["pipeline"] for note in run.notes("pipeline.skipped")] == ["odd-predicate"]
