"""Pipelines over HTTP: start a run, wait for it, and read its tree."""

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ductile.web.context import RECHECK_INTERVAL
from tests.e2e.commands import ductile
from tests.e2e.sample_pipelines import add_sample_pipelines, steps
from tests.e2e.sample_plugins import OK, BlockingPlugin
from tests.e2e.service import TOKEN, WAIT_SECONDS, Home, Service, Start


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start one service for all tests that do not change it."""
    running = add_sample_pipelines(Home.make(tmp_path_factory.mktemp("pipelines") / "ductile")).start()
    yield running
    running.kill()


@pytest.fixture
def blocking(home: Home, blocking: BlockingPlugin) -> BlockingPlugin:
    """Add the synchronous pipelines `slow` and `hasty`, whose only step is the blocking plugin."""
    home.add(
        "pipelines:\n"
        "  - {name: slow, on: slow.requested, execution_mode: synchronous, steps: [{id: wait, uses: blocking}]}\n"
        "  - {name: hasty, on: x, execution_mode: synchronous, timeout: 50ms, steps: [{id: wait, uses: blocking}]}\n"
    )
    return blocking


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool for requests that wait while the test continues."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


Response = tuple[int, Any]


def send_in_background(background: ThreadPoolExecutor, service: Service, method: str, path: str) -> "Future[Response]":
    return background.submit(service.ask, method, path)


def test_a_run_by_name_reports_the_value_of_the_condition_of_its_pipeline(home: Home, start: Start) -> None:
    """It is not applied. A pipeline without a condition reports nothing; `pipeline run` prints a note."""
    home.plugin("ok", OK)
    condition = "if: {path: payload.level, op: gte, value: 5}"
    home.add(
        "pipelines:\n"
        f"  - {{name: urgent, on: x, {condition}, steps: [{{uses: ok}}]}}\n"
        f"  - {{name: waiting, on: x, execution_mode: synchronous, {condition}, steps: [{{uses: ok}}]}}\n"
        "  - {name: always, on: x, steps: [{uses: ok}]}\n"
    )
    service = start()

    def if_holds(path: str, level: int) -> Any:
        return service.ask("POST", f"/pipeline/{path}", {"payload": {"level": level}})[1].get("if_holds")

    assert [if_holds("urgent", level) for level in (4, 5)] == [False, True]
    assert [if_holds("waiting", level) for level in (4, 5)] == [False, True]
    assert [if_holds("urgent?dry_run=true", level) for level in (4, 5)] == [False, True]
    assert [if_holds("always", level) for level in (4, 5)] == [None, None]
    printed = ductile(home, "pipeline", "run", "urgent", "--payload", '{"level": 4}', "--wait")
    assert (printed.exit_code, "the `if` of the pipeline is false" in printed.stderr) == (0, True)


# ── responses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_synchronous_pipeline_returns_its_result_and_its_tree(service: Service) -> None:
    """The status is 200. The body has the response of the last step and every job in order of creation."""
    status, body = service.ask("POST", "/pipeline/chain", {"payload": {"n": 2**63}})

    assert (status, body["status"]) == (200, "succeeded")
    assert list(body) == ["job_id", "status", "duration_ms", "result", "tree"]
    assert body["result"]["result"] == "recorded"
    assert body["result"]["state_updates"]["request"]["event"]["payload"]["n"] == 2**63
    first, last = body["tree"]
    assert (first["job_id"], last["parent_job_id"], first.get("parent_job_id")) == (body["job_id"],) * 2 + (None,)
    assert (first["plugin"], first["command"], first["pipeline"], first["step_id"]) == (
        "ok",
        "handle",
        "chain",
        "first",
    )
    assert (first["result"], first["attempt"]) == ({"status": "ok", "result": "done"}, 1)
    assert ("terminal" in first, last["terminal"]) == (False, True)
    assert first["created_at"] <= first["started_at"] <= first["completed_at"] <= last["created_at"]
    assert 0 <= first["duration_ms"] <= body["duration_ms"]


@pytest.mark.parametrize("pipeline", ["skipped", "skipped-join"])
def test_a_run_that_ends_at_its_start_is_returned_at_once(service: Service, pipeline: str) -> None:
    """The request does not wait for the next check of the ledger."""
    began = time.monotonic()
    status, body = service.ask("POST", f"/pipeline/{pipeline}")
    assert (status, body["status"]) == (200, "succeeded")
    assert time.monotonic() - began < RECHECK_INTERVAL


@pytest.mark.parametrize("path", ["/pipeline/later", "/pipeline/chain?async=true"])
def test_an_asynchronous_request_returns_the_id_of_a_committed_run(service: Service, path: str) -> None:
    """The status is 202, and the tree can be read."""
    status, body = service.ask("POST", path)

    assert status == 202
    assert body == {
        "job_id": body["job_id"],
        "status": "queued",
        "plugin": "pipeline",
        "command": path.removeprefix("/pipeline/").partition("?")[0],
    }
    status, tree = service.ask("GET", f"/job/{body['job_id']}/tree?wait=30s")
    assert (status, {node["status"] for node in tree}) == (200, {"succeeded"})


@pytest.mark.parametrize(
    ("pipeline", "status", "tree"),
    [
        ("fails", "failed", ["first succeeded", "bad failed"]),
        ("dies", "dead", ["one-attempt dead"]),
        ("tolerant", "succeeded", ["bad failed", "last succeeded"]),
    ],
)
def test_a_failure_that_is_not_tolerated_fails_the_run(
    service: Service, pipeline: str, status: str, tree: list[str]
) -> None:
    """The status of the run is that of the last job without `continue: true`."""
    response_status, body = service.ask("POST", f"/pipeline/{pipeline}")

    assert (response_status, body["status"], steps(body["tree"])) == (200, status, tree)


def test_output_that_is_no_response_is_returned_as_output(service: Service) -> None:
    """`result` is always a response of a plugin. Other output is in `output`, and the run does not use it."""
    _, body = service.ask("POST", "/pipeline/fails")

    bad = body["tree"][1]
    assert ("result" in bad, bad["output"]) == (False, "not a response\n")
    assert bad["last_error"].startswith("exit code 78")
    assert body["result"] == {"status": "ok", "result": "done"}


def test_a_tolerated_failure_is_marked_in_the_tree(service: Service) -> None:
    """The job has `tolerated: true`."""
    _, body = service.ask("POST", "/pipeline/tolerant")

    assert [node.get("tolerated") for node in body["tree"]] == [True, None]


def test_a_run_can_end_before_a_skipped_step(service: Service) -> None:
    """The result is that of the last step that ran. The switch is in the tree."""
    _, body = service.ask("POST", "/pipeline/bypassed")

    assert steps(body["tree"]) == ["first succeeded", "maybe__switch succeeded"]
    assert body["result"]["result"] == "recorded"
    assert body["tree"][1]["result"] == {"matched": False, "event": "ductile.switch.false"}


def test_a_response_waits_for_the_step_after_a_join(service: Service) -> None:
    """That step gets the results of all branches."""
    _, body = service.ask("POST", "/pipeline/joined", {"payload": {"n": 1}})

    assert body["status"] == "succeeded"
    assert sorted(steps(body["tree"])) == sorted(
        ["core.start succeeded", "left succeeded", "right succeeded", "fan__join succeeded", "last succeeded"]
    )
    event = body["result"]["state_updates"]["request"]["event"]
    assert event["type"] == "ductile.join.completed"
    assert [result["result"] for result in event["payload"]["results"]] == ["done", "done"]


def test_a_tree_of_several_pages_is_complete(service: Service) -> None:
    """All jobs are returned in order of creation."""
    _, body = service.ask("POST", "/pipeline/wide", {"payload": {"items": list(range(60))}})

    assert (body["status"], len(body["tree"])) == ("succeeded", 61)
    assert [node["job_id"] for node in body["tree"]] == [
        row["id"]
        for row in service.home.rows("SELECT id FROM job_queue WHERE root_job_id = ? ORDER BY seq", body["job_id"])
    ]


def test_a_hook_run_is_not_part_of_the_response(service: Service) -> None:
    """A hook is a tree of its own."""
    _, body = service.ask("POST", "/pipeline/noticed")

    assert steps(body["tree"]) == ["only succeeded"]
    (hook,) = service.home.rows("SELECT id, root_job_id FROM job_queue WHERE parent_job_id = ?", body["job_id"])
    assert hook["id"] == hook["root_job_id"]


def test_a_run_by_name_ignores_trigger_conditions(service: Service) -> None:
    """`if` and `from_plugin` of a pipeline apply to events only."""
    assert service.ask("POST", "/pipeline/guarded")[0] == 202


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────────

BLOB = "x" * 600_000


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "message"),
    [
        ("chian", None, 404, "not_found", "pipeline 'chian' does not exist (did you mean 'chain'?)"),
        ("chain", b"{", 400, "bad_request", "the body is not JSON"),
        ("chain", {"payload": []}, 400, "bad_request", "payload must be a JSON object"),
        ("chain", {"n": 1}, 400, "bad_request", "unknown key 'n'"),
        ("chain?async=maybe", None, 400, "bad_request", "async: expected true or false"),
        ("later?async=maybe", None, 400, "bad_request", "async: expected true or false"),
        ("chain?async=true&async=true", None, 400, "argument_repeated", "query argument 'async'"),
        ("keeps", None, 400, "bad_request", "pipeline keeps cannot start: only: baggage one: payload.blob is absent"),
        ("keeps", {"payload": {"blob": BLOB}}, 413, "context_too_large", "the limit is 1,048,576"),
        ("idle", None, 409, "plugin_unavailable", "plugin disabled is disabled"),
        ("wide", {"payload": {"items": 7}}, 422, "run_refused", "payload.items is not a list"),
        ("wide", {"payload": {"items": [0] * 1001}}, 422, "run_refused", "max_items is 1,000"),
    ],
)
def test_a_refused_run_creates_no_job(
    service: Service, path: str, body: Any, status: int, code: str, message: str
) -> None:
    """The error has a code, a status and the reason."""
    before = service.home.rows("SELECT COUNT(*) AS n FROM job_queue")

    response_status, error = service.ask("POST", f"/pipeline/{path}", body)

    assert (response_status, error["code"], error["status"]) == (status, code, status)
    assert message in error["error"]
    assert service.home.rows("SELECT COUNT(*) AS n FROM job_queue") == before


def test_a_run_whose_first_plugin_is_unhealthy_is_refused(home: Home, start: Start) -> None:
    """The status is 409, and the error has the message of `init`."""
    answer = '{"status": "error", "error": "no such account", "retry": false}'
    home.plugin("careful", f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n", commands="init: {}, handle: {}")
    home.add("plugins: {careful: {}}\npipelines:\n  - {name: p, on: x, steps: [{uses: careful}]}\n")
    service = start()
    service.wait_for_log("no such account")

    status, error = service.ask("POST", "/pipeline/p")

    assert (status, error["code"]) == (409, "plugin_unavailable")
    assert "no such account" in error["error"]
    assert home.rows("SELECT * FROM job_queue WHERE pipeline = 'p'") == []


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/job/nonsense/tree", 400, "bad_request"),
        ("/job/00000000-0000-4000-8000-000000000000/tree", 404, "not_found"),
        ("/job/00000000-0000-4000-8000-000000000000/tree?wait=10s", 404, "not_found"),
        ("/job/00000000-0000-4000-8000-000000000000/tree?wait=soon", 400, "bad_request"),
    ],
)
def test_a_tree_of_an_unknown_job_is_an_error(service: Service, path: str, status: int, code: str) -> None:
    """An unknown id is 404, not an empty list."""
    response_status, error = service.ask("GET", path)

    assert (response_status, error["code"]) == (status, code)


def test_every_job_id_of_a_tree_returns_the_whole_tree(service: Service) -> None:
    """A job without a pipeline is a tree of one job."""
    _, body = service.ask("POST", "/pipeline/chain")
    alone = service.post("ok")

    assert service.ask("GET", f"/job/{body['tree'][1]['job_id']}/tree") == (200, body["tree"])
    (node,) = service.ask("GET", f"/job/{alone}/tree?wait=30s")[1]
    assert (node["job_id"], node["status"], "pipeline" in node) == (alone, "succeeded", False)


def test_starting_a_pipeline_needs_plugin_rw(home: Home, start: Start) -> None:
    """The scope must cover all plugins, because a pipeline can use any of them."""
    add_sample_pipelines(home)
    scopes = '["plugin:ro", "plugin:ok:rw", "jobs:ro"]'
    home.replace('scopes: ["*"]', f"scopes: {scopes}")

    assert start().ask("POST", "/pipeline/later")[0] == 403
    assert home.rows("SELECT * FROM job_queue") == []


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_that_exceeds_the_pipeline_timeout_returns_202(
    home: Home, start: Start, blocking: BlockingPlugin, background: ThreadPoolExecutor
) -> None:
    """It is on record, the run continues, and `?wait=` on its tree waits for it again."""
    service = start()

    status, body = service.ask("POST", "/pipeline/hasty")

    assert (status, body["status"], body["timeout_exceeded"]) == (202, "running", True)
    assert f"/job/{body['job_id']}/tree" in body["message"]
    why = service.ask("GET", f"/job/{body['job_id']}/why")[1]["reasons"]
    (recorded,) = [reason for reason in why if reason["code"] == "run_still_open"]
    assert (recorded["pipeline"], recorded["status"], recorded["reason"]) == ("hasty", 202, "timeout")
    blocking.wait_until_started()
    again = send_in_background(background, service, "GET", f"/job/{body['job_id']}/tree?wait=30s")
    blocking.release()
    assert (again.result()[0], steps(again.result()[1])) == (200, ["wait succeeded"])


def test_a_tree_request_whose_wait_ends_returns_the_unfinished_tree(
    home: Home, start: Start, blocking: BlockingPlugin
) -> None:
    """The status is 200."""
    service = start()
    _, body = service.ask("POST", "/pipeline/slow?async=true")
    blocking.wait_until_started()

    assert steps(service.ask("GET", f"/job/{body['job_id']}/tree?wait=1ms")[1]) == ["wait running"]
    blocking.release()


def allow_one_waiting_request(home: Home) -> None:
    home.replace("  listen: 127", "  max_concurrent_sync: 1\n  listen: 127")


def test_synchronous_requests_over_the_limit_are_refused(
    home: Home, start: Start, blocking: BlockingPlugin, background: ThreadPoolExecutor
) -> None:
    """The status is 503 with Retry-After, and no job is created. A finished request frees its slot."""
    allow_one_waiting_request(home)
    service = start()
    first = send_in_background(background, service, "POST", "/pipeline/slow")
    blocking.wait_until_started()

    status, headers, error = post_with_headers(service, "/pipeline/slow")

    assert (status, error["code"], headers["retry-after"]) == (503, "too_many_callers", "5")
    assert len(home.rows("SELECT id FROM job_queue")) == 1
    assert service.ask("POST", "/pipeline/slow?async=true")[0] == 202, "an asynchronous request needs no slot"
    blocking.release(3)
    assert first.result()[0] == 200
    assert service.ask("POST", "/pipeline/slow")[0] == 200


def post_with_headers(service: Service, path: str) -> tuple[int, dict[str, str], Any]:
    where = urlsplit(service.url)
    with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=WAIT_SECONDS)) as connection:
        connection.request("POST", path, headers={"authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, json.loads(answer.read())


def raw_post(service: Service, path: str) -> socket.socket:
    """Send a request and return the connection without reading the response."""
    where = urlsplit(service.url)
    client = socket.create_connection((where.hostname, where.port), timeout=WAIT_SECONDS)
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n\r\n"
    client.sendall(head.encode())
    return client


def test_a_client_that_disconnects_frees_its_slot_and_its_run_continues(
    home: Home, start: Start, blocking: BlockingPlugin
) -> None:
    """The next synchronous request is accepted."""
    allow_one_waiting_request(home)
    service = start()
    client = raw_post(service, "/pipeline/slow")
    blocking.wait_until_started()
    client.close()
    service.wait_for_log("POST /pipeline/slow 0")
    blocking.release(2)

    assert service.ask("POST", "/pipeline/slow")[0] == 200
    (first, _) = home.rows("SELECT id FROM job_queue ORDER BY seq")
    assert steps(service.ask("GET", f"/job/{first['id']}/tree?wait=30s")[1]) == ["wait succeeded"]


@pytest.mark.parametrize("pipeline", ["later", "chain"])
def test_a_complete_request_is_executed_although_its_client_disconnects(
    home: Home, start: Start, pipeline: str
) -> None:
    """The run starts and ends without a connection."""
    add_sample_pipelines(home)
    service = start()

    raw_post(service, f"/pipeline/{pipeline}").close()

    service.wait_for_log(f"POST /pipeline/{pipeline} ")
    (root,) = home.rows("SELECT id FROM job_queue WHERE id = root_job_id")
    tree = service.ask("GET", f"/job/{root['id']}/tree?wait=30s")[1]
    assert {node["status"] for node in tree} == {"succeeded"}


def test_all_requests_that_wait_for_one_tree_get_a_response(
    home: Home, start: Start, blocking: BlockingPlugin, background: ThreadPoolExecutor
) -> None:
    """Several waiting requests do not affect each other."""
    service = start()
    caller = send_in_background(background, service, "POST", "/pipeline/slow")
    blocking.wait_until_started()
    (root,) = home.rows("SELECT id FROM job_queue")
    others = [send_in_background(background, service, "GET", f"/job/{root['id']}/tree?wait=30s") for _ in range(4)]
    blocking.release()

    assert caller.result()[1]["status"] == "succeeded"
    assert [steps(other.result()[1]) for other in others] == [["wait succeeded"]] * 4


def test_a_run_can_be_waited_for_after_a_crash(
    home: Home, start: Start, blocking: BlockingPlugin, background: ThreadPoolExecutor
) -> None:
    """The run continues after the restart, and its id is still valid."""
    service = start()
    _, body = service.ask("POST", "/pipeline/slow?async=true")
    blocking.wait_until_started()
    service.kill()

    service = start()
    blocking.wait_until_started()
    again = send_in_background(background, service, "GET", f"/job/{body['job_id']}/tree?wait=30s")
    blocking.release()

    (node,) = again.result()[1]
    assert (node["status"], node["attempt"]) == ("succeeded", 2)


def test_a_stopping_service_answers_waiting_requests(
    home: Home, start: Start, blocking: BlockingPlugin, background: ThreadPoolExecutor
) -> None:
    """The response has the id of the run, which continues after the next start."""
    service = start()
    caller = send_in_background(background, service, "POST", "/pipeline/slow")
    blocking.wait_until_started()
    service.signal(signal.SIGTERM)

    status, body = caller.result()

    assert (status, body["status"], body["timeout_exceeded"]) == (202, "running", False)
    assert "stopping" in body["message"]
    blocking.release()
    assert service.wait() == 0


def test_the_local_socket_needs_no_token(home: Home, start: Start) -> None:
    """The run has `cli` as its submitter."""
    add_sample_pipelines(home)
    service = start()
    client = socket.socket(socket.AF_UNIX)
    with closing(client):
        client.settimeout(WAIT_SECONDS)
        client.connect(str(Path(service.socket_path)))
        client.sendall(b"POST /pipeline/chain HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")
        assert client.recv(64).startswith(b"HTTP/1.1 200 ")
    assert home.rows("SELECT submitted_by FROM job_queue WHERE id = root_job_id") == [{"submitted_by": "cli"}]
