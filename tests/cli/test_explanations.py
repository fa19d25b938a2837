"""Explanations: `--json` of a command and the HTTP route have the same content."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Answer, Run, failures
from tests.cli.installation import Installation, make_installation
from tests.e2e.service import TOKEN

SAME = {
    "job why {dead}": "/job/{dead}/why",
    "job why {queued}": "/job/{queued}/why",
    "job why {run}": "/job/{run}/why",
    "job diagnose {dead}": "/job/{dead}/diagnosis",
    "job diagnose {run} --max-bytes 4000": "/job/{run}/diagnosis?max_bytes=4000",
    "queue list": "/queue",
    "queue list --plugin echo --limit 1": "/queue?plugin=echo&limit=1",
    "run list": "/runs",
    "run list --pipeline two-steps --status succeeded --limit 1": "/runs?pipeline=two-steps&status=succeeded&limit=1",
    "run show {run}": "/run/{run}",
    "run show {dead}": "/run/{dead}",
    "schedule why echo nightly": "/schedule/echo/nightly/why",
    "schedule why echo nightly --at 2026-01-02T02:30:00Z": "/schedule/echo/nightly/why?at=2026-01-02T02:30:00Z",
    "schedule agenda --from 2026-01-01T00:00:00Z --to 2026-12-31T00:00:00Z --limit 3": (
        "/schedules/agenda?from=2026-01-01T00:00:00Z&to=2026-12-31T00:00:00Z&limit=3"
    ),
    "pipeline list": "/pipelines",
    "pipeline show two-steps": "/pipeline/two-steps",
    "config history": "/config/snapshots",
    "config history --limit 1": "/config/snapshots?limit=1",
    "config diff {older} {newest}": "/config/diff?from={older}&to={newest}",
    "config plan": "/config/plan",
    "event why {event}": "/event/{event}/why",
    "event why --type begin --limit 2": "/events/why?type=begin&limit=2",
}
"""Command → the route with the same content."""
TOKENS = {
    "status": "jobs:status:ro",
    "jobs": "jobs:ro",
    "meta": "events:meta:ro",
    "tree": "jobs:tree:ro",
    "catalog": "plugin:catalog:ro",
}
"""Name of a token → its scope."""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    tokens = "\n      - ".join(
        f'{{name: {name}, token: {name}-{TOKEN}, scopes: ["{scope}"]}}' for name, scope in TOKENS.items()
    )
    there = make_installation(tmp_path_factory.mktemp("explanations"), more_tokens=tokens)
    _, run = there.service.ask("POST", "/pipeline/two-steps", {"payload": {"text": "hidden words"}})
    there.names["run"] = run["job_id"]
    assert there.service.ask("GET", f"/job/{run['job_id']}/tree?wait=20s")[0] == 200
    there.home.replace("two-steps, on: start", "two-steps, on: begin")
    there.home.seal()
    assert there.service.ask("POST", "/system/reload")[0] == 200
    rows = there.home.rows("SELECT id FROM config_snapshots ORDER BY loaded_at")
    there.names |= {"older": rows[0]["id"], "newest": rows[-1]["id"]}
    try:
        yield there
    finally:
        there.service.stop()


def ask(installation: Installation, path: str, *, token: str | None = None) -> Any:
    status, body = installation.service.ask("GET", path, token=f"{token}-{TOKEN}" if token else TOKEN)
    assert status == 200, (path, body)
    return body


def command(installation: Installation, run: Run, text: str) -> Answer:
    words = text.format_map(installation.names).split()
    return run(*words, "--json", "--config", installation.home.path)


def test_a_command_and_its_route_have_the_same_content(installation: Installation, run: Run) -> None:
    """Words can have the age of something, so the second of three answers is compared with the others."""

    def check(text: str) -> None:
        path = SAME[text].format_map(installation.names)
        before, answer, after = (ask(installation, path), command(installation, run, text), ask(installation, path))
        assert answer.exit_code == 0, answer
        moving = {"now"} if "agenda" in path else set()
        shown = [
            {name: value for name, value in one.items() if name not in moving} for one in (before, answer.json, after)
        ]
        assert shown[1] in (shown[0], shown[2])

    assert failures(SAME, check) == []


def test_the_route_of_the_health_has_the_reasons_of_the_status(installation: Installation, run: Run) -> None:
    """Words can have the age of something, so they are not compared."""
    health, status = ask(installation, "/system/health"), command(installation, run, "system status --no-health").json

    assert health["verdict"] == status["verdict"] == "attention"
    named = [[(one["code"], one["verdict"], one["fix"]) for one in view["reasons"]] for view in (health, status)]
    assert named[0] == named[1]
    assert all(one["words"] and one["fix"] for one in health["reasons"])


def test_an_invalid_argument_of_the_audit_is_a_bad_request(installation: Installation) -> None:
    for query in ("limit=x", "limit=0", "since=yesterday", "cursor=AAAA"):
        status, body = installation.service.ask("GET", f"/audit?{query}")
        assert (status, body["code"], "--help" in body["hint"]) == (400, "bad_request", False), query


TEXTS = ("no luck", "the disk is on fire", "hidden words")


def test_a_caller_without_the_scope_for_results_sees_codes_and_no_texts(installation: Installation) -> None:
    view = ask(installation, f"/job/{installation.names['dead']}/why", token="status")

    assert (view["reasons"][0]["code"], view["reasons"][0].get("words")) == ("retry_false", None)
    assert not [text for text in TEXTS if text in str(view)]
    assert "words" not in str(ask(installation, "/queue", token="status"))
    assert "no luck" in str(ask(installation, f"/job/{installation.names['dead']}/why", token="jobs"))


def test_a_caller_without_the_scope_for_payloads_sees_no_texts_of_an_event(installation: Installation) -> None:
    view = ask(installation, f"/event/{installation.names['event']}/why", token="meta")

    assert view["verdict"] in ("matched", "unmatched")
    assert not {"words", "type"} & view.keys()


def test_a_diagnosis_needs_the_scopes_for_all_it_shows(installation: Installation) -> None:
    """Requests, responses and stderr need `jobs:ro`; changes of the configuration need `system:ro`."""
    path = f"/job/{installation.names['job']}/diagnosis"
    assert installation.service.ask("GET", path, token=f"status-{TOKEN}")[0] == 403

    newest = installation.service.run("echo")["job_id"]
    assert "changes" in ask(installation, f"/job/{newest}/diagnosis")["since_last_success"]
    assert "changes" not in ask(installation, f"/job/{newest}/diagnosis", token="jobs")["since_last_success"]


def test_a_caller_without_the_scope_for_results_sees_no_errors_of_a_run(installation: Installation) -> None:
    path = f"/run/{installation.names['dead']}"
    assert "no luck" in str(ask(installation, path))
    assert not [text for text in TEXTS if text in str(ask(installation, path, token="tree"))]
    assert ask(installation, "/runs", token="status") == ask(installation, "/runs")


def test_a_run_is_selected_by_the_beginning_of_a_job_id(installation: Installation, run: Run) -> None:
    run_id = installation.names["run"]
    assert command(installation, run, f"run show {run_id[:23]}").json["run_id"] == run_id


def test_the_word_of_a_plugin_after_run_starts_a_job(installation: Installation, run: Run) -> None:
    """`ductile run PLUGIN` is a command of the original; `list` and `show` are actions."""
    answer = command(installation, run, "run echo --wait")
    assert (answer.exit_code, answer.json["plugin"], answer.json["status"]) == (0, "echo", "succeeded")


def test_a_caller_without_the_scope_for_the_system_sees_no_paths_of_files(installation: Installation) -> None:
    for path in ("/pipelines", "/pipeline/two-steps"):
        assert "config.yaml" in str(ask(installation, path))
        assert "config.yaml" not in str(ask(installation, path, token="catalog"))


def test_the_journal_without_payloads_has_no_texts(installation: Installation) -> None:
    path = f"/journal?job={installation.names['dead']}"
    assert "no luck" in str(ask(installation, path))
    rows = ask(installation, path, token="meta")["rows"]
    assert rows[0]["data"]["status"] == "failed"
    assert not [text for text in TEXTS if text in str(rows)]


def test_the_journal_is_filtered_by_kinds(installation: Installation) -> None:
    rows = ask(installation, "/journal?kind=queue.paused&kind=event.*")["rows"]
    assert {row["kind"] for row in rows} == {"queue.paused", "event.unmatched"}
    status, body = installation.service.ask("GET", "/journal?kind=queue.pausd")
    assert (status, "queue.paused" in body["error"]) == (400, True)


def test_two_configurations_are_compared(installation: Installation) -> None:
    """Without ids, the newest with the one before. The beginning of an id is enough if it is unique."""
    newest, older = installation.names["newest"], installation.names["older"]
    view = ask(installation, "/config/diff")
    assert view["config"] == [{"path": "pipelines[two-steps].on", "before": "start", "after": "begin"}]
    assert (view["from"]["snapshot_id"], view["to"]["snapshot_id"], view["plugins"]) == (older, newest, {})
    assert ask(installation, f"/config/diff?from={older[:12]}&to={newest}") == view


def test_a_configuration_on_record_is_compared_with_the_files_on_disk(installation: Installation, run: Run) -> None:
    """Also a plugin that has changed is named."""
    assert command(installation, run, "config diff").json["config"] == []
    view = command(installation, run, "config diff {older}").json
    assert (view["to"]["snapshot_id"], [one["after"] for one in view["config"]]) == (None, ["begin"])


def test_an_invalid_time_is_refused(installation: Installation) -> None:
    """Times at the end of the calendar are no errors."""
    paths = {
        "/schedule/echo/nightly/why?at=yesterday": 400,
        "/schedules/agenda?from=2026-01-02&to=2026-01-01": 400,
        "/schedules/agenda?limit=0": 400,
        "/schedule/echo/nightly/why?at=0001-01-01": 200,
        "/schedule/echo/nightly/why?at=9999-12-31": 200,
        "/schedules/agenda?to=9999-12-31": 400,
        "/schedules/agenda?from=9999-12-31": 200,
        "/schedules/agenda?to=0001-01-01": 200,
    }
    assert {path: installation.service.ask("GET", path)[0] for path in paths} == paths


def test_an_unknown_subject_is_not_found(installation: Installation) -> None:
    no_job = "00000000-0000-7000-8000-000000000000"
    paths = (
        f"/job/{no_job}/why",
        f"/job/{no_job}/diagnosis",
        f"/run/{no_job}",
        "/event/none/why",
        "/events/why?type=none",
    )
    found = {path: installation.service.ask("GET", path)[0] for path in paths}
    assert found == dict.fromkeys(paths, 404)
