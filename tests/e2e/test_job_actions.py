"""Job and plugin actions over HTTP: cancel, retry, replay, pause, resume, and idempotency keys."""

import json
import re
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.e2e.sample_plugins import FAILING, FALLIBLE, OK, BlockingPlugin
from tests.e2e.service import Home, Service, Start

UNKNOWN_JOB = "019a0000-0000-7000-8000-000000000000"
PIPELINES = """
pipelines:
  - {name: chosen, on: x, steps: [{id: maybe, uses: echo, if: {path: payload.n, op: eq, value: 2}}]}
  - name: two
    on: two.requested
    steps: [{id: first, uses: fallible}, {id: second, uses: echo}]
  - name: "at once"
    on: both.requested
    execution_mode: synchronous
    steps: [{join: true, split: [{id: left, uses: echo}, {id: right, uses: failing, continue: true}]}]
  - name: later
    on: later.requested
    steps: [{id: begin, uses: fallible}, {join: true, split: [{id: one, uses: echo}, {id: other, uses: echo}]}]
  - name: unmet
    on: unmet.requested
    steps: [{id: begin, uses: fallible}, {id: claims, uses: echo, baggage: {kept: payload.gone}}]
  - name: unmet-in-lists
    on: unmet.requested
    steps: [{id: begin, uses: fallible}, {foreach: payload.list, uses: echo, baggage: {kept: item.gone}}]
  - name: unmet-in-joins
    on: unmet.requested
    steps:
      - {id: begin, uses: fallible}
      - {join: true, split: [{uses: echo}, {uses: echo, baggage: {kept: payload.gone}}]}
  - name: unmet-in-errors
    on: unmet.requested
    steps:
      - {id: begin, uses: fallible}
      - {uses: echo, baggage: {kept: payload.gone}, on_error: [{uses: echo, baggage: {kept: payload.gone}}]}
"""


def add_plugins_and_pipelines(home: Home) -> Home:
    home.plugin("fallible", FALLIBLE)
    home.plugin("echo", OK)
    home.plugin("failing", FAILING)
    home.add(PIPELINES)
    return home


@pytest.fixture
def plugins_and_pipelines(home: Home) -> None:
    """Add the plugins and pipelines of this file to `home`."""
    add_plugins_and_pipelines(home)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start one service for all tests that do not change it."""
    running = add_plugins_and_pipelines(Home.make(tmp_path_factory.mktemp("job-actions") / "ductile")).start()
    yield running
    running.kill()


# ── cancel ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_cancelling_a_queued_job_ends_it_at_once(home: Home, start: Start) -> None:
    """The job is dead with the given reason, or with the name of the caller."""
    service = start()
    service.ask("POST", "/queue/pause")
    job_id = service.post("fallible")
    assert service.ask("POST", f"/job/{job_id}/cancel?dry_run=true")[1]["status"] == "queued"
    status, answer = service.ask("POST", f"/job/{job_id}/cancel", {"reason": "not needed"})
    assert (status, answer) == (200, {"job_id": job_id, "status": "dead", "dry_run": False})
    assert service.job(job_id)["last_error"] == "cancelled: not needed"
    other = service.post("fallible")
    service.ask("POST", f"/job/{other}/cancel")
    assert service.job(other)["last_error"] == "cancelled: by e2e"


def test_cancelling_a_running_job_ends_it_when_its_process_has_exited(
    home: Home, start: Start, blocking: BlockingPlugin
) -> None:
    """The response is 202 before the process has exited."""
    service = start()
    job_id = service.post("blocking")
    blocking.wait_until_started()
    status, answer = service.ask("POST", f"/job/{job_id}/cancel", {"reason": "too slow"})
    assert (status, answer["status"]) == (202, "running")
    over = service.job(job_id, wait="20s")
    assert (over["status"], over["last_error"]) == ("dead", "cancelled: too slow")


def test_a_finished_job_cannot_be_cancelled(service: Service) -> None:
    over = service.run("fallible")
    for query in ("", "?dry_run=true"):
        status, answer = service.ask("POST", f"/job/{over['job_id']}/cancel{query}")
        assert (status, answer["code"]) == (409, "wrong_state")


@pytest.mark.parametrize("action", ["cancel", "retry", "replay"])
def test_an_action_on_an_unknown_job_is_not_found(service: Service, action: str) -> None:
    assert service.ask("POST", f"/job/{UNKNOWN_JOB}/{action}")[0] == 404
    assert service.ask("POST", f"/job/not-an-id/{action}")[0] == 400


# ── retry ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_retrying_a_failed_step_continues_its_run(home: Home, start: Start) -> None:
    """The steps after it run as if it had succeeded at the first attempt."""
    (home.path / "broken").touch()
    service = start()
    root = service.ask("POST", "/pipeline/two", {"payload": {"n": 1}})[1]["job_id"]
    assert service.job(root, wait="20s")["status"] == "failed"
    (home.path / "broken").unlink()
    assert service.ask("POST", f"/job/{root}/retry?dry_run=true")[0] == 200
    status, answer = service.ask("POST", f"/job/{root}/retry")
    assert (status, answer["status"]) == (202, "queued")
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    assert [(job["plugin"], job["status"]) for job in tree] == [("fallible", "succeeded"), ("echo", "succeeded")]
    assert tree[0]["attempt"] == 2


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_retry_and_replay_need_the_scope_to_run_the_command(home: Home, start: Start) -> None:
    """The error names the required scope and the scopes of the token."""
    token = "limited-token-0123456789abcdef"
    text = (home.path / "config.yaml").read_text()
    limited = f'tokens:\n      - {{name: limited, token: {token}, scopes: ["jobs:rw"]}}\n'
    home.write("config.yaml", text.replace("tokens:\n", limited))
    (home.path / "broken").touch()
    service = start()
    job_id = service.run("fallible")["job_id"]
    for action in ("retry", "replay"):
        status, answer = service.ask("POST", f"/job/{job_id}/{action}", token=token)
        assert (status, answer["code"]) == (403, "insufficient_scope")
        assert answer["hint"] == "Required scope: plugin:rw or plugin:fallible:rw. Scopes of this token: jobs:rw."


def test_a_succeeded_job_cannot_be_retried(service: Service) -> None:
    job_id = service.run("fallible")["job_id"]
    status, answer = service.ask("POST", f"/job/{job_id}/retry")
    assert (status, answer["code"]) == (409, "wrong_state")


# ── replay ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_replay_uses_the_configured_hop_limit(home: Home, start: Start) -> None:
    """A job with 30 hops can be replayed when the limit is 50."""
    home.plugin("echo", OK)
    home.replace("log_level: debug", "log_level: debug\n  limits: {hops: 50}")
    home.add("plugins: {echo: {}}\n")
    service = start()
    job_id = service.run("echo")["job_id"]
    service.stop()
    with sqlite3.connect(home.ledger) as db:  # simulate a long chain
        db.execute("UPDATE job_queue SET hops = 30")
    db.close()
    service = start()

    status, answer = service.ask("POST", f"/job/{job_id}/replay")

    assert (status, answer["status"]) == (202, "queued")


def test_a_replay_has_the_configured_number_of_attempts(home: Home, start: Start) -> None:
    """Not those that retries have added to the original job."""
    home.plugin("failing", FAILING)
    home.add("plugins: {failing: {retry: {max_attempts: 1}}}\n")
    service = start()
    first = service.run("failing")["job_id"]
    service.ask("POST", f"/job/{first}/retry")
    assert service.job(first, wait="20s")["max_attempts"] == 2

    again = service.ask("POST", f"/job/{first}/replay")[1]["job_id"]

    assert service.job(again, wait="20s")["max_attempts"] == 1


def test_a_relay_job_cannot_be_retried_without_configured_instances(home: Home, start: Start) -> None:
    """Nothing would ever send it."""
    home.plugin("echo", OK)
    home.add("plugins: {echo: {}}\n")
    service = start()
    job_id = service.run("echo")["job_id"]
    service.stop()
    with sqlite3.connect(home.ledger) as db:  # simulate a job from a configuration with instances
        db.execute("UPDATE job_queue SET plugin = 'core.relay', status = 'dead'")
    db.close()
    service = start()

    status, answer = service.ask("POST", f"/job/{job_id}/retry")

    assert (status, answer["error"]) == (404, "the configuration has no relay instances")


def test_a_replay_creates_a_new_job(service: Service) -> None:
    """It has the same plugin, command and payload, and a reference to the original."""
    first = service.run("fallible", payload={"n": 1})
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
    ("patch", "expected"),
    [
        ({"n": 2}, {"n": 2, "deep": {"a": 1, "b": 2}}),
        ({"n": None}, {"deep": {"a": 1, "b": 2}}),
        ({"deep": {"b": None, "c": 3}}, {"n": 1, "deep": {"a": 1, "c": 3}}),
        ({"deep": [1]}, {"n": 1, "deep": [1]}),
    ],
)
@pytest.mark.parametrize("command", ["poll", "handle"])
def test_a_patch_changes_the_payload_of_a_replay(
    service: Service, command: str, patch: object, expected: object
) -> None:
    """It is a JSON merge patch. For `handle` it applies to the payload of the event."""
    first = service.run("fallible", command, payload={"n": 1, "deep": {"a": 1, "b": 2}})
    answer = service.ask("POST", f"/job/{first['job_id']}/replay", {"patch": patch})[1]
    assert answer["payload_changed"] is True
    again = service.job(answer["job_id"], wait="20s")
    assert json.loads(again["result"]["result"]) == expected


def test_replaying_a_step_runs_the_following_steps(service: Service) -> None:
    """The replay is a tree of its own; the first tree does not change."""
    root = service.ask("POST", "/pipeline/two", {"payload": {"n": 1}})[1]["job_id"]
    service.ask("GET", f"/job/{root}/tree?wait=20s")
    copy = service.ask("POST", f"/job/{root}/replay", {"patch": {"n": 2}})[1]["job_id"]
    tree = service.ask("GET", f"/job/{copy}/tree?wait=20s")[1]
    assert [(job["step_id"], job["status"]) for job in tree] == [("first", "succeeded"), ("second", "succeeded")]
    assert len(service.ask("GET", f"/job/{root}/tree")[1]) == 2


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_replayed_step_keeps_its_tolerance(home: Home, start: Start) -> None:
    """Its run continues after the failure, so the job cannot be retried."""
    home.add(
        "  - {name: tolerant, on: c, steps: [{id: first, uses: failing, continue: true}, {id: second, uses: echo}]}\n"
    )
    service = start()
    root = service.ask("POST", "/pipeline/tolerant")[1]["job_id"]
    service.ask("GET", f"/job/{root}/tree?wait=20s")
    copy = service.ask("POST", f"/job/{root}/replay")[1]["job_id"]
    tree = service.ask("GET", f"/job/{copy}/tree?wait=20s")[1]
    assert [(job["status"], job.get("tolerated")) for job in tree] == [("failed", True), ("succeeded", None)]
    assert service.ask("POST", f"/job/{copy}/retry")[0] == 409


def test_a_dry_run_of_a_replay_creates_no_job(service: Service) -> None:
    first = service.run("fallible")
    before = service.home.rows("SELECT COUNT(*) FROM job_queue")
    status, answer = service.ask("POST", f"/job/{first['job_id']}/replay?dry_run=true", {"patch": {"n": 2}})
    assert (status, answer["job_id"], answer["dry_run"]) == (200, None, True)
    assert service.home.rows("SELECT COUNT(*) FROM job_queue") == before


def test_a_switch_cannot_be_replayed(service: Service) -> None:
    """The hint names the command that runs the pipeline again."""
    root = service.ask("POST", "/pipeline/chosen", {"payload": {"n": 1}})[1]["job_id"]
    (switch,) = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    assert switch["plugin"] == "core.switch"
    status, answer = service.ask("POST", f"/job/{root}/replay")
    assert (status, answer["code"]) == (409, "wrong_state")
    assert "core.switch is a control step" in answer["error"]
    assert follow_hint(service, answer["hint"]) == 202


def follow_hint(service: Service, hint: str) -> int:
    """Send the request that corresponds to the command in `hint` and return its status."""
    if job := re.search(r"`ductile job (retry|replay) (\S+)`", hint):
        return service.ask("POST", f"/job/{job[2]}/{job[1]}")[0]
    command = re.search(r"`ductile pipeline run (.+)`", hint)
    assert command is not None, hint
    (name,) = shlex.split(command[1])
    return service.ask("POST", f"/pipeline/{quote(name)}?async=true")[0]


def test_a_refused_replay_names_a_command_that_works(service: Service) -> None:
    """Every job of a run that begins with a join is refused with a working hint."""
    root = service.ask("POST", "/pipeline/at%20once")[1]["job_id"]
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    assert {job["plugin"] for job in tree} == {"core.start", "core.join", "echo", "failing"}
    for job in tree:
        status, answer = service.ask("POST", f"/job/{job['job_id']}/replay")
        assert (status, answer["code"]) == (409, "wrong_state")
        assert follow_hint(service, answer["hint"]) == 202
    (tolerated,) = (job for job in tree if job["plugin"] == "failing")
    status, answer = service.ask("POST", f"/job/{tolerated['job_id']}/retry")
    assert (status, answer["error"].endswith("its failure was tolerated and its run has continued")) == (409, True)
    assert follow_hint(service, answer["hint"]) == 202


def test_a_refused_replay_of_a_join_member_names_the_job_before_it(service: Service) -> None:
    root = service.ask("POST", "/pipeline/later")[1]["job_id"]
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    for job in tree[1:]:
        status, answer = service.ask("POST", f"/job/{job['job_id']}/replay")
        assert (status, answer["hint"]) == (409, f"Replay the job that it follows: `ductile job replay {root}`")
    assert follow_hint(service, answer["hint"]) == 202


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_refused_retry_of_a_join_names_the_failed_member(home: Home, start: Start) -> None:
    home.add("  - {name: failing-join, on: s, steps: [{join: true, split: [{uses: echo}, {uses: failing}]}]}\n")
    service = start()
    root = service.ask("POST", "/pipeline/failing-join")[1]["job_id"]
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    jobs = {job["plugin"]: job["job_id"] for job in tree}
    status, answer = service.ask("POST", f"/job/{jobs['core.join']}/retry")
    assert (status, answer["hint"]) == (409, f"Retry the job that it waited for: `ductile job retry {jobs['failing']}`")
    assert follow_hint(service, answer["hint"]) == 202


@pytest.mark.parametrize("pipeline", ["unmet", "unmet-in-lists", "unmet-in-joins", "unmet-in-errors"])
def test_a_step_that_failed_before_it_started_cannot_be_retried_or_replayed(service: Service, pipeline: str) -> None:
    """Its baggage was never claimed: the plugin would get neither `with` nor the context of the run."""
    root = service.ask("POST", f"/pipeline/{pipeline}", {"payload": {"list": [1, 2]}})[1]["job_id"]
    tree = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    failed = [job for job in tree if job["status"] == "failed"]
    assert failed
    for job in failed:
        for action in ("retry", "replay"):
            status, answer = service.ask("POST", f"/job/{job['job_id']}/{action}")
            assert (status, answer["code"]) == (409, "wrong_state")
            assert follow_hint(service, answer["hint"]) == 202
    assert service.ask("GET", f"/job/{root}/tree")[1] == tree


# ── pause ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ["/plugins/fallible", "/queue"])
@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_paused_plugin_or_queue_accepts_jobs_and_starts_none(home: Home, start: Start, target: str) -> None:
    """The pause survives a restart. After the resume, the queued jobs run."""
    service = start()
    assert service.ask("POST", f"{target}/pause", {"reason": "repairs"})[1]["changed"] is True
    assert service.ask("POST", f"{target}/pause")[1]["changed"] is False
    job_id = service.post("fallible")
    other = service.run("echo") if target != "/queue" else None
    assert other is None or other["status"] == "succeeded"
    service.stop()
    service = start()
    (pause,) = service.ask("GET", "/queue/pauses")[1]["pauses"]
    assert pause["reason"] == "repairs"
    assert service.job(job_id)["status"] == "queued"
    assert service.ask("POST", f"{target}/resume?dry_run=true")[1]["dry_run"] is True
    assert service.job(job_id)["status"] == "queued"
    assert service.ask("POST", f"{target}/resume")[1]["changed"] is True
    assert service.job(job_id, wait="20s")["status"] == "succeeded"
    assert service.ask("GET", "/queue/pauses")[1] == {"pauses": []}


def test_pausing_an_unknown_plugin_is_refused(service: Service) -> None:
    assert service.ask("POST", "/plugins/falible/pause")[0] == 404
    assert service.ask("POST", "/plugins/fallible/pause", {"why": "x"})[0] == 400


# ── Idempotency-Key ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_repeated_request_with_one_idempotency_key_creates_one_job(home: Home, start: Start) -> None:
    """This includes a restart of the service. A different request with the same key is refused."""
    service = start()
    key = {"idempotency-key": "order-1"}
    first = service.ask("POST", "/plugin/fallible/poll", {"payload": {"n": 1}}, headers=key)
    assert service.ask("POST", "/plugin/fallible/poll", {"payload": {"n": 1}}, headers=key) == first
    assert service.ask("POST", "/plugin/fallible/poll", {"payload": {"n": 2}}, headers=key)[0] == 422
    assert service.ask("POST", "/plugin/echo/poll", {"payload": {"n": 1}}, headers=key)[0] == 422
    service.kill()
    service = start()
    assert service.ask("POST", "/plugin/fallible/poll", {"payload": {"n": 1}}, headers=key) == first
    assert len(home.rows("SELECT id FROM job_queue")) == 1


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 256])
def test_an_invalid_idempotency_key_is_refused(service: Service, key: str) -> None:
    before = service.home.rows("SELECT COUNT(*) FROM job_queue")
    status, _ = service.ask(
        "POST", "/plugin/fallible/poll", headers={"idempotency-key": key.encode().decode("latin-1")}
    )
    assert status == 400
    assert service.home.rows("SELECT COUNT(*) FROM job_queue") == before


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_running_a_schedule_accepts_an_idempotency_key(home: Home, start: Start) -> None:
    home.add("plugins: {fallible: {schedules: [{every: 24h}]}}\n")
    service = start()
    key = {"idempotency-key": "k"}
    first = service.ask("POST", "/schedule/fallible/default/run", headers=key)
    assert first[0] == 202
    assert service.ask("POST", "/schedule/fallible/default/run", headers=key) == first


def test_pipeline_runs_and_replays_accept_idempotency_keys(service: Service) -> None:
    key = {"idempotency-key": "k"}
    run = service.ask("POST", "/pipeline/two", {"payload": {}}, headers=key)
    assert service.ask("POST", "/pipeline/two", {"payload": {}}, headers=key) == run
    over = service.job(run[1]["job_id"], wait="20s")
    replay = f"/job/{over['job_id']}/replay"
    copy = service.ask("POST", replay, headers={"idempotency-key": "k2"})
    assert service.ask("POST", replay, headers={"idempotency-key": "k2"}) == copy
    assert copy[1]["job_id"] != run[1]["job_id"]
    assert len(service.home.rows("SELECT id FROM job_queue WHERE replay_of = ?", over["job_id"])) == 1


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_synchronous_run_returns_the_first_response_for_its_key(home: Home, start: Start) -> None:
    """This includes a crash of the service between the two requests."""
    home.add("  - {name: sync, on: s, execution_mode: synchronous, steps: [{id: only, uses: fallible}]}\n")
    service = start()
    key = {"idempotency-key": "k"}
    first = service.ask("POST", "/pipeline/sync", {"payload": {"n": 1}}, headers=key)
    service.kill()
    service = start()
    again = service.ask("POST", "/pipeline/sync", {"payload": {"n": 1}}, headers=key)
    assert (first[0], again) == (200, first)
    assert len(home.rows("SELECT id FROM job_queue")) == 1


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_idempotency_keys_belong_to_one_token(home: Home, start: Start, tmp_path: Path) -> None:
    """Two tokens with the same key get two jobs."""
    other = "e2e-token-fedcba9876543210"
    text = (home.path / "config.yaml").read_text()
    home.write(
        "config.yaml", text.replace("tokens:\n", f'tokens:\n      - {{name: b, token: {other}, scopes: ["*"]}}\n')
    )
    service = start()
    key = {"idempotency-key": "k"}
    first = service.ask("POST", "/plugin/fallible/poll", headers=key)[1]["job_id"]
    second = service.ask("POST", "/plugin/fallible/poll", headers=key, token=other)[1]["job_id"]
    assert first != second


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_an_unnamed_token_keeps_its_keys_when_its_position_changes(home: Home, start: Start) -> None:
    """A new token that has the name of a position gets neither the keys nor the name of the unnamed token."""
    unnamed, named = "unnamed-bbbbbbbbbbbbbbbbbbbbbbbb", "named-cccccccccccccccccccccccccc"
    before = (home.path / "config.yaml").read_text()
    unnamed_token = f'      - {{token: {unnamed}, scopes: ["*"]}}\n'
    home.write("config.yaml", before.replace("tokens:\n", f"tokens:\n{unnamed_token}"))
    service = start()
    key = {"idempotency-key": "k"}
    first = service.ask("POST", "/plugin/fallible/poll", headers=key, token=unnamed)
    unnamed_label = service.ask("GET", "/system/tokens")[1]["tokens"][0]["name"]
    tokens = f'      - {{name: token 0, token: {named}, scopes: ["*"]}}\n      - {{name: new, token: {"d" * 26}}}\n'
    home.replace("tokens:\n", f"tokens:\n{tokens}")
    home.seal()
    assert service.ask("POST", "/system/reload")[1]["changes"]["tokens"]["added"] == ["token 0", "new"]
    assert service.ask("POST", "/plugin/fallible/poll", headers=key, token=unnamed) == first
    second = service.ask("POST", "/plugin/fallible/poll", headers=key, token=named)
    assert second[0] == 202
    assert second[1]["job_id"] != first[1]["job_id"]
    assert [one["name"] for one in service.ask("GET", "/system/tokens")[1]["tokens"]] == [
        "token 0",
        "new",
        unnamed_label,
        "e2e",
    ]
    assert unnamed not in unnamed_label
