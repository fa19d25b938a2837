"""The service from outside: start, trigger, wait, inspect, stop."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home, Service

Start = Callable[..., Service]

OK = """#!/bin/sh
cat > /dev/null
echo '{"status": "ok", "result": "done"}'
"""
ECHO_REQUEST = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
print(json.dumps({"status": "ok", "result": "got it", "state_updates": {"request": request}}))
"""


def cli(home: Home, *args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ductile", *args, "--config", str(home.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_job_that_is_acknowledged_runs_and_its_result_can_be_asked_for(home: Home, start: Start) -> None:
    """202 after the commit, then the plugin's own answer, verbatim."""
    home.plugin("ok", OK)
    service = start()

    job = service.run("ok")

    assert job["status"] == "succeeded"
    assert job["result"] == {"status": "ok", "result": "done"}
    assert home.rows("SELECT status FROM job_log") == [{"status": "succeeded"}]


def test_a_plugin_gets_the_request_of_protocol_2(home: Home, start: Start) -> None:
    """Everything a plugin may rely on is in the envelope; an event is wrapped for `handle`."""
    home.plugin("asks", ECHO_REQUEST)
    home.add("plugins:\n  asks: {config: {colour: blue}}\n")
    service = start()

    polled = service.run("asks", "poll", {"n": 2**63})["result"]["state_updates"]["request"]
    handled = service.run("asks", "handle", {"n": 1})["result"]["state_updates"]["request"]

    assert polled["protocol"] == 2
    assert (polled["command"], polled["config"], polled["state"]) == ("poll", {"colour": "blue"}, {})
    assert polled["payload"] == {"n": 2**63}
    assert (polled["attempt"], polled["max_attempts"]) == (1, 4)
    assert "event" not in polled
    assert handled["event"]["type"] == "api.trigger"
    assert handled["event"]["payload"] == {"n": 1}
    assert handled["payload"] == handled["event"]
    assert handled["state"]["request"]["job_id"] == polled["job_id"]


def test_the_environment_of_a_plugin_is_built_from_nothing(home: Home, start: Start) -> None:
    """What the service was started with does not leak; what the operator passes does."""
    home.plugin("env", "#!/usr/bin/env python3\n" + _say("dict(os.environ)"))
    home.add("plugins:\n  env: {env: {OWN: yes}}\n")
    service = start(environ={"CANARY": "secret-canary", "LC_TEST": "kept"})

    environ = service.run("env")["result"]["state_updates"]["seen"]

    assert "CANARY" not in environ
    assert (environ["OWN"], environ["LC_TEST"], environ["DUCTILE_PLUGIN"]) == ("yes", "kept", "env")
    assert environ["DUCTILE_PLUGIN_DIR"] == str(home.path / "plugins" / "env")
    assert environ["DUCTILE_JOB_ID"]
    assert environ["DUCTILE_INSTANCE"]


def test_plugins_run_in_the_configuration_directory(home: Home, start: Start) -> None:
    """Relative paths in a plugin's configuration mean the same as in config.yaml."""
    home.plugin("where", "#!/usr/bin/env python3\n" + _say("os.getcwd()"))

    assert start().run("where")["result"]["state_updates"]["seen"] == str(home.path)


def _say(expression: str) -> str:
    return (
        "import json, os, sys\njson.load(sys.stdin)\n"
        f'print(json.dumps({{"status": "ok", "result": "ok", "state_updates": {{"seen": {expression}}}}}))\n'
    )


def test_a_failing_job_is_retried_and_ends_dead_with_every_attempt_on_record(home: Home, start: Start) -> None:
    """Each attempt keeps its own stderr and error; the job says that its attempts are used up."""
    home.plugin("fails", "#!/bin/sh\necho oops >&2\nexit 3\n")
    home.add("plugins:\n  fails: {retry: {max_attempts: 3, backoff_base: 1ms}}\n")

    job = start().run("fails")

    assert job["status"] == "dead"
    assert job["last_error"].startswith("attempts used up (3 of 3): exit code 3")
    log = home.rows("SELECT attempt, status, stderr, exit_code FROM job_log ORDER BY attempt")
    assert [(row["attempt"], row["status"], row["exit_code"]) for row in log] == [(n, "failed", 3) for n in (1, 2, 3)]
    assert all(row["stderr"] == "oops\n" for row in log)


def test_a_job_that_outlives_its_deadline_times_out(home: Home, start: Start) -> None:
    """SIGTERM, then the attempt is timed_out, whatever it would have said."""
    home.plugin("slow", "#!/bin/sh\nexec sleep 60\n")
    home.add("plugins:\n  slow: {timeouts: {poll: 200ms}, retry: {max_attempts: 1}}\n")

    job = start().run("slow")

    assert (job["status"], job["last_error"]) == ("dead", "attempts used up (1 of 1): timed out after 200ms")
    assert home.rows("SELECT status FROM job_log") == [{"status": "timed_out"}]


def test_events_follow_the_routes(home: Home, start: Start) -> None:
    """Every matching route is a job, in one tree; an event nobody waits for is in the journal."""
    emits = {"status": "ok", "result": "out", "events": [{"type": "made", "payload": {"n": 7}}, {"type": "lost"}]}
    home.plugin("emits", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(emits)}'\n")
    home.plugin("takes", ECHO_REQUEST)
    home.add("routes:\n" + "  - {from: emits, event_type: made, to: takes}\n" * 2)
    service = start()

    parent = service.run("emits")
    children = home.rows(
        "SELECT id, submitted_by, root_job_id FROM job_queue WHERE parent_job_id = ?", parent["job_id"]
    )
    taken = [service.job(child["id"], wait="30s") for child in children]

    assert [(child["submitted_by"], child["root_job_id"]) for child in children] == [("route", parent["job_id"])] * 2
    for child in taken:
        event = child["result"]["state_updates"]["request"]["event"]
        assert (event["type"], event["source"]) == ("made", "emits")
        assert event["payload"] == {"n": 7, "result": "out"}
    unmatched = home.rows("SELECT data FROM journal WHERE kind = 'event.unmatched'")
    assert [json.loads(row["data"])["type"] for row in unmatched] == ["lost"]


def test_a_chain_of_routes_ends_visibly_at_the_hop_limit(home: Home, start: Start) -> None:
    """A loop of events stops after 20 crossings with a dead job that says so."""
    emits = {"status": "ok", "result": "again", "events": [{"type": "again"}]}
    home.plugin("loops", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(emits)}'\n")
    home.plugin("loops2", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(emits)}'\n")
    home.add(
        "routes:\n  - {from: loops, event_type: again, to: loops2}\n  - {from: loops2, event_type: again, to: loops}\n"
    )
    service = start()
    service.post("loops")

    service.wait_for_log("job succeeded")
    ended = _until(lambda: home.rows("SELECT last_error, hops FROM job_queue WHERE status = 'dead'"))

    assert ended == [{"last_error": "chain of more than 20 hops", "hops": 21}]


def _until(look: Callable[[], Any]) -> Any:
    """Look until there is something; the ledger has no event a test in another process could wait for."""
    deadline = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < deadline, "it never happened"
    return found


def test_facts_are_kept_and_mirrored_into_the_state(home: Home, start: Start) -> None:
    """A command with a fact rule appends a fact, which becomes the plugin's state as a whole."""
    answer = {"status": "ok", "result": "seen", "state_updates": {"n": 1}}
    rule = "fact_outputs: [{when: {command: poll}, from: state_updates, fact_type: seen.snapshot}]\n"
    home.plugin("seen", f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(answer)}'\n", more=rule)

    start().run("seen")

    assert home.rows("SELECT fact_type, fact_json, seq FROM plugin_facts") == [
        {"fact_type": "seen.snapshot", "fact_json": '{"n":1}', "seq": 1}
    ]
    assert home.rows("SELECT state FROM plugin_state") == [{"state": '{"n":1}'}]


def test_live_stderr_can_be_read_while_the_job_runs(home: Home, start: Start) -> None:
    """What a running job has said so far is shown by the API and by `job inspect`."""
    home.plugin("talks", "#!/bin/sh\necho so far >&2\nexec sleep 60\n")
    service = start()
    job_id = service.post("talks")

    seen = _until(lambda: service.job(job_id).get("stderr"))

    assert seen == "so far\n"
    inspected = json.loads(cli(home, "job", "inspect", job_id, "--json").stdout)
    assert (inspected["status"], inspected["stderr"]) == ("running", "so far\n")


def test_the_local_socket_needs_no_token_and_nobody_else_can_open_it(home: Home, start: Start) -> None:
    """`plugin run` works at once for the operator; the socket is 0600."""
    home.plugin("ok", OK)
    service = start()

    done = cli(home, "plugin", "run", "ok", "--wait", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "succeeded"
    assert Path(service.socket_path).stat().st_mode & 0o777 == 0o600
    assert home.rows("SELECT submitted_by FROM job_queue") == [{"submitted_by": "cli"}]


def test_plugin_run_exits_1_when_the_job_did_not_succeed(home: Home, start: Start) -> None:
    """A script can rely on the exit code."""
    home.plugin("fails", "#!/bin/sh\nexit 78\n")
    start()

    done = cli(home, "plugin", "run", "fails", "--wait")

    assert done.returncode == 1
    assert "exit code 78" in done.stdout


def test_without_a_service_the_cli_says_so(home: Home) -> None:
    """Exit 69 and the command that helps."""
    home.plugin("ok", OK)

    done = cli(home, "plugin", "run", "ok", "--json")

    assert done.returncode == 69
    assert "system start" in json.loads(done.stdout)["hint"]


def test_inspect_works_when_the_service_is_down(home: Home, start: Start) -> None:
    """The ledger can be read without the service."""
    home.plugin("ok", OK)
    service = start()
    job_id = service.run("ok")["job_id"]
    service.stop()

    inspected = json.loads(cli(home, "job", "inspect", job_id, "--json").stdout)

    assert inspected["status"] == "succeeded"
    assert [entry["kind"] for entry in inspected["journal"]] == ["job.enqueued", "job.started", "job.completed"]
    assert cli(home, "job", "inspect", "00000000-0000-4000-8000-000000000000").returncode == 1


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
def test_bad_requests_get_an_error_and_leave_nothing(
    home: Home, start: Start, method: str, path: str, body: Any, status: int, code: str
) -> None:
    """The one shape of errors, and no job."""
    home.plugin("ok", OK)
    home.plugin("off", OK)
    home.add("plugins:\n  ok: {}\n  off: {enabled: false}\n")

    answered, error = start().ask(method, path, body)

    assert (answered, error["code"], error["status"]) == (status, code, status)
    assert set(error) == {"error", "code", "status", "hint", "context"}
    assert home.rows("SELECT * FROM job_queue") == []


@pytest.mark.parametrize("token", [None, "wrong", "e2e-token-0123456789abcdeF", "ünicode"])
def test_a_wrong_token_is_401_without_a_hint_what_is_wrong_with_it(home: Home, start: Start, token: str | None) -> None:
    """No token, no entry; health alone is open."""
    home.plugin("ok", OK)
    service = start()
    sent = {"authorization": f"Bearer {token}".encode().decode("latin-1")} if token else {}

    assert service.ask("POST", "/plugin/ok/poll", token=None, headers=sent)[0] == 401
    assert service.ask("GET", "/healthz", token=None)[0] == 200


def test_scopes_decide_about_reading_and_writing_commands(home: Home, start: Start) -> None:
    """plugin:ro runs what only reads; what may write needs plugin:rw."""
    home.plugin("both", OK, commands="poll: {type: read}, send: {type: write}")
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace('scopes: ["*"]', 'scopes: ["plugin:ro"]'))
    service = start()

    assert service.ask("POST", "/plugin/both/poll")[0] == 202
    assert service.ask("POST", "/plugin/both/send")[0] == 403
    assert service.ask("GET", "/job/00000000-0000-4000-8000-000000000000")[0] == 403


def test_a_scope_can_speak_of_one_plugin_alone(home: Home, start: Start) -> None:
    """plugin:NAME:rw opens that plugin and no other."""
    for name in ("mine", "other"):
        home.plugin(name, OK)
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace('scopes: ["*"]', 'scopes: ["plugin:mine:rw"]'))
    service = start()

    assert service.ask("POST", "/plugin/mine/poll")[0] == 202
    assert service.ask("POST", "/plugin/other/poll")[0] == 403


def test_the_log_is_json_with_the_fields_of_the_specification(home: Home, start: Start) -> None:
    """timestamp, level, component, plugin, job_id, message; a plugin's stderr at warn, its own lines at their level."""
    logs = [{"level": "error", "message": "own line"}]
    answer = json.dumps({"status": "ok", "result": "x", "logs": logs})
    home.plugin("talks", f"#!/bin/sh\necho to stderr >&2\necho '{answer}'\n")
    service = start()

    job = service.run("talks")

    own = service.wait_for_log("own line")
    said = service.wait_for_log("to stderr")
    assert list(own)[:6] == ["timestamp", "level", "component", "plugin", "job_id", "message"]
    assert (own["level"], said["level"]) == ("error", "warn")
    assert own["job_id"] == said["job_id"] == job["job_id"]


def test_known_secrets_are_masked_in_logs_and_in_what_is_kept_of_stderr(home: Home, start: Start) -> None:
    """A plugin that prints its password shows stars."""
    home.plugin("leaks", "#!/bin/sh\necho password is hunter2hunter2 >&2\nexit 78\n")
    home.add("plugins:\n  leaks: {config: {password: hunter2hunter2}}\n")
    service = start()

    job = service.run("leaks")

    assert "hunter2" not in json.dumps(job)
    assert home.rows("SELECT stderr FROM job_log") == [{"stderr": "password is ***\n"}]
    service.wait_for_log("password is ***")
    assert "hunter2" not in json.dumps(service.lines)
