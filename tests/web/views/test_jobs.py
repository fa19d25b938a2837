"""Jobs, attempts, trees and runs as JSON."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import evolve

from ductile.core.clock import to_text
from ductile.core.model import AttemptStatus, Job, JobStatus
from ductile.ledger.reports import job_list
from ductile.ledger.reports.job_details import JobBrief, LoggedAttempt
from ductile.ledger.reports.trees import TreeNode
from ductile.web.views.jobs import (
    MAX_OUTPUT_CHARS,
    ListedJobView,
    attempt_json,
    job_json,
    job_list_view,
    run_json,
    tree_json,
)

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def make_node(step: str, status: str = "succeeded", result: str | None = None, **values: Any) -> TreeNode:
    job = Job(
        id=f"job of {step}",
        plugin="a",
        command="handle",
        status=JobStatus(status),
        attempt=1,
        max_attempts=4,
        submitted_by="api",
        created_at=NOW,
        **{"pipeline": "p", "step_id": step, **values},
    )
    return TreeNode(job=job, result=result)


def is_terminal(job: Job) -> bool:
    """Treat steps whose name starts with `end` as terminal."""
    return (job.step_id or "").startswith("end")


def run_view(*nodes: TreeNode) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run_json(nodes, "p", is_terminal))
    return content


@pytest.mark.parametrize(
    ("nodes", "status"),
    [
        ([make_node("a")], "succeeded"),
        ([make_node("a"), make_node("b", "skipped")], "succeeded"),
        ([make_node("a", "failed"), make_node("b")], "failed"),
        ([make_node("a", "dead"), make_node("b")], "dead"),
        ([make_node("a", "dead"), make_node("b", "failed")], "failed"),
        ([make_node("a", "failed"), make_node("b", "dead")], "dead"),
        ([make_node("a", "failed", tolerated=True)], "succeeded"),
        (
            [make_node("a", "failed", tolerated=True), make_node("b", "dead"), make_node("c", "dead", tolerated=True)],
            "dead",
        ),
    ],
)
def test_a_run_has_the_status_of_its_last_failure(nodes: list[TreeNode], status: str) -> None:
    """Tolerated failures do not count."""
    assert run_view(*nodes)["status"] == status


@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        ([make_node("a", result='{"n":1}')], {"n": 1}),
        (
            [make_node("a", result='{"n":1}'), make_node("end", result='{"n":2}'), make_node("b", result='{"n":3}')],
            {"n": 2},
        ),
        ([make_node("end 1", result='{"n":1}'), make_node("end 2", result='{"n":2}')], {"n": 2}),
        ([make_node("a", result='{"n":1}'), make_node("end", "dead")], None),
        ([make_node("a", result='{"n":1}'), make_node("end", "failed", '{"status":"error"}')], {"status": "error"}),
        ([make_node("a", result='{"n":1}'), make_node("end", "failed", "no JSON")], None),
        ([make_node("end", result='{"n":1}'), make_node("end", result='{"n":2}', pipeline="q")], {"n": 1}),
    ],
)
def test_the_result_of_a_run_is_that_of_its_last_terminal_job(nodes: list[TreeNode], result: Any) -> None:
    """Or that of the root job. Terminal jobs of other pipelines in the tree do not count."""
    assert run_view(*nodes)["result"] == result


def test_the_response_of_a_plugin_is_copied_unchanged() -> None:
    """Including numbers, member order and whitespace."""
    result = '{"status": "ok",  "n": 9007199254740993, "x": 1.0, "result": "é"}'

    text = run_json([make_node("end", result=result)], "p", is_terminal)

    assert text.count(result) == 2, "once as the result of the run, once in its tree"


def test_a_result_that_is_not_an_object_is_shown_as_truncated_output() -> None:
    long = "x" * (MAX_OUTPUT_CHARS + 1)
    nodes = [make_node("a", "failed", "oops"), make_node("b", "failed", "[1]"), make_node("c", "failed", long)]

    shown = json.loads(tree_json(nodes, is_terminal))

    assert [node["output"] for node in shown] == ["oops", "[1]", long[:MAX_OUTPUT_CHARS]]
    assert not any("result" in node for node in shown)


def test_members_that_do_not_apply_are_omitted() -> None:
    """A queued job has no times; a job without a run has no pipeline."""
    (shown,) = json.loads(tree_json([make_node("a", "queued", pipeline=None, step_id=None)], is_terminal))

    assert set(shown) == {"job_id", "plugin", "command", "status", "attempt", "created_at"}


@pytest.mark.parametrize(("status", "marked"), [("failed", True), ("dead", True), ("succeeded", None)])
def test_only_a_failure_is_marked_as_tolerated(status: str, marked: bool | None) -> None:
    (shown,) = json.loads(tree_json([make_node("a", status, tolerated=True)], is_terminal))

    assert shown.get("tolerated") is marked


def test_the_duration_of_a_run_is_from_its_creation_to_its_last_completion() -> None:
    """`duration_ms` includes waiting time."""
    late = NOW + timedelta(milliseconds=1234)
    nodes = [make_node("a", completed_at=NOW), make_node("b", started_at=NOW, completed_at=late), make_node("c")]

    shown = run_view(*nodes)

    assert (shown["duration_ms"], shown["tree"][1]["duration_ms"]) == (1234, 1234)


def test_a_duration_is_not_negative_after_the_clock_was_set_back() -> None:
    early = NOW - timedelta(seconds=1)

    shown = run_view(make_node("a", started_at=NOW, completed_at=early))

    assert (shown["duration_ms"], shown["tree"][0]["duration_ms"]) == (0, 0)


def test_a_running_job_has_its_step_and_stderr() -> None:
    brief = JobBrief(job=make_node("a", "running").job, result=None)

    shown = json.loads(job_json(brief, "so far"))

    assert (shown["pipeline"], shown["step_id"], shown["stderr"]) == ("p", "a", "so far")


def test_a_job_names_what_started_it() -> None:
    job = evolve(make_node("a").job, schedule_id="nightly", slot_at=NOW, source_event_id="e", replay_of="r")

    shown = json.loads(job_json(JobBrief(job=job, result=None), None))

    started_by = [shown[name] for name in ("schedule_id", "slot_at", "source_event_id", "replay_of")]
    assert started_by == ["nightly", to_text(NOW), "e", "r"]


RESULTS = {"result", "output", "last_error", "stderr"}


def test_without_the_result_scope_results_errors_and_stderr_are_omitted() -> None:
    for result in ('{"n":1}', "no JSON"):
        job = make_node("a", "failed", last_error="no").job
        brief = JobBrief(job=job, result=result)
        assert RESULTS & json.loads(job_json(brief, "so far")).keys() > {"last_error", "stderr"}
        assert not RESULTS & json.loads(job_json(brief, "so far", shows_result=False)).keys()
        node = TreeNode(job=job, result=result)
        assert not RESULTS & json.loads(tree_json([node], is_terminal, shows_result=False))[0].keys()
        assert RESULTS & job_list_view(job, shows_result=True).keys() == {"last_error"}
        assert not RESULTS & job_list_view(job, shows_result=False).keys()


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, {}),
        ((None, False), {}),
        ((None, True), {"result_omitted": True}),
        (('{"n": 1.0}', True), {"result": {"n": 1.0}}),
        (("[1]", True), {"output": "[1]"}),
        (("no JSON", True), {"output": "no JSON"}),
    ],
)
def test_an_attempt_shows_its_result(result: tuple[str | None, bool] | None, shown: dict[str, Any]) -> None:
    """A JSON object as `result`, other text as `output`; a result that is too large is only marked."""
    attempt = LoggedAttempt(
        seq=1,
        id="j-1",
        job_id="j",
        plugin="a",
        command="poll",
        attempt=1,
        status=AttemptStatus.FAILED,
        job_status=JobStatus.QUEUED,
        submitted_by="api",
        created_at=NOW,
        started_at=None,
        completed_at=NOW,
        duration=timedelta(milliseconds=1500),
        exit_code=None,
        signal=9,
        last_error="killed",
        stderr="ouch",
        result=None,
    )
    view = json.loads(attempt_json(attempt, result, shows_result=True))
    assert {name: view[name] for name in view.keys() & {"result", "output", "result_omitted"}} == shown
    assert (view["duration_ms"], view["signal"], view["stderr"]) == (1500, 9, "ouch")
    assert "exit_code" not in view
    assert not RESULTS & json.loads(attempt_json(attempt, None, shows_result=False)).keys()


def test_a_row_of_the_job_list_has_the_members_of_a_listed_job() -> None:
    """`GET /jobs` sends the rows as they are."""
    assert {"job_id", *job_list.COLUMNS} - {"id"} == ListedJobView.__annotations__.keys()
