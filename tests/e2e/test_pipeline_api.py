"""Pipelines over HTTP: start a run, wait for it or not, look at its tree."""

import http.client
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ductile.web.context import RECHECK_INTERVAL
from tests.e2e.furnished import Door, furnish, steps
from tests.e2e.service import PATIENCE, TOKEN, Home, Service

Start = Callable[..., Service]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for everything that leaves it as it was."""
    running = furnish(Home.make(tmp_path_factory.mktemp("pipelines") / "ductile")).start()
    yield running
    running.kill()


@pytest.fixture
def door(home: Home) -> Iterator[Door]:
    """A synchronous pipeline `slow` whose one step waits at the door."""
    made = Door.make(home)
    home.add(
        "pipelines:\n  - {name: slow, on: slow.wanted, execution_mode: synchronous, steps: [{id: wait, uses: door}]}\n"
        "  - {name: hasty, on: x, execution_mode: synchronous, timeout: 50ms, steps: [{id: wait, uses: door}]}\n"
    )
    yield made
    made.close()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Callers that wait while the test goes on."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


Answer = tuple[int, Any]


def later(aside: ThreadPoolExecutor, service: Service, method: str, path: str) -> "Future[Answer]":
    return aside.submit(service.ask, method, path)


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_synchronous_pipeline_answers_with_its_result_and_its_tree(service: Service) -> None:
    """200 when the run is over: the whole response of its last step, and every job in order of creation."""
    status, body = service.ask("POST", "/pipeline/chain", {"payload": {"n": 2**63}})

    assert (status, body["status"]) == (200, "succeeded")
    assert list(body) == ["job_id", "status", "duration_ms", "result", "tree"]
    assert body["result"]["result"] == "asked"
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
def test_a_run_that_is_over_at_once_is_answered_at_once(service: Service, pipeline: str) -> None:
    """Its end is announced before its caller can wait for that, or not at all."""
    began = time.monotonic()
    status, body = service.ask("POST", f"/pipeline/{pipeline}")
    assert (status, body["status"]) == (200, "succeeded")
    assert time.monotonic() - began < RECHECK_INTERVAL


@pytest.mark.parametrize("path", ["/pipeline/later", "/pipeline/chain?async=true"])
def test_without_waiting_the_answer_is_the_id_of_a_durable_run(service: Service, path: str) -> None:
    """202 as soon as the run is in the ledger; its tree can be asked for."""
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
        ("dies", "dead", ["worn dead"]),
        ("tolerant", "succeeded", ["bad failed", "last succeeded"]),
    ],
)
def test_a_failure_that_nobody_tolerates_fails_the_run(
    service: Service, pipeline: str, status: str, tree: list[str]
) -> None:
    """The status is that of the last job that was not allowed to fail."""
    answered, body = service.ask("POST", f"/pipeline/{pipeline}")

    assert (answered, body["status"], steps(body["tree"])) == (200, status, tree)


def test_what_is_no_answer_is_shown_as_output(service: Service) -> None:
    """A result is always the plugin's JSON; other output stands beside the error, and the run has no result of it."""
    _, body = service.ask("POST", "/pipeline/fails")

    bad = body["tree"][1]
    assert ("result" in bad, bad["output"]) == (False, "not an answer\n")
    assert bad["last_error"].startswith("exit code 78")
    assert body["result"] == {"status": "ok", "result": "done"}


def test_a_tolerated_failure_is_marked_in_the_tree(service: Service) -> None:
    """Whoever reads the tree sees why the run did not fail."""
    _, body = service.ask("POST", "/pipeline/tolerant")

    assert [node.get("tolerated") for node in body["tree"]] == [True, None]


def test_a_run_may_end_before_a_step_that_is_bypassed(service: Service) -> None:
    """The result is that of the last step that ran and may end the run; the switch stands in the tree."""
    _, body = service.ask("POST", "/pipeline/bypassed")

    assert steps(body["tree"]) == ["first succeeded", "maybe__switch succeeded"]
    assert body["result"]["result"] == "asked"
    assert body["tree"][1]["result"] == {"matched": False, "event": "ductile.switch.false"}


def test_a_split_with_join_is_waited_for_as_a_whole(service: Service) -> None:
    """The answer comes after the step behind the join, which has seen the results of all branches."""
    _, body = service.ask("POST", "/pipeline/joined", {"payload": {"n": 1}})

    assert body["status"] == "succeeded"
    assert sorted(steps(body["tree"])) == sorted(
        ["core.start succeeded", "left succeeded", "right succeeded", "fan__join succeeded", "last succeeded"]
    )
    event = body["result"]["state_updates"]["request"]["event"]
    assert event["type"] == "ductile.join.completed"
    assert [result["result"] for result in event["payload"]["results"]] == ["done", "done"]


def test_a_large_tree_is_complete(service: Service) -> None:
    """More jobs than are read in one go: all of them, in order of creation."""
    _, body = service.ask("POST", "/pipeline/wide", {"payload": {"items": list(range(60))}})

    assert (body["status"], len(body["tree"])) == ("succeeded", 61)
    assert [node["job_id"] for node in body["tree"]] == [
        row["id"]
        for row in service.home.rows("SELECT id FROM job_queue WHERE root_job_id = ? ORDER BY seq", body["job_id"])
    ]


def test_runs_of_hooks_are_no_part_of_the_answer(service: Service) -> None:
    """A hook is a tree of its own: nobody waits for it."""
    _, body = service.ask("POST", "/pipeline/noticed")

    assert steps(body["tree"]) == ["only succeeded"]
    (hook,) = service.home.rows("SELECT id, root_job_id FROM job_queue WHERE parent_job_id = ?", body["job_id"])
    assert hook["id"] == hook["root_job_id"]


def test_whoever_asks_by_name_is_not_asked_for_conditions(service: Service) -> None:
    """`if` and `from_plugin` of a pipeline are for events."""
    assert service.ask("POST", "/pipeline/guarded")[0] == 202


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────────

BLOB = "x" * 600_000


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "says"),
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
        ("idle", None, 409, "plugin_unavailable", "plugin off is disabled"),
        ("wide", {"payload": {"items": 7}}, 422, "run_refused", "payload.items is not a list"),
        ("wide", {"payload": {"items": [0] * 1001}}, 422, "run_refused", "max_items is 1,000"),
    ],
)
def test_a_run_that_cannot_begin_leaves_nothing(
    service: Service, path: str, body: Any, status: int, code: str, says: str
) -> None:
    """The one shape of errors, with the reason, and no row."""
    before = service.home.rows("SELECT COUNT(*) AS n FROM job_queue")

    answered, error = service.ask("POST", f"/pipeline/{path}", body)

    assert (answered, error["code"], error["status"]) == (status, code, status)
    assert says in error["error"]
    assert service.home.rows("SELECT COUNT(*) AS n FROM job_queue") == before


def test_a_first_step_whose_plugin_is_unhealthy_is_refused(home: Home, start: Start) -> None:
    """As for the plugin itself: 409 with what its `init` said, and no run that would only wait."""
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
def test_a_tree_that_does_not_exist_is_an_error(service: Service, path: str, status: int, code: str) -> None:
    """An unknown id is 404, not an empty list."""
    answered, error = service.ask("GET", path)

    assert (answered, error["code"]) == (status, code)


def test_any_job_of_a_tree_shows_all_of_it(service: Service) -> None:
    """The tree of a member is the tree of its root; a job of a plugin alone is a tree of one."""
    _, body = service.ask("POST", "/pipeline/chain")
    alone = service.post("ok")

    assert service.ask("GET", f"/job/{body['tree'][1]['job_id']}/tree") == (200, body["tree"])
    (node,) = service.ask("GET", f"/job/{alone}/tree?wait=30s")[1]
    assert (node["job_id"], node["status"], "pipeline" in node) == (alone, "succeeded", False)


def test_starting_a_pipeline_needs_the_right_to_write(home: Home, start: Start) -> None:
    """plugin:rw for all plugins, since a pipeline can use any of them."""
    furnish(home)
    config = home.path / "config.yaml"
    scopes = '["plugin:ro", "plugin:ok:rw", "jobs:ro"]'
    config.write_text(config.read_text().replace('scopes: ["*"]', f"scopes: {scopes}"))

    assert start().ask("POST", "/pipeline/later")[0] == 403
    assert home.rows("SELECT * FROM job_queue") == []


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_caller_that_waits_too_long_is_told_and_comes_back_by_id(
    home: Home, start: Start, door: Door, aside: ThreadPoolExecutor
) -> None:
    """202 after the pipeline's timeout; the run goes on, and `?wait=` re-attaches to it."""
    service = start()

    status, body = service.ask("POST", "/pipeline/hasty")

    assert (status, body["status"], body["timeout_exceeded"]) == (202, "running", True)
    assert f"/job/{body['job_id']}/tree" in body["message"]
    door.reached()
    again = later(aside, service, "GET", f"/job/{body['job_id']}/tree?wait=30s")
    door.let_through()
    assert (again.result()[0], steps(again.result()[1])) == (200, ["wait succeeded"])


def test_a_wait_that_is_over_shows_the_tree_as_it_is(home: Home, start: Start, door: Door) -> None:
    """`?wait=` promises patience, not an end."""
    service = start()
    _, body = service.ask("POST", "/pipeline/slow?async=true")
    door.reached()

    assert steps(service.ask("GET", f"/job/{body['job_id']}/tree?wait=1ms")[1]) == ["wait running"]
    door.let_through()


def allow_one_caller(home: Home) -> None:
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("  listen: 127", "  max_concurrent_sync: 1\n  listen: 127"))


def test_no_more_callers_wait_than_the_operator_allows(
    home: Home, start: Start, door: Door, aside: ThreadPoolExecutor
) -> None:
    """503 with Retry-After before anything is enqueued; a place that becomes free is free."""
    allow_one_caller(home)
    service = start()
    first = later(aside, service, "POST", "/pipeline/slow")
    door.reached()

    status, headers, error = post_with_headers(service, "/pipeline/slow")

    assert (status, error["code"], headers["retry-after"]) == (503, "too_many_callers", "5")
    assert len(home.rows("SELECT id FROM job_queue")) == 1
    assert service.ask("POST", "/pipeline/slow?async=true")[0] == 202, "whoever does not wait takes no place"
    door.let_through(3)
    assert first.result()[0] == 200
    assert service.ask("POST", "/pipeline/slow")[0] == 200


def post_with_headers(service: Service, path: str) -> tuple[int, dict[str, str], Any]:
    where = urlsplit(service.url)
    with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE)) as connection:
        connection.request("POST", path, headers={"authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, json.loads(answer.read())


def raw_post(service: Service, path: str) -> socket.socket:
    """A connection over which the request was sent, and nothing was read."""
    where = urlsplit(service.url)
    client = socket.create_connection((where.hostname, where.port), timeout=PATIENCE)
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n\r\n"
    client.sendall(head.encode())
    return client


def test_a_client_that_hangs_up_ends_its_waiting_and_never_the_run(home: Home, start: Start, door: Door) -> None:
    """Its place is free for the next caller, and the run it began comes to its end."""
    allow_one_caller(home)
    service = start()
    client = raw_post(service, "/pipeline/slow")
    door.reached()
    client.close()
    service.wait_for_log("POST /pipeline/slow 0")
    door.let_through(2)

    assert service.ask("POST", "/pipeline/slow")[0] == 200
    (first, _) = home.rows("SELECT id FROM job_queue ORDER BY seq")
    assert steps(service.ask("GET", f"/job/{first['id']}/tree?wait=30s")[1]) == ["wait succeeded"]


@pytest.mark.parametrize("pipeline", ["later", "chain"])
def test_a_client_that_asks_and_leaves_at_once_has_asked(home: Home, start: Start, pipeline: str) -> None:
    """The request was complete, so the run begins, whether or not anybody is there to hear of it."""
    furnish(home)
    service = start()

    raw_post(service, f"/pipeline/{pipeline}").close()

    service.wait_for_log(f"POST /pipeline/{pipeline} ")
    (root,) = home.rows("SELECT id FROM job_queue WHERE id = root_job_id")
    tree = service.ask("GET", f"/job/{root['id']}/tree?wait=30s")[1]
    assert {node["status"] for node in tree} == {"succeeded"}


def test_everybody_who_waits_for_a_tree_is_told(
    home: Home, start: Start, door: Door, aside: ThreadPoolExecutor
) -> None:
    """One waiter never takes the place of another."""
    service = start()
    caller = later(aside, service, "POST", "/pipeline/slow")
    door.reached()
    (root,) = home.rows("SELECT id FROM job_queue")
    others = [later(aside, service, "GET", f"/job/{root['id']}/tree?wait=30s") for _ in range(4)]
    door.let_through()

    assert caller.result()[1]["status"] == "succeeded"
    assert [steps(other.result()[1]) for other in others] == [["wait succeeded"]] * 4


def test_after_a_crash_a_client_finds_its_run_again(
    home: Home, start: Start, door: Door, aside: ThreadPoolExecutor
) -> None:
    """The run goes on after the restart; whoever knows its id waits for it as before."""
    service = start()
    _, body = service.ask("POST", "/pipeline/slow?async=true")
    door.reached()
    service.kill()

    service = start()
    door.reached()
    again = later(aside, service, "GET", f"/job/{body['job_id']}/tree?wait=30s")
    door.let_through()

    (node,) = again.result()[1]
    assert (node["status"], node["attempt"]) == ("succeeded", 2)


def test_a_service_that_stops_tells_its_waiters(
    home: Home, start: Start, door: Door, aside: ThreadPoolExecutor
) -> None:
    """Nobody is left hanging: the caller learns the id and that the run is not lost."""
    service = start()
    caller = later(aside, service, "POST", "/pipeline/slow")
    door.reached()
    service.signal(signal.SIGTERM)

    status, body = caller.result()

    assert (status, body["status"], body["timeout_exceeded"]) == (202, "running", False)
    assert "stopping" in body["message"]
    door.let_through()
    assert service.wait() == 0


def test_the_operator_needs_no_token(home: Home, start: Start) -> None:
    """Over the local socket a run is started in the operator's name."""
    furnish(home)
    service = start()
    client = socket.socket(socket.AF_UNIX)
    with closing(client):
        client.settimeout(PATIENCE)
        client.connect(str(Path(service.socket_path)))
        client.sendall(b"POST /pipeline/chain HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")
        assert client.recv(64).startswith(b"HTTP/1.1 200 ")
    assert home.rows("SELECT submitted_by FROM job_queue WHERE id = root_job_id") == [{"submitted_by": "cli"}]
