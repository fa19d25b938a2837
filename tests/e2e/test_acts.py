"""What a person does to jobs and plugins over HTTP: cancel, retry, replay, pause, resume."""

import json
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.e2e.furnished import Door
from tests.e2e.service import Home, Service

Start = Callable[..., Service]
NOBODY = "019a0000-0000-7000-8000-000000000000"
MOODY = """#!/usr/bin/python3
import json, os, sys
request = json.load(sys.stdin)
if os.path.exists("broken"):
    print(json.dumps({"status": "error", "error": "broken", "retry": False}))
else:
    event = request.get("event") or {"payload": request.get("payload", {})}
    print(json.dumps({"status": "ok", "result": json.dumps(event["payload"], sort_keys=True),
                      "events": [{"type": "done", "payload": event["payload"]}]}))
"""
PIPELINE = """
pipelines:
  - {name: chosen, on: x, steps: [{id: maybe, uses: echo, if: {path: payload.n, op: eq, value: 2}}]}
  - name: two
    on: two.wanted
    steps: [{id: first, uses: moody}, {id: second, uses: echo}]
  - name: "at once"
    on: both.wanted
    execution_mode: synchronous
    steps: [{join: true, split: [{id: left, uses: echo}, {id: right, uses: sad, continue: true}]}]
  - name: later
    on: later.wanted
    steps: [{id: begin, uses: moody}, {join: true, split: [{id: one, uses: echo}, {id: other, uses: echo}]}]
  - name: unmet
    on: unmet.wanted
    steps: [{id: begin, uses: moody}, {id: claims, uses: echo, baggage: {kept: payload.gone}}]
  - name: unmet-in-lists
    on: unmet.wanted
    steps: [{id: begin, uses: moody}, {foreach: payload.list, uses: echo, baggage: {kept: item.gone}}]
  - name: unmet-in-joins
    on: unmet.wanted
    steps: [{id: begin, uses: moody}, {join: true, split: [{uses: echo}, {uses: echo, baggage: {kept: payload.gone}}]}]
  - name: unmet-in-errors
    on: unmet.wanted
    steps:
      - {id: begin, uses: moody}
      - {uses: echo, baggage: {kept: payload.gone}, on_error: [{uses: echo, baggage: {kept: payload.gone}}]}
"""
ECHO = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "heard"}\'\n'
SAD = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "error", "error": "no", "retry": false}\'\n'


def furnish(home: Home) -> Home:
    home.plugin("moody", MOODY)
    home.plugin("echo", ECHO)
    home.plugin("sad", SAD)
    home.add(PIPELINE)
    return home


@pytest.fixture
def door(home: Home) -> Iterator[Door]:
    """A home of the test's own, with a plugin whose jobs wait at the door."""
    made = Door.make(home)
    furnish(home)
    yield made
    made.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for everything that leaves it as it was."""
    running = furnish(Home.make(tmp_path_factory.mktemp("acts") / "ductile")).start()
    yield running
    running.kill()


def break_(home: Home) -> None:
    (home.path / "broken").touch()


def repair(home: Home) -> None:
    (home.path / "broken").unlink()


# ── cancel ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_waiting_job_is_dead_as_soon_as_it_is_cancelled(home: Home, start: Start, door: Door) -> None:
    """With the reason, and who it was if none is given."""
    service = start()
    service.ask("POST", "/queue/pause")
    job_id = service.post("moody")
    assert service.ask("POST", f"/job/{job_id}/cancel?dry_run=true")[1]["status"] == "queued"
    status, answer = service.ask("POST", f"/job/{job_id}/cancel", {"reason": "not needed"})
    assert (status, answer) == (200, {"job_id": job_id, "status": "dead", "dry_run": False})
    assert service.job(job_id)["last_error"] == "cancelled: not needed"
    other = service.post("moody")
    service.ask("POST", f"/job/{other}/cancel")
    assert service.job(other)["last_error"] == "cancelled: by e2e"


def test_a_running_job_is_dead_when_its_process_is_gone(home: Home, start: Start, door: Door) -> None:
    """The answer does not wait for that; the job says so afterwards."""
    service = start()
    job_id = service.post("door")
    door.reached()
    status, answer = service.ask("POST", f"/job/{job_id}/cancel", {"reason": "too slow"})
    assert (status, answer["status"]) == (202, "running")
    over = service.job(job_id, wait="20s")
    assert (over["status"], over["last_error"]) == ("dead", "cancelled: too slow")


def test_what_is_over_cannot_be_cancelled(service: Service) -> None:
    over = service.run("moody")
    for query in ("", "?dry_run=true"):
        status, answer = service.ask("POST", f"/job/{over['job_id']}/cancel{query}")
        assert (status, answer["code"]) == (409, "wrong_state")


@pytest.mark.parametrize("act", ["cancel", "retry", "replay"])
def test_an_unknown_job_is_not_found(service: Service, act: str) -> None:
    assert service.ask("POST", f"/job/{NOBODY}/{act}")[0] == 404
    assert service.ask("POST", f"/job/what/{act}")[0] == 400


# ── retry ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_job_is_tried_again_and_its_run_goes_on(home: Home, start: Start, door: Door) -> None:
    """As if it had succeeded at first: what follows it in its pipeline runs."""
    break_(home)
    service = start()
    root = service.ask("POST", "/pipeline/two", {"payload": {"n": 1}})[1]["job_id"]
    assert service.job(root, wait="20s")["status"] == "failed"
    repair(home)
    assert service.ask("POST", f"/job/{root}/retry?dry_run=true")[0] == 200
    status, answer = service.ask("POST", f"/job/{root}/retry")
    assert (status, answer["status"]) == (202, "queued")
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    assert [(job["plugin"], job["status"]) for job in tree] == [("moody", "succeeded"), ("echo", "succeeded")]
    assert tree[0]["attempt"] == 2


def test_whoever_may_not_run_a_command_may_not_have_it_run_again(home: Home, start: Start, door: Door) -> None:
    """Neither by a retry nor by a replay."""
    token = "clerk-token-0123456789abcdef"
    text = (home.path / "config.yaml").read_text()
    clerk = f'tokens:\n      - {{name: clerk, token: {token}, scopes: ["jobs:rw"]}}\n'
    home.write("config.yaml", text.replace("tokens:\n", clerk))
    break_(home)
    service = start()
    job_id = service.run("moody")["job_id"]
    for act in ("retry", "replay"):
        status, answer = service.ask("POST", f"/job/{job_id}/{act}", token=token)
        assert (status, answer["code"]) == (403, "insufficient_scope")
        assert answer["hint"] == "Required scope: plugin:rw or plugin:moody:rw. Scopes of this token: jobs:rw."


def test_a_success_is_not_tried_again(service: Service) -> None:
    job_id = service.run("moody")["job_id"]
    status, answer = service.ask("POST", f"/job/{job_id}/retry")
    assert (status, answer["code"]) == (409, "wrong_state")


# ── replay ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_replay_has_the_reach_that_the_configuration_gives(home: Home, start: Start) -> None:
    """A job of a long chain that was allowed is allowed again."""
    home.plugin("echo", ECHO)
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("log_level: debug", "log_level: debug\n  limits: {hops: 50}"))
    home.add("plugins: {echo: {}}\n")
    service = start()
    job_id = service.run("echo")["job_id"]
    service.stop()
    with sqlite3.connect(home.ledger) as db:  # as if it were the thirtieth crossing
        db.execute("UPDATE job_queue SET hops = 30")
    db.close()
    service = start()

    status, answer = service.ask("POST", f"/job/{job_id}/replay")

    assert (status, answer["status"]) == (202, "queued")


def test_a_relay_is_not_tried_again_where_nobody_can_be_reached(home: Home, start: Start) -> None:
    """It would wait for ever: without `instances` nothing is sent."""
    home.plugin("echo", ECHO)
    home.add("plugins: {echo: {}}\n")
    service = start()
    job_id = service.run("echo")["job_id"]
    service.stop()
    with sqlite3.connect(home.ledger) as db:  # left by a configuration that had instances
        db.execute("UPDATE job_queue SET plugin = 'core.relay', status = 'dead'")
    db.close()
    service = start()

    status, answer = service.ask("POST", f"/job/{job_id}/retry")

    assert (status, answer["error"]) == (404, "the configuration has no relay instances")


def test_a_job_is_replayed_as_a_new_one(service: Service) -> None:
    """The same plugin, command and payload, and it knows whose copy it is."""
    first = service.run("moody", payload={"n": 1})
    status, answer = service.ask("POST", f"/job/{first['job_id']}/replay")
    assert status == 202
    assert (answer["replay_of"], answer["payload_changed"], answer["config_changed"]) == (first["job_id"], False, False)
    again = service.job(answer["job_id"], wait="20s")
    assert again["job_id"] != first["job_id"]
    assert again["result"]["result"] == first["result"]["result"]
    assert service.home.rows("SELECT replay_of FROM job_queue WHERE id = ?", again["job_id"]) == [
        {"replay_of": first["job_id"]}
    ]


@pytest.mark.parametrize(
    ("patch", "becomes"),
    [
        ({"n": 2}, {"n": 2, "deep": {"a": 1, "b": 2}}),
        ({"n": None}, {"deep": {"a": 1, "b": 2}}),
        ({"deep": {"b": None, "c": 3}}, {"n": 1, "deep": {"a": 1, "c": 3}}),
        ({"deep": [1]}, {"n": 1, "deep": [1]}),
    ],
)
@pytest.mark.parametrize("command", ["poll", "handle"])
def test_a_replay_can_have_another_payload(service: Service, command: str, patch: object, becomes: object) -> None:
    """By a merge patch; of an event, its own payload is patched."""
    first = service.run("moody", command, payload={"n": 1, "deep": {"a": 1, "b": 2}})
    answer = service.ask("POST", f"/job/{first['job_id']}/replay", {"patch": patch})[1]
    assert answer["payload_changed"] is True
    again = service.job(answer["job_id"], wait="20s")
    assert json.loads(again["result"]["result"]) == becomes


def test_a_replayed_step_goes_on_in_its_pipeline(service: Service) -> None:
    """As a tree of its own; the first run stays as it was."""
    root = service.ask("POST", "/pipeline/two", {"payload": {"n": 1}})[1]["job_id"]
    service.ask("GET", f"/job/{root}/tree?wait=20s")
    copy = service.ask("POST", f"/job/{root}/replay", {"patch": {"n": 2}})[1]["job_id"]
    tree = service.ask("GET", f"/job/{copy}/tree?wait=20s")[1]
    assert [(job["step_id"], job["status"]) for job in tree] == [("first", "succeeded"), ("second", "succeeded")]
    assert len(service.ask("GET", f"/job/{root}/tree")[1]) == 2


def test_a_replayed_step_is_tolerated_as_it_was(home: Home, start: Start, door: Door) -> None:
    """Its run goes on without it once more, so it is not tried again either."""
    home.add("  - {name: calm, on: c, steps: [{id: first, uses: sad, continue: true}, {id: second, uses: echo}]}\n")
    service = start()
    root = service.ask("POST", "/pipeline/calm")[1]["job_id"]
    service.ask("GET", f"/job/{root}/tree?wait=20s")
    copy = service.ask("POST", f"/job/{root}/replay")[1]["job_id"]
    tree = service.ask("GET", f"/job/{copy}/tree?wait=20s")[1]
    assert [(job["status"], job.get("tolerated")) for job in tree] == [("failed", True), ("succeeded", None)]
    assert service.ask("POST", f"/job/{copy}/retry")[0] == 409


def test_a_replay_that_is_only_planned_does_nothing(service: Service) -> None:
    first = service.run("moody")
    before = service.home.rows("SELECT COUNT(*) FROM job_queue")
    status, answer = service.ask("POST", f"/job/{first['job_id']}/replay?dry_run=true", {"patch": {"n": 2}})
    assert (status, answer["job_id"], answer["dry_run"]) == (200, None, True)
    assert service.home.rows("SELECT COUNT(*) FROM job_queue") == before


def test_switches_and_joins_are_not_run_again(service: Service) -> None:
    """They decide; the run as a whole can be had again."""
    root = service.ask("POST", "/pipeline/chosen", {"payload": {"n": 1}})[1]["job_id"]
    (switch,) = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    assert switch["plugin"] == "core.switch"
    status, answer = service.ask("POST", f"/job/{root}/replay")
    assert (status, answer["code"]) == (409, "wrong_state")
    assert "core.switch is a control step" in answer["error"]
    assert follow(service, answer["hint"]) == 202


def follow(service: Service, hint: str) -> int:
    """The status of the answer to what a hint says."""
    if job := re.search(r"`ductile job (retry|replay) (\S+)`", hint):
        return service.ask("POST", f"/job/{job[2]}/{job[1]}")[0]
    command = re.search(r"`ductile pipeline run (.+)`", hint)
    assert command is not None, hint
    (name,) = shlex.split(command[1])
    return service.ask("POST", f"/pipeline/{quote(name)}?async=true")[0]


def test_what_cannot_be_had_again_by_itself_says_what_can(service: Service) -> None:
    """Whichever job of a run that begins with a join is asked for; no hint leads to the next refusal."""
    root = service.ask("POST", "/pipeline/at%20once")[1]["job_id"]
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    assert {job["plugin"] for job in tree} == {"core.start", "core.join", "echo", "sad"}
    for job in tree:
        status, answer = service.ask("POST", f"/job/{job['job_id']}/replay")
        assert (status, answer["code"]) == (409, "wrong_state")
        assert follow(service, answer["hint"]) == 202
    (tolerated,) = (job for job in tree if job["plugin"] == "sad")
    status, answer = service.ask("POST", f"/job/{tolerated['job_id']}/retry")
    assert (status, answer["error"].endswith("its failure was tolerated and its run has continued")) == (409, True)
    assert follow(service, answer["hint"]) == 202


def test_a_member_of_a_join_names_the_job_that_led_to_it(service: Service) -> None:
    root = service.ask("POST", "/pipeline/later")[1]["job_id"]
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    for job in tree[1:]:
        status, answer = service.ask("POST", f"/job/{job['job_id']}/replay")
        assert (status, answer["hint"]) == (409, f"Replay the job that it follows: `ductile job replay {root}`")
    assert follow(service, answer["hint"]) == 202


def test_a_join_that_failed_names_the_member_to_retry(home: Home, start: Start, door: Door) -> None:
    home.add("  - {name: sadly, on: s, steps: [{join: true, split: [{uses: echo}, {uses: sad}]}]}\n")
    service = start()
    root = service.ask("POST", "/pipeline/sadly")[1]["job_id"]
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    jobs = {job["plugin"]: job["job_id"] for job in tree}
    status, answer = service.ask("POST", f"/job/{jobs['core.join']}/retry")
    assert (status, answer["hint"]) == (409, f"Retry the job that it waited for: `ductile job retry {jobs['sad']}`")
    assert follow(service, answer["hint"]) == 202


@pytest.mark.parametrize("pipeline", ["unmet", "unmet-in-lists", "unmet-in-joins", "unmet-in-errors"])
def test_a_step_that_could_not_be_entered_is_not_run_by_hand(service: Service, pipeline: str) -> None:
    """Nobody claimed what it claims: its plugin would get neither its `with` nor the context of its run."""
    root = service.ask("POST", f"/pipeline/{pipeline}", {"payload": {"list": [1, 2]}})[1]["job_id"]
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    failed = [job for job in tree if job["status"] == "failed"]
    assert failed
    for job in failed:
        for act in ("retry", "replay"):
            status, answer = service.ask("POST", f"/job/{job['job_id']}/{act}")
            assert (status, answer["code"]) == (409, "wrong_state")
            assert follow(service, answer["hint"]) == 202
    assert service.ask("GET", f"/job/{root}/tree")[1] == tree


# ── pause ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["/plugins/moody", "/queue"])
def test_what_is_paused_takes_jobs_but_starts_none(home: Home, start: Start, door: Door, what: str) -> None:
    """Also after a restart; when it is resumed, everything that waited runs."""
    service = start()
    assert service.ask("POST", f"{what}/pause", {"reason": "repairs"})[1]["changed"] is True
    assert service.ask("POST", f"{what}/pause")[1]["changed"] is False
    job_id = service.post("moody")
    other = service.run("echo") if what != "/queue" else None
    assert other is None or other["status"] == "succeeded"
    service.stop()
    service = start()
    (pause,) = service.ask("GET", "/queue/pauses")[1]["pauses"]
    assert pause["reason"] == "repairs"
    assert service.job(job_id)["status"] == "queued"
    assert service.ask("POST", f"{what}/resume?dry_run=true")[1]["dry_run"] is True
    assert service.job(job_id)["status"] == "queued"
    assert service.ask("POST", f"{what}/resume")[1]["changed"] is True
    assert service.job(job_id, wait="20s")["status"] == "succeeded"
    assert service.ask("GET", "/queue/pauses")[1] == {"pauses": []}


def test_a_pause_for_an_unknown_plugin_is_refused(service: Service) -> None:
    assert service.ask("POST", "/plugins/moodi/pause")[0] == 404
    assert service.ask("POST", "/plugins/moody/pause", {"why": "x"})[0] == 400


# ── Idempotency-Key ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_request_under_the_same_key_is_done_once(home: Home, start: Start, door: Door) -> None:
    """Also after a restart and when its plugin is gone; another request under the key is refused."""
    service = start()
    key = {"idempotency-key": "order-1"}
    first = service.ask("POST", "/plugin/moody/poll", {"payload": {"n": 1}}, headers=key)
    assert service.ask("POST", "/plugin/moody/poll", {"payload": {"n": 1}}, headers=key) == first
    assert service.ask("POST", "/plugin/moody/poll", {"payload": {"n": 2}}, headers=key)[0] == 422
    assert service.ask("POST", "/plugin/echo/poll", {"payload": {"n": 1}}, headers=key)[0] == 422
    service.kill()
    service = start()
    assert service.ask("POST", "/plugin/moody/poll", {"payload": {"n": 1}}, headers=key) == first
    assert len(home.rows("SELECT id FROM job_queue")) == 1


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 256])
def test_a_key_that_is_none_is_refused(service: Service, key: str) -> None:
    before = service.home.rows("SELECT COUNT(*) FROM job_queue")
    status, _ = service.ask("POST", "/plugin/moody/poll", headers={"idempotency-key": key.encode().decode("latin-1")})
    assert status == 400
    assert service.home.rows("SELECT COUNT(*) FROM job_queue") == before


def test_a_schedule_that_is_run_by_hand_takes_a_key(home: Home, start: Start, door: Door) -> None:
    home.add("plugins: {moody: {schedules: [{every: 24h}]}}\n")
    service = start()
    key = {"idempotency-key": "k"}
    first = service.ask("POST", "/schedule/moody/default/run", headers=key)
    assert first[0] == 202
    assert service.ask("POST", "/schedule/moody/default/run", headers=key) == first


def test_pipelines_and_replays_take_keys_too(service: Service) -> None:
    key = {"idempotency-key": "k"}
    run = service.ask("POST", "/pipeline/two", {"payload": {}}, headers=key)
    assert service.ask("POST", "/pipeline/two", {"payload": {}}, headers=key) == run
    over = service.job(run[1]["job_id"], wait="20s")
    replay = f"/job/{over['job_id']}/replay"
    copy = service.ask("POST", replay, headers={"idempotency-key": "k2"})
    assert service.ask("POST", replay, headers={"idempotency-key": "k2"}) == copy
    assert copy[1]["job_id"] != run[1]["job_id"]
    assert len(service.home.rows("SELECT id FROM job_queue WHERE replay_of = ?", over["job_id"])) == 1


def test_a_synchronous_caller_comes_back_under_its_key(home: Home, start: Start, door: Door) -> None:
    """It waits for the run that it began, also after a crash in between."""
    home.add("  - {name: sync, on: s, execution_mode: synchronous, steps: [{id: only, uses: moody}]}\n")
    service = start()
    key = {"idempotency-key": "k"}
    first = service.ask("POST", "/pipeline/sync", {"payload": {"n": 1}}, headers=key)
    service.kill()
    service = start()
    again = service.ask("POST", "/pipeline/sync", {"payload": {"n": 1}}, headers=key)
    assert (first[0], again) == (200, first)
    assert len(home.rows("SELECT id FROM job_queue")) == 1


def test_two_tokens_do_not_share_keys(home: Home, start: Start, door: Door, tmp_path: Path) -> None:
    """A key is its caller's own."""
    other = "e2e-token-fedcba9876543210"
    text = (home.path / "config.yaml").read_text()
    home.write(
        "config.yaml", text.replace("tokens:\n", f'tokens:\n      - {{name: b, token: {other}, scopes: ["*"]}}\n')
    )
    service = start()
    key = {"idempotency-key": "k"}
    mine = service.ask("POST", "/plugin/moody/poll", headers=key)[1]["job_id"]
    theirs = service.ask("POST", "/plugin/moody/poll", headers=key, token=other)[1]["job_id"]
    assert mine != theirs


def test_a_token_without_a_name_keeps_its_keys_wherever_it_stands(home: Home, start: Start, door: Door) -> None:
    """Another above it changes nothing for it, and one that is called like a position is somebody else."""
    unnamed, named = "unnamed-bbbbbbbbbbbbbbbbbbbbbbbb", "named-cccccccccccccccccccccccccc"
    before = (home.path / "config.yaml").read_text()
    line = f'      - {{token: {unnamed}, scopes: ["*"]}}\n'
    home.write("config.yaml", before.replace("tokens:\n", f"tokens:\n{line}"))
    service = start()
    key = {"idempotency-key": "k"}
    first = service.ask("POST", "/plugin/moody/poll", headers=key, token=unnamed)
    word = service.ask("GET", "/system/tokens")[1]["tokens"][0]["name"]
    above = f'      - {{name: token 0, token: {named}, scopes: ["*"]}}\n      - {{name: new, token: {"d" * 26}}}\n'
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("tokens:\n", f"tokens:\n{above}"))
    home.seal()
    assert service.ask("POST", "/system/reload")[1]["changes"]["tokens"]["added"] == ["token 0", "new"]
    assert service.ask("POST", "/plugin/moody/poll", headers=key, token=unnamed) == first
    theirs = service.ask("POST", "/plugin/moody/poll", headers=key, token=named)
    assert theirs[0] == 202
    assert theirs[1]["job_id"] != first[1]["job_id"]
    assert [one["name"] for one in service.ask("GET", "/system/tokens")[1]["tokens"]] == ["token 0", "new", word, "e2e"]
    assert unnamed not in word
