"""Commands for jobs and the queue of a running service, and their explanations."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ductile.pipeline.run.events import event_id
from tests.e2e.commands import ductile, ductile_json
from tests.e2e.recording_plugins import RECORDING_PLUGIN
from tests.e2e.sample_plugins import FAILING, FALLIBLE, OK, BlockingPlugin
from tests.e2e.service import TOKEN, Home, Service, Start

UNKNOWN_JOB = "019a0000-0000-7000-8000-000000000000"
STDERR_WRITER = """#!/bin/sh
cat > /dev/null
echo first words >&2
printf x > started
dd bs=1 count=1 < release > /dev/null 2>&1
echo last line >&2
echo '{"status": "ok", "result": "events"}'
"""
EMITTER = """#!/bin/sh
cat > /dev/null
echo '{"status": "ok", "result": "events", "events": [{"type": "names.listed", "payload": {"names": []}}]}'
"""
PIPELINES = """
plugins: {fallible: {timeouts: {poll: 1m}}, echo: {}, failing: {}}
routes: [{from: fallible, event_type: fallible.done, to: echo}]
pipelines:
  - name: choosy
    on: fallible.done
    if: {path: payload.n, op: eq, value: 2}
    steps: [{id: only, uses: echo}]
  - name: two
    on: two.requested
    steps: [{id: first, uses: echo}, {id: second, uses: echo}]
  - name: wide
    on: wide.requested
    steps: [{id: each, foreach: payload.items, uses: echo}]
  - name: greet
    on: greet.requested
    steps: [{id: each, foreach: payload.names, join: true, uses: failing}, {id: sum-up, uses: echo}]
  - name: fanned
    on: fanned.requested
    steps: [{id: first, uses: echo}, {id: each, foreach: payload.names, join: true, uses: failing}]
  - name: maybe
    on: maybe.requested
    steps: [{id: first, uses: echo}, {id: perhaps, uses: echo, if: {path: payload.go, op: eq, value: true}}]
  - name: unmet
    on: unmet.requested
    steps: [{id: first, uses: echo}, {id: claims, uses: echo, baggage: {kept: payload.gone}}]
  - name: picky
    on: picky.requested
    steps: [{id: each, foreach: payload.items, uses: echo, if: {path: item, op: gt, value: 5}}]
  - name: together
    on: together.requested
    steps: [{id: both, join: true, split: [{id: one, uses: emitter}, {uses: echo}]}, {uses: echo}]
  - name: empty
    on: empty.requested
    steps: [{id: first, uses: emitter}, {id: each, foreach: payload.names, uses: echo}]
  - name: repeated
    on: repeated.requested
    steps:
      - id: both
        join: true
        split: [{steps: [{id: a, uses: recorder}, {id: b, foreach: payload.n, uses: echo}]}]
"""


def add_plugins_and_pipelines(home: Home) -> Home:
    home.plugin("fallible", FALLIBLE)
    home.plugin("echo", OK)
    home.plugin("failing", FAILING)
    home.plugin("emitter", EMITTER)
    home.plugin("recorder", RECORDING_PLUGIN)
    home.plugin("stderr-writer", STDERR_WRITER)
    home.add(PIPELINES)
    return home


@pytest.fixture
def plugins_and_pipelines(home: Home) -> None:
    """Add the plugins and pipelines of this file to `home`."""
    add_plugins_and_pipelines(home)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start one service for all tests that do not change it."""
    running = add_plugins_and_pipelines(Home.make(tmp_path_factory.mktemp("job-commands") / "ductile")).start()
    yield running
    running.kill()


def run_pipeline(service: Service, pipeline: str, payload: Any) -> list[dict[str, Any]]:
    """Run a pipeline to its end and return its tree."""
    root = service.ask("POST", f"/pipeline/{pipeline}", {"payload": payload})[1]["job_id"]
    tree: list[dict[str, Any]] = service.ask("GET", f"/job/{root}/tree?wait=20s")[1]
    return tree


# ── job actions ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_cancelling_a_queued_job_records_the_reason(home: Home, start: Start) -> None:
    """A dry run does not cancel the job."""
    service = start()
    service.ask("POST", "/queue/pause")
    job_id = service.post("fallible")
    assert ductile_json(home, "job", "cancel", job_id, "--dry-run")["status"] == "queued"
    assert ductile_json(home, "job", "cancel", job_id, "--reason", "not needed")["status"] == "dead"
    assert service.job(job_id)["last_error"] == "cancelled: not needed"
    assert ductile_json(home, "job", "cancel", job_id, exit_code=1)["code"] == "wrong_state"


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_failed_job_is_retried_and_waited_for(home: Home, start: Start) -> None:
    """`job wait` exits 1 for the failure and 0 for the success."""
    (home.path / "broken").touch()
    service = start()
    job_id = service.post("fallible")
    assert ductile_json(home, "job", "wait", job_id, exit_code=1)["status"] == "failed"
    assert ductile_json(home, "job", "why", job_id)["reasons"][0]["code"] == "retry_false"
    (home.path / "broken").unlink()
    assert ductile_json(home, "job", "retry", job_id, "--dry-run")["dry_run"] is True
    assert ductile_json(home, "job", "retry", job_id)["status"] == "queued"
    assert ductile_json(home, "job", "wait", job_id)["status"] == "succeeded"
    finished = ductile_json(home, "job", "wait", job_id, "--tree")
    assert [node["plugin"] for node in finished["tree"]] == ["fallible", "echo"]


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_job_wait_exits_1_when_its_timeout_ends_first(home: Home, start: Start, blocking: BlockingPlugin) -> None:
    service = start()
    job_id = service.post("blocking")
    blocking.wait_until_started()
    assert ductile_json(home, "job", "wait", job_id, "--timeout", "10ms", exit_code=1)["status"] == "running"
    assert ductile_json(home, "job", "why", job_id)["reasons"][0]["code"] == "running"
    blocking.release()
    assert ductile_json(home, "job", "wait", job_id)["status"] == "succeeded"


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_running_job_of_a_killed_service_is_reported_as_orphaned(
    home: Home, start: Start, blocking: BlockingPlugin
) -> None:
    """It runs again after the next start."""
    service = start()
    job_id = service.post("blocking")
    blocking.wait_until_started()
    service.kill()
    why = ductile_json(home, "job", "why", job_id)
    assert (why["reasons"][0]["code"], why["next"]) == ("service_died", ["ductile system start"])
    assert ductile_json(home, "job", "tail", job_id, exit_code=69)["code"] == "unreachable"
    assert ductile_json(home, "system", "status", "--no-health", exit_code=1)["queue"]["orphaned"] == 1
    again = start()
    blocking.wait_until_started()
    blocking.release()
    assert again.job(job_id, wait="30s")["status"] == "succeeded"


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_replay_lists_changes_since_the_first_run(home: Home, start: Start, tmp_path: Path) -> None:
    """It lists changes of the configuration and of the plugin files, then runs the patched job as a new one."""
    service = start()
    first = service.run("fallible", payload={"n": 1, "m": 1})["job_id"]
    assert ductile_json(home, "job", "replay", first, "--dry-run")["changes"]["config"] == []
    home.replace("poll: 1m", "poll: 2m")
    manifest = home.path / "plugins" / "fallible" / "manifest.yaml"
    manifest.write_text(manifest.read_text() + "description: another\n")
    assert ductile(home, "reload").exit_code == 0
    (tmp_path / "patch.json").write_text('{"n": 3}')

    answer = ductile_json(home, "job", "replay", first, "--patch", f"@{tmp_path / 'patch.json'}")
    assert ("plugins.fallible.timeouts.poll", "1m", "2m") in [
        (one["path"], one["before"], one["after"]) for one in answer["changes"]["config"]
    ]
    assert "manifest_hash" in answer["changes"]["plugin"]
    assert (answer["payload_changed"], answer["config_changed"], answer["replay_of"]) == (True, True, first)
    again = service.job(answer["job_id"], wait="20s")
    assert json.loads(again["result"]["result"]) == {"n": 3, "m": 1}
    text = ductile(home, "job", "replay", first, "--dry-run").stdout
    assert text.index("changes since the job ran:") < text.index("would replay fallible.poll")


def test_waiting_for_a_job_reports_that_its_run_failed(service: Service) -> None:
    """The exit code is that of the job, or with --tree that of the run."""
    root, *_ = run_pipeline(service, "greet", {"names": ["Ada", "Grace"]})
    answer = ductile_json(service.home, "job", "wait", root["job_id"])
    waited = ductile(service.home, "job", "wait", root["job_id"])

    assert (answer["status"], answer["tree_status"]) == ("succeeded", "failed")
    assert waited.exit_code == 0
    assert "The run failed" in waited.stdout
    assert f"next: ductile job wait {root['job_id']} --tree" in waited.stdout
    assert ductile_json(service.home, "job", "wait", root["job_id"], "--tree", exit_code=1)["status"] == "failed"


def test_a_control_job_is_replayed_by_running_its_pipeline_again(service: Service) -> None:
    """`pipeline run` can return the id of a control job. The command in the hint works."""
    root, *members, _ = run_pipeline(service, "greet", {"names": ["Ada", "Grace"]})
    for job in (root, members[0]):
        refused = ductile_json(service.home, "job", "replay", job["job_id"], exit_code=1)
        assert (refused["code"], "`ductile pipeline run greet" in refused["hint"]) == ("wrong_state", True), refused
    assert ductile(service.home, "pipeline", "run", "greet", "--payload", '{"names": []}', "--wait").exit_code == 0


def test_a_refused_replay_names_the_nearest_job_that_can_be_replayed(service: Service) -> None:
    """It is the nearest job above that runs a plugin."""
    first, *members, join = run_pipeline(service, "fanned", {"names": ["Ada", "Grace"]})
    assert (first["step_id"], join["plugin"]) == ("first", "core.join")
    for job in (members[0], members[-1], join):
        refused = ductile_json(service.home, "job", "replay", job["job_id"], exit_code=1)
        assert f"`ductile job replay {first['job_id']}`" in refused["hint"], refused
    assert ductile_json(service.home, "job", "replay", first["job_id"])["replay_of"] == first["job_id"]


def test_a_step_of_a_run_is_replayed_by_its_id(service: Service) -> None:
    tree = run_pipeline(service, "two", {})
    answer = ductile_json(service.home, "job", "replay", tree[0]["job_id"], "--from-step", "second", "--dry-run")
    assert answer["replay_of"] == tree[1]["job_id"]


def test_an_unknown_step_is_not_found(service: Service) -> None:
    tree = run_pipeline(service, "two", {})
    error = ductile_json(service.home, "job", "replay", tree[0]["job_id"], "--from-step", "secnd", exit_code=1)
    assert (error["code"], "did you mean 'second'?" in error["error"]) == ("not_found", True)


def test_a_step_with_several_jobs_needs_a_job_id(service: Service) -> None:
    """The hint lists the jobs."""
    tree = run_pipeline(service, "wide", {"items": [1, 2]})
    error = ductile_json(service.home, "job", "replay", tree[0]["job_id"], "--from-step", "each", exit_code=2)
    each = [node["job_id"] for node in tree if node.get("step_id") == "each" and node["plugin"] == "echo"]
    assert len(each) == 2
    assert all(job_id in error["hint"] for job_id in each)


@pytest.mark.parametrize("patch", ["[1]", "{", "@/nonexistent"])
def test_a_patch_that_is_not_an_object_is_a_usage_error(service: Service, patch: str) -> None:
    job_id = service.run("echo")["job_id"]
    assert ductile_json(service.home, "job", "replay", job_id, "--patch", patch, exit_code=2)["code"] == "usage"


@pytest.mark.parametrize("action", ["cancel", "retry", "replay", "wait", "tail"])
def test_an_unknown_job_is_not_found(service: Service, action: str) -> None:
    assert ductile_json(service.home, "job", action, UNKNOWN_JOB, exit_code=1)["code"] == "not_found"


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_job_tail_prints_stderr_while_the_job_runs(home: Home, start: Start, blocking: BlockingPlugin) -> None:
    """Every line is printed once, and the command ends with the job."""
    service = start()
    job_id = service.post("stderr-writer")
    blocking.wait_until_started()
    command = [sys.executable, "-m", "ductile", "job", "tail", job_id, "--config", str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == "first words\n"
        blocking.release()
        assert tail.stdout.read() == "last line\n"
    assert tail.returncode == 0
    assert ductile_json(home, "job", "tail", job_id)["stderr"] == "first words\nlast line\n"


# ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pause", "resume", "code"),
    [
        (("queue", "pause"), ("queue", "resume"), "queue_paused"),
        (("queue", "pause", "--plugin", "echo"), ("queue", "resume", "--plugin", "echo"), "paused"),
        (("plugin", "pause", "echo"), ("plugin", "resume", "echo"), "paused"),
    ],
)
def test_a_queued_job_of_a_paused_queue_or_plugin_names_the_pause(
    service: Service, pause: tuple[str, ...], resume: tuple[str, ...], code: str
) -> None:
    """A dry run does not pause. After the resume, the job runs."""
    home = service.home
    assert ductile_json(home, *pause, "--dry-run")["changed"] is True
    assert ductile_json(home, "queue", "status")["paused"] == []
    assert ductile_json(home, *pause, "--reason", "a test")["changed"] is True
    job_id = service.post("echo")
    assert [one["reason"] for one in ductile_json(home, "queue")["paused"]] == ["a test"]
    assert [reason["code"] for reason in ductile_json(home, "job", "why", job_id)["reasons"]] == [code]
    assert ductile_json(home, *resume)["changed"] is True
    assert ductile_json(home, "job", "wait", job_id)["status"] == "succeeded"


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_purge_cancels_all_queued_jobs_and_no_running_job(home: Home, start: Start, blocking: BlockingPlugin) -> None:
    """It works in several batches."""
    service = start()
    running = service.post("blocking")
    blocking.wait_until_started()
    service.ask("POST", "/plugins/echo/pause")
    for _ in range(205):
        service.post("echo")
    assert ductile_json(home, "queue", "purge", "--plugin", "echo", "--dry-run")["remaining"] == 205
    assert ductile_json(home, "queue", "purge", "--all", "--reason", "flood") | {"up_to": 0} == {
        "plugin": "*",
        "cancelled": 205,
        "remaining": 0,
        "up_to": 0,
        "dry_run": False,
    }
    blocking.release()
    assert ductile_json(home, "job", "wait", running)["status"] == "succeeded"
    assert home.rows("SELECT DISTINCT last_error FROM job_queue WHERE status = 'dead'") == [
        {"last_error": "cancelled: flood"}
    ]


def test_pause_and_resume_report_whether_something_changed(service: Service) -> None:
    for noun, what in ((("queue",), "the queue"), (("plugin",), "plugin echo")):
        names = ("echo",) if noun == ("plugin",) else ()
        said = [
            ductile(service.home, *noun, action, *names).stdout for action in ("resume", "pause", "pause", "resume")
        ]
        assert said == [
            f"no change: {what} is not paused\n",
            f"{what} is paused\n",
            f"no change: {what} is already paused\n",
            f"{what} is resumed\n",
        ]


def test_a_purge_of_an_unknown_plugin_is_not_found(service: Service) -> None:
    assert ductile_json(service.home, "queue", "purge", "--plugin", "eccho", exit_code=1)["code"] == "not_found"


@pytest.mark.parametrize(
    "body", [{}, {"plugin": 1}, {"plugin": "echo", "up_to": -1}, {"plugin": "echo", "reason": 1}, {"x": 1}, [1], b"{"]
)
def test_an_invalid_purge_request_is_refused(service: Service, body: Any) -> None:
    assert service.ask("POST", "/queue/purge", body)[0] == 400


@pytest.mark.usefixtures("plugins_and_pipelines")
def test_a_job_that_waits_for_a_slot_of_its_plugin_names_the_limit(
    home: Home, start: Start, blocking: BlockingPlugin
) -> None:
    """The position in the queue is the only other reason while the service runs."""
    service = start()
    service.post("blocking")
    blocking.wait_until_started()
    job_id = service.post("blocking")
    view = ductile_json(home, "job", "why", job_id)
    assert [reason["code"] for reason in view["reasons"]] == ["plugin_full", "behind"]
    blocking.release(2)


# ── explanations ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_event_names_its_route_and_the_condition_that_is_false(service: Service) -> None:
    job_id = service.run("fallible", payload={"n": 1})["job_id"]
    service.ask("GET", f"/job/{job_id}/tree?wait=20s")
    view = ductile_json(service.home, "event", "why", "--type", "fallible.done", "--limit", "1")

    assert [one["name"] for one in view["waiting"]["pipelines"]] == ["choosy"]
    assert [(one["from"], one["to"]) for one in view["waiting"]["routes"]] == [("fallible", "echo")]
    (event,) = view["events"]
    assert (event["emitted_by"], [job["via"] for job in event["led_to"]]) == (job_id, ["route"])
    (decision,) = event["decisions"]
    assert decision["words"] == "Pipeline choosy did not start: if is false (payload.n eq 2 is false: found 1)"
    assert ductile_json(service.home, "event", "why", event["event_id"]) == event


def test_an_event_names_its_route_and_its_pipeline(service: Service) -> None:
    job_id = service.run("fallible", payload={"n": 2})["job_id"]
    service.ask("GET", f"/job/{job_id}/tree?wait=20s")
    (event,) = ductile_json(service.home, "event", "why", "--type", "fallible.done", "--limit", "1")["events"]

    assert sorted(job["via"] for job in event["led_to"]) == ["pipeline choosy", "route"]


def test_a_skipped_step_names_its_condition(service: Service) -> None:
    """The switch is a job of the tree and has the compared values."""
    tree = run_pipeline(service, "maybe", {"go": False})
    (switch,) = [node["job_id"] for node in tree if node["plugin"] == "core.switch"]
    (reason,) = ductile_json(service.home, "job", "why", switch)["reasons"]

    assert reason["code"] == "condition_false"
    assert "payload.go eq true is false: found false" in reason["words"]


def test_a_step_that_failed_before_it_started_proposes_no_retry_and_no_replay(service: Service) -> None:
    """Both are refused for this job."""
    tree = run_pipeline(service, "unmet", {})
    (failed,) = [node["job_id"] for node in tree if node["status"] == "failed"]

    assert ductile_json(service.home, "job", "why", failed)["next"] == [f"ductile job diagnose {failed}"]


def test_every_skipped_item_of_a_foreach_names_its_own_value(service: Service) -> None:
    """All items have the same step and the same event."""
    tree = run_pipeline(service, "picky", {"items": [1, 7, 3]})
    switches = [node["job_id"] for node in tree if node["plugin"] == "core.switch"]
    reasons = [ductile_json(service.home, "job", "why", switch)["reasons"][0]["words"] for switch in switches]

    assert ["condition of step each is true" in words for words in reasons] == [False, True, False]
    assert [words.rpartition("found ")[2] for words in reasons[::2]] == ["1", "3"]


def test_an_event_of_a_join_member_names_the_join(service: Service) -> None:
    """The event leads to no job of its own. It is found by its id and by its type."""
    tree = run_pipeline(service, "together", {})
    (emitter,) = [node["job_id"] for node in tree if node["plugin"] == "emitter"]
    (join,) = [node["job_id"] for node in tree if node["plugin"] == "core.join"]
    event = ductile_json(service.home, "event", "why", event_id(emitter, 1, 0))

    assert (event["type"], event["source"], event["emitted_by"]) == ("names.listed", "emitter", emitter)
    assert (event["verdict"], event["words"]) == ("matched", "The event is one of the results of join both__join.")
    assert [(job["job_id"], job["step_id"], job["status"]) for job in event["led_to"]] == [
        (join, "both__join", "succeeded")
    ]
    assert ductile_json(service.home, "event", "why", "--type", "names.listed", "--limit", "1")["events"] == [event]


def test_a_duplicate_event_is_no_result_of_the_join(service: Service) -> None:
    """Its only job ran in the first run. The other event of the same job reached the join."""
    events = [{"type": "e", "payload": {"n": [1]}, "dedupe_key": "once"}, {"type": "f", "payload": {"n": []}}]
    tree = [run_pipeline(service, "repeated", {"response": {"events": events}}) for _ in range(2)][-1]
    (emitter,) = [node["job_id"] for node in tree if node["plugin"] == "recorder"]

    explanations = [ductile_json(service.home, "event", "why", event_id(emitter, 1, index)) for index in (0, 1)]

    assert [explanation["verdict"] for explanation in explanations] == ["duplicate", "matched"]


def test_an_event_with_an_empty_list_names_the_step_that_did_not_run(service: Service) -> None:
    (first,) = run_pipeline(service, "empty", {})
    event = ductile_json(service.home, "event", "why", event_id(first["job_id"], 1, 0))

    words = "Step each of pipeline empty did not run: payload.names is an empty list"
    assert (event["verdict"], event["words"]) == ("unmatched", f"The event led to no job. {words}")


def test_job_lists_over_http_equal_those_from_the_ledger(service: Service) -> None:
    service.run("echo")
    remote = ("--api-url", service.url, "--api-key", TOKEN)
    for action in ("list", "logs"):
        flags = ("job", action, "--plugin", "echo", "--limit", "3")
        assert ductile_json(service.home, *flags) == ductile_json(service.home, *flags, *remote)


def test_short_forms_of_commands_work(service: Service) -> None:
    assert ductile_json(service.home, "run", "echo", "--wait")["status"] == "succeeded"
    assert json.loads(ductile(service.home, "status", "--json").stdout)["verdict"] in ("healthy", "attention")
    assert ductile_json(service.home, "reload", "--dry-run")["status"] == "planned"
    assert ductile_json(service.home, "reset", "echo", "--dry-run")["reset"] == []
