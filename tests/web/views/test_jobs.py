"""Jobs and runs as JSON: what is told, by which rules, and that a plugin's answer passes through untouched."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ductile.core.model import AttemptStatus, Job, JobStatus
from ductile.ledger.reports.job_details import JobBrief, LoggedAttempt
from ductile.ledger.reports.trees import TreeNode
from ductile.web.views.jobs import LONGEST_OUTPUT, attempt_text, job_text, listed_job, run_text, tree_text

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def a_node(step: str, status: str = "succeeded", result: str | None = None, **values: Any) -> TreeNode:
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


def ends(job: Job) -> bool:
    """Runs may end with steps that are called so."""
    return (job.step_id or "").startswith("end")


def run(*nodes: TreeNode) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run_text(nodes, "p", ends))
    return content


@pytest.mark.parametrize(
    ("nodes", "status"),
    [
        ([a_node("a")], "succeeded"),
        ([a_node("a"), a_node("b", "skipped")], "succeeded"),
        ([a_node("a", "failed"), a_node("b")], "failed"),
        ([a_node("a", "dead"), a_node("b")], "dead"),
        ([a_node("a", "dead"), a_node("b", "failed")], "failed"),
        ([a_node("a", "failed"), a_node("b", "dead")], "dead"),
        ([a_node("a", "failed", tolerated=True)], "succeeded"),
        ([a_node("a", "failed", tolerated=True), a_node("b", "dead"), a_node("c", "dead", tolerated=True)], "dead"),
    ],
)
def test_a_run_is_what_its_last_intolerable_failure_is(nodes: list[TreeNode], status: str) -> None:
    """A failure that the author tolerates does not count."""
    assert run(*nodes)["status"] == status


@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        ([a_node("a", result='{"n":1}')], {"n": 1}),
        ([a_node("a", result='{"n":1}'), a_node("end", result='{"n":2}'), a_node("b", result='{"n":3}')], {"n": 2}),
        ([a_node("end 1", result='{"n":1}'), a_node("end 2", result='{"n":2}')], {"n": 2}),
        ([a_node("a", result='{"n":1}'), a_node("end", "dead")], None),
        ([a_node("a", result='{"n":1}'), a_node("end", "failed", '{"status":"error"}')], {"status": "error"}),
        ([a_node("a", result='{"n":1}'), a_node("end", "failed", "no JSON")], None),
        ([a_node("end", result='{"n":1}'), a_node("end", result='{"n":2}', pipeline="q")], {"n": 1}),
    ],
)
def test_the_result_is_that_of_the_last_job_with_which_the_run_may_end(nodes: list[TreeNode], result: Any) -> None:
    """Else that of the root; runs that were triggered on the way have ends of their own."""
    assert run(*nodes)["result"] == result


def test_a_plugins_answer_passes_through_as_it_was_written() -> None:
    """Numbers, order and blanks are the plugin's own."""
    result = '{"status": "ok",  "n": 9007199254740993, "x": 1.0, "result": "é"}'

    text = run_text([a_node("end", result=result)], "p", ends)

    assert text.count(result) == 2, "as the result of the run and in its tree"


def test_what_is_no_answer_is_output() -> None:
    """Printed text is shown as text, and not without end."""
    long = "x" * (LONGEST_OUTPUT + 1)
    nodes = [a_node("a", "failed", "oops"), a_node("b", "failed", "[1]"), a_node("c", "failed", long)]

    shown = json.loads(tree_text(nodes, ends))

    assert [node["output"] for node in shown] == ["oops", "[1]", long[:LONGEST_OUTPUT]]
    assert not any("result" in node for node in shown)


def test_what_does_not_apply_is_left_out() -> None:
    """A queued job has no times, a job outside of every run no pipeline."""
    (shown,) = json.loads(tree_text([a_node("a", "queued", pipeline=None, step_id=None)], ends))

    assert set(shown) == {"job_id", "plugin", "command", "status", "attempt", "created_at"}


@pytest.mark.parametrize(("status", "marked"), [("failed", True), ("dead", True), ("succeeded", None)])
def test_only_a_failure_can_be_tolerated(status: str, marked: bool | None) -> None:
    """That a step may fail is no news where it did not."""
    (shown,) = json.loads(tree_text([a_node("a", status, tolerated=True)], ends))

    assert shown.get("tolerated") is marked


def test_a_run_lasts_from_its_root_to_its_last_end() -> None:
    """`duration_ms` counts waiting too."""
    late = NOW + timedelta(milliseconds=1234)
    nodes = [a_node("a", completed_at=NOW), a_node("b", started_at=NOW, completed_at=late), a_node("c")]

    shown = run(*nodes)

    assert (shown["duration_ms"], shown["tree"][1]["duration_ms"]) == (1234, 1234)


def test_a_clock_that_was_set_back_makes_no_negative_duration() -> None:
    """Zero is the least."""
    early = NOW - timedelta(seconds=1)

    shown = run(a_node("a", started_at=NOW, completed_at=early))

    assert (shown["duration_ms"], shown["tree"][0]["duration_ms"]) == (0, 0)


def test_one_job_tells_its_step_and_what_it_writes() -> None:
    """`stderr` is there while it runs."""
    brief = JobBrief(job=a_node("a", "running").job, result=None)

    shown = json.loads(job_text(brief, "so far"))

    assert (shown["pipeline"], shown["step_id"], shown["stderr"]) == ("p", "a", "so far")


RESULTS = {"result", "output", "last_error", "stderr"}


def test_without_results_a_job_is_only_where_it_is() -> None:
    """Neither its answer nor what it printed, its error or its stderr."""
    for result in ('{"n":1}', "no JSON"):
        job = a_node("a", "failed", last_error="no").job
        brief = JobBrief(job=job, result=result)
        assert RESULTS & json.loads(job_text(brief, "so far")).keys() > {"last_error", "stderr"}
        assert not RESULTS & json.loads(job_text(brief, "so far", shows_result=False)).keys()
        node = TreeNode(job=job, result=result)
        assert not RESULTS & json.loads(tree_text([node], ends, shows_result=False))[0].keys()
        assert RESULTS & listed_job(job, shows_result=True).keys() == {"last_error"}
        assert not RESULTS & listed_job(job, shows_result=False).keys()


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
def test_an_attempt_shows_what_it_left(result: tuple[str | None, bool] | None, shown: dict[str, Any]) -> None:
    """An answer as it is, other text as text; what is too long for a list is only mentioned."""
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
    told = json.loads(attempt_text(attempt, result, shows_result=True))
    assert {name: told[name] for name in told.keys() & {"result", "output", "result_omitted"}} == shown
    assert (told["duration_ms"], told["signal"], told["stderr"]) == (1500, 9, "ouch")
    assert "exit_code" not in told
    assert not RESULTS & json.loads(attempt_text(attempt, None, shows_result=False)).keys()
