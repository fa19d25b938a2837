"""Rules that every run keeps: no lost branches, no missing steps, no endless loops."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.commands import ductile, ductile_json
from tests.e2e.recording_plugins import add_recording_plugins, emit, run_to_end
from tests.e2e.service import Home, Service

PIPELINES = """
plugins:
  source: {}
  alpha: {}
  beta: {}
  conditional: {config: {level: 3}}
  pings: {config: {response: {events: [{type: ping, payload: {}}]}}}
  asks-q: {config: {response: {events: [{type: q.requested, payload: {n: 1}}]}}}
  twice: {config: {response: {events: [{type: one, payload: {n: 1}}, {type: two, payload: {n: 2}}]}}}
  notifying: {notify_on_complete: true}
  fails: {config: {response: {status: error, error: no luck, retry: false, events: [{type: alarm, payload: {n: 7}}]}}}
routes:
  - {from: source, event_type: keyed.plain, to: alpha}
pipelines:
  - name: one-plugin-twice
    on: twins.requested
    steps: [{split: [{id: left, uses: alpha}, {id: right, uses: alpha}]}]
  - {name: same-start-1, on: same.requested, steps: [{id: same, uses: alpha}]}
  - {name: same-start-2, on: same.requested, steps: [{id: same, uses: alpha}]}
  - {name: if-start-1, on: if.requested, steps: [{id: a, uses: alpha, if: {path: payload.n, op: exists}}]}
  - {name: if-start-2, on: if.requested, steps: [{id: a, uses: beta, if: {path: payload.n, op: exists}}]}
  - name: if-branches
    on: branches.requested
    steps:
      - split:
          - {id: left, uses: alpha, if: {path: payload.n, op: exists}}
          - {id: right, uses: beta, if: {path: payload.n, op: exists}}

  - name: caller
    on: caller.requested
    steps: [{id: inner, call: called}, {id: then, uses: beta}]
  - name: called
    on: called.requested
    steps: [{id: keep, uses: alpha, baggage: {claimed: payload.n}}, {id: more, uses: alpha}]

  - {name: outer, on: outer.requested, steps: [{id: a, uses: alpha}, {id: b, uses: asks-q}]}
  - name: q
    on: q.requested
    steps: [{id: c, uses: alpha}, {id: d, uses: alpha}, {id: e, uses: alpha}, {id: f, uses: beta}]

  - {name: ping-pong, on: ping, steps: [{id: again, uses: pings}]}

  - name: hooked
    on-hook: job.completed
    from_plugin: notifying
    steps:
      - {id: a, uses: alpha, baggage: {who: payload.plugin}}
      - {id: b, uses: beta, if: {path: context.who, op: eq, value: notifying}, with: {text: "{context.who} ended"}}
      - {id: c, uses: beta}

  - {name: eq-three, on: number, steps: [{id: a, uses: alpha, if: {path: payload.n, op: eq, value: 3}}]}
  - {name: neq-three, on: number, steps: [{id: a, uses: alpha, if: {path: payload.n, op: neq, value: 3}}]}
  - {name: in-three, on: number, steps: [{id: a, uses: alpha, if: {path: payload.n, op: in, value: [1, 3]}}]}

  - {name: absent-gt, on: absent, steps: [{id: a, uses: alpha, if: {path: payload.x, op: gt, value: 3}}]}
  - {name: absent-contains, on: absent, steps: [{id: a, uses: alpha, if: {path: payload.x, op: contains, value: y}}]}
  - {name: absent-neq, on: absent, steps: [{id: a, uses: alpha, if: {path: payload.x, op: neq, value: 3}}]}

  - name: config-gate
    on: config.requested
    steps:
      - {id: high, uses: conditional, if: {path: config.level, op: gte, value: 3}}
      - {id: higher, uses: conditional, if: {path: config.level, op: gte, value: 4}}
  - name: many-gates
    on: gates.requested
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
  - {name: keyed-1, on: keyed.both, steps: [{split: [{id: a, uses: alpha}, {id: b, uses: alpha}, {uses: beta}]}]}
  - {name: keyed-once, on: keyed.once, steps: [{id: a, uses: alpha, if: {path: payload.n, op: exists}}]}
  - {name: keyed-2, on: keyed.both, steps: [{id: a, uses: alpha}]}

  - {name: no-events, on: no-events.requested, steps: [{id: a, uses: alpha}, {id: b, uses: beta}]}
  - {name: two-events, on: two.requested, steps: [{id: a, uses: twice}, {id: b, uses: beta}]}
  - name: unjoined
    on: unjoined.requested
    steps: [{split: [{id: a, uses: alpha}, {id: b, uses: alpha}]}, {id: after, uses: beta}]
  - name: joined
    on: joined.requested
    steps: [{join: true, split: [{id: a, uses: alpha}, {id: b, uses: alpha}]}, {id: after, uses: beta}]

  - {name: alarmed, on: alarm, steps: [{id: a, uses: alpha}]}
  - {name: breaks, on: breaks.requested, steps: [{id: a, uses: fails}, {id: b, uses: alpha}]}
  - {name: bad-claim, on: claim.requested, steps: [{id: a, uses: alpha, baggage: {x: payload.gone}}]}
  - {name: good-claim, on: claim.requested, steps: [{id: b, uses: alpha}]}

  - {name: with-condition, on: odd, if: {path: payload.n, op: gt, value: 3}, steps: [{id: a, uses: alpha}]}
  - {name: plain, on: odd, steps: [{id: b, uses: alpha}]}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start one service for all tests. Every test leaves it idle."""
    home = Home.make(tmp_path_factory.mktemp("invariants") / "ductile")
    add_recording_plugins(home, yaml.safe_load(PIPELINES)["plugins"])
    home.add(PIPELINES)
    running = home.start()
    yield running
    running.kill()


# ── branches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("event", "plugins"),
    [
        ("twins.requested", ["alpha", "alpha"]),
        ("same.requested", ["alpha", "alpha"]),
        ("if.requested", ["alpha", "beta"]),
        ("branches.requested", ["alpha", "beta"]),
    ],
)
def test_branches_and_pipelines_with_equal_first_steps_all_run(
    service: Service, event: str, plugins: list[str]
) -> None:
    """One plugin twice, two pipelines with the same first step, two pipelines that begin with `if`."""
    run = emit(service, event, {"n": 1})

    ran = sorted(row["plugin"] for row in run.rows[1:] if row["plugin"] != "core.switch")
    assert ran == plugins
    assert {row["status"] for row in run.rows} == {"succeeded"}
    assert len(run.requests) == 3


# ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_steps_after_a_call_run_with_the_baggage_of_the_called_pipeline(service: Service) -> None:
    """They start after the last step of the called pipeline."""
    run = emit(service, "caller.requested", {"n": 5})

    assert run.steps[1:] == ["inner/keep succeeded", "inner/more succeeded", "then succeeded"]
    assert run.baggage("then") == {"claimed": 5}


def test_a_pipeline_that_begins_with_a_call_runs_to_its_end(service: Service) -> None:
    """A run that is started over the API is one tree."""
    run = run_to_end(service, lambda: service.ask("POST", "/pipeline/caller", {"payload": {"n": 5}}))

    assert run.steps == ["inner/keep succeeded", "inner/more succeeded", "then succeeded"]
    assert {row["root_job_id"] for row in run.rows} == {run.rows[0]["id"]}


# ── depth and loops ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pipeline_that_another_run_triggers_runs_all_its_steps(service: Service) -> None:
    """The steps of the triggering run do not count towards its depth."""
    run = emit(service, "outer.requested", {})

    assert run.steps[1:] == [f"{step} succeeded" for step in "abcdef"]


def test_an_event_loop_ends_after_twenty_hops(service: Service) -> None:
    """A step whose event triggers its own pipeline: the last job is dead with the reason."""
    run = emit(service, "ping", {})

    again = run.rows_of("again")
    assert [row["hops"] for row in again] == list(range(1, 22))
    assert {row["status"] for row in again[:-1]} == {"succeeded"}
    assert (again[-1]["status"], again[-1]["last_error"]) == ("dead", "chain of more than 20 hops")


def test_a_hook_loop_ends_with_a_journal_row(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A hook whose plugin triggers the same hook runs four times (`service.hook_max_depth`)."""
    home = Home.make(tmp_path_factory.mktemp("loop") / "ductile")
    add_recording_plugins(home, ("notifying",))
    home.add(
        "plugins: {notifying: {notify_on_complete: true}}\n"
        "pipelines: [{name: echo, on-hook: job.completed, steps: [{id: again, uses: notifying}]}]\n"
    )
    service = home.start()
    run = run_to_end(service, lambda: service.post("notifying"))
    service.kill()

    assert [(row["hops"], row["status"]) for row in run.rows] == [(hop, "succeeded") for hop in range(5)]
    (skipped,) = run.journal_data("pipeline.skipped")
    assert (skipped["pipeline"], skipped["reason"]) == (
        "echo",
        "more than 4 consecutive hooks (service.hook_max_depth)",
    )


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hook_pipeline_runs_all_its_steps(service: Service) -> None:
    """`if`, `with` and baggage work, and the run is a tree of its own."""
    run = run_to_end(service, lambda: service.post("notifying"))

    assert run.steps == ["notifying succeeded", "a succeeded", "b__switch succeeded", "b succeeded", "c succeeded"]
    assert run.payload("b")["text"] == "notifying ended"
    assert {row["root_job_id"] for row in run.rows[1:]} == {run.rows[1]["id"]}


# ── conditions ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (3, {"eq-three", "in-three"}),
        (3.0, {"eq-three", "in-three"}),
        (1, {"neq-three", "in-three"}),
        (True, {"neq-three"}),
        ("3", {"neq-three"}),
    ],
)
def test_conditions_compare_numbers_by_value(service: Service, number: Any, expected: set[str]) -> None:
    """3 equals 3.0. A boolean or a string never equals a number."""
    run = emit(service, "number", {"n": number})

    assert {row["pipeline"] for row in run.rows_of("a")} == expected
    assert {row["status"] for row in run.rows} == {"succeeded"}


def test_a_condition_on_an_absent_value_has_a_result(service: Service) -> None:
    """Absent compares as null: `gt` and `contains` are false, `neq` is true."""
    run = emit(service, "absent", {})

    assert {row["pipeline"] for row in run.rows_of("a")} == {"absent-neq"}
    assert {row["status"] for row in run.rows} == {"succeeded"}


def test_a_step_with_if_gets_the_event_as_it_was_emitted(service: Service) -> None:
    """Its event type is not that of the switch. The condition can read `config.*` of the plugin."""
    run = emit(service, "config.requested", {"n": 1})

    assert run.steps[1:] == ["high__switch succeeded", "high succeeded", "higher__switch succeeded"]
    assert run.request("high")["type"] == "config.requested"


def test_switches_are_evaluated_without_a_worker_slot(service: Service) -> None:
    """A hundred switches are recorded in the transaction that records their event."""
    run = emit(service, "gates.requested", {"all": list(range(100))})

    switches = run.rows_of("each__switch")
    assert len(switches) == 100
    moments = {row["created_at"] for row in switches} | {row["completed_at"] for row in switches}
    assert moments == {run.rows[0]["completed_at"]}
    assert {row["started_at"] for row in switches} == {None}
    assert len(run.rows_of("each")) == 1


# ── dedupe ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_with_a_dedupe_key_passes_several_switches(service: Service) -> None:
    """Switches carry no dedupe key, so the third is no duplicate of the first."""
    run = emit(service, "keyed.ifs", {"n": 1}, dedupe_key="ifs-1")

    assert run.steps[1:] == [
        "a__switch succeeded",
        "b__switch succeeded",
        "c__switch succeeded",
        "c succeeded",
        "d succeeded",
    ]


@pytest.mark.parametrize(("kind", "expected"), [("keyed.plain", 1), ("keyed.run", 2)])
def test_two_events_with_one_dedupe_key_are_handled_once(service: Service, kind: str, expected: int) -> None:
    """For a route and for a pipeline: the first event is handled and the second is skipped."""
    event = {"type": kind, "payload": {"n": 1}, "dedupe_key": f"{kind}-1"}
    run = run_to_end(service, lambda: service.post("source", "poll", {"response": {"events": [event, event]}}))

    alpha = run.rows_of("alpha")
    assert len([row for row in alpha if row["id"] in run.requests]) == expected
    assert [row["status"] for row in alpha if row["id"] not in run.requests] == ["skipped"]


def test_two_pipelines_share_the_scope_of_a_dedupe_key(service: Service) -> None:
    """The steps of one run do not exclude each other. A dropped duplicate is logged with its key and the winner."""
    run = emit(service, "keyed.both", {}, dedupe_key="both-1")

    found = {(row["pipeline"], row["step_id"]): row for row in run.rows[1:]}
    assert {row["dedupe_key"] for row in run.rows[1:]} == {"both-1"}
    statuses = {name: row["status"] for name, row in found.items() if row["plugin"] == "alpha"}
    assert statuses == {("keyed-1", "a"): "succeeded", ("keyed-1", "b"): "succeeded", ("keyed-2", "a"): "skipped"}
    logged = service.wait_for_log("same dedupe key", dedupe_key="both-1")
    assert (logged["level"], logged["job_id"]) == ("info", found["keyed-2", "a"]["id"])
    assert logged["winner"] in (found["keyed-1", "a"]["id"], found["keyed-1", "b"]["id"])


def test_a_dropped_duplicate_is_shown_by_its_producer_and_its_event(service: Service) -> None:
    """`job why` and `job tree` of the producer, also behind an `if`, and `event why --type`."""
    winner = emit(service, "keyed.once", {"n": 1}, dedupe_key="once-1").row_of("a")["id"]
    producer = emit(service, "keyed.once", {"n": 1}, dedupe_key="once-1").rows[0]["id"]

    why = ductile_json(service.home, "job", "why", producer)
    dropped = [reason for reason in why["reasons"] if reason["code"] == "dropped_duplicate"]
    assert [(one["plugin"], one["dedupe_key"], one["winner"]) for one in dropped] == [("alpha", "once-1", winner)]
    (root, switch) = ductile_json(service.home, "job", "tree", producer)
    expected = {"plugin": "alpha", "command": "handle", "winner": winner, "reason": "recent_success"}
    assert (root.get("duplicates"), switch["duplicates"]) == (None, [expected])
    assert f"same dedupe key as job {winner}" in ductile(service.home, "job", "tree", producer).stdout
    events = ductile_json(service.home, "event", "why", "--type", "keyed.once")["events"]
    kinds = [[one["kind"] for one in event["decisions"]] for event in events]
    assert kinds == [["job.deduplicated"], []]


# ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_job_of_a_run_has_a_context_one_deeper_than_the_hop_before_it(service: Service) -> None:
    """Switches included; the root context of the run has no step and depth 0."""
    run = emit(service, "config.requested", {"n": 1})

    depths = "json_extract(accumulated_json, '$.ductile.route_depth')"
    lineage = service.home.rows(
        "WITH RECURSIVE line (id) AS (SELECT event_context_id FROM job_queue WHERE id = ? UNION ALL"
        " SELECT parent_id FROM line JOIN event_context USING (id) WHERE parent_id IS NOT NULL)"
        f" SELECT step_id, {depths} FROM line JOIN event_context USING (id)",
        run.rows[-1]["id"],
    )
    assert [tuple(hop.values()) for hop in lineage] == [
        ("higher__switch", 3),
        ("high", 2),
        ("high__switch", 1),
        (None, 0),
    ]
    assert None not in {row["event_context_id"] for row in run.rows[1:]}


# ── payloads of following steps ───────────────────────────────────────────────────────────────────────────────────────


def test_a_step_without_events_passes_its_payload_on(service: Service) -> None:
    """The next step gets the payload and the result."""
    run = emit(service, "no-events.requested", {"n": 1, "deep": {"x": [1]}})

    assert run.payload("b") == {"n": 1, "deep": {"x": [1]}, "result": "done"}


def test_a_step_with_two_events_runs_the_next_step_twice(service: Service) -> None:
    """Each run of the next step has the payload of one event."""
    run = emit(service, "two.requested", {})

    assert sorted(run.requests[row["id"]]["payload"]["n"] for row in run.rows_of("b")) == [1, 2]


@pytest.mark.parametrize(("kind", "count"), [("unjoined.requested", 2), ("joined.requested", 1)])
def test_a_step_after_a_split_runs_once_per_branch_or_once_after_a_join(
    service: Service, kind: str, count: int
) -> None:
    """With `join: true` it runs after all branches have ended and gets their results."""
    run = emit(service, kind, {"n": 1})

    after = run.rows_of("after")
    assert len(after) == count
    if count == 1:
        assert [result["n"] for result in run.payload("after")["results"]] == [1, 1]
        assert after[0]["created_at"] >= max(row["completed_at"] for row in (*run.rows_of("a"), *run.rows_of("b")))


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_events_of_a_final_error_trigger_pipelines(service: Service) -> None:
    """The run of the failed step ends."""
    run = emit(service, "breaks.requested", {})

    assert [(row["pipeline"], row["step_id"], row["status"]) for row in run.rows[1:]] == [
        ("breaks", "a", "failed"),
        ("alarmed", "a", "succeeded"),
    ]
    (alarmed,) = [row for row in run.rows if row["pipeline"] == "alarmed"]
    assert run.requests[alarmed["id"]]["payload"]["n"] == 7


def test_a_follow_up_that_cannot_start_does_not_fail_its_parent(service: Service) -> None:
    """The job with the broken claim fails, and the other pipeline runs."""
    run = emit(service, "claim.requested", {})

    assert [f"{row['step_id'] or row['plugin']} {row['status']}" for row in run.rows] == [
        "source succeeded",
        "a failed",
        "b succeeded",
    ]


@pytest.mark.parametrize("payload", [{}, {"n": None}, {"n": "text"}, {"n": [1]}, {"n": {"x": 1}}])
def test_a_false_condition_of_one_pipeline_does_not_affect_other_pipelines(
    service: Service, payload: dict[str, Any]
) -> None:
    """For every kind of value the skipped pipeline is in the journal and the other pipeline runs."""
    run = emit(service, "odd", payload)

    assert run.steps == ["source succeeded", "b succeeded"]
    assert [note["pipeline"] for note in run.journal_data("pipeline.skipped")] == ["with-condition"]
