"""github_events converts each GitHub delivery to one typed event."""

import hashlib
import hmac
import http.client
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.service import WAIT_SECONDS, Home, Service
from tests.plugins.bundled import PLUGINS, run_plugin, run_raw
from tests.plugins.plugin_service import Start

SECRET = "a-secret-for-github-0123456789"
PUSH: dict[str, Any] = {
    "ref": "refs/heads/main",
    "before": "a" * 40,
    "after": "b" * 40,
    "compare": "https://github.com/octo/hello/compare/a...b",
    "repository": {"full_name": "octo/hello"},
    "sender": {"login": "cat"},
    "commits": [{"id": "b" * 40}],
    "head_commit": {"message": "Fix it\n\nAt last."},
}
PULL: dict[str, Any] = {
    "action": "opened",
    "pull_request": {
        "number": 7,
        "title": "Fix – it",
        "state": "open",
        "merged": False,
        "html_url": "https://github.com/octo/hello/pull/7",
        "head": {"ref": "fix"},
    },
    "repository": {"full_name": "octo/hello"},
    "sender": {"login": "cat"},
}
ENDPOINT = """\
webhooks:
  listen: localhost:0
  endpoints:
    - path: /hook/github
      plugin: github_events
      scheme: github
      secret_ref: github
      ping: deliver
"""
PIPELINES = """\
include: [tokens.yaml, webhooks.yaml]
pipelines:
  - {name: pushed, on: github.push, steps: [{uses: echo, with: {message: "{payload.branch} {payload.after}"}}]}
  - {name: opened, on: github.pull_request.opened, steps: [{uses: echo, with: {message: "{payload.text}"}}]}
  - {name: pinged, on: github.ping, steps: [{uses: echo, with: {message: "{payload.text}"}}]}
"""


@pytest.fixture
def service(home: Home, start: Start) -> Service:
    """A service in which pipelines pass the events of github_events to echo."""
    home.copy_plugin(PLUGINS / "github_events")
    home.copy_plugin(PLUGINS / "echo")
    home.write("tokens.yaml", f"tokens: [{{name: github, key: {SECRET}}}]\n")
    home.write("webhooks.yaml", ENDPOINT)
    home.add(PIPELINES)
    home.seal()
    return start()


def deliver(service: Service, kind: str, body: Mapping[str, Any], delivery: str) -> tuple[int, Any]:
    """Send a signed delivery like GitHub."""
    (line,) = [line for line in service.stderr if " is ready: " in line]
    parts = urlsplit(re.findall(r"http://[^,\s]+", line)[1])
    data = json.dumps(body).encode()
    signature = hmac.new(SECRET.encode(), data, hashlib.sha256).hexdigest()
    headers = {"X-GitHub-Event": kind, "X-GitHub-Delivery": delivery, "X-Hub-Signature-256": f"sha256={signature}"}
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)
    try:
        connection.request("POST", "/hook/github", data, {**headers, "Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def echo_result(service: Service, kind: str, body: Mapping[str, Any], delivery: str) -> str:
    """Deliver a webhook and return the result of the pipeline that it starts."""
    status, response = deliver(service, kind, body, delivery)
    assert status == 202, response
    status, tree = service.ask("GET", f"/job/{response['job_id']}/tree?wait=30s")
    assert status == 200, tree
    (row,) = service.home.rows("SELECT id FROM job_queue WHERE parent_job_id = ?", response["job_id"])
    return str(service.job(row["id"], wait="30s")["result"]["result"])


def test_signed_deliveries_start_pipelines(service: Service) -> None:
    """A push, a pull request and the first ping."""
    assert echo_result(service, "push", PUSH, "d-1") == f"echo: main {'b' * 40}"
    assert (
        echo_result(service, "pull_request", PULL, "d-2")
        == "echo: octo/hello: pull_request opened fix #7 Fix – it (by cat)"
    )
    assert (
        echo_result(service, "ping", {"zen": "Keep it simple.", "hook_id": 1}, "d-3")
        == "echo: GitHub: ping: Keep it simple."
    )


def test_a_delivery_without_the_event_header_is_final_with_a_hint(service: Service) -> None:
    job = service.run("github_events", "handle", PUSH)

    assert job["status"] == "failed"
    assert "forward_headers: [X-GitHub-Event, X-GitHub-Delivery]" in job["last_error"]


def handle(kind: Any, body: Mapping[str, Any], *, delivery: Any = "d-1", **config: Any) -> dict[str, Any]:
    headers = {"x-github-event": kind, "x-github-delivery": delivery}
    event = {"type": "webhook.github", "payload": body, "source": "webhook:/hook/github", "headers": headers}
    return run_plugin("github_events", "handle", config=config, event=event).response


def test_a_push_has_its_branch_commits_and_body() -> None:
    (event,) = handle("push", PUSH)["events"]

    assert (event["type"], event["dedupe_key"]) == ("github.push", "github:d-1")
    assert event["payload"] == {
        "event": "push",
        "action": None,
        "delivery_id": "d-1",
        "repository": "octo/hello",
        "sender": "cat",
        "ref": "refs/heads/main",
        "branch": "main",
        "before": "a" * 40,
        "after": "b" * 40,
        "commits": 1,
        "url": "https://github.com/octo/hello/compare/a...b",
        "title": "Fix it",
        "text": "octo/hello: push main Fix it (by cat)",
        "body": PUSH,
    }


@pytest.mark.parametrize(
    ("kind", "body", "event_type", "members"),
    [
        ("push", {"ref": "refs/tags/v1"}, "github.push", {"tag": "v1"}),
        ("pull_request", PULL, "github.pull_request.opened", {"number": 7, "merged": False, "branch": "fix"}),
        (
            "release",
            {"action": "published", "release": {"tag_name": "v1", "name": "One"}},
            "github.release.published",
            {"tag": "v1"},
        ),
        (
            "workflow_run",
            {"action": "completed", "workflow_run": {"conclusion": "failure", "status": "completed", "name": "CI"}},
            "github.workflow_run.completed",
            {"conclusion": "failure", "state": "completed", "title": "CI"},
        ),
        ("issue_comment", {"action": "created", "issue": {"number": 3}}, "github.issue_comment.created", {"number": 3}),
        ("create", {"ref": "v2", "ref_type": "tag"}, "github.create", {"ref": "v2"}),
        ("something_new", {"action": "done"}, "github.something_new.done", {}),
    ],
)
def test_the_event_type_contains_event_and_action(
    kind: str, body: dict[str, Any], event_type: str, members: dict[str, Any]
) -> None:
    """Also for unknown events."""
    (event,) = handle(kind, body)["events"]

    assert event["type"] == event_type
    assert {key: event["payload"][key] for key in members} == members


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("push", {}),
        ("push", {"ref": 7, "commits": {}, "repository": [], "sender": "x", "head_commit": None}),
        ("pull_request", {"action": {"a": 1}, "pull_request": []}),
        ("pull_request", {"action": "../../x", "pull_request": {"number": "7", "head": 1}}),
        ("ping", {"zen": 7}),
    ],
)
def test_values_of_the_wrong_type_are_omitted(kind: str, body: dict[str, Any]) -> None:
    response = handle(kind, body)

    assert response["status"] == "ok", response
    assert response["events"][0]["type"] == f"github.{kind}"


@pytest.mark.parametrize("kind", ["", "a.b", "Push", "x" * 65, "push\n", None, 7, ["push"]])
def test_an_invalid_event_header_is_final(kind: Any) -> None:
    response = handle(kind, PUSH)

    assert (response["status"], response["retry"], response["events"]) == ("error", False, [])


@pytest.mark.parametrize(("delivery", "key"), [("x", "github:x"), (None, None), ("x" * 300, None), (7, None)])
def test_the_delivery_id_is_the_dedupe_key(delivery: Any, key: str | None) -> None:
    """An invalid id is not used."""
    assert handle("push", PUSH, delivery=delivery)["events"][0]["dedupe_key"] == key


@pytest.mark.parametrize(
    ("config", "emitted"),
    [
        ({"events": ["push"]}, 0),
        ({"events": ["pull_request"]}, 1),
        ({"events": ["pull_request.opened"]}, 1),
        ({"events": ["pull_request.closed"]}, 0),
        ({"events": ["pull_*"]}, 1),
        ({"repositories": ["octo/hello"]}, 1),
        ({"repositories": ["OCTO/*"]}, 1),
        ({"repositories": ["octo/other", "other/*"]}, 0),
    ],
)
def test_an_excluded_delivery_emits_no_event(config: dict[str, Any], emitted: int) -> None:
    """The job succeeds, and its result has the reason."""
    response = handle("pull_request", PULL, **config)

    assert (response["status"], len(response["events"])) == ("ok", emitted)


def test_include_body_false_omits_the_body() -> None:
    assert "body" not in handle("push", PUSH, include_body=False)["events"][0]["payload"]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"event": ["push"]}, "did you mean events?"),
        ({"events": "push"}, "events must be a list"),
        ({"events": [1]}, "events must be a list of strings"),
        ({"include_body": "no"}, "include_body must be a boolean"),
    ],
)
def test_an_invalid_configuration_exits_with_78(config: dict[str, Any], error: str) -> None:
    outcome = run_plugin("github_events", "health", config=config)

    assert outcome.code == 78
    assert error in outcome.response["error"]


@pytest.mark.parametrize("options", [("-S",), ("-I",)])
def test_the_plugin_runs_in_isolated_mode(options: tuple[str, ...]) -> None:
    """With `-I`, and without site-packages."""
    request = {"protocol": 2, "job_id": "j", "command": "health", "config": {}, "state": {}}

    response = run_raw("github_events", json.dumps(request).encode(), options=options).response
    assert response["result"] == "healthy (all events, all repositories)"
