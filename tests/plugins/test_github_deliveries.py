"""github_events with real deliveries: the common keys have the expected values."""

from typing import Any

import pytest
import yaml

from ductile.devkit.checks.schemas import full_schema, schema_violations
from tests.plugins.bundled import PLUGINS, run_plugin

WEB = "https://github.com/octo/hello"
ORIGIN: dict[str, Any] = {
    "repository": {"id": 1296269, "full_name": "octo/hello", "private": False, "default_branch": "main"},
    "sender": {"login": "cat", "id": 1, "type": "User"},
}
PULL = {
    "number": 7,
    "title": "Fix it",
    "state": "open",
    "html_url": f"{WEB}/pull/7",
    "head": {"ref": "fix", "sha": "b" * 40},
    "base": {"ref": "main", "sha": "a" * 40},
}
ISSUE = {"number": 3, "title": "It is broken", "state": "open", "html_url": f"{WEB}/issues/3", "labels": []}
RUN = {"id": 30433642, "name": "Build", "head_branch": "main", "head_sha": "b" * 40, "status": "completed"}
DELIVERIES: list[tuple[str, dict[str, Any], str, dict[str, Any], str]] = [
    (
        "push",
        {"ref": "refs/tags/v1", "before": "0" * 40, "after": "b" * 40, "commits": [], "head_commit": None},
        "github.push",
        {"tag": "v1", "commits": 0},
        "octo/hello: push (by cat)",
    ),
    (
        "pull_request",
        {"action": "closed", "number": 7, "pull_request": {**PULL, "state": "closed", "merged": True}},
        "github.pull_request.closed",
        {"number": 7, "merged": True, "branch": "fix", "state": "closed"},
        "octo/hello: pull_request closed fix #7 Fix it (by cat)",
    ),
    (
        "pull_request_review",
        {"action": "submitted", "review": {"id": 80, "state": "approved", "body": None}, "pull_request": PULL},
        "github.pull_request_review.submitted",
        {"number": 7, "title": "Fix it"},
        "octo/hello: pull_request_review submitted fix #7 Fix it (by cat)",
    ),
    (
        "issues",
        {"action": "labeled", "issue": ISSUE, "label": {"name": "bug"}},
        "github.issues.labeled",
        {"number": 3, "url": f"{WEB}/issues/3"},
        "octo/hello: issues labeled #3 It is broken (by cat)",
    ),
    (
        "issue_comment",
        {"action": "created", "issue": ISSUE, "comment": {"id": 9, "body": "me too"}},
        "github.issue_comment.created",
        {"number": 3, "title": "It is broken"},
        "octo/hello: issue_comment created #3 It is broken (by cat)",
    ),
    (
        "release",
        {"action": "published", "release": {"tag_name": "v1.2", "name": "One two", "html_url": f"{WEB}/releases/v1.2"}},
        "github.release.published",
        {"tag": "v1.2", "title": "One two"},
        "octo/hello: release published One two (by cat)",
    ),
    (
        "workflow_run",
        {"action": "completed", "workflow_run": {**RUN, "display_title": "Fix it", "conclusion": "failure"}},
        "github.workflow_run.completed",
        {"conclusion": "failure", "branch": "main", "state": "completed", "title": "Fix it"},
        "octo/hello: workflow_run completed main Fix it (by cat)",
    ),
    (
        "workflow_job",
        {"action": "in_progress", "workflow_job": {**RUN, "status": "in_progress", "conclusion": None}},
        "github.workflow_job.in_progress",
        {"state": "in_progress", "title": "Build"},
        "octo/hello: workflow_job in_progress main Build (by cat)",
    ),
    (
        "check_run",
        {"action": "completed", "check_run": {"name": "lint", "status": "completed", "conclusion": "success"}},
        "github.check_run.completed",
        {"title": "lint", "conclusion": "success"},
        "octo/hello: check_run completed lint (by cat)",
    ),
    (
        "create",
        {"ref": "feature/a", "ref_type": "branch", "master_branch": "main", "pusher_type": "user"},
        "github.create",
        {"ref": "feature/a", "branch": "feature/a"},
        "octo/hello: create feature/a (by cat)",
    ),
    (
        "delete",
        {"ref": "v0", "ref_type": "tag", "pusher_type": "user"},
        "github.delete",
        {"ref": "v0", "tag": "v0"},
        "octo/hello: delete (by cat)",
    ),
    (
        "status",
        {"sha": "b" * 40, "state": "success", "context": "ci/build", "target_url": f"{WEB}/ci", "branches": []},
        "github.status",
        {"state": "success", "title": "ci/build", "url": f"{WEB}/ci"},
        "octo/hello: status ci/build (by cat)",
    ),
    (
        "deployment_status",
        {"action": "created", "deployment_status": {"state": "failure"}, "deployment": {"ref": "main"}},
        "github.deployment_status.created",
        {"state": "failure"},
        "octo/hello: deployment_status created (by cat)",
    ),
    ("star", {"action": "deleted", "starred_at": None}, "github.star.deleted", {}, "octo/hello: star deleted (by cat)"),
    ("fork", {"forkee": {"full_name": "dog/hello"}}, "github.fork", {}, "octo/hello: fork (by cat)"),
    (
        "dependabot_alert",
        {"action": "created", "alert": {"number": 2, "state": "open", "html_url": f"{WEB}/security/dependabot/2"}},
        "github.dependabot_alert.created",
        {"number": 2, "state": "open"},
        "octo/hello: dependabot_alert created #2 (by cat)",
    ),
]


@pytest.mark.parametrize(("kind", "body", "type_", "expected", "text"), DELIVERIES, ids=[row[0] for row in DELIVERIES])
def test_a_delivery_becomes_an_event_with_common_keys(
    kind: str, body: dict[str, Any], type_: str, expected: dict[str, Any], text: str
) -> None:
    """Also with a summary, and as the manifest declares."""
    headers = {"x-github-event": kind, "x-github-delivery": f"72d3162e-{kind}"}
    event = {"type": "webhook.received", "payload": {**ORIGIN, **body}, "headers": headers}
    (emitted,) = run_plugin("github_events", "handle", event=event).response["events"]
    manifest = yaml.safe_load((PLUGINS / "github_events" / "manifest.yaml").read_text())
    payload = emitted["payload"]

    assert (emitted["type"], emitted["dedupe_key"], payload["text"]) == (type_, f"github:72d3162e-{kind}", text)
    assert {key: payload.get(key) for key in expected} == expected
    assert payload["body"] == event["payload"]
    assert list(schema_violations(full_schema(manifest["commands"][0]["output_schema"]), payload)) == []
