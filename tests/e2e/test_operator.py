"""The operator's hand: what the command line does to jobs and the queue of a running service, and how it explains."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ductile.pipeline.run.events import event_id
from tests.e2e.actors import ACTOR
from tests.e2e.furnished import Door
from tests.e2e.service import TOKEN, Home, Service

Start = Callable[..., Service]
NOBODY = "019a0000-0000-7000-8000-000000000000"
MOODY = """#!/usr/bin/python3
import json, os, sys
request = json.load(sys.stdin)
payload = (request.get("event") or request).get("payload", {})
if os.path.exists("broken"):
    print(json.dumps({"status": "error", "error": "broken", "retry": False}))
else:
    print(json.dumps({"status": "ok", "result": json.dumps(payload, sort_keys=True),
                      "events": [{"type": "moody.done", "payload": payload}]}))
"""
TALKS = """#!/bin/sh
cat > /dev/null
echo first words >&2
printf x > here
dd bs=1 count=1 < door > /dev/null 2>&1
echo last words >&2
echo '{"status": "ok", "result": "said"}'
"""
ECHO = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "heard"}\'\n'
SAYS = """#!/bin/sh
cat > /dev/null
echo '{"status": "ok", "result": "said", "events": [{"type": "said.it", "payload": {"names": []}}]}'
"""
FAILS = """#!/bin/sh
cat > /dev/null
echo '{"status": "error", "error": "no luck", "retry": false}'
"""
PIPELINES = """
plugins: {moody: {timeouts: {poll: 1m}}, echo: {}, fails: {}}
routes: [{from: moody, event_type: moody.done, to: echo}]
pipelines:
  - name: choosy
    on: moody.done
    if: {path: payload.n, op: eq, value: 2}
    steps: [{id: only, uses: echo}]
  - name: two
    on: two.wanted
    steps: [{id: first, uses: echo}, {id: second, uses: echo}]
  - name: wide
    on: wide.wanted
    steps: [{id: each, foreach: payload.items, uses: echo}]
  - name: greet
    on: greet.wanted
    steps: [{id: each, foreach: payload.names, join: true, uses: fails}, {id: sum-up, uses: echo}]
  - name: fanned
    on: fanned.wanted
    steps: [{id: first, uses: echo}, {id: each, foreach: payload.names, join: true, uses: fails}]
  - name: maybe
    on: maybe.wanted
    steps: [{id: first, uses: echo}, {id: perhaps, uses: echo, if: {path: payload.go, op: eq, value: true}}]
  - name: unmet
    on: unmet.wanted
    steps: [{id: first, uses: echo}, {id: claims, uses: echo, baggage: {kept: payload.gone}}]
  - name: picky
    on: picky.wanted
    steps: [{id: each, foreach: payload.items, uses: echo, if: {path: item, op: gt, value: 5}}]
  - name: together
    on: together.wanted
    steps: [{id: both, join: true, split: [{id: one, uses: says}, {uses: echo}]}, {uses: echo}]
  - name: empty
    on: empty.wanted
    steps: [{id: first, uses: says}, {id: each, foreach: payload.names, uses: echo}]
  - name: repeated
    on: repeated.wanted
    steps:
      - id: both
        join: true
        split: [{steps: [{id: a, uses: actor}, {id: b, foreach: payload.n, uses: echo}]}]
"""


def furnish(home: Home) -> Home:
    home.plugin("moody", MOODY)
    home.plugin("echo", ECHO)
    home.plugin("fails", FAILS)
    home.plugin("says", SAYS)
    home.plugin("actor", ACTOR)
    home.add(PIPELINES)
    return home


@pytest.fixture
def door(home: Home) -> Iterator[Door]:
    """A home of the test's own, with plugins whose jobs wait at the door."""
    made = Door.make(home)
    home.plugin("talks", TALKS)
    furnish(home)
    yield made
    made.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for everything that leaves it as it was."""
    running = furnish(Home.make(tmp_path_factory.mktemp("operator") / "ductile")).start()
    yield running
    running.kill()


def cli(home: Home, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ductile", *args, "--config", str(home.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def shown(home: Home, *args: str, exit_code: int = 0) -> Any:
    """The JSON that a command prints."""
    done = cli(home, *args, "--json")
    assert done.returncode == exit_code, done
    return json.loads(done.stdout)


def run_of(service: Service, pipeline: str, payload: Any) -> list[dict[str, Any]]:
    """The tree of a run, when it is over."""
    root = service.ask("POST", f"/pipeline/{pipeline}", {"payload": payload})[1]["job_id"]
    tree: list[dict[str, Any]] = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    return tree


# ── acting on a job ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_waiting_job_is_cancelled_for_a_reason(home: Home, start: Start, door: Door) -> None:
    """A dry run leaves it as it is."""
    service = start()
    service.ask("POST", "/queue/pause")
    job_id = service.post("moody")
    assert shown(home, "job", "cancel", job_id, "--dry-run")["status"] == "queued"
    assert shown(home, "job", "cancel", job_id, "--reason", "not needed")["status"] == "dead"
    assert service.job(job_id)["last_error"] == "cancelled: not needed"
    assert shown(home, "job", "cancel", job_id, exit_code=1)["code"] == "wrong_state"


def test_a_failed_job_is_tried_again_and_waited_for(home: Home, start: Start, door: Door) -> None:
    """`wait` exits 1 for the failure and 0 for the success."""
    (home.path / "broken").touch()
    service = start()
    job_id = service.post("moody")
    assert shown(home, "job", "wait", job_id, exit_code=1)["status"] == "failed"
    assert shown(home, "job", "why", job_id)["reasons"][0]["code"] == "retry_false"
    (home.path / "broken").unlink()
    assert shown(home, "job", "retry", job_id, "--dry-run")["dry_run"] is True
    assert shown(home, "job", "retry", job_id)["status"] == "queued"
    assert shown(home, "job", "wait", job_id)["status"] == "succeeded"
    whole = shown(home, "job", "wait", job_id, "--tree")
    assert [node["plugin"] for node in whole["tree"]] == ["moody", "echo"]


def test_a_wait_that_is_over_before_the_job_exits_1(home: Home, start: Start, door: Door) -> None:
    service = start()
    job_id = service.post("door")
    door.reached()
    assert shown(home, "job", "wait", job_id, "--timeout", "10ms", exit_code=1)["status"] == "running"
    assert shown(home, "job", "why", job_id)["reasons"][0]["code"] == "running"
    door.let_through()
    assert shown(home, "job", "wait", job_id)["status"] == "succeeded"


def test_a_job_of_a_service_that_was_killed_is_not_said_to_run(home: Home, start: Start, door: Door) -> None:
    """It runs again after the next start, and that is said."""
    service = start()
    job_id = service.post("door")
    door.reached()
    service.kill()
    why = shown(home, "job", "why", job_id)
    assert (why["reasons"][0]["code"], why["next"]) == ("service_died", ["ductile system start"])
    assert shown(home, "job", "tail", job_id, exit_code=69)["code"] == "unreachable"
    assert shown(home, "system", "status", "--no-health")["queue"]["orphaned"] == 1
    again = start()
    door.reached()
    door.let_through()
    assert again.job(job_id, wait="30s")["status"] == "succeeded"


def test_a_replay_says_first_what_changed_since(home: Home, start: Start, door: Door, tmp_path: Path) -> None:
    """Configuration and plugin files; then it runs the patched job as a new one."""
    service = start()
    first = service.run("moody", payload={"n": 1, "m": 1})["job_id"]
    assert shown(home, "job", "replay", first, "--dry-run")["changes"]["config"] == []
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace("poll: 1m", "poll: 2m"))
    manifest = home.path / "plugins" / "moody" / "manifest.yaml"
    manifest.write_text(manifest.read_text() + "description: another\n")
    assert cli(home, "reload").returncode == 0
    (tmp_path / "patch.json").write_text('{"n": 3}')

    answer = shown(home, "job", "replay", first, "--patch", f"@{tmp_path / 'patch.json'}")
    assert ("plugins.moody.timeouts.poll", "1m", "2m") in [
        (one["path"], one["before"], one["after"]) for one in answer["changes"]["config"]
    ]
    assert "manifest_hash" in answer["changes"]["plugin"]
    assert (answer["payload_changed"], answer["config_changed"], answer["replay_of"]) == (True, True, first)
    again = service.job(answer["job_id"], wait="20s")
    assert json.loads(again["result"]["result"]) == {"n": 3, "m": 1}
    text = cli(home, "job", "replay", first, "--dry-run").stdout
    assert text.index("changes since the job ran:") < text.index("would replay moody.poll")


def test_waiting_for_the_first_job_says_that_its_run_failed(service: Service) -> None:
    """The exit code is that of the job; with --tree, that of the run."""
    root, *_ = run_of(service, "greet", {"names": ["Ada", "Grace"]})
    answer = shown(service.home, "job", "wait", root["job_id"])
    told = cli(service.home, "job", "wait", root["job_id"])

    assert (answer["status"], answer["tree_status"]) == ("succeeded", "failed")
    assert told.returncode == 0
    assert "The run failed" in told.stdout
    assert f"next: ductile job wait {root['job_id']} --tree" in told.stdout
    assert shown(service.home, "job", "wait", root["job_id"], "--tree", exit_code=1)["status"] == "failed"


def test_what_the_core_decided_is_run_again_with_its_pipeline(service: Service) -> None:
    """The id that `pipeline run` hands out may be that of no plugin; what is proposed works."""
    root, *members, _ = run_of(service, "greet", {"names": ["Ada", "Grace"]})
    for job in (root, members[0]):
        refused = shown(service.home, "job", "replay", job["job_id"], exit_code=1)
        assert (refused["code"], "`ductile pipeline run greet" in refused["hint"]) == ("wrong_state", True), refused
    assert cli(service.home, "pipeline", "run", "greet", "--payload", '{"names": []}', "--wait").returncode == 0


def test_what_cannot_be_replayed_names_the_job_that_can(service: Service) -> None:
    """The nearest one above it that runs a plugin of its own."""
    first, *members, join = run_of(service, "fanned", {"names": ["Ada", "Grace"]})
    assert (first["step_id"], join["plugin"]) == ("first", "core.join")
    for job in (members[0], members[-1], join):
        refused = shown(service.home, "job", "replay", job["job_id"], exit_code=1)
        assert f"`ductile job replay {first['job_id']}`" in refused["hint"], refused
    assert shown(service.home, "job", "replay", first["job_id"])["replay_of"] == first["job_id"]


def test_a_step_of_a_run_is_replayed_by_its_name(service: Service) -> None:
    tree = run_of(service, "two", {})
    answer = shown(service.home, "job", "replay", tree[0]["job_id"], "--from-step", "second", "--dry-run")
    assert answer["replay_of"] == tree[1]["job_id"]


def test_a_step_that_is_not_there_is_not_found(service: Service) -> None:
    tree = run_of(service, "two", {})
    error = shown(service.home, "job", "replay", tree[0]["job_id"], "--from-step", "secnd", exit_code=1)
    assert (error["code"], "did you mean 'second'?" in error["error"]) == ("not_found", True)


def test_a_step_that_is_several_jobs_must_be_chosen(service: Service) -> None:
    """The hint names them."""
    tree = run_of(service, "wide", {"items": [1, 2]})
    error = shown(service.home, "job", "replay", tree[0]["job_id"], "--from-step", "each", exit_code=2)
    each = [node["job_id"] for node in tree if node.get("step_id") == "each" and node["plugin"] == "echo"]
    assert len(each) == 2
    assert all(job_id in error["hint"] for job_id in each)


@pytest.mark.parametrize("patch", ["[1]", "{", "@/nonexistent"])
def test_a_patch_that_is_no_object_is_a_usage_error(service: Service, patch: str) -> None:
    job_id = service.run("echo")["job_id"]
    assert shown(service.home, "job", "replay", job_id, "--patch", patch, exit_code=2)["code"] == "usage"


@pytest.mark.parametrize("act", ["cancel", "retry", "replay", "wait", "tail"])
def test_a_job_that_nobody_knows_is_not_found(service: Service, act: str) -> None:
    assert shown(service.home, "job", act, NOBODY, exit_code=1)["code"] == "not_found"


def test_what_a_job_writes_is_seen_while_it_runs(home: Home, start: Start, door: Door) -> None:
    """The first words are there before the job goes on, each word comes once, and the end is the job's."""
    service = start()
    job_id = service.post("talks")
    door.reached()
    command = [sys.executable, "-m", "ductile", "job", "tail", job_id, "--config", str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == "first words\n"
        door.let_through()
        assert tail.stdout.read() == "last words\n"
    assert tail.returncode == 0
    assert shown(home, "job", "tail", job_id)["stderr"] == "first words\nlast words\n"


# ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pause", "resume", "code"),
    [
        (("queue", "pause"), ("queue", "resume"), "queue_paused"),
        (("queue", "pause", "--plugin", "echo"), ("queue", "resume", "--plugin", "echo"), "paused"),
        (("plugin", "pause", "echo"), ("plugin", "resume", "echo"), "paused"),
    ],
)
def test_what_is_paused_waits_and_says_so(
    service: Service, pause: tuple[str, ...], resume: tuple[str, ...], code: str
) -> None:
    """A dry run pauses nothing; a resumed job runs."""
    home = service.home
    assert shown(home, *pause, "--dry-run")["changed"] is True
    assert shown(home, "queue", "status")["paused"] == []
    assert shown(home, *pause, "--reason", "a test")["changed"] is True
    job_id = service.post("echo")
    assert [one["reason"] for one in shown(home, "queue")["paused"]] == ["a test"]
    assert [reason["code"] for reason in shown(home, "job", "why", job_id)["reasons"]] == [code]
    assert shown(home, *resume)["changed"] is True
    assert shown(home, "job", "wait", job_id)["status"] == "succeeded"


def test_a_purge_ends_all_that_waits_and_nothing_else(home: Home, start: Start, door: Door) -> None:
    """More than one portion; what runs goes on."""
    service = start()
    running = service.post("door")
    door.reached()
    service.ask("POST", "/plugins/echo/pause")
    for _ in range(205):
        service.post("echo")
    assert shown(home, "queue", "purge", "--plugin", "echo", "--dry-run")["remaining"] == 205
    assert shown(home, "queue", "purge", "--all", "--reason", "flood") | {"up_to": 0} == {
        "plugin": "*",
        "cancelled": 205,
        "remaining": 0,
        "up_to": 0,
        "dry_run": False,
    }
    door.let_through()
    assert shown(home, "job", "wait", running)["status"] == "succeeded"
    assert home.rows("SELECT DISTINCT last_error FROM job_queue WHERE status = 'dead'") == [
        {"last_error": "cancelled: flood"}
    ]


def test_a_purge_of_a_plugin_that_nobody_knows_is_not_found(service: Service) -> None:
    assert shown(service.home, "queue", "purge", "--plugin", "eccho", exit_code=1)["code"] == "not_found"


@pytest.mark.parametrize(
    "body", [{}, {"plugin": 1}, {"plugin": "echo", "up_to": -1}, {"plugin": "echo", "reason": 1}, {"x": 1}, [1], b"{"]
)
def test_a_purge_that_does_not_say_what_it_means_is_refused(service: Service, body: Any) -> None:
    assert service.ask("POST", "/queue/purge", body)[0] == 400


def test_a_job_behind_others_names_the_cap(home: Home, start: Start, door: Door) -> None:
    """With a running service nothing else keeps it."""
    service = start()
    service.post("door")
    door.reached()
    job_id = service.post("door")
    view = shown(home, "job", "why", job_id)
    assert [reason["code"] for reason in view["reasons"]] == ["plugin_full"]
    door.let_through(2)


# ── explaining ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_names_its_route_and_the_condition_that_said_no(service: Service) -> None:
    job_id = service.run("moody", payload={"n": 1})["job_id"]
    service.ask("GET", f"/job/{job_id}/tree?wait=20s")
    view = shown(service.home, "event", "why", "--type", "moody.done", "--limit", "1")

    assert [one["name"] for one in view["waiting"]["pipelines"]] == ["choosy"]
    assert [(one["from"], one["to"]) for one in view["waiting"]["routes"]] == [("moody", "echo")]
    (event,) = view["events"]
    assert (event["emitted_by"], [job["via"] for job in event["led_to"]]) == (job_id, ["route"])
    (decision,) = event["decisions"]
    assert decision["words"] == "Pipeline choosy did not start: if is false (payload.n eq 2 is false: found 1)"
    assert shown(service.home, "event", "why", event["event_id"]) == event


def test_an_event_that_is_wanted_names_both(service: Service) -> None:
    job_id = service.run("moody", payload={"n": 2})["job_id"]
    service.ask("GET", f"/job/{job_id}/tree?wait=20s")
    (event,) = shown(service.home, "event", "why", "--type", "moody.done", "--limit", "1")["events"]

    assert sorted(job["via"] for job in event["led_to"]) == ["pipeline choosy", "route"]


def test_a_step_that_was_passed_over_says_why(service: Service) -> None:
    """The switch is a job of the tree; it has the values."""
    tree = run_of(service, "maybe", {"go": False})
    (switch,) = [node["job_id"] for node in tree if node["plugin"] == "core.switch"]
    (reason,) = shown(service.home, "job", "why", switch)["reasons"]

    assert reason["code"] == "condition_false"
    assert "payload.go eq true is false: found false" in reason["words"]


def test_a_step_that_could_not_be_entered_names_nothing_that_is_refused(service: Service) -> None:
    """Neither a retry nor a replay of it is possible."""
    tree = run_of(service, "unmet", {})
    (failed,) = [node["job_id"] for node in tree if node["status"] == "failed"]

    assert shown(service.home, "job", "why", failed)["next"] == [f"ductile job diagnose {failed}"]


def test_every_item_that_was_passed_over_says_why_itself(service: Service) -> None:
    """All of them were decided about for the same step and the same event."""
    tree = run_of(service, "picky", {"items": [1, 7, 3]})
    switches = [node["job_id"] for node in tree if node["plugin"] == "core.switch"]
    reasons = [shown(service.home, "job", "why", switch)["reasons"][0]["words"] for switch in switches]

    assert ["condition of step each__switch is true" in words for words in reasons] == [False, True, False]
    assert [words.rpartition("found ")[2] for words in reasons[::2]] == ["1", "3"]


def test_an_event_that_is_joined_names_the_join(service: Service) -> None:
    """It leads to no job of its own, and is on record all the same: by its id, and by its type."""
    tree = run_of(service, "together", {})
    (emitter,) = [node["job_id"] for node in tree if node["plugin"] == "says"]
    (join,) = [node["job_id"] for node in tree if node["plugin"] == "core.join"]
    event = shown(service.home, "event", "why", event_id(emitter, 1, 0))

    assert (event["type"], event["source"], event["emitted_by"]) == ("said.it", "says", emitter)
    assert (event["verdict"], event["words"]) == ("matched", "The event is one of the results of join both__join.")
    assert [(job["job_id"], job["step_id"], job["status"]) for job in event["led_to"]] == [
        (join, "both__join", "succeeded")
    ]
    assert shown(service.home, "event", "why", "--type", "said.it", "--limit", "1")["events"] == [event]


def test_a_repeated_event_is_no_result_of_a_join_to_which_another_came(service: Service) -> None:
    """Its only job was done before; what came to the join is the event beside it."""
    said = [{"type": "e", "payload": {"n": [1]}, "dedupe_key": "once"}, {"type": "f", "payload": {"n": []}}]
    tree = [run_of(service, "repeated", {"say": {"events": said}}) for _ in range(2)][-1]
    (emitter,) = [node["job_id"] for node in tree if node["plugin"] == "actor"]

    fates = [shown(service.home, "event", "why", event_id(emitter, 1, index)) for index in (0, 1)]

    assert [fate["verdict"] for fate in fates] == ["duplicate", "matched"]


def test_an_event_with_an_empty_list_names_the_step_that_had_nothing_to_do(service: Service) -> None:
    (first,) = run_of(service, "empty", {})
    event = shown(service.home, "event", "why", event_id(first["job_id"], 1, 0))

    words = "Step each of pipeline empty did not run: payload.names is an empty list"
    assert (event["verdict"], event["words"]) == ("unmatched", f"The event led to no job. {words}")


def test_lists_are_the_same_over_http_and_from_the_file(service: Service) -> None:
    service.run("echo")
    there = ("--api-url", service.url, "--api-key", TOKEN)
    for action in ("list", "logs"):
        flags = ("job", action, "--plugin", "echo", "--limit", "3")
        assert shown(service.home, *flags) == shown(service.home, *flags, *there)


def test_short_forms_run_and_tell(service: Service) -> None:
    assert shown(service.home, "run", "echo", "--wait")["status"] == "succeeded"
    assert shown(service.home, "status")["healthy"] is True
    assert shown(service.home, "reload", "--dry-run")["status"] == "planned"
    assert shown(service.home, "reset", "echo", "--dry-run")["reset"] == []
