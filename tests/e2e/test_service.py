"""One service as its clients see it: start, trigger, wait, inspect, stop."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import ductile
from tests.e2e.sample_plugins import OK, REQUEST_TO_STATE
from tests.e2e.service import Home, Start, poll_until


def test_an_acknowledged_job_runs_and_keeps_its_result(home: Home, start: Start) -> None:
    """The result is the response of the plugin, unchanged."""
    home.plugin("ok", OK)
    service = start()

    job = service.run("ok")

    assert job["status"] == "succeeded"
    assert job["result"] == {"status": "ok", "result": "done"}
    assert home.rows("SELECT status FROM job_log") == [{"status": "succeeded"}]


def test_a_plugin_gets_a_request_of_protocol_2(home: Home, start: Start) -> None:
    """`handle` gets an event around the payload."""
    home.plugin("recorder", REQUEST_TO_STATE)
    home.add("plugins:\n  recorder: {config: {color: blue}}\n")
    service = start()

    polled = service.run("recorder", "poll", {"n": 2**63})["result"]["state_updates"]["request"]
    handled = service.run("recorder", "handle", {"n": 1})["result"]["state_updates"]["request"]

    assert polled["protocol"] == 2
    assert (polled["command"], polled["config"], polled["state"]) == ("poll", {"color": "blue"}, {})
    assert polled["payload"] == {"n": 2**63}
    assert (polled["attempt"], polled["max_attempts"]) == (1, 4)
    assert "event" not in polled
    assert handled["event"]["type"] == "api.trigger"
    assert handled["event"]["payload"] == {"n": 1}
    assert handled["payload"] == handled["event"]
    assert handled["state"]["request"]["job_id"] == polled["job_id"]


def test_a_plugin_gets_no_environment_of_the_service(home: Home, start: Start) -> None:
    """It gets the variables of the protocol, of its configuration, and `LC_*`."""
    home.plugin("env", "#!/usr/bin/env python3\n" + _report("dict(os.environ)"))
    home.add("plugins:\n  env: {env: {OWN: yes}}\n")
    service = start(environ={"CANARY": "secret-canary", "LC_TEST": "kept"})

    environ = service.run("env")["result"]["state_updates"]["seen"]

    assert "CANARY" not in environ
    assert (environ["OWN"], environ["LC_TEST"], environ["DUCTILE_PLUGIN"]) == ("yes", "kept", "env")
    assert environ["DUCTILE_PLUGIN_DIR"] == str(home.path / "plugins" / "env")
    assert environ["DUCTILE_JOB_ID"]
    assert environ["DUCTILE_INSTANCE"]


def test_plugins_run_in_the_configuration_directory(home: Home, start: Start) -> None:
    """Relative paths in the configuration of a plugin are relative to config.yaml."""
    home.plugin("where", "#!/usr/bin/env python3\n" + _report("os.getcwd()"))

    assert start().run("where")["result"]["state_updates"]["seen"] == str(home.path)


def _report(expression: str) -> str:
    return (
        "import json, os, sys\njson.load(sys.stdin)\n"
        f'print(json.dumps({{"status": "ok", "result": "ok", "state_updates": {{"seen": {expression}}}}}))\n'
    )


def test_a_failing_job_is_dead_after_its_last_attempt(home: Home, start: Start) -> None:
    """Every attempt keeps its stderr and its exit code."""
    home.plugin("fails", "#!/bin/sh\necho oops >&2\nexit 3\n")
    home.add("plugins:\n  fails: {retry: {max_attempts: 3, backoff_base: 1ms}}\n")

    job = start().run("fails")

    assert job["status"] == "dead"
    assert job["last_error"].startswith("attempts used up (3 of 3): exit code 3")
    log = home.rows("SELECT attempt, status, stderr, exit_code FROM job_log ORDER BY attempt")
    assert [(row["attempt"], row["status"], row["exit_code"]) for row in log] == [(n, "failed", 3) for n in (1, 2, 3)]
    assert all(row["stderr"] == "oops\n" for row in log)


def test_a_job_that_exceeds_its_timeout_is_timed_out(home: Home, start: Start) -> None:
    """The process gets SIGTERM."""
    home.plugin("slow", "#!/bin/sh\nexec sleep 60\n")
    home.add("plugins:\n  slow: {timeouts: {poll: 200ms}, retry: {max_attempts: 1}}\n")

    job = start().run("slow")

    assert (job["status"], job["last_error"]) == ("dead", "attempts used up (1 of 1): timed out after 200ms")
    assert home.rows("SELECT status FROM job_log") == [{"status": "timed_out"}]


def test_an_event_creates_one_job_per_matching_route(home: Home, start: Start) -> None:
    """The jobs are in the tree of the emitting job. An event without a route is in the journal."""
    response = {"status": "ok", "result": "out", "events": [{"type": "made", "payload": {"n": 7}}, {"type": "lost"}]}
    home.plugin("emitter", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(response)}'\n")
    home.plugin("receiver", REQUEST_TO_STATE)
    home.add("routes:\n" + "  - {from: emitter, event_type: made, to: receiver}\n" * 2)
    service = start()

    parent = service.run("emitter")
    children = home.rows(
        "SELECT id, submitted_by, root_job_id FROM job_queue WHERE parent_job_id = ?", parent["job_id"]
    )
    received = [service.job(child["id"], wait="30s") for child in children]

    assert [(child["submitted_by"], child["root_job_id"]) for child in children] == [("route", parent["job_id"])] * 2
    for child in received:
        event = child["result"]["state_updates"]["request"]["event"]
        assert (event["type"], event["source"]) == ("made", "emitter")
        assert event["payload"] == {"n": 7, "result": "out"}
    unmatched = home.rows("SELECT data FROM journal WHERE kind = 'event.unmatched'")
    assert [json.loads(row["data"])["type"] for row in unmatched] == ["lost"]


def test_a_chain_of_routes_ends_at_the_hop_limit(home: Home, start: Start) -> None:
    """After 20 hops, the last job is dead with the reason."""
    response = {"status": "ok", "result": "again", "events": [{"type": "again"}]}
    home.plugin("loop-a", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(response)}'\n")
    home.plugin("loop-b", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(response)}'\n")
    home.add(
        "routes:\n  - {from: loop-a, event_type: again, to: loop-b}\n"
        "  - {from: loop-b, event_type: again, to: loop-a}\n"
    )
    service = start()
    service.post("loop-a")

    service.wait_for_log("job succeeded")
    ended = poll_until(lambda: home.rows("SELECT last_error, hops FROM job_queue WHERE status = 'dead'"))

    assert ended == [{"last_error": "chain of more than 20 hops", "hops": 21}]


def test_a_fact_is_stored_and_becomes_the_state_of_its_plugin(home: Home, start: Start) -> None:
    """A command with a fact rule appends a fact."""
    answer = {"status": "ok", "result": "seen", "state_updates": {"n": 1}}
    rule = "fact_outputs: [{when: {command: poll}, from: state_updates, fact_type: seen.snapshot}]\n"
    home.plugin("seen", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(answer)}'\n", more=rule)

    start().run("seen")

    assert home.rows("SELECT fact_type, fact_json, seq FROM plugin_facts") == [
        {"fact_type": "seen.snapshot", "fact_json": '{"n":1}', "seq": 1}
    ]
    assert home.rows("SELECT state FROM plugin_state") == [{"state": '{"n":1}'}]


def test_stderr_of_a_running_job_can_be_read(home: Home, start: Start) -> None:
    """The API and `job inspect` show it."""
    home.plugin("logger", "#!/bin/sh\necho so far >&2\nexec sleep 60\n")
    service = start()
    job_id = service.post("logger")

    seen = poll_until(lambda: service.job(job_id).get("stderr"))

    assert seen == "so far\n"
    inspected = json.loads(ductile(home, "job", "inspect", job_id, "--json").stdout)
    assert (inspected["status"], inspected["stderr"]) == ("running", "so far\n")


def test_the_local_socket_needs_no_token(home: Home, start: Start) -> None:
    """Its mode is 0600."""
    home.plugin("ok", OK)
    service = start()

    done = ductile(home, "plugin", "run", "ok", "--wait", "--json")

    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "succeeded"
    assert Path(service.socket_path).stat().st_mode & 0o777 == 0o600
    assert home.rows("SELECT submitted_by FROM job_queue") == [{"submitted_by": "cli"}]


def test_plugin_run_exits_1_when_the_job_did_not_succeed(home: Home, start: Start) -> None:
    """The output has the error."""
    home.plugin("fails", "#!/bin/sh\nexit 78\n")
    start()

    done = ductile(home, "plugin", "run", "fails", "--wait")

    assert done.exit_code == 1
    assert "exit code 78" in done.stdout


def test_a_command_without_a_service_exits_69(home: Home) -> None:
    """The hint names the command that starts it."""
    home.plugin("ok", OK)

    done = ductile(home, "plugin", "run", "ok", "--json")

    assert done.exit_code == 69
    assert "system start" in json.loads(done.stdout)["hint"]


def test_job_inspect_works_without_a_service(home: Home, start: Start) -> None:
    """It reads the ledger."""
    home.plugin("ok", OK)
    service = start()
    job_id = service.run("ok")["job_id"]
    service.stop()

    inspected = json.loads(ductile(home, "job", "inspect", job_id, "--json").stdout)

    assert inspected["status"] == "succeeded"
    assert [entry["kind"] for entry in inspected["journal"]] == ["job.enqueued", "job.started", "job.completed"]
    assert ductile(home, "job", "inspect", "00000000-0000-4000-8000-000000000000").exit_code == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/plugin/nope/poll", None, 404, "not_found"),
        ("POST", "/plugin/ok/nope", None, 400, "command_unknown"),
        ("POST", "/plugin/off/poll", None, 409, "plugin_unavailable"),
        ("POST", "/plugin/ok/poll", b"{", 400, "bad_request"),
        ("POST", "/plugin/ok/poll", b'{"payload": NaN}', 400, "bad_request"),
        ("POST", "/plugin/ok/poll", [], 400, "bad_request"),
        ("POST", "/plugin/ok/poll", {"message": "x"}, 400, "bad_request"),
        ("POST", "/plugin/ok/poll", {"payload": [1]}, 400, "bad_request"),
        ("GET", "/job/nonsense", None, 400, "bad_request"),
        ("GET", "/job/00000000-0000-4000-8000-000000000000", None, 404, "not_found"),
        ("GET", "/job/00000000-0000-4000-8000-000000000000?wait=soon", None, 400, "bad_request"),
        ("GET", "/nowhere", None, 404, "not_found"),
        ("DELETE", "/healthz", None, 405, "method_not_allowed"),
    ],
)
def test_an_invalid_request_is_refused_and_creates_no_job(
    home: Home, start: Start, method: str, path: str, body: Any, status: int, code: str
) -> None:
    """Every error has the same fields."""
    home.plugin("ok", OK)
    home.plugin("off", OK)
    home.add("plugins:\n  ok: {}\n  off: {enabled: false}\n")

    response_status, error = start().ask(method, path, body)

    assert (response_status, error["code"], error["status"]) == (status, code, status)
    assert set(error) == {"error", "code", "status", "hint", "context"}
    assert home.rows("SELECT * FROM job_queue") == []


@pytest.mark.parametrize("token", [None, "wrong", "e2e-token-0123456789abcdeF", "ünicode"])
def test_a_wrong_token_is_401(home: Home, start: Start, token: str | None) -> None:
    """GET /healthz needs no token."""
    home.plugin("ok", OK)
    service = start()
    sent = {"authorization": f"Bearer {token}".encode().decode("latin-1")} if token else {}

    assert service.ask("POST", "/plugin/ok/poll", token=None, headers=sent)[0] == 401
    assert service.ask("GET", "/healthz", token=None)[0] == 200


def test_plugin_scopes_separate_reading_and_writing_commands(home: Home, start: Start) -> None:
    """plugin:ro runs commands of type read. Commands of type write need plugin:rw."""
    home.plugin("both", OK, commands="poll: {type: read}, send: {type: write}")
    home.replace('scopes: ["*"]', 'scopes: ["plugin:ro"]')
    service = start()

    assert service.ask("POST", "/plugin/both/poll")[0] == 202
    assert service.ask("POST", "/plugin/both/send")[0] == 403
    assert service.ask("GET", "/job/00000000-0000-4000-8000-000000000000")[0] == 403


def test_a_scope_can_name_one_plugin(home: Home, start: Start) -> None:
    """plugin:NAME:rw gives access to this plugin only."""
    for name in ("mine", "other"):
        home.plugin(name, OK)
    home.replace('scopes: ["*"]', 'scopes: ["plugin:mine:rw"]')
    service = start()

    assert service.ask("POST", "/plugin/mine/poll")[0] == 202
    assert service.ask("POST", "/plugin/other/poll")[0] == 403


def test_the_log_is_json_with_the_specified_fields(home: Home, start: Start) -> None:
    """Stderr of a plugin has level warn, log lines of its response have their response_line level."""
    logs = [{"level": "error", "message": "own line"}]
    answer = json.dumps({"status": "ok", "result": "x", "logs": logs})
    home.plugin("logger", f"#!/bin/sh\necho to stderr >&2\necho '{answer}'\n")
    service = start()

    job = service.run("logger")

    response_line = service.wait_for_log("own line")
    stderr_line = service.wait_for_log("to stderr")
    assert list(response_line)[:6] == ["timestamp", "level", "component", "plugin", "job_id", "message"]
    assert (response_line["level"], stderr_line["level"]) == ("error", "warn")
    assert response_line["job_id"] == stderr_line["job_id"] == job["job_id"]


def test_known_secrets_are_masked_in_logs_and_in_stored_stderr(home: Home, start: Start) -> None:
    """A printed password is replaced by stars."""
    home.plugin("leaks", "#!/bin/sh\necho password is hunter2hunter2 >&2\nexit 78\n")
    home.add("plugins:\n  leaks: {config: {password: hunter2hunter2}}\n")
    service = start()

    job = service.run("leaks")

    assert "hunter2" not in json.dumps(job)
    assert home.rows("SELECT stderr FROM job_log") == [{"stderr": "password is ***\n"}]
    service.wait_for_log("password is ***")
    assert "hunter2" not in json.dumps(service.lines)
