"""The github_events plugin: a delivery of GitHub is one typed event, once."""

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
from tests.plugins.bundled import PLUGINS, ask, said
from tests.plugins.serving import Start

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
      forward_headers: [X-GitHub-Event, X-GitHub-Delivery]
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
    """GitHub's deliveries go to the plugin, its events to echo."""
    home.copy_plugin(PLUGINS / "github_events")
    home.copy_plugin(PLUGINS / "echo")
    home.write("tokens.yaml", f"tokens: [{{name: github, key: {SECRET}}}]\n")
    home.write("webhooks.yaml", ENDPOINT)
    home.add(PIPELINES)
    home.seal()
    return start()


def deliver(service: Service, kind: str, body: Mapping[str, Any], delivery: str) -> tuple[int, Any]:
    """As GitHub does it."""
    (line,) = [line for line in service.stderr if " is ready: " in line]
    parts = urlsplit(re.findall(r"http://[^,\s]+", line)[1])
    data = json.dumps(body).encode()
    signature = hmac.new(SECRET.encode(), data, hashlib.sha256).hexdigest()
    headers = {"X-GitHub-Event": kind, "X-GitHub-Delivery": delivery, "X-Hub-Signature-256": f"sha256={signature}"}
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)
    try:
        connection.request("POST", "/hook/github", data, {**headers, "Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def echoed(service: Service, kind: str, body: Mapping[str, Any], delivery: str) -> str:
    """What the pipeline that waits for the event says."""
    status, answer = deliver(service, kind, body, delivery)
    assert status == 202, answer
    status, tree = service.ask("GET", f"/job/{answer['job_id']}/tree?wait=30s")
    assert status == 200, tree
    (row,) = service.home.rows("SELECT id FROM job_queue WHERE parent_job_id = ?", answer["job_id"])
    return str(service.job(row["id"], wait="30s")["result"]["result"])


def test_deliveries_become_the_events_that_pipelines_wait_for(service: Service) -> None:
    """A push, a pull request and the first ping, from a signed delivery to the step of a pipeline."""
    assert echoed(service, "push", PUSH, "d-1") == f"echo: main {'b' * 40}"
    assert (
        echoed(service, "pull_request", PULL, "d-2") == "echo: octo/hello: pull_request opened fix #7 Fix – it (by cat)"
    )
    assert (
        echoed(service, "ping", {"zen": "Keep it simple.", "hook_id": 1}, "d-3")
        == "echo: GitHub: ping: Keep it simple."
    )


def test_a_delivery_without_its_kind_is_final_and_says_what_to_configure(service: Service) -> None:
    """As when somebody runs the plugin by hand."""
    job = service.run("github_events", "handle", PUSH)

    assert job["status"] == "failed"
    assert "forward_headers: [X-GitHub-Event, X-GitHub-Delivery]" in job["last_error"]


def handled(kind: Any, body: Mapping[str, Any], *, delivery: Any = "d-1", **config: Any) -> dict[str, Any]:
    headers = {"x-github-event": kind, "x-github-delivery": delivery}
    event = {"type": "webhook.github", "payload": body, "source": "webhook:/hook/github", "headers": headers}
    return ask("github_events", "handle", config=config, event=event).answer


def test_a_push_is_described() -> None:
    """The names that pipelines ask for, and the delivery as it was."""
    (event,) = handled("push", PUSH)["events"]

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
def test_the_type_names_event_and_action(
    kind: str, body: dict[str, Any], event_type: str, members: dict[str, Any]
) -> None:
    """Also for events that GitHub has not invented yet."""
    (event,) = handled(kind, body)["events"]

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
def test_a_body_of_another_shape_is_an_event_all_the_same(kind: str, body: dict[str, Any]) -> None:
    """What is not what it should be is left out; an action that is no word is no part of the type."""
    answer = handled(kind, body)

    assert answer["status"] == "ok", answer
    assert answer["events"][0]["type"] == f"github.{kind}"


@pytest.mark.parametrize("kind", ["", "a.b", "Push", "x" * 65, "push\n", None, 7, ["push"]])
def test_a_kind_that_is_no_word_is_final(kind: Any) -> None:
    """A header decides the type of an event, so it is held to what GitHub sends."""
    answer = handled(kind, PUSH)

    assert (answer["status"], answer["retry"], answer["events"]) == ("error", False, [])


@pytest.mark.parametrize(("delivery", "key"), [("x", "github:x"), (None, None), ("x" * 300, None), (7, None)])
def test_the_delivery_is_the_dedupe_key(delivery: Any, key: str | None) -> None:
    """Without a usable one there is none."""
    assert handled("push", PUSH, delivery=delivery)["events"][0]["dedupe_key"] == key


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
def test_what_is_not_wanted_is_no_event(config: dict[str, Any], emitted: int) -> None:
    """The job succeeds and says why nothing follows."""
    answer = handled("pull_request", PULL, **config)

    assert (answer["status"], len(answer["events"])) == ("ok", emitted)


def test_the_body_can_be_left_out() -> None:
    """Events stay small."""
    assert "body" not in handled("push", PUSH, include_body=False)["events"][0]["payload"]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"event": ["push"]}, "did you mean events?"),
        ({"events": "push"}, "events must be a list"),
        ({"events": [1]}, "events must be a list of texts"),
        ({"include_body": "no"}, "include_body must be a flag"),
    ],
)
def test_a_configuration_that_cannot_be_meant_ends_with_78(config: dict[str, Any], error: str) -> None:
    """`health` says it too."""
    outcome = ask("github_events", "health", config=config)

    assert outcome.code == 78
    assert error in outcome.answer["error"]


@pytest.mark.parametrize("options", [("-S",), ("-I",)])
def test_it_runs_with_nothing_but_the_standard_library(options: tuple[str, ...]) -> None:
    """Isolated, and without site-packages."""
    request = {"protocol": 2, "job_id": "j", "command": "health", "config": {}, "state": {}}

    answer = said("github_events", json.dumps(request).encode(), options=options).answer
    assert answer["result"] == "github_events is well: all events, all repositories"
